"""The broker's words on what was published, without a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from brokerwq_rabbitmq.confirms import Batch, Confirms, Said
from brokerwq_rabbitmq.frames import Arrival
from brokerwq_rabbitmq.table import Properties
from hypothesis import given
from hypothesis import strategies as st


def returned(id_: str) -> Arrival:
    arrival = Arrival(consumer="", tag=0, redelivered=False, exchange="", routing_key="nowhere")
    arrival.properties = Properties(values={"message_id": id_.encode()}).encode()
    return arrival


async def test_a_batch_is_done_when_each_of_its_messages_has_an_answer() -> None:
    confirms = Confirms()
    batch = confirms.expect(["a", "b", "c"])

    confirms.confirmed(2, multiple=False, is_stored=True)
    confirms.confirmed(1, multiple=False, is_stored=False)
    assert not batch.done.done()
    confirms.confirmed(3, multiple=False, is_stored=True)

    assert batch.done.done()
    assert batch.said == [Said.REFUSED, Said.STORED, Said.STORED]
    assert batch.failure is None


async def test_one_word_on_many_is_for_all_that_were_written_before() -> None:
    confirms = Confirms()
    first, second = confirms.expect(["a", "b"]), confirms.expect(["c", "d"])

    confirms.confirmed(3, multiple=True, is_stored=True)

    assert first.done.done()
    assert second.said == [Said.STORED, Said.NOTHING]


async def test_a_returned_message_is_not_stored_though_it_is_confirmed() -> None:
    confirms = Confirms()
    batch = confirms.expect(["a", "b"])

    confirms.returned(returned("b"))
    confirms.confirmed(2, multiple=True, is_stored=True)

    assert batch.said == [Said.STORED, Said.RETURNED]


async def test_a_return_that_nobody_waits_for_is_an_error_of_the_connection() -> None:
    confirms = Confirms()
    confirms.expect(["a"])

    with pytest.raises(ConnectionError, match="not under way"):
        confirms.returned(returned("b"))


async def test_an_id_is_under_way_until_it_is_confirmed() -> None:
    confirms = Confirms()
    batch = confirms.expect(["a"])

    assert confirms.under_way("a") is batch
    assert confirms.under_way("b") is None
    confirms.confirmed(1, multiple=False, is_stored=True)
    assert confirms.under_way("a") is None


async def test_the_end_of_the_channel_fails_what_is_under_way_and_what_comes_after() -> None:
    confirms, reason = Confirms(), ConnectionResetError("gone")
    batch = confirms.expect(["a", "b"])
    confirms.confirmed(1, multiple=False, is_stored=True)

    confirms.fail(reason)
    later = confirms.expect(["c"])

    assert batch.done.done()
    assert (batch.said, batch.failure) == ([Said.STORED, Said.NOTHING], reason)
    assert (later.done.done(), later.failure) == (True, reason)


async def test_nothing_is_written_between_the_brokers_close_and_its_reason() -> None:
    confirms = Confirms()
    confirms.ended()

    batch = confirms.expect(["a"])

    assert batch.done.done()
    assert isinstance(batch.failure, ConnectionError)


@given(st.lists(st.integers(0, 4), max_size=5), st.data())
def test_every_message_gets_the_word_that_was_said_of_it(
    sizes: list[int], data: st.DataObject
) -> None:
    async def run() -> None:
        confirms = Confirms()
        batches: list[Batch] = []
        wanted: dict[int, Said] = {}
        for nth, size in enumerate(sizes):
            batches.append(confirms.expect([f"{nth}-{place}" for place in range(size)]))
        total = sum(sizes)
        open_: list[int] = list(range(1, total + 1))
        while open_:
            tag = data.draw(st.sampled_from(open_))
            multiple, stored = data.draw(st.booleans()), data.draw(st.booleans())
            confirms.confirmed(tag, multiple=multiple, is_stored=stored)
            met = [n for n in open_ if n == tag or (multiple and n <= tag)]
            open_ = [n for n in open_ if n not in met]
            wanted.update(dict.fromkeys(met, Said.STORED if stored else Said.REFUSED))
        assert _flat(batches) == [wanted[n] for n in range(1, total + 1)]
        assert all(batch.done.done() for batch in batches)

    asyncio.run(run())


def _flat(batches: Sequence[Batch]) -> list[Said]:
    return [said for batch in batches for said in batch.said]
