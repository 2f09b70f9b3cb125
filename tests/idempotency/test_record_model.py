"""Every order of events of three owners on one record, tried out: small, and complete.

The model keeps what a store keeps, decides by the same function as the stores, and knows what
the store does not: who believes to be the owner, and whose work was recorded as done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from brokerwq.idempotency.record import Claim, Claimed, Completed, Record, State, refusal

OWNERS = (b"A", b"B", b"C")


@dataclass(frozen=True)
class World:
    """The record, if there is one, and what has been acknowledged to the owners.

    ``lease``: whether the lease still runs. ``done``: who was told that it has completed.
    """

    state: State | None = None
    owner: bytes = b""
    lease: bool = False
    fence: int = 0
    attempts: int = 0
    done: tuple[bytes, ...] = ()
    holders: frozenset[bytes] = frozenset()


def record_of(world: World) -> Record | None:
    if world.state is None:
        return None
    return Record(
        key=b"k",
        worker="",
        state=world.state,
        owner=world.owner,
        fence=world.fence,
        attempt=world.attempts,
        lease_left=1.0 if world.lease else 0.0,
        payload=b"p",
        message_id="m",
        generation=0,
        result=None,
        created_at=0.0,
        expires_at=9.0,
        is_expired=False,
    )


def claim_of(owner: bytes) -> Claim:
    return Claim(
        key=b"k",
        worker="",
        payload=b"p",
        message_id="m",
        generation=0,
        owner=owner,
        lease=1.0,
        retention=9.0,
    )


def claimed(world: World, owner: bytes) -> World | None:
    record = record_of(world)
    against = None if record is None else refusal(record, claim_of(owner))
    if isinstance(against, Completed):
        assert world.done, "told done, and nobody has completed it"
    if isinstance(against, Claimed):
        assert world.owner == owner
        return replace(world, holders=world.holders | {owner})
    if against is not None:
        return None
    assert world.state is not State.COMPLETED, "finished work begins anew"
    assert not world.lease, "a live lease was taken"
    return replace(
        world,
        state=State.IN_PROGRESS,
        owner=owner,
        lease=True,
        fence=world.fence + 1,
        attempts=world.attempts + 1,
        holders=world.holders | {owner},
    )


def steps(world: World) -> Iterator[World]:
    """Every world that one event leads to; only the holder of a claim acts on it."""
    for owner in OWNERS:
        if (after := claimed(world, owner)) is not None:
            yield after
    if world.lease:
        yield replace(world, lease=False)  # time passes, or its process dies
    for owner in world.holders:
        gone = world.holders - {owner}
        ours = world.state is State.IN_PROGRESS and world.owner == owner
        if ours:
            yield replace(world, lease=True)
            yield replace(world, owner=b"", lease=False, holders=gone)
            yield replace(
                world, state=State.COMPLETED, lease=False, done=(*world.done, owner), holders=gone
            )
        yield replace(world, holders=gone)  # refused, crashed or gave up


def test_no_order_of_events_records_two_completions_or_loses_one() -> None:
    seen = {World()}
    todo = deque(seen)
    while todo:
        world = todo.popleft()
        assert len(world.done) <= 1
        assert (world.state is State.COMPLETED) == bool(world.done)
        for after in steps(world):
            assert after.fence >= world.fence
            # Fences only grow; what is beyond the fourth claim is no new kind of world.
            if after.fence <= 4 and after not in seen:
                seen.add(after)
                todo.append(after)

    assert len(seen) == 200
    assert any(world.done for world in seen)
