"""memory://?like=…: what a real broker would refuse or do otherwise shows in a unit test."""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import pytest
from brokerwq_memory import adapter
from brokerwq_memory.likeness import likeness_of
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from brokerwq import App, Job, RetryPolicy, Snooze
from brokerwq.driver import (
    Consumer,
    Delivery,
    Driver,
    Mark,
    QueueSpec,
    UncountedReturn,
    capabilities_of,
)
from brokerwq.driver.rules import rabbitmq, sqs, sqs_wire
from brokerwq.errors import (
    CannotExtendError,
    ConfigError,
    DriverError,
    LeaseLostError,
    MessageRefusedError,
    MessageTooLargeError,
    UnsupportedError,
)
from brokerwq.message import DeadLetterNote, Message, new_message_id
from brokerwq.testing import FakeClock, TestApp


class Lab:
    """A driver on a space of its own, and one queue."""

    def __init__(self, driver: Driver, clock: FakeClock) -> None:
        self.driver = driver
        self.clock = clock

    async def send(self, *bodies: bytes, delay: float = 0.0, **fields: Any) -> list[Any]:
        messages = [message(body, **fields) for body in bodies]
        return list(await self.driver.send("q", messages, [delay] * len(messages)))

    async def consumer(self, lease: float = 60.0, queue: str = "q") -> Consumer:
        return await self.driver.consume(queue, lease=lease, prefetch=1)

    async def claim(self, consumer: Consumer, count: int = 1) -> Sequence[Delivery]:
        return await consumer.claim(count, 0.0)


def message(body: bytes = b"body", **fields: Any) -> Message:
    fields.setdefault("type", "t")
    return Message(id=new_message_id(), body=body, **fields)


@asynccontextmanager
async def lab(like: str, **spec: Any) -> AsyncGenerator[Lab]:
    clock = FakeClock()
    driver = adapter.build(adapter.parse_url(f"memory://?like={like}"), clock)
    await driver.open()
    assert await driver.declare(QueueSpec(name="q", **spec)) == []
    try:
        yield Lab(driver, clock)
    finally:
        await driver.aclose()


async def test_a_payload_that_sqs_would_refuse_fails_in_the_unit_test() -> None:
    app = App("memory://?like=sqs", clock=FakeClock())

    @app.worker("images")
    async def resize(image: bytes) -> None: ...

    async with app:
        with pytest.raises(MessageTooLargeError, match="images takes 1048576"):
            await resize.enqueue(b"\x00" * 800_000)  # base64 makes it longer
        await resize.enqueue(b"x" * 800_000)


def test_an_unknown_likeness_and_options_that_differ_are_refused() -> None:
    name = uuid.uuid4().hex
    with pytest.raises(ConfigError, match="rabbitmq, sqs, sqs-fifo"):
        adapter.parse_url("memory://?like=kafka")
    with pytest.raises(ConfigError, match="lag is for counts that are estimates"):
        adapter.parse_url("memory://?lag=60")
    adapter.parse_url(f"memory://{name}?like=sqs")
    with pytest.raises(ConfigError, match="in use here with other options"):
        adapter.parse_url(f"memory://{name}")


# -- SQS ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.b", "größe", "x" * 81, "q.FIFO"])
@pytest.mark.parametrize("like", ["sqs", "sqs-fifo"])
async def test_a_queue_name_that_sqs_refuses_is_refused(name: str, like: str) -> None:
    async with lab(like) as room:
        with pytest.raises(ConfigError, match=r"SQS"):
            await room.driver.declare(QueueSpec(name=name))


async def test_a_delay_above_fifteen_minutes_is_refused_and_a_put_back_goes_by_hops() -> None:
    async with lab("sqs") as room:
        (refused,) = await room.send(b"1", delay=901)
        assert isinstance(refused, UnsupportedError)
        assert str(refused) == "a delay of 901 seconds; SQS takes 900 at most"
        assert await room.send(b"2", delay=899.5) == [None]
        room.clock.advance(900)
        consumer = await room.consumer()
        (held,) = await room.claim(consumer)

        assert await consumer.put_back([held], [3600.0], [Mark()]) == [None]

        room.clock.advance(900)
        (again,) = await room.claim(consumer)
        assert again.message.not_before is not None
        assert again.receives == 1


