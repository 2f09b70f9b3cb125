from __future__ import annotations

import signal
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from textwrap import dedent

import anyio
import pytest

from brokerwq.clock import SYSTEM_CLOCK, Clock
from brokerwq.dead_letters import DeadLetters, Group, Report
from brokerwq.dead_letters.selection import BY_BROKER, Letter, Selection
from brokerwq.driver import Delivery, Driver, QueueSpec
from brokerwq.driver.registry import find_adapter
from brokerwq.errors import ConfigError, QueueNotFoundError
from brokerwq.message import DeadLetterNote, Message
from brokerwq.testing import FakeClock

QUEUE = "orders"
DEAD = "orders-dead"
DIED = datetime(2026, 1, 1, tzinfo=UTC)


@asynccontextmanager
async def opened(url: str, clock: Clock = SYSTEM_CLOCK) -> AsyncGenerator[Driver]:
    adapter = find_adapter(url)
    driver = adapter.build(adapter.parse_url(url), clock)
    await driver.open()
    try:
        yield driver
    finally:
        await driver.aclose()


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db" if request.param == "sqlite" else "memory://"


@pytest.fixture
async def driver(url: str) -> AsyncGenerator[Driver]:
    async with opened(url) as driver:
        await driver.declare(QueueSpec(name=QUEUE))
        yield driver


def note(reason: str = "failed", **fields: object) -> DeadLetterNote:
    return replace(
        DeadLetterNote(
            reason=reason,
            error_type="ValueError",
            error="no such size",
            digest="abc123",
            attempts=5,
            queue=QUEUE,
            first_at=DIED - timedelta(hours=1),
            dead_at=DIED,
            version="0.1.0",
        ),
        **fields,  # type: ignore[arg-type]
    )


def message(number: int, *, dead: DeadLetterNote | None, **fields: object) -> Message:
    return replace(
        Message(
            id=f"id-{number}",
            body=b'{"n": %d}' % number,
            type="thumbnail",
            content_type="application/json",
            headers={"tenant": "é", "x-request": "7"},
            created_at=DIED - timedelta(hours=1),
            dead=dead,
        ),
        **fields,  # type: ignore[arg-type]
    )


async def bury(driver: Driver, *messages: Message) -> None:
    assert set(await driver.send(DEAD, messages, [0.0] * len(messages))) <= {None}


async def take_all(driver: Driver, queue: str) -> list[Delivery]:
    consumer = await driver.consume(queue, lease=60, prefetch=100)
    taken: list[Delivery] = []
    while claimed := await consumer.claim(100, 0):
        assert set(await consumer.ack(claimed)) == {None}
        taken.extend(claimed)
    await consumer.aclose()
    return taken


async def ready(driver: Driver, queue: str) -> int:
    return (await driver.inspect(queue)).ready.value


def ids(letters: Sequence[Letter]) -> list[str]:
    return [letter.message.id for letter in letters]


async def test_a_look_shows_why_each_message_is_dead(driver: Driver) -> None:
    await bury(driver, message(1, dead=note()))

    [letter], _ = await DeadLetters(driver, QUEUE).find()

    assert letter.note == note()
    assert letter.message.body == b'{"n": 1}'
    assert letter.message.headers == {"tenant": "é", "x-request": "7"}


@pytest.mark.slow
async def test_a_message_that_the_broker_moved_is_shown_as_such(driver: Driver) -> None:
    await bury(driver, message(1, dead=None))

    [letter], _ = await DeadLetters(driver, QUEUE).find(Selection(reasons=frozenset({BY_BROKER})))

    assert letter.note == DeadLetterNote(reason=BY_BROKER)


async def test_a_look_leaves_every_message_as_it_was(driver: Driver) -> None:
    carried = message(
        1,
        dead=note(),
        attempts=3,
        suspect=True,
        unknown_since=DIED,
        not_before=DIED,
        snoozed=12.5,
        redrives=2,
    )
    await bury(driver, carried)

    for _ in range(3):
        await DeadLetters(driver, QUEUE).find()

    [delivery] = await take_all(driver, DEAD)
    assert delivery.message == carried
    assert delivery.receives == 1


