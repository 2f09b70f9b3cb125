"""What dead_letter and the dead-letter queue promise."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta

from brokerwq.driver.protocol import Mark
from brokerwq.message import DeadLetterNote
from brokerwq.testing.bench import (
    Bench,
    a_message,
    expect_done,
    expect_equal,
    some_messages,
)
from brokerwq.testing.catalogue import ATOMIC_DEAD_LETTER, UNCOUNTED, check
from brokerwq.testing.checks.support import cancelled, exact_milliseconds, full_message


def _note(bench: Bench, reason: str = "failed") -> DeadLetterNote:
    moment = exact_milliseconds(bench)
    return DeadLetterNote(
        reason=reason,
        error_type="ValueError",
        error="Zeile 1\nÄrger 🐙 \t and\x01 a control character",
        digest="0123456789abcdef",
        attempts=5,
        queue="orders",
        first_at=moment - timedelta(days=3),
        dead_at=moment,
        version="0.1.0",
    )


@check()
async def a_dead_letter_leaves_its_queue(bench: Bench) -> None:
    """A dead-lettered message is gone from its queue, for good, and is in the other one, once."""
    queue = await bench.queue()
    sent = a_message()
    await bench.send(queue, sent)
    consumer = await bench.consumer(queue)
    held = await bench.claim_one(consumer)

    expect_done(await consumer.dead_letter([held], [_note(bench)]), 1, "dead_letter")

    await bench.expect_nothing(consumer, 0.0, "the message was moved")
    reader = await bench.consumer(bench.dead(queue), driver=await bench.another_driver())
    expect_equal((await bench.claim_one(reader)).message.id, sent.id, "the id of the dead letter")
    await bench.expect_nothing(reader, 0.0, "one message is dead")


@check("rule 10")
async def a_dead_letter_is_the_message_with_its_note(bench: Bench) -> None:
    """A dead letter has the same body, id, type and headers, its note, and no attempts."""
    queue = await bench.queue()
    await bench.send(queue, full_message(bench))
    consumer = await bench.consumer(queue)
    held = await bench.claim_one(consumer)
    note = _note(bench)

    expect_done(await consumer.dead_letter([held], [note]), 1, "dead_letter")

    found = await bench.claim_one(await bench.consumer(bench.dead(queue)))
    expect_equal(found.message.body, held.message.body, "the body of the dead letter")
    expect_equal(found.message.dead, note, "the note of the dead letter")
    expect_equal(found.message.attempts, 0, "the attempts of the dead letter")
    wanted = replace(held.message, attempts=0, dead=note)
    expect_equal(found.message, wanted, "the dead letter")


@check("rule 10")
async def a_short_note_is_enough(bench: Bench) -> None:
    """A note that has nothing but a reason comes back as such."""
    queue = await bench.queue()
    await bench.send(queue, a_message())
    consumer = await bench.consumer(queue)
    note = DeadLetterNote(reason="lost")

    held = await bench.claim_one(consumer)
    expect_done(await consumer.dead_letter([held], [note]), 1, "dead_letter")

    found = await bench.claim_one(await bench.consumer(bench.dead(queue)))
    expect_equal(found.message.dead, note, "the note of the dead letter")


@check("rule 2")
async def each_dead_letter_has_its_own_note(bench: Bench) -> None:
    """In a batch every message gets the note at its own place."""
    queue = await bench.queue()
    await bench.send(queue, *some_messages(3))
    consumer = await bench.consumer(queue)
    held = await bench.claim(consumer, 3)
    notes = [_note(bench, f"reason-{nth}") for nth in range(3)]
    size = bench.can.max_settle
    for at in range(0, 3, size):
        batch = held[at : at + size]
        results = await consumer.dead_letter(batch, notes[at : at + size])
        expect_done(results, len(batch), "dead_letter")

    found = await bench.claim(await bench.consumer(bench.dead(queue)), 3)

    expect_equal(
        {item.message.id: item.message.dead and item.message.dead.reason for item in found},
        {item.message.id: note.reason for item, note in zip(held, notes, strict=True)},
        "the reasons",
    )


@check()
async def the_dead_letter_queue_is_a_queue(bench: Bench) -> None:
    """The dead-letter queue can be sent to, claimed from, released to, acked and counted."""
    queue = await bench.queue()
    dead = bench.dead(queue)
    await bench.send(dead, a_message())
    reader = await bench.consumer(dead)

    held = await bench.claim_one(reader)
    expect_done(await reader.extend([held], bench.calm_lease), 1, "extend")
    expect_done(await reader.release([held], [0.0]), 1, "release")
    expect_done(await reader.ack([await bench.claim_one(reader)]), 1, "ack")

    await bench.expect_nothing(reader, 0.0, "the dead letter was acked")
    await bench.driver.inspect(dead)
    await bench.driver.purge(dead)


@check("uncounted_return", needs=(UNCOUNTED,))
async def a_dead_letter_may_be_looked_at(bench: Bench) -> None:
    """A dead letter that is claimed and put back keeps its note and its place in its queue."""
    queue = await bench.queue()
    await bench.send(queue, a_message())
    consumer = await bench.consumer(queue)
    held = await bench.claim_one(consumer)
    expect_done(await consumer.dead_letter([held], [_note(bench)]), 1, "dead_letter")
    reader = await bench.consumer(bench.dead(queue))
    first = await bench.claim_one(reader)

    expect_done(await reader.put_back([first], [0.0], [Mark()]), 1, "put_back")

    again = await bench.claim_one(reader)
    expect_equal(again.message, first.message, "the dead letter")
    expect_equal(again.receives, 1, "the receives of a dead letter that was looked at")


@check("rule 10")
async def a_dead_letter_can_be_sent_back(bench: Bench) -> None:
    """A dead letter that is sent to its queue again arrives there with its history."""
    queue = await bench.queue()
    await bench.send(queue, full_message(bench))
    consumer = await bench.consumer(queue)
    held = await bench.claim_one(consumer)
    expect_done(await consumer.dead_letter([held], [_note(bench)]), 1, "dead_letter")
    reader = await bench.consumer(bench.dead(queue))
    found = await bench.claim_one(reader)

    redriven = replace(found.message, redrives=found.message.redrives + 1)
    await bench.send(queue, redriven)
    await bench.ack(reader, [found])

    again = await bench.claim_one(consumer)
    expect_equal(again.message, redriven, "the message that was sent back")
    expect_equal(again.receives, 1, "the receives of a message that was sent back")


async def _cancelled(bench: Bench) -> Counter[str]:
    note = _note(bench)
    return await cancelled(bench, lambda by, held: by.dead_letter([held], [note]), moves=True)


@check("atomic_dead_letter")
async def a_cancelled_dead_letter_loses_nothing(bench: Bench) -> None:
    """A dead_letter that is cancelled leaves the message in one queue or the other."""
    await _cancelled(bench)


@check("atomic_dead_letter", needs=(ATOMIC_DEAD_LETTER,))
async def a_cancelled_dead_letter_copies_nothing(bench: Bench) -> None:
    """Where dead_letter is one step, cancelling it never leaves the message in both queues."""
    found = await _cancelled(bench)

    expect_equal(set(found.values()), {1}, "the number of copies of each message")