async def test_a_late_ack_deletes_the_message_even_from_under_another_holder() -> None:
    async with lab("sqs") as room:
        await room.send(b"1")
        mine, yours = await room.consumer(lease=10), await room.consumer()
        (stale,) = await room.claim(mine)
        room.clock.advance(11)
        (held,) = await room.claim(yours)

        (error,) = await mine.ack([stale])

        assert isinstance(error, LeaseLostError)
        assert error.sent
        room.clock.advance(61)
        assert await room.claim(await room.consumer()) == []
        assert isinstance((await yours.extend([held], 60))[0], LeaseLostError)


async def test_the_holder_of_a_message_deleted_from_under_it_is_told_nothing() -> None:
    async with lab("sqs") as room:
        await room.send(b"1")
        mine, yours = await room.consumer(lease=10), await room.consumer()
        (stale,) = await room.claim(mine)
        room.clock.advance(11)
        (held,) = await room.claim(yours)
        await mine.ack([stale])

        assert await yours.ack([held]) == [None]


async def test_one_receive_lasts_twelve_hours() -> None:
    async with lab("sqs") as room:
        await room.send(b"1")
        consumer = await room.consumer(lease=40_000)
        (held,) = await room.claim(consumer)
        room.clock.advance(30_000)

        (error,) = await consumer.extend([held], 20_000)

        assert isinstance(error, CannotExtendError)
        assert await consumer.extend([held], 13_000) == [None]
        with pytest.raises(UnsupportedError, match="SQS gives 43140 at most"):
            await room.consumer(lease=43_141)


async def test_leases_are_whole_seconds_and_at_least_three() -> None:
    async with lab("sqs") as room:
        assert (await room.consumer(lease=0.5)).lease == 3
        assert (await room.consumer(lease=4.2)).lease == 5
        assert (await room.driver.consume("q", lease=None, prefetch=1)).lease == 30


async def test_a_claim_brings_ten_and_waits_no_longer_than_a_long_poll() -> None:
    async with lab("sqs") as room:
        for _ in range(2):
            await room.send(*[b"x"] * 10)
        consumer = await room.consumer()
        assert len(await room.claim(consumer, 20)) == 10
        await room.claim(consumer, 10)
        started = room.clock.now()

        assert await room.clock.drive(_claim(consumer, 60.0)) == []

        assert room.clock.now() - started == 10


async def _claim(consumer: Consumer, wait: float) -> Sequence[Delivery]:
    return await consumer.claim(1, wait)


async def test_what_is_older_than_its_retention_vanishes_even_in_work() -> None:
    async with lab("sqs", retention=600) as room:
        await room.send(b"1", b"2")
        consumer = await room.consumer(lease=900)
        (held,) = await room.claim(consumer)
        room.clock.advance(601)

        assert isinstance((await consumer.extend([held], 60))[0], LeaseLostError)
        assert await room.claim(consumer) == []
        stats = await room.driver.inspect("q")
        assert (stats.ready.value, stats.leased.value) == (0, 0)


async def test_the_brokers_own_limit_on_receives_moves_a_message_without_a_note() -> None:
    async with lab("sqs", broker_limit=2) as room:
        await room.send(b"1")
        consumer = await room.consumer(lease=3)
        for _ in range(2):
            assert len(await room.claim(consumer)) == 1
            room.clock.advance(4)

        assert await room.claim(consumer) == []

        (dead,) = await room.claim(await room.consumer(queue="q-dead"))
        assert dead.message.dead is None