@pytest.mark.slow
async def test_one_look_meets_no_message_twice(driver: Driver) -> None:
    await bury(driver, *[message(n, dead=note()) for n in range(2500)])

    letters, report = await DeadLetters(driver, QUEUE).find()

    assert sorted(ids(letters)) == sorted(f"id-{n}" for n in range(2500))
    assert report.is_complete
    assert await ready(driver, DEAD) == 2500


async def test_a_look_ends_at_its_limit_and_says_so(driver: Driver) -> None:
    await bury(driver, *[message(n, dead=note()) for n in range(5)])

    letters, report = await DeadLetters(driver, QUEUE).find(limit=2)

    assert len(letters) == 2
    assert not report.is_complete
    assert await ready(driver, DEAD) == 5


@pytest.mark.slow
@pytest.mark.parametrize("group", ["g", None])
async def test_a_look_says_that_a_group_is_handed_out_one_after_the_other(
    group: str | None,
) -> None:
    async with opened("memory://?like=sqs-fifo") as driver:
        await driver.declare(QueueSpec(name=QUEUE))
        dead = [message(n, dead=note(), group=group) for n in range(3)]
        await driver.send(DEAD, dead, [0.0] * 3)
        letters, report = await DeadLetters(driver, QUEUE).find()

    assert (len(letters), report.is_complete) == ((1, False) if group else (3, True))


async def test_a_look_that_is_full_ends_and_says_so(driver: Driver) -> None:
    await bury(driver, *[message(n, dead=note()) for n in range(5)])

    letters, report = await DeadLetters(driver, QUEUE, max_held=3).find()

    assert len(letters) == 3
    assert not report.is_complete


async def test_a_look_that_is_interrupted_puts_everything_back(driver: Driver) -> None:
    await bury(driver, *[message(n, dead=note()) for n in range(5)])
    scope = anyio.CancelScope()

    with scope:
        await DeadLetters(driver, QUEUE).each(lambda _: scope.cancel())

    assert scope.cancelled_caught
    assert await ready(driver, DEAD) == 5


async def test_a_look_that_fails_puts_everything_back(driver: Driver) -> None:
    await bury(driver, *[message(n, dead=note()) for n in range(5)])

    def refuse(_: Letter) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        await DeadLetters(driver, QUEUE).each(refuse)

    assert await ready(driver, DEAD) == 5


async def test_a_missing_dead_letter_queue_is_an_error(driver: Driver) -> None:
    with pytest.raises(QueueNotFoundError):
        await DeadLetters(driver, "elsewhere").find()


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (Selection(ids=frozenset({"id-2", "id-9"})), ["id-2"]),
        (Selection(reasons=frozenset({"timeout"})), ["id-2"]),
        (Selection(types=frozenset({"mail"})), ["id-3"]),
        (Selection(digests=frozenset({"abc"})), ["id-1"]),
        (Selection(older_than=3600), ["id-1", "id-3"]),
        (Selection(older_than=3600, types=frozenset({"mail"})), ["id-3"]),
        (Selection(digests=frozenset({""})), []),
    ],
)
async def test_a_selection_chooses_by(
    driver: Driver, selection: Selection, expected: list[str]
) -> None:
    clock = FakeClock(utcnow=DIED + timedelta(minutes=61))
    await bury(
        driver,
        message(1, dead=note()),
        message(2, dead=note("timeout", digest="def", dead_at=DIED + timedelta(minutes=30))),
        message(3, dead=None, type="mail"),
    )

    letters, _ = await DeadLetters(driver, QUEUE, clock=clock).find(selection)

    assert sorted(ids(letters)) == expected


async def test_groups_count_what_is_alike_the_largest_first(driver: Driver) -> None:
    await bury(
        driver,
        message(1, dead=note("timeout", error_type="", digest="")),
        message(2, dead=note()),
        message(3, dead=note()),
        message(4, dead=None),
    )

    groups, _ = await DeadLetters(driver, QUEUE).groups()

    assert groups == [
        (Group("failed", "thumbnail", "ValueError", "abc123"), 2),
        (Group(BY_BROKER, "thumbnail", "", ""), 1),
        (Group("timeout", "thumbnail", "", ""), 1),
    ]


