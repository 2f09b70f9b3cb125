"""Messages that are sent if and only if a transaction is committed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from brokerwq.clock import SYSTEM_CLOCK
from brokerwq.idempotency.store import Outgoing
from brokerwq.message import Message
from brokerwq.testing.stores.bench import StoreBench
from brokerwq.testing.stores.catalogue import check
from brokerwq.testing.stores.transactions import marked


def outgoing(n: int) -> Outgoing:
    """A message with everything in it, and ``n`` seconds of delay."""
    message = Message(id=f"child-{n}", body=b"\x00\xff", type="mail", headers={"a": "é"}, key="k")
    return Outgoing(queue="mails", message=message, delay=float(n))


class Sent(list[Outgoing]):
    """Keeps what it is given; refuses the ids in ``refused``."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: set[str] = set()

    async def __call__(self, batch: Sequence[Outgoing]) -> Sequence[bool]:
        """Send."""
        await SYSTEM_CLOCK.sleep(0.01)
        taken = [each.message.id not in self.refused for each in batch]
        self.extend(each for each, ok in zip(batch, taken, strict=True) if ok)
        return taken


async def put_out(bench: StoreBench, messages: Sequence[Outgoing]) -> None:
    """Commit ``messages`` into the outbox."""
    transaction = await marked(bench)
    await transaction.put_out(messages)
    await transaction.commit()


@check("work")
async def what_was_put_out_is_sent_once_it_is_committed(bench: StoreBench) -> None:
    """As it was, and once."""
    sent = Sent()
    await put_out(bench, [outgoing(0), outgoing(100)])

    assert await bench.transactional.relay(sent, 10) == 2

    assert [each.message for each in sent] == [outgoing(0).message, outgoing(100).message]
    assert sent[1].queue == "mails"
    assert abs(sent[1].delay - 100.0) < 5.0
    assert await bench.transactional.relay(sent, 10) == 0


@check("work")
async def what_was_rolled_back_is_never_sent(bench: StoreBench) -> None:
    """Nor seen."""
    transaction = await marked(bench)
    await transaction.put_out([outgoing(0)])
    await transaction.rollback()

    assert await bench.transactional.relay(Sent(), 10) == 0


@check("work")
async def what_cannot_be_sent_stays(bench: StoreBench) -> None:
    """And is sent when it can be."""
    sent = Sent()
    sent.refused = {"child-1"}
    await put_out(bench, [outgoing(0), outgoing(1)])

    assert await bench.transactional.relay(sent, 10) == 1
    sent.refused = set()
    assert await bench.transactional.relay(sent, 10) == 1

    assert [each.message.id for each in sent] == ["child-0", "child-1"]


@check("work")
async def relays_beside_each_other_send_each_message_once(bench: StoreBench) -> None:
    """None takes what another one is sending."""
    sent = Sent()
    await put_out(bench, [outgoing(n) for n in range(40)])
    stores: list[Any] = [bench.store, bench.again()]

    counts = await asyncio.gather(*(store.relay(sent, 5) for store in stores * 6))

    assert sum(counts) == len(sent) == 40, (counts, len(sent))
    assert len({each.message.id for each in sent}) == 40


@check("work")
async def a_relay_that_fails_leaves_the_rest_for_others(bench: StoreBench) -> None:
    """Whatever it failed of."""
    await put_out(bench, [outgoing(0)])

    async def fail(_batch: Sequence[Outgoing]) -> Sequence[bool]:
        msg = "unplugged"
        raise OSError(msg)

    try:
        await bench.transactional.relay(fail, 10)
    except OSError as exc:
        assert "unplugged" in str(exc), exc
    else:
        msg = "a relay that failed passes for done"
        raise AssertionError(msg)

    assert await bench.transactional.relay(Sent(), 10) == 1
