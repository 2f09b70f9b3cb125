"""Work and record in one transaction, and the guard before its end."""

from __future__ import annotations

from typing import Any

from brokerwq.errors import StoreError, StoreUnavailableError
from brokerwq.idempotency.record import (
    Busy,
    Claim,
    Claimed,
    Completed,
    Failed,
    Mismatch,
    OwnerLost,
    State,
)
from brokerwq.idempotency.store import (
    Transaction,
    TransactionAbortedError,
    TransactionalStore,
    TransactionConflictError,
)
from brokerwq.testing.stores.bench import StoreBench
from brokerwq.testing.stores.catalogue import NotApplicableError, check
from brokerwq.testing.stores.records import KEEP, LONG

REFUSED = 5000
"""The effects table takes no such number."""


async def marked(bench: StoreBench, claim: Claim | None = None) -> Transaction:
    """A transaction with the record of ``claim`` in it."""
    begun: Any = await bench.transactional.begin_marked(claim or bench.claim())
    kinds = Claimed | Busy | Completed | Failed | Mismatch | OwnerLost
    assert not isinstance(begun, kinds), begun
    return begun  # type: ignore[no-any-return]


async def refused_write(bench: StoreBench, transaction: Transaction) -> None:
    """A write that the database refuses."""
    try:
        await bench.db.write(transaction, REFUSED)
    except Exception as exc:  # noqa: BLE001 -- a driver's own
        assert "effects" in str(exc).lower() or "check" in str(exc).lower(), exc
    else:
        msg = "the effects table takes everything"
        raise AssertionError(msg)


@check("work")
async def the_store_is_a_transactional_one(bench: StoreBench) -> None:
    """It has all that ``TransactionalStore`` asks for."""
    assert isinstance(bench.store, TransactionalStore)


@check("work")
async def effect_and_record_are_committed_together(bench: StoreBench) -> None:
    """Nobody sees them before; everybody sees both afterwards."""
    transaction = await marked(bench)
    await bench.db.write(transaction, 1)
    await transaction.keep_result('"kept"')
    assert await bench.db.effects() == []
    assert await transaction.examine() == "sound"

    await transaction.commit()

    assert await bench.db.effects() == [1]
    assert await bench.transactional.begin_marked(bench.claim()) == Completed(result='"kept"')


@check("work")
async def effect_and_record_are_rolled_back_together(bench: StoreBench) -> None:
    """And rolling back twice is harmless."""
    transaction = await marked(bench)
    await bench.db.write(transaction, 1)

    await transaction.rollback()
    await transaction.rollback()

    assert await bench.db.effects() == []
    assert await bench.store.get(bench.claim().key) is None
    await (await marked(bench)).rollback()


@check("work")
async def a_second_copy_waits_and_then_knows(bench: StoreBench) -> None:
    """Busy while the first one's transaction is open; a duplicate afterwards."""
    other: Any = bench.again()
    transaction = await marked(bench)

    meanwhile = await other.begin_marked(bench.claim())
    await transaction.examine()
    await transaction.commit()
    afterwards = await other.begin_marked(bench.claim())

    assert isinstance(meanwhile, Busy), meanwhile
    assert afterwards == Completed(result=None)


@check("work")
async def another_payload_is_told_apart_in_transactions_too(bench: StoreBench) -> None:
    """As ``claim`` does."""
    transaction = await marked(bench)
    await transaction.commit()

    answer = await bench.transactional.begin_marked(bench.claim(payload=b"q" * 16))

    assert isinstance(answer, Mismatch), answer


@check("work")
async def an_expired_mark_is_none(bench: StoreBench) -> None:
    """As for ``claim``."""
    transaction = await marked(bench, bench.claim(retention=bench.lease))
    await transaction.commit()
    await bench.over()

    await (await marked(bench)).rollback()


@check("work")
async def a_failed_statement_that_the_handler_swallowed_is_found_out(bench: StoreBench) -> None:
    """Either the transaction is spoilt and says so, or the statement alone was taken back."""
    transaction = await marked(bench)
    await bench.db.write(transaction, 1)
    await refused_write(bench, transaction)

    soundness = await transaction.examine()
    if soundness == "sound":
        await transaction.commit()
    await transaction.rollback()

    record = await bench.store.get(bench.claim().key)
    done = record is not None and record.state is State.COMPLETED
    assert soundness == ("aborted" if bench.db.aborts else "sound"), soundness
    assert done != bench.db.aborts
    assert await bench.db.effects() == ([1] if done else [])