async def test_a_redriven_message_starts_afresh_and_keeps_its_history(driver: Driver) -> None:
    dead = message(
        1,
        dead=note(),
        attempts=3,
        suspect=True,
        unknown_since=DIED,
        not_before=DIED,
        snoozed=12.5,
        redrives=1,
        key="k",
        group="g",
        cause="parent",
    )
    await bury(driver, dead)

    report = await DeadLetters(driver, QUEUE).redrive()

    [delivery] = await take_all(driver, QUEUE)
    assert (report.matched, report.done, report.failed) == (1, 1, 0)
    assert delivery.receives == 1
    assert delivery.message == replace(
        dead, attempts=0, suspect=False, unknown_since=None, not_before=None, snoozed=0, redrives=2
    )
    assert await take_all(driver, DEAD) == []


async def test_a_redrive_goes_where_the_note_says_or_where_it_is_told(driver: Driver) -> None:
    await driver.declare(QueueSpec(name="mails"))
    await driver.declare(QueueSpec(name="trial"))
    letters = DeadLetters(driver, QUEUE)
    await bury(driver, message(1, dead=note(queue="mails")), message(2, dead=None))

    await letters.redrive()
    await bury(driver, message(3, dead=note()))
    await letters.redrive(to="trial")

    assert [d.message.id for d in await take_all(driver, "mails")] == ["id-1"]
    assert [d.message.id for d in await take_all(driver, QUEUE)] == ["id-2"]
    assert [d.message.id for d in await take_all(driver, "trial")] == ["id-3"]


async def test_a_redrive_leaves_what_is_not_meant(driver: Driver) -> None:
    await bury(driver, message(1, dead=note()), message(2, dead=note("timeout")))

    await DeadLetters(driver, QUEUE).redrive(Selection(reasons=frozenset({"timeout"})))

    assert [d.message.id for d in await take_all(driver, QUEUE)] == ["id-2"]
    assert [d.message.id for d in await take_all(driver, DEAD)] == ["id-1"]


async def test_a_redrive_stops_at_its_limit(driver: Driver) -> None:
    await bury(driver, *[message(n, dead=note()) for n in range(5)])

    report = await DeadLetters(driver, QUEUE).redrive(limit=2)

    assert report.done == 2
    assert (await ready(driver, QUEUE), await ready(driver, DEAD)) == (2, 3)


async def test_a_message_whose_queue_is_gone_stays_and_the_others_go(driver: Driver) -> None:
    await bury(driver, message(1, dead=note(queue="gone")), message(2, dead=note()))

    report = await DeadLetters(driver, QUEUE).redrive()

    assert (report.done, report.failed) == (1, 1)
    [(failed_id, error)] = report.failures
    assert failed_id == "id-1"
    assert isinstance(error, QueueNotFoundError)
    assert [d.message.id for d in await take_all(driver, DEAD)] == ["id-1"]


async def test_a_redrive_into_the_dead_letter_queue_itself_is_refused(driver: Driver) -> None:
    await bury(driver, message(1, dead=note(queue=DEAD)))

    with pytest.raises(ConfigError, match="the dead-letter queue itself"):
        await DeadLetters(driver, QUEUE).redrive(to=DEAD)
    report = await DeadLetters(driver, QUEUE).redrive()

    assert report.failed == 1
    assert await ready(driver, DEAD) == 1


async def test_what_dies_again_meanwhile_is_not_sent_back_twice(driver: Driver) -> None:
    await bury(driver, *[message(n, dead=note()) for n in range(3)], message(3, dead=None, id=""))

    async def die_again() -> None:
        consumer = await driver.consume(QUEUE, lease=60, prefetch=10)
        claimed = await consumer.claim(100, 0)
        await consumer.dead_letter(claimed, [note()] * len(claimed))
        await consumer.aclose()

    class Pausing(FakeClock):
        async def sleep(self, seconds: float, /) -> None:
            if seconds < 1:
                await die_again()
            else:
                await super().sleep(seconds)

    with anyio.fail_after(20):
        report = await DeadLetters(driver, QUEUE, clock=Pausing()).redrive(rate=10)

    assert report.done == 4
    assert await ready(driver, DEAD) == 4