async def test_a_note_is_cut_to_what_fits_beside_the_body() -> None:
    async with lab("sqs") as room:
        room_left = 400 + len(sqs_wire.encode(message(b"")).body)
        size = sqs.MAX_BYTES - sqs_wire.encode(message(b"")).size - room_left
        assert await room.send(b"x" * size) == [None]
        consumer = await room.consumer()
        (held,) = await room.claim(consumer)

        note = DeadLetterNote(reason="failed", error="long " * 1000)
        assert await consumer.dead_letter([held], [note]) == [None]

        (dead,) = await room.claim(await room.consumer(queue="q-dead"))
        assert dead.message.dead is not None
        assert dead.message.dead.reason == "failed"
        assert len(dead.message.dead.error) <= 200
        assert dead.message.body == b"x" * size


async def test_counts_may_lag_and_are_estimates() -> None:
    clock = FakeClock()
    driver = adapter.build(adapter.parse_url("memory://?like=sqs&lag=60"), clock)
    await driver.open()
    await driver.declare(QueueSpec(name="q"))
    assert (await driver.inspect("q")).ready.value == 0
    await driver.send("q", [message()], [0.0])

    assert (await driver.inspect("q")).ready.value == 0
    clock.advance(60)
    assert (await driver.inspect("q")).ready.value == 1
    await driver.aclose()


# -- FIFO ---------------------------------------------------------------------------------


async def test_a_group_is_blocked_while_one_of_it_is_in_work() -> None:
    async with lab("sqs-fifo") as room:
        await room.send(b"a1", b"a2", group="a")
        await room.send(b"b1", group="b")
        consumer = await room.consumer()

        first = await room.claim(consumer, 10)

        assert [each.message.body for each in first] == [b"a1", b"b1"]
        assert await room.claim(consumer, 10) == []
        await consumer.ack(first[:1])
        assert [each.message.body for each in await room.claim(consumer, 10)] == [b"a2"]


async def test_what_comes_back_keeps_its_place_in_its_group() -> None:
    async with lab("sqs-fifo") as room:
        await room.send(b"a1", b"a2", group="a")
        consumer = await room.consumer()
        (first,) = await room.claim(consumer, 10)

        await consumer.release([first], [30.0])

        assert await room.claim(consumer, 10) == []
        room.clock.advance(30)
        (again,) = await room.claim(consumer, 10)
        assert (again.message.body, again.receives) == (b"a1", 2)


async def test_an_ack_wakes_who_waits_for_the_group() -> None:
    async with lab("sqs-fifo") as room:
        await room.send(b"a1", b"a2", group="a")
        mine, yours = await room.consumer(), await room.consumer()
        (first,) = await room.claim(mine)
        started = room.clock.now()

        async def both() -> Sequence[Delivery]:
            await mine.ack([first])
            return await yours.claim(1, 10.0)

        assert [each.message.body for each in await room.clock.drive(both())] == [b"a2"]
        assert room.clock.now() == started


async def test_a_send_repeated_within_five_minutes_is_stored_once() -> None:
    async with lab("sqs-fifo") as room:
        same = message()
        for _ in range(2):
            assert await room.driver.send("q", [same], [0.0]) == [None]
        room.clock.advance(301)
        await room.driver.send("q", [same], [0.0])

        assert (await room.driver.inspect("q")).ready.value == 2


async def test_fifo_delays_nothing_and_counts_every_return() -> None:
    async with lab("sqs-fifo") as room:
        (refused,) = await room.send(b"1", delay=5)
        assert str(refused) == "q is a FIFO queue, which delays no single message"
        await room.send(b"2")
        consumer = await room.consumer()
        (held,) = await room.claim(consumer)

        await consumer.put_back([held], [0.0], [Mark(attempts=7, suspect=True)])

        (again,) = await room.claim(consumer)
        assert (again.receives, again.message.attempts, again.message.suspect) == (2, 0, False)


