"""What declare, inspect, purge, queues and capabilities promise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

from brokerwq.driver.capabilities import Capabilities, Lease, UncountedReturn
from brokerwq.driver.protocol import Certainty, Count, QueueStats
from brokerwq.errors import ConfigError, QueueNotFoundError, UnsupportedError
from brokerwq.message import DeadLetterNote
from brokerwq.testing.bench import (
    Bench,
    a_message,
    expect,
    expect_done,
    expect_equal,
    expect_error,
    some_messages,
)
from brokerwq.testing.catalogue import (
    ESTIMATES,
    EXACT_STATS,
    LISTING,
    NOT_LISTING,
    SEND_DELAY,
    check,
)


@check("rule 3")
async def declare_makes_both_queues(bench: Bench) -> None:
    """Declaring makes the queue and its dead-letter queue, and reports no difference."""
    spec = bench.fresh_spec()

    expect_equal(list(await bench.driver.declare(spec)), [], "the differences of a new queue")

    for name in (spec.name, spec.dead_letter_queue):
        stats = await bench.driver.inspect(name)
        expect_equal(stats.ready.value, 0, f"the ready messages of {name}")


@check()
async def declare_takes_another_dead_letter_queue(bench: Bench) -> None:
    """The dead-letter queue may have any name, and is where dead letters go."""
    graveyard = bench.fresh_spec().name
    queue = await bench.queue(dead_letter=graveyard)
    await bench.send(queue, a_message())
    consumer = await bench.consumer(queue)

    held = await bench.claim_one(consumer)
    note = DeadLetterNote(reason="failed")
    expect_done(await consumer.dead_letter([held], [note]), 1, "dead_letter")

    await bench.claim_one(await bench.consumer(graveyard))


@check()
async def declare_twice_changes_nothing(bench: Bench) -> None:
    """Declaring a queue again, by any connection, reports nothing and keeps its messages."""
    spec = bench.fresh_spec()
    await bench.driver.declare(spec)
    await bench.send(spec.name, a_message())

    again = await (await bench.another_driver()).declare(spec)

    expect_equal(list(again), [], "the differences of a queue declared as it is")
    await bench.claim_one(await bench.consumer(spec.name))


@check()
async def a_difference_is_reported_and_nothing_is_made(bench: Bench) -> None:
    """Declaring a queue with another dead-letter queue reports it, and creates none of it."""
    queue = await bench.queue()
    other = bench.fresh_spec().name
    changed = replace(bench.harness.spec(queue), dead_letter=other)

    for check_only in (False, True):
        try:
            differences = await bench.driver.declare(changed, check_only=check_only)
        except QueueNotFoundError:
            expect(check_only, "declare without check_only must not raise QueueNotFoundError")
            continue
        expect(
            any(item.queue == queue for item in differences),
            f"declare must report that {queue} differs, not {[*map(str, differences)]}",
        )
    await expect_error(
        QueueNotFoundError, bench.driver.inspect(other), "inspect of a queue not declared"
    )


@check()
async def check_only_never_makes_a_queue(bench: Bench) -> None:
    """``declare(check_only=True)`` raises ``QueueNotFoundError`` for a missing queue."""
    spec = bench.fresh_spec()

    await expect_error(
        QueueNotFoundError,
        bench.driver.declare(spec, check_only=True),
        "declare(check_only=True) of a queue that does not exist",
    )

    for name in (spec.name, spec.dead_letter_queue):
        await expect_error(QueueNotFoundError, bench.driver.inspect(name), f"inspect of {name}")


@check()
async def check_only_finds_no_fault_with_a_sound_queue(bench: Bench) -> None:
    """``declare(check_only=True)`` of a queue that is as asked for reports nothing."""
    spec = bench.fresh_spec()
    await bench.driver.declare(spec)

    differences = await bench.driver.declare(spec, check_only=True)

    expect_equal(list(differences), [], "the differences")


@check("rule 3")
async def an_impossible_name_is_a_config_error(bench: Bench) -> None:
    """A name that no queue can have raises ``ConfigError``."""
    for name in ("", "q" * 5000):
        spec = replace(bench.harness.spec(name), name=name)
        await expect_error(ConfigError, bench.driver.declare(spec), f"declare of {name!r:.20}")


@check("rule 3")
async def a_missing_queue_cannot_be_inspected(bench: Bench) -> None:
    """Inspecting a queue that does not exist raises ``QueueNotFoundError``."""
    missing = bench.fresh_spec().name

    await expect_error(QueueNotFoundError, bench.driver.inspect(missing), "inspect")


@check("rule 3")
async def a_missing_queue_cannot_be_purged(bench: Bench) -> None:
    """Purging a queue that does not exist raises ``QueueNotFoundError``."""
    missing = bench.fresh_spec().name

    await expect_error(QueueNotFoundError, bench.driver.purge(missing), "purge")


async def _one_of_each(bench: Bench) -> str:
    """A queue with 3 ready messages, 2 leased, 1 dead and, where it can be, 1 delayed."""
    queue = await bench.queue()
    await bench.send(queue, *some_messages(6))
    consumer = await bench.consumer(queue, prefetch=3)
    held = await bench.claim(consumer, 3)
    await consumer.quiesce()
    note = DeadLetterNote(reason="failed")
    expect_done(await consumer.dead_letter(held[:1], [note]), 1, "dead_letter")
    if bench.can.max_send_delay > 0:
        await bench.send(queue, a_message(), delays=[min(600.0, bench.can.max_send_delay)])
    return queue


def _counts(stats: QueueStats) -> dict[str, Count]:
    return {
        "ready": stats.ready,
        "leased": stats.leased,
        "delayed": stats.delayed,
        "dead": stats.dead,
    }


@check("exact_stats", needs=(EXACT_STATS,))
async def counts_are_exact(bench: Bench) -> None:
    """Where stats are exact, every count is right at once and says that it is exact."""
    queue = await _one_of_each(bench)

    stats = await (await bench.another_driver()).inspect(queue)

    delayed = int(bench.can.max_send_delay > 0)
    wanted = {"ready": 3, "leased": 2, "delayed": delayed, "dead": 1}
    expect_equal(
        _counts(stats), {name: Count(value) for name, value in wanted.items()}, "the counts"
    )


@check("exact_stats", needs=(ESTIMATES,))
async def estimates_become_right(bench: Bench) -> None:
    """Where stats are estimates, every count that is known becomes right; not all claim EXACT."""
    queue = await _one_of_each(bench)
    delayed = int(bench.can.max_send_delay > 0)
    wanted = {"ready": 3, "leased": 2, "delayed": delayed, "dead": 1}

    def wrong(counts: dict[str, Count]) -> dict[str, Count]:
        return {
            name: count
            for name, count in counts.items()
            if count.certainty is not Certainty.UNKNOWN and count.value != wanted[name]
        }

    counts = await _eventually(bench, queue, lambda stats: not wrong(_counts(stats)))

    expect_equal(wrong(counts), {}, "the counts that are not right in the end")
    certain = [count.certainty is Certainty.EXACT for count in counts.values()]
    expect(not all(certain), "a driver whose counts are all exact must say exact_stats")
    expect(counts["ready"].certainty is not Certainty.UNKNOWN, "how many are ready must be known")


async def _eventually(
    bench: Bench, queue: str, holds: Callable[[QueueStats], bool]
) -> dict[str, Count]:
    deadline = bench.clock.now() + bench.patience
    while True:
        stats = await bench.driver.inspect(queue)
        if holds(stats) or bench.clock.now() >= deadline:
            return _counts(stats)
        await bench.breathe()


@check()
async def an_unknown_count_is_zero(bench: Bench) -> None:
    """A count that the broker does not tell is 0, and none is negative; nor is an age."""
    stats = await bench.driver.inspect(await _one_of_each(bench))

    for name, count in _counts(stats).items():
        known = count.certainty is not Certainty.UNKNOWN
        expect(count.value >= 0 and (known or count.value == 0), f"{name} must not be {count}")
    age = stats.oldest_age
    expect(age is None or 0 <= age < 3600, f"the oldest age must be seconds or None, not {age}")


@check(needs=(EXACT_STATS,))
async def the_oldest_age_grows(bench: Bench) -> None:
    """The age of the oldest ready message is counted from its sending; None where none is."""
    queue = await bench.queue()
    expect_equal((await bench.driver.inspect(queue)).oldest_age, None, "the age in an empty queue")
    before = bench.clock.now()
    await bench.send(queue, a_message())
    after = bench.clock.now()
    await bench.clock.sleep(bench.lease)

    asked_at = bench.clock.now()
    age = (await bench.driver.inspect(queue)).oldest_age

    if age is not None:
        least, most = asked_at - after, bench.clock.now() - before
        expect(
            least - 0.05 <= age <= most + 0.05,
            f"the oldest age must be {least:g} to {most:g} s, not {age:g}",
        )


@check(needs=(EXACT_STATS, SEND_DELAY))
async def the_next_delay_is_told(bench: Bench) -> None:
    """``next_due`` is None without delayed messages, else the time to the first, if it is known."""
    queue = await bench.queue()
    await bench.send(queue, a_message())
    expect_equal((await bench.driver.inspect(queue)).next_due, None, "next_due without delays")
    delay = min(600.0, bench.can.max_send_delay)
    await bench.send(queue, *some_messages(2), delays=[delay, delay / 2])

    due = (await bench.driver.inspect(queue)).next_due

    expect(
        due is None or 0 <= due <= delay / 2 + 0.05,
        f"next_due must be 0 to {delay / 2:g} s, not {due}",
    )


@check()
async def purge_deletes_what_is_ready(bench: Bench) -> None:
    """After a purge nothing that was ready comes; the queue itself stays and works."""
    queue = await bench.queue()
    await bench.send(queue, *some_messages(5))

    await bench.driver.purge(queue)

    consumer = await bench.consumer(queue)
    await bench.expect_nothing(consumer, bench.delay, "the queue was purged")
    await bench.send(queue, a_message(b"new"))
    expect_equal((await bench.claim_one(consumer)).message.body, b"new", "what was sent since")


@check(needs=(SEND_DELAY,))
async def purge_deletes_what_is_delayed(bench: Bench) -> None:
    """After a purge nothing that was delayed comes either."""
    queue = await bench.queue()
    await bench.send(queue, a_message(), delays=[bench.delay])

    await bench.driver.purge(queue)

    await bench.expect_nothing(
        await bench.consumer(queue), 1.5 * bench.delay, "the queue was purged"
    )


@check()
async def purge_leaves_other_queues_alone(bench: Bench) -> None:
    """A purge empties its own queue: neither the dead letters nor a queue named alike."""
    queue = await bench.queue()
    other = await bench.queue()
    for name in (queue, bench.dead(queue), other):
        await bench.send(name, a_message())

    await bench.driver.purge(queue)

    for name in (bench.dead(queue), other):
        await bench.claim_one(await bench.consumer(name))


@check("lists_queues", needs=(LISTING,))
async def queues_are_listed(bench: Bench) -> None:
    """``queues`` names every queue, dead-letter queues too, sorted."""
    queue = await bench.queue()

    names = list(await (await bench.another_driver()).queues())

    expect_equal(names, sorted(names), "the order of the names")
    for name in (queue, bench.dead(queue)):
        expect_equal(names.count(name), 1, f"how often {name} is listed")


@check("lists_queues", needs=(NOT_LISTING,))
async def queues_cannot_be_listed(bench: Bench) -> None:
    """Where queues cannot be listed, ``queues`` raises ``UnsupportedError``."""
    await bench.queue()

    await expect_error(UnsupportedError, bench.driver.queues(), "queues")


_COUNTS = ("max_claim", "max_settle", "max_send")
_SIZES = ("max_message_bytes", "max_batch_bytes", "max_lease", "max_wait")
_DELAYS = ("max_send_delay", "max_release_delay")


@check(*(field.name for field in fields(Capabilities)))
async def capabilities_are_sane(bench: Bench) -> None:
    """Every capability has its type and a number that makes sense, and stays as it is."""
    can = bench.can
    kinds: dict[str, type] = {"lease": Lease, "uncounted_return": UncountedReturn}
    for field in fields(can):
        name, value = field.name, getattr(can, field.name)
        if name in _COUNTS:
            is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 1
            expect(is_count, f"{name} must be a whole number from 1, not {value!r}")
        elif name in _SIZES:
            expect(value > 0, f"{name} must be above 0, not {value!r}")
        elif name in _DELAYS:
            expect(value >= 0, f"{name} must be 0 or more, not {value!r}")
        else:
            kind = kinds.get(name, bool)
            expect(isinstance(value, kind), f"{name} must be a {kind.__name__}, not {value!r}")
    expect(
        can.max_batch_bytes >= can.max_message_bytes,
        "max_batch_bytes must allow for one message of max_message_bytes",
    )
    await bench.queue()
    expect_equal(bench.driver.capabilities, can, "the capabilities, which are final")
    expect_equal((await bench.another_driver()).capabilities, can, "those of another driver")
