"""What every store promises whose transactions work is done in."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from brokerwq import Message
from brokerwq.idempotency import State
from brokerwq.idempotency.record import Busy, Claim, Claimed, Completed, Failed, Mismatch
from brokerwq.idempotency.store import Outgoing, Transaction
from tests.idempotency.stores import Bench, a_claim

REFUSED = r"(?i)check|constraint"


async def marked(bench: Bench, claim: Claim | None = None) -> Transaction:
    begun: Any = await bench.store.begin_marked(claim or a_claim())
    assert not isinstance(begun, Claimed | Busy | Completed | Failed | Mismatch), begun
    return begun  # type: ignore[no-any-return]


async def write(bench: Bench, transaction: Transaction, n: int) -> None:
    assert bench.write is not None
    await bench.write(transaction.conn, n)


async def run(bench: Bench, transaction: Transaction, sql: str) -> None:
    assert bench.run is not None
    await bench.run(transaction.conn, sql)


async def effects(bench: Bench) -> list[int]:
    assert bench.effects is not None
    return await bench.effects()


async def test_effect_and_record_are_committed_together(tx_bench: Bench) -> None:
    transaction = await marked(tx_bench)
    await write(tx_bench, transaction, 1)
    await transaction.keep_result('"kept"')
    assert await effects(tx_bench) == []
    assert await transaction.examine() == "sound"

    await transaction.commit()

    assert await effects(tx_bench) == [1]
    assert await tx_bench.store.begin_marked(a_claim()) == Completed(result='"kept"')


async def test_effect_and_record_are_rolled_back_together(tx_bench: Bench) -> None:
    transaction = await marked(tx_bench)
    await write(tx_bench, transaction, 1)

    await transaction.rollback()
    await transaction.rollback()

    assert await effects(tx_bench) == []
    await (await marked(tx_bench)).rollback()


async def test_a_second_copy_waits_and_then_knows(tx_bench: Bench) -> None:
    other = tx_bench.again()
    transaction = await marked(tx_bench)

    meanwhile = await other.begin_marked(a_claim())
    await transaction.examine()
    await transaction.commit()
    afterwards = await other.begin_marked(a_claim())

    assert isinstance(meanwhile, Busy)
    assert afterwards == Completed(result=None)


async def test_another_payload_is_told_apart(tx_bench: Bench) -> None:
    transaction = await marked(tx_bench)
    await transaction.examine()
    await transaction.commit()

    assert isinstance(await tx_bench.store.begin_marked(a_claim(payload=b"q" * 16)), Mismatch)


async def test_an_expired_mark_is_none(tx_bench: Bench) -> None:
    transaction = await marked(tx_bench, a_claim(retention=0.3))
    await transaction.commit()
    await tx_bench.passes(0.4)

    await (await marked(tx_bench)).rollback()


async def test_a_failed_statement_that_the_handler_swallowed_is_found_out(
    tx_bench: Bench,
) -> None:
    transaction = await marked(tx_bench)
    await write(tx_bench, transaction, 1)
    with pytest.raises(Exception, match=REFUSED):
        await write(tx_bench, transaction, 5000)

    soundness = await transaction.examine()
    if soundness == "sound":
        await transaction.commit()
    await transaction.rollback()

    # SQLite takes back the statement alone, so that all the rest can be committed. Others
    # would answer COMMIT with a silent rollback.
    record = await tx_bench.store.get(a_claim().key)
    done = record is not None and record.state is State.COMPLETED
    assert await effects(tx_bench) == ([1] if done else [])
    assert soundness == ("sound" if done else "aborted")


@pytest.mark.parametrize("after", ["", "BEGIN"])
async def test_a_raw_commit_is_found_out(tx_bench: Bench, after: str) -> None:
    transaction = await marked(tx_bench)
    await write(tx_bench, transaction, 1)
    await run(tx_bench, transaction, "COMMIT")
    if after:
        await run(tx_bench, transaction, after)

    assert await transaction.examine() == "escaped"

    await transaction.rollback()
    assert await effects(tx_bench) == [1]


@pytest.mark.parametrize("after", ["", "BEGIN"])
async def test_a_raw_rollback_is_found_out(tx_bench: Bench, after: str) -> None:
    transaction = await marked(tx_bench)
    await write(tx_bench, transaction, 1)
    await run(tx_bench, transaction, "ROLLBACK")
    if after:
        await run(tx_bench, transaction, after)
        await write(tx_bench, transaction, 2)

    assert await transaction.examine() == "aborted"

    await transaction.rollback()
    assert await effects(tx_bench) == []
    assert await tx_bench.store.get(a_claim().key) is None


async def test_a_savepoint_takes_back_its_own_part(tx_bench: Bench) -> None:
    transaction = await marked(tx_bench)
    await write(tx_bench, transaction, 1)
    with pytest.raises(Exception, match=REFUSED):  # noqa: PT012 -- the block is what fails
        async with transaction.savepoint():
            await write(tx_bench, transaction, 2)
            await write(tx_bench, transaction, 5000)
    async with transaction.savepoint(), transaction.savepoint():
        await write(tx_bench, transaction, 3)
    assert await transaction.examine() == "sound"

    await transaction.commit()

    assert await effects(tx_bench) == [1, 3]


async def test_after_its_end_a_transaction_cannot_be_written_to(tx_bench: Bench) -> None:
    transaction = await marked(tx_bench)
    await transaction.commit()

    with pytest.raises(RuntimeError, match="ended"):
        _ = transaction.conn


async def test_connections_come_back_whatever_happens(tx_bench: Bench) -> None:
    for n in range(30):
        transaction = await marked(tx_bench, a_claim(n))
        if n % 3 == 0:
            await run(tx_bench, transaction, "ROLLBACK")
        elif n % 3 == 1:
            await write(tx_bench, transaction, n)
        if await transaction.examine() == "sound":
            await transaction.commit()
        await transaction.rollback()

    assert len(await effects(tx_bench)) == 10


# -- lease_tx ------------------------------------------------------------------------------


async def test_the_completing_statement_comes_first(tx_bench: Bench) -> None:
    claim = a_claim()
    await tx_bench.store.claim(claim)

    transaction = await tx_bench.store.begin_completing(claim.key, claim.owner, 1000.0)
    assert transaction is not None
    await write(tx_bench, transaction, 1)
    assert await transaction.examine() == "sound"
    await transaction.commit()

    assert await effects(tx_bench) == [1]
    assert await tx_bench.store.claim(a_claim()) == Completed(result=None)


async def test_an_owner_that_was_taken_over_gets_no_transaction(tx_bench: Bench) -> None:
    early = a_claim()
    await tx_bench.store.claim(early)
    await tx_bench.passes(0.4)
    await tx_bench.store.claim(a_claim(lease=30.0))

    assert await tx_bench.store.begin_completing(early.key, early.owner, 1000.0) is None


async def test_rolled_back_it_is_in_progress_as_before(tx_bench: Bench) -> None:
    claim = a_claim(lease=30.0)
    await tx_bench.store.claim(claim)
    transaction = await tx_bench.store.begin_completing(claim.key, claim.owner, 1000.0)
    assert transaction is not None
    await write(tx_bench, transaction, 1)

    await transaction.rollback()

    assert await effects(tx_bench) == []
    assert await tx_bench.store.release(claim.key, claim.owner)


# -- outbox --------------------------------------------------------------------------------


def outgoing(n: int) -> Outgoing:
    message = Message(id=f"child-{n}", body=b"\x00\xff", type="mail", headers={"a": "é"}, key="k")
    return Outgoing(queue="mails", message=message, delay=float(n))


class Sent(list[Outgoing]):
    """Keeps what it is given; refuses the ids in ``refused``."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: set[str] = set()

    async def __call__(self, batch: Sequence[Outgoing]) -> Sequence[bool]:
        await asyncio.sleep(0.01)
        taken = [each.message.id not in self.refused for each in batch]
        self.extend(each for each, ok in zip(batch, taken, strict=True) if ok)
        return taken