@check("work")
async def a_raw_commit_is_found_out(bench: StoreBench) -> None:
    """Whether or not the handler began another transaction after it."""
    for key, after in ((1, ""), (2, "BEGIN")):
        transaction = await marked(bench, bench.claim(key))
        await bench.db.write(transaction, key)
        await bench.db.run(transaction, "COMMIT")
        if after:
            await bench.db.run(transaction, after)

        assert await transaction.examine() == "escaped", after

        await transaction.rollback()
    assert await bench.db.effects() == [1, 2]


@check("work")
async def a_raw_rollback_is_found_out(bench: StoreBench) -> None:
    """Whether or not the handler began another transaction after it."""
    for key, after in ((1, ""), (2, "BEGIN")):
        transaction = await marked(bench, bench.claim(key))
        await bench.db.write(transaction, key)
        await bench.db.run(transaction, "ROLLBACK")
        if after:
            await bench.db.run(transaction, after)
            await bench.db.write(transaction, 9)

        assert await transaction.examine() == "aborted", after

        await transaction.rollback()
        assert await bench.store.get(bench.claim(key).key) is None
    assert await bench.db.effects() == []


@check("work")
async def habits_end_no_transaction(bench: StoreBench) -> None:
    """``commit()`` and the like are refused, do nothing, or are found out as an abort."""
    if not bench.db.habits:
        msg = "its connections have no such habits"
        raise NotApplicableError(msg)
    for key, (name, habit) in enumerate(bench.db.habits.items(), 1):
        transaction = await marked(bench, bench.claim(key))
        await bench.db.write(transaction, key)
        is_refused = False
        try:
            await habit(transaction)
        except Exception:  # noqa: BLE001 -- whatever the driver says
            is_refused = True
        before = await bench.db.effects()
        soundness = await transaction.examine()
        if soundness == "sound":
            await transaction.commit()
        await transaction.rollback()

        assert key not in before, f"{name} committed early"
        assert soundness != "escaped", name
        assert (key in await bench.db.effects()) == (soundness == "sound"), name
        assert is_refused or soundness in ("sound", "aborted"), name


@check("work")
async def a_savepoint_takes_back_its_own_part(bench: StoreBench) -> None:
    """And leaves the transaction sound."""
    transaction = await marked(bench)
    await bench.db.write(transaction, 1)
    try:
        async with transaction.savepoint():
            await bench.db.write(transaction, 2)
            await bench.db.write(transaction, REFUSED)
    except Exception as exc:  # noqa: BLE001 -- a driver's own
        assert not isinstance(exc, AssertionError), exc
    async with transaction.savepoint(), transaction.savepoint():
        await bench.db.write(transaction, 3)
    assert await transaction.examine() == "sound"

    await transaction.commit()

    assert await bench.db.effects() == [1, 3]


@check("work")
async def after_its_end_a_transaction_cannot_be_written_to(bench: StoreBench) -> None:
    """Its connection belongs to somebody else by then."""
    transaction = await marked(bench)
    await transaction.commit()

    try:
        _ = transaction.conn
    except RuntimeError as exc:
        assert "ended" in str(exc), exc
    else:
        msg = "the connection of a transaction that has ended is handed out"
        raise AssertionError(msg)


@check("work")
async def connections_come_back_whatever_happens(bench: StoreBench) -> None:
    """More transactions than connections, ended in all ways."""
    for n in range(30):
        transaction = await marked(bench, bench.claim(n))
        if n % 3 == 0:
            await bench.db.run(transaction, "ROLLBACK")
        elif n % 3 == 1:
            await bench.db.write(transaction, n)
        if await transaction.examine() == "sound":
            await transaction.commit()
        await transaction.rollback()

    assert len(await bench.db.effects()) == 10