async def test_a_single_fifo_queue_among_standard_ones_says_what_it_can_do() -> None:
    async with lab("sqs") as room:
        await room.driver.declare(QueueSpec(name="a.fifo"))
        await room.driver.send("a.fifo", [message()], [0.0])
        consumer = await room.consumer(queue="a.fifo")
        can = capabilities_of(consumer, room.driver)
        (held,) = await room.claim(consumer)

        await consumer.put_back([held], [0.0], [Mark(attempts=7)])

        assert can.ordered_groups
        assert can.uncounted_return is UncountedReturn.COUNTED
        assert (await room.claim(consumer))[0].receives == 2
        assert capabilities_of(await room.consumer(), room.driver) == room.driver.capabilities


async def test_a_name_with_and_without_its_ending_is_one_queue() -> None:
    async with lab("sqs-fifo") as room:
        await room.send(b"1")

        assert (await room.driver.inspect("q.fifo")).ready.value == 1
        assert await room.driver.queues() == ["q", "q-dead"]


async def test_a_late_ack_of_a_fifo_message_deletes_nothing() -> None:
    async with lab("sqs-fifo") as room:
        await room.send(b"1")
        consumer = await room.consumer(lease=10)
        (stale,) = await room.claim(consumer)
        room.clock.advance(11)

        assert isinstance((await consumer.ack([stale]))[0], LeaseLostError)

        assert len(await room.claim(consumer)) == 1


# -- RabbitMQ -----------------------------------------------------------------------------


async def test_a_held_message_stays_with_its_consumer_and_is_back_when_that_closes() -> None:
    async with lab("rabbitmq") as room:
        await room.send(b"1")
        mine, yours = await room.consumer(lease=10), await room.consumer()
        (held,) = await room.claim(mine)
        room.clock.advance(600)
        assert await room.claim(yours) == []
        assert await mine.extend([held], 60) == [None]

        await mine.aclose()

        assert (await room.claim(yours))[0].receives == 2


async def test_after_the_consumer_timeout_the_message_is_somebody_elses() -> None:
    async with lab("rabbitmq") as room:
        await room.send(b"1")
        mine, yours = await room.consumer(), await room.consumer()
        (held,) = await room.claim(mine)
        (error,) = await mine.extend([held], 1_700)
        assert isinstance(error, CannotExtendError)
        room.clock.advance(1_801)

        assert len(await room.claim(yours)) == 1
        assert isinstance((await mine.ack([held]))[0], LeaseLostError)


async def test_a_delayed_release_is_a_copy_that_says_its_attempts() -> None:
    async with lab("rabbitmq") as room:
        await room.send(b"1")
        consumer = await room.consumer()
        (held,) = await room.claim(consumer)

        await consumer.release([held], [0.2])

        room.clock.advance(0.5)
        assert await room.claim(consumer) == []
        room.clock.advance(0.5)
        (again,) = await room.claim(consumer)
        assert (again.message.attempts, again.receives) == (1, 1)


async def test_too_old_messages_of_rabbitmq_are_dead_letters() -> None:
    async with lab("rabbitmq", retention=60) as room:
        await room.send(b"1")
        room.clock.advance(61)

        assert await room.claim(await room.consumer()) == []
        assert len(await room.claim(await room.consumer(queue="q-dead"))) == 1


async def test_rabbitmq_tells_who_consumes_and_lists_no_queues() -> None:
    async with lab("rabbitmq") as room:
        await room.send(b"1")
        assert (await room.driver.inspect("q")).leased.value == 0
        consumer = await room.consumer()
        assert (await room.driver.inspect("q")).leased.certainty.value == "unknown"
        await consumer.aclose()
        with pytest.raises(UnsupportedError, match="does not list queues"):
            await room.driver.queues()