async def test_a_redrive_keeps_its_rate() -> None:
    clock = FakeClock()
    async with opened("memory://", clock) as driver:
        await driver.declare(QueueSpec(name=QUEUE))
        await bury(driver, *[message(n, dead=note()) for n in range(50)])
        before = clock.now()

        report = await clock.drive(DeadLetters(driver, QUEUE, clock=clock).redrive(rate=10))

    assert report.done == 50
    assert clock.now() - before == pytest.approx(5.0)


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf")])
async def test_a_rate_that_is_no_positive_number_is_refused(driver: Driver, rate: float) -> None:
    with pytest.raises(ConfigError, match="rate"):
        await DeadLetters(driver, QUEUE).redrive(rate=rate)


async def test_delete_removes_what_is_meant_for_good(driver: Driver) -> None:
    await bury(driver, message(1, dead=note()), message(2, dead=note("timeout")))

    report = await DeadLetters(driver, QUEUE).delete(Selection(reasons=frozenset({"timeout"})))

    assert report.done == 1
    assert [d.message.id for d in await take_all(driver, DEAD)] == ["id-1"]


async def test_what_was_found_can_be_put_back_into_the_dead_letter_queue(driver: Driver) -> None:
    letters = DeadLetters(driver, QUEUE)
    originals = [message(n, dead=note(), redrives=2) for n in range(3)]

    report = await letters.restore(originals)

    assert report.done == 3
    assert [d.message for d in await take_all(driver, DEAD)] == originals


async def test_progress_is_told_after_every_chunk(driver: Driver) -> None:
    await bury(driver, *[message(n, dead=note()) for n in range(3)])
    told: list[int] = []

    def tell(report: Report) -> None:
        told.append(report.done)

    await DeadLetters(driver, QUEUE).delete(on_progress=tell)

    assert told == [3]


async def test_a_look_that_takes_longer_than_a_lease_keeps_what_it_holds() -> None:
    clock = FakeClock()
    async with opened("memory://", clock) as driver:
        await driver.declare(QueueSpec(name=QUEUE))
        await bury(driver, *[message(n, dead=note()) for n in range(20)])

        # 20 messages at one a minute, 10 of them not meant: held for 10 minutes.
        selection = Selection(ids=frozenset(f"id-{n}" for n in range(10, 20)))
        report = await clock.drive(
            DeadLetters(driver, QUEUE, clock=clock).redrive(selection, rate=1 / 60)
        )

        assert (report.seen, report.done, report.is_complete) == (20, 10, True)
        assert [d.receives for d in await take_all(driver, DEAD)] == [1] * 10


KILLED = """
    import asyncio, os, signal, sys
    from brokerwq.clock import SYSTEM_CLOCK
    from brokerwq.dead_letters import DeadLetters
    from brokerwq.driver.registry import find_adapter

    async def main(url, when):
        adapter = find_adapter(url)
        driver = adapter.build(adapter.parse_url(url), SYSTEM_CLOCK)
        await driver.open()
        send = driver.send
        async def send_and_die(*args):
            answer = await send(*args)
            os.kill(os.getpid(), signal.SIGKILL)
            return answer
        if when == "before the delete":
            driver.send = send_and_die
        def die(report):
            os.kill(os.getpid(), signal.SIGKILL)
        await DeadLetters(driver, "orders", lease=1).redrive(rate=10, on_progress=die)

    asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("when", "copies"), [("between two chunks", 0), ("before the delete", 10)])
async def test_a_redrive_killed_half_way_loses_nothing(
    tmp_path: Path, when: str, copies: int
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with opened(url) as driver:
        await driver.declare(QueueSpec(name=QUEUE))
        await bury(driver, *[message(n, dead=note()) for n in range(30)])

    with anyio.fail_after(60):
        killed = await anyio.run_process(
            [sys.executable, "-c", dedent(KILLED), url, when], check=False
        )
    assert killed.returncode == -signal.SIGKILL

    async with opened(url) as driver:
        with anyio.fail_after(20):
            while (await driver.inspect(DEAD)).leased.value:
                await anyio.sleep(0.05)
        again = await DeadLetters(driver, QUEUE).redrive()
        back = [delivery.message for delivery in await take_all(driver, QUEUE)]

    assert again.done == (30 if copies else 20)
    assert {m.id for m in back} == {f"id-{n}" for n in range(30)}
    assert len(back) == 30 + copies
    assert {(m.attempts, m.redrives) for m in back} == {(0, 1)}