@check("work")
async def a_lost_answer_to_commit_is_neither_success_nor_failure(bench: StoreBench) -> None:
    """It says that it does not know; the next claim finds out."""
    if bench.db.lose_commit is None:
        msg = "the bench cannot lose the answer to a commit"
        raise NotApplicableError(msg)
    transaction = await marked(bench)
    await bench.db.write(transaction, 1)
    assert await transaction.examine() == "sound"
    async with bench.db.lose_commit():
        try:
            await transaction.commit()
        except StoreUnavailableError:
            pass
        else:
            msg = "a commit without an answer passes for done"
            raise AssertionError(msg)
    await transaction.rollback()

    answer: object = None
    for _ in range(50):  # the connections of the pool have gone with the answer
        try:
            answer = await bench.transactional.begin_marked(bench.claim())
        except StoreUnavailableError:
            await bench.passes(0.1)
        else:
            break
    assert answer == Completed(result=None), answer
    assert await bench.db.effects() == [1]


@check("work")
async def a_commit_that_is_refused_is_a_failure(bench: StoreBench) -> None:
    """A constraint that is looked at by COMMIT: nothing is done, and that is known."""
    if bench.db.defer is None:
        msg = "the database looks at every constraint at once"
        raise NotApplicableError(msg)
    transaction = await marked(bench)
    await bench.db.write(transaction, 1)
    await bench.db.defer(transaction)
    assert await transaction.examine() == "sound"
    try:
        await transaction.commit()
    except StoreError as exc:
        msg = "a known failure passes for an unknown outcome"
        raise AssertionError(msg) from exc
    except TransactionAbortedError:
        pass
    await transaction.rollback()

    assert await bench.db.effects() == []
    await (await marked(bench)).rollback()


@check("work")
async def a_conflict_at_the_end_asks_for_the_whole_to_be_repeated(bench: StoreBench) -> None:
    """Serialization failures and deadlocks are told apart from other failures."""
    if bench.db.conflict is None:
        msg = "transactions of this database never conflict"
        raise NotApplicableError(msg)
    transaction = await marked(bench)
    await bench.db.write(transaction, 1)
    try:
        await bench.db.conflict(transaction)
    except Exception as exc:  # noqa: BLE001 -- a driver's own
        assert bench.transactional.is_conflict(exc), exc
        assert not bench.transactional.is_conflict(ValueError("x"))
    else:
        try:
            await transaction.commit()
        except TransactionConflictError:
            pass
        else:
            msg = "there was no conflict"
            raise AssertionError(msg)
    await transaction.rollback()

    assert await bench.db.effects() == []
    await (await marked(bench)).rollback()


# -- lease_tx ------------------------------------------------------------------------------


@check("work")
async def the_completing_statement_comes_first(bench: StoreBench) -> None:
    """Effect and completion are one, under a claim that was made before."""
    claim, _ = await bench.claimed(lease=LONG)

    transaction = await bench.transactional.begin_completing(claim.key, claim.owner, KEEP)
    assert transaction is not None
    await bench.db.write(transaction, 1)
    assert await transaction.examine() == "sound"
    await transaction.commit()

    assert await bench.db.effects() == [1]
    assert await bench.store.claim(bench.claim()) == Completed(result=None)


@check("work")
async def an_owner_that_was_taken_over_gets_no_transaction(bench: StoreBench) -> None:
    """What it did by then can never be committed."""
    early, _ = await bench.claimed()
    await bench.over()
    await bench.claimed(lease=LONG)

    assert await bench.transactional.begin_completing(early.key, early.owner, KEEP) is None


@check("work")
async def rolled_back_it_is_in_progress_as_before(bench: StoreBench) -> None:
    """The claim outlives the transaction."""
    claim, _ = await bench.claimed(lease=LONG)
    transaction = await bench.transactional.begin_completing(claim.key, claim.owner, KEEP)
    assert transaction is not None
    await bench.db.write(transaction, 1)

    await transaction.rollback()

    assert await bench.db.effects() == []
    assert await bench.store.release(claim.key, claim.owner)


@check("work")
async def a_claim_hears_busy_while_the_completing_transaction_is_open(bench: StoreBench) -> None:
    """Copies are put back, not failed, by a lock that a finishing owner holds."""
    claim, _ = await bench.claimed()
    transaction = await bench.transactional.begin_completing(claim.key, claim.owner, KEEP)
    await bench.db.write(transaction, 1)
    await bench.over()

    other: Any = bench.again()
    try:
        answer = await other.begin_marked(bench.claim())
    finally:
        await transaction.rollback()

    assert isinstance(answer, Busy), answer