async def test_a_message_too_large_for_rabbitmq_is_refused_alone() -> None:
    async with lab("rabbitmq") as room:
        answers = await room.send(b"x", b"x" * (rabbitmq.MAX_BODY + 1))
        assert [type(each) for each in answers] == [type(None), MessageTooLargeError]
        (refused,) = await room.send(b"x", headers={"x" * 256: "y"})
        assert isinstance(refused, MessageRefusedError)
        (refused,) = await room.send(b"x", headers={"x": "y" * 140_000})
        assert isinstance(refused, MessageTooLargeError)


# -- the same answers as the real adapters -------------------------------------------------

_TEXT = st.text(st.characters(), max_size=40)
_MESSAGES = st.builds(
    Message,
    id=st.just("0199-id") | _TEXT,
    body=st.binary(max_size=60) | st.sampled_from([b"", b"\0", "grün".encode(), b"x" * 300]),
    type=st.sampled_from(["", "t", "t" * 300, "\x07"]),
    content_type=st.sampled_from(["", "application/json", "\0"]),
    headers=st.dictionaries(_TEXT, _TEXT, max_size=12),
    key=st.none() | _TEXT,
    group=st.none() | _TEXT,
)
_DELAYS = st.sampled_from([0.0, 0.2, 1.0, 899.5, 900.0, 900.5, 86_400.0, 86_401.0])
_DIFFERENTIAL = settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def words(error: DriverError | None) -> str:
    return "" if error is None else f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("is_fifo", [False, True])
@given(each=_MESSAGES, delay=_DELAYS, extra=st.sampled_from([0, 700_000, 1_047_900, 1_048_577]))
@example(each=Message(id="1", body=b"", type="t"), delay=0.0, extra=1_048_500)
@_DIFFERENTIAL
def test_memory_like_sqs_refuses_what_the_sqs_adapter_refuses(
    is_fifo: bool,  # noqa: FBT001  -- pytest gives it by name
    each: Message,
    delay: float,
    extra: int,
) -> None:
    pytest.importorskip("aiobotocore")
    big = replace(each, body=each.body + b"x" * extra)

    async def run() -> tuple[str, str]:
        theirs = await _answer_of_the_sqs_adapter(big, delay, is_fifo=is_fifo)
        async with lab("sqs-fifo" if is_fifo else "sqs") as room:
            (ours,) = await room.driver.send("q", [big], [delay])
        return words(theirs), words(ours)

    theirs, ours = _run(run())
    assert theirs == ours


_NAMES = st.sampled_from(["", "q", "q.fifo", "q-dead", "a.b", "q.FIFO", "x" * 75, "x" * 76, "ü"])
_SPECS = st.builds(
    QueueSpec,
    name=_NAMES | st.text(max_size=8),
    dead_letter=st.none() | _NAMES,
    lease=st.sampled_from([None, 0.0, 0.5, 30.0, 43_140.0, 43_141.0]),
    retention=st.sampled_from([None, 59.0, 60.0, 1_209_600.0, 1_209_601.0, math.inf]),
    broker_limit=st.sampled_from([0, 1, 1000, 1001]),
)


@pytest.mark.parametrize("is_fifo", [False, True])
@given(spec=_SPECS)
@_DIFFERENTIAL
def test_memory_like_sqs_refuses_the_queues_that_the_sqs_adapter_refuses(
    is_fifo: bool,  # noqa: FBT001  -- pytest gives it by name
    spec: QueueSpec,
) -> None:
    pytest.importorskip("aiobotocore")
    from brokerwq_sqs.queues import Queues
    from brokerwq_sqs.settings import SqsSettings
    from brokerwq_sqs.topology import check_spec

    like = likeness_of("sqs-fifo" if is_fifo else "sqs")

    def told(check: Callable[[], object]) -> str:
        try:
            check()
        except ConfigError as exc:
            return str(exc)
        return ""

    theirs = told(lambda: check_spec(spec, Queues(cast("Any", None), SqsSettings(fifo=is_fifo))))
    assert told(lambda: like.check(spec)) == theirs