async def test_what_was_put_out_is_sent_once_it_is_committed(tx_bench: Bench) -> None:
    sent = Sent()
    transaction = await marked(tx_bench)
    await transaction.put_out([outgoing(0), outgoing(100)])
    await transaction.commit()

    assert await tx_bench.store.relay(sent, 10) == 2

    assert [each.message for each in sent] == [outgoing(0).message, outgoing(100).message]
    assert sent[1].queue == "mails"
    assert sent[1].delay == pytest.approx(100.0, abs=5.0)
    assert await tx_bench.store.relay(sent, 10) == 0


async def test_what_was_rolled_back_is_never_sent(tx_bench: Bench) -> None:
    transaction = await marked(tx_bench)
    await transaction.put_out([outgoing(0)])
    await transaction.rollback()

    assert await tx_bench.store.relay(Sent(), 10) == 0


async def test_what_cannot_be_sent_stays(tx_bench: Bench) -> None:
    sent = Sent()
    sent.refused = {"child-1"}
    transaction = await marked(tx_bench)
    await transaction.put_out([outgoing(0), outgoing(1)])
    await transaction.commit()

    assert await tx_bench.store.relay(sent, 10) == 1
    sent.refused = set()
    assert await tx_bench.store.relay(sent, 10) == 1

    assert [each.message.id for each in sent] == ["child-0", "child-1"]


async def test_relays_beside_each_other_send_each_message_once(tx_bench: Bench) -> None:
    sent = Sent()
    transaction = await marked(tx_bench)
    await transaction.put_out([outgoing(n) for n in range(40)])
    await transaction.commit()
    stores = [tx_bench.store, tx_bench.again()]

    counts = await asyncio.gather(*(store.relay(sent, 5) for store in stores * 6))

    assert sum(counts) == len(sent) == 40
    assert len({each.message.id for each in sent}) == 40


async def test_a_relay_that_fails_leaves_the_rest_for_others(tx_bench: Bench) -> None:
    transaction = await marked(tx_bench)
    await transaction.put_out([outgoing(0)])
    await transaction.commit()

    async def fail(_batch: Sequence[Outgoing]) -> Sequence[bool]:
        raise OSError("unplugged")

    with pytest.raises(OSError, match="unplugged"):
        await tx_bench.store.relay(fail, 10)

    assert await tx_bench.store.relay(Sent(), 10) == 1
