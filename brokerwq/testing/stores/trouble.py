"""Wrong clocks, spoilt records, missing tables and outages."""

from __future__ import annotations

from brokerwq.errors import StoreError, StoreUnavailableError
from brokerwq.idempotency.record import Busy, Claimed, Completed
from brokerwq.testing.stores.bench import StoreBench
from brokerwq.testing.stores.catalogue import NotApplicableError, check
from brokerwq.testing.stores.records import KEEP, LONG

TEN_MINUTES = 600.0


@check("skewed")
async def a_machine_whose_clock_is_off_steals_no_lease_and_forgets_nothing(
    bench: StoreBench,
) -> None:
    """Ten minutes ahead or behind, or as much as the store says that it bears."""
    assert bench.skewed is not None
    if bench.bears_skew <= 0:
        msg = "the store bears no difference between clocks"
        raise NotApplicableError(msg)
    skew = min(TEN_MINUTES, bench.bears_skew)
    done, _ = await bench.claimed(1)
    await bench.store.complete(done.key, done.owner, KEEP, '"kept"')
    await bench.claimed(2, lease=LONG)

    for key, seconds in ((3, skew), (4, -skew)):
        off = bench.skewed(seconds)
        assert await off.claim(bench.claim(1)) == Completed(result='"kept"'), seconds
        answer = await off.claim(bench.claim(2))
        assert isinstance(answer, Busy), (seconds, answer)
        theirs = await off.claim(bench.claim(key, lease=LONG))
        assert isinstance(theirs, Claimed), theirs
        answer = await bench.store.claim(bench.claim(key))
        assert isinstance(answer, Busy), (seconds, answer)
        assert await off.prune(10) == 0


@check("damage")
async def a_damaged_record_is_refused_and_can_be_forgotten(bench: StoreBench) -> None:
    """Neither taken for done nor for new; the others have nothing to do with it."""
    assert bench.damage is not None
    claim, _ = await bench.claimed(1)
    await bench.store.complete(claim.key, claim.owner, KEEP, None)
    await bench.damage(claim.key)

    try:
        answer: object = await bench.store.claim(bench.claim(1))
    except StoreUnavailableError:
        raise
    except StoreError as exc:
        assert "damaged" in str(exc), exc
    else:
        msg = f"a damaged record was answered as {answer}"
        raise AssertionError(msg)

    await bench.claimed(2)
    assert await bench.store.forget(claim.key)
    await bench.claimed(1)


@check("bare")
async def where_nothing_was_made_ready_it_says_what_to_do(bench: StoreBench) -> None:
    """``check`` names the command; ``init`` does it."""
    assert bench.bare is not None
    async with bench.bare() as store:
        try:
            await store.check()
        except StoreUnavailableError:
            raise
        except StoreError as exc:
            assert "keys init" in str(exc), exc
        else:
            msg = "a store that was not made ready passes for ready"
            raise AssertionError(msg)

        await store.init()

        await store.check()
        assert isinstance(await store.claim(bench.claim()), Claimed)


@check("outdate")
async def another_version_is_refused_by_name(bench: StoreBench) -> None:
    """``check`` says which version was found."""
    assert bench.outdate is not None
    await bench.outdate()
    store = bench.again()

    try:
        await store.check()
    except StoreUnavailableError:
        raise
    except StoreError as exc:
        assert "version" in str(exc), exc
    else:
        msg = "data of another version passes for ours"
        raise AssertionError(msg)


@check()
async def making_it_ready_twice_keeps_what_is_there(bench: StoreBench) -> None:
    """``init`` makes what is missing."""
    await bench.claimed(lease=LONG)

    await bench.store.init()
    await bench.store.check()

    assert isinstance(await bench.store.claim(bench.claim()), Busy)
    assert bench.store.name


@check("outage")
async def an_outage_is_told_apart_and_passes(bench: StoreBench) -> None:
    """Every call says that the store is away; when it is back it goes on by itself."""
    assert bench.outage is not None
    claim, _ = await bench.claimed(lease=LONG)
    store, key, owner = bench.store, claim.key, claim.owner
    async with bench.outage():
        for call in (
            store.check(),
            store.claim(bench.claim(2)),
            store.extend(key, owner, LONG),
            store.complete(key, owner, KEEP, None),
            store.get(key),
        ):
            try:
                answer: object = await call
            except StoreUnavailableError:
                continue
            msg = f"the store is away and answers {answer}"
            raise AssertionError(msg)

    for _ in range(50):  # a pool may have to find out that its connections are gone
        try:
            await store.check()
        except StoreUnavailableError:
            await bench.passes(0.1)
        else:
            break
    assert await store.complete(key, owner, KEEP, None)