@given(each=_MESSAGES, delay=_DELAYS, filler=st.sampled_from([0, 131_000, 140_000]))
@_DIFFERENTIAL
def test_memory_like_rabbitmq_refuses_what_the_rabbitmq_adapter_refuses(
    each: Message, delay: float, filler: int
) -> None:
    pytest.importorskip("aiormq")
    big = replace(each, headers={**each.headers, "filler": "x" * filler})

    async def run() -> tuple[str, str]:
        async with lab("rabbitmq") as room:
            (ours,) = await room.driver.send("q", [big], [delay])
        return _answer_of_the_rabbitmq_adapter(big, delay), words(ours)

    theirs, ours = _run(run())
    assert theirs == ours


def _run(work: Any) -> Any:
    import asyncio

    return asyncio.run(work)


async def _answer_of_the_sqs_adapter(
    each: Message, delay: float, *, is_fifo: bool
) -> DriverError | None:
    """What its driver answers, on a client that takes everything."""
    from brokerwq_sqs.driver import SqsDriver
    from brokerwq_sqs.settings import SqsSettings

    @asynccontextmanager
    async def clients(_: Any, __: Any) -> AsyncGenerator[Any]:
        yield _Yes()

    driver = SqsDriver(SqsSettings(fifo=is_fifo, clients=clients), FakeClock())
    await driver.open()
    (answer,) = await driver.send("q", [each], [delay])
    await driver.aclose()
    return answer


class _Yes:
    async def get_queue_url(self, **arguments: Any) -> Any:
        return {"QueueUrl": f"http://x/000000000000/{arguments['QueueName']}"}

    async def get_queue_attributes(self, **_: Any) -> Any:
        return {"Attributes": {"MaximumMessageSize": str(sqs.MAX_BYTES)}}

    async def list_queues(self, **_: Any) -> Any:
        return {}

    async def send_message_batch(self, **arguments: Any) -> Any:
        json.dumps(arguments["Entries"])
        return {"Successful": [{"Id": entry["Id"]} for entry in arguments["Entries"]]}


def _answer_of_the_rabbitmq_adapter(each: Message, delay: float) -> str:
    """What its driver answers before anything is sent."""
    from brokerwq_rabbitmq import wire
    from brokerwq_rabbitmq.copies import Copier

    copier = Copier(cast("Any", None), FakeClock(), 1.0)
    try:
        outgoing: Any = copier._outgoing("q", each, delay)  # pyright: ignore[reportPrivateUsage]
    except (MessageRefusedError, UnsupportedError) as exc:
        return words(exc)
    return words(
        wire.size_error(
            outgoing.properties,
            each.body,
            max_body=rabbitmq.MAX_BODY,
            max_frame=rabbitmq.MAX_FRAME,
        )
    )


# -- an app on each ------------------------------------------------------------------------


@pytest.mark.parametrize("like", ["sqs", "sqs-fifo", "rabbitmq"])
async def test_an_app_drains_its_queue_retries_and_snoozes_included(like: str) -> None:
    # On a FIFO queue a suspect that runs alone costs those beside it an attempt.
    app = App("sqs://eu-west-1/shop", retry=RetryPolicy(max_attempts=8, base=5))
    runs: list[tuple[int, int]] = []

    @app.worker("orders")
    async def place(job: Job, *, order: int) -> None:
        runs.append((order, job.attempt))
        if order == 1 and runs.count((1, 1)) == 1 and job.attempt == 1:
            raise Snooze(3600)
        if order == 2 or (order == 3 and job.attempt < 3):
            msg = "not yet"
            raise ValueError(msg)

    async with TestApp(app, f"memory://?like={like}") as shop:
        for order in range(6):
            await place.options(group=str(order)).enqueue(order=order)
        report = await shop.drain(include_delayed=True)

    assert (report.done, report.snoozed, report.dead) == (5, 1, {"failed": 1})
    # Where nothing can be returned uncounted, a snooze costs an attempt.
    assert max(attempt for order, attempt in runs if order == 1) == 1 + (like == "sqs-fifo")
