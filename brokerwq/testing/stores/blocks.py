"""Connections of the user's own: ``processed``, and messages that go with a transaction."""

from __future__ import annotations

from contextlib import suppress

from brokerwq.clock import SYSTEM_CLOCK
from brokerwq.errors import ConfigError, StoreError
from brokerwq.idempotency.block import (
    KeyBusyError,
    PayloadMismatchError,
    processed,
)
from brokerwq.idempotency.borrowed import put_out
from brokerwq.idempotency.keys import digest_of
from brokerwq.idempotency.store import TransactionAbortedError
from brokerwq.message import Message
from brokerwq.testing.stores.bench import Own, StoreBench
from brokerwq.testing.stores.catalogue import check
from brokerwq.testing.stores.outbox import Sent
from brokerwq.testing.stores.records import LONG
from brokerwq.testing.stores.transactions import REFUSED


async def work(own: Own, key: object, n: int = 1) -> bool:
    """Whether it was done now."""
    async with processed(own.tx, key, scope="invoices") as done:
        if done.duplicate:
            return False
        await own.write(n)
        return True


async def do_raise(own: Own) -> None:
    """A block that fails."""
    async with processed(own.tx, "a"):
        await own.write(1)
        raise KeyError


@check("work")
async def the_second_time_it_is_a_duplicate(bench: StoreBench) -> None:
    """And leaves no transaction behind."""
    async with bench.db.own() as own:
        assert await work(own, ["order", 7])
        assert not await work(own, ["order", 7])
        assert await work(own, ["order", 8], 2)

    assert await bench.db.effects() == [1, 2]


@check("work")
async def an_exception_takes_back_work_and_mark(bench: StoreBench) -> None:
    """So that it can be done again."""
    async with bench.db.own() as own:
        with suppress(KeyError):
            await do_raise(own)
        assert await bench.db.effects() == []
        async with processed(own.tx, "a") as done:
            assert not done.duplicate


@check("work")
async def in_an_open_transaction_its_owner_commits(bench: StoreBench) -> None:
    """The mark is part of it, for better or worse."""
    async with bench.db.own() as own:
        for end in ("ROLLBACK", "COMMIT"):
            await own.begin()
            assert await work(own, "a")
            await own.end(end)

        assert not await work(own, "a")
    assert await bench.db.effects() == [1]


@check("work")
async def a_result_can_be_kept(bench: StoreBench) -> None:
    """The duplicate is handed it."""
    async with bench.db.own() as own:
        async with processed(own.tx, "a", payload={"n": 1}) as done:
            await done.keep({"total": 3})

        async with processed(own.tx, "a", payload={"n": 1}) as done:
            assert (done.duplicate, done.result) == (True, '{"total":3}')


@check("work")
async def a_block_that_ends_its_transaction_is_found_out(bench: StoreBench) -> None:
    """By a raw COMMIT or ROLLBACK."""
    async with bench.db.own() as own:
        for n, word in enumerate(("COMMIT", "ROLLBACK")):
            try:
                async with processed(own.tx, word):
                    await own.write(n)
                    await own.run(word)
            except TransactionAbortedError:
                continue
            msg = f"{word} in a block passes"
            raise AssertionError(msg)


@check("work")
async def a_block_that_swallows_an_error_is_found_out(bench: StoreBench) -> None:
    """Where the error has spoilt the transaction."""
    is_found = False
    async with bench.db.own() as own:
        try:
            async with processed(own.tx, "a"):
                try:
                    await own.write(REFUSED)
                except Exception as exc:  # noqa: BLE001 -- a driver's own
                    assert not isinstance(exc, AssertionError), exc
        except TransactionAbortedError:
            is_found = True
        assert is_found == bench.db.aborts
        async with processed(own.tx, "a") as done:
            assert done.duplicate != bench.db.aborts


@check("work")
async def another_payload_is_refused(bench: StoreBench) -> None:
    """And the transaction is left."""
    async with bench.db.own() as own:
        async with processed(own.tx, "a", payload={"total": 1}):
            pass
        async with processed(own.tx, "a", payload={"total": 1}) as done:
            assert done.duplicate
        try:
            async with processed(own.tx, "a", payload={"total": 2}):
                pass
        except PayloadMismatchError:
            assert await work(own, "b")
        else:
            msg = "another payload passes"
            raise AssertionError(msg)


@check("work")
async def a_key_that_somebody_works_on_is_busy(bench: StoreBench) -> None:
    """For the rest of the lease."""
    async with bench.db.own() as own:
        async with processed(own.tx, "b"):
            pass
        (record,) = await bench.store.list(2, state=None, worker=None)
        key = int.from_bytes(digest_of(("processed", "processed"), "a"), "big")
        await bench.claimed(key, payload=record.payload, lease=LONG)
        try:
            async with processed(own.tx, "a"):
                pass
        except KeyBusyError as exc:
            assert 0 < exc.remaining <= LONG
        else:
            msg = "a key that is held passes"
            raise AssertionError(msg)


@check("work", "bare")
async def a_database_without_tables_says_what_to_do(bench: StoreBench) -> None:
    """By the command that makes them."""
    async with bench.db.own() as own:
        for table in ("brokerwq_key", "brokerwq_meta", "brokerwq_outbox"):
            await own.begin()
            await own.run(f"DROP TABLE {table}")
            await own.end("COMMIT")
        try:
            async with processed(own.tx, "a"):
                pass
        except StoreError as exc:
            assert "keys init" in str(exc), exc
        else:
            msg = "a database without tables passes"
            raise AssertionError(msg)


@check("work")
async def a_message_goes_with_a_transaction_of_ones_own(bench: StoreBench) -> None:
    """Sent if that is committed, and never without one."""
    sent = Sent()
    async with bench.db.own() as own:

        async def send(n: int) -> None:
            await put_out(own.tx, "q", Message(id=str(n), body=b"1"), 0.0, SYSTEM_CLOCK)

        try:
            await send(0)
        except ConfigError as exc:
            assert "no transaction" in str(exc), exc
        else:
            assert bench.db.implicit, "a message is put out without a transaction"
            await own.end("ROLLBACK")
        for n, end in ((1, "COMMIT"), (2, "ROLLBACK")):
            await own.begin()
            await send(n)
            await own.end(end)

    assert await bench.transactional.relay(sent, 10) == 1
    assert [each.message.id for each in sent] == ["1"]
