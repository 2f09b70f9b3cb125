"""Every door at which a value can be given, and values that nobody can mean."""

from __future__ import annotations

import math
import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from brokerwq import App, QueueSpec, RetryPolicy, Runner, connect
from brokerwq.errors import BrokerwqError, ConfigError, PayloadError

NO_NUMBERS: list[Any] = [
    math.nan,
    math.inf,
    -math.inf,
    True,
    "3",
    b"3",
    [],
    Decimal("NaN"),
    Fraction(1, 3),
    1 + 2j,
    10**400,
    -(10**400),
    datetime(2026, 1, 1, tzinfo=UTC),
    timedelta.max,
]
NO_TEXTS: list[Any] = [3, True, b"q", [], {}, math.nan, "", "\0", "a\nb", "\ud800", "x" * 100_000]
NO_SEQUENCES: list[Any] = [3, None, math.nan, "text", Ellipsis, True]

MAX_TEXT = 600
"""Characters of an error, whatever was given."""


def url() -> str:
    return f"memory://{uuid.uuid4().hex}"


def a_spec(**properties: Any) -> QueueSpec:
    given: dict[str, Any] = {"name": "q", **properties}
    return QueueSpec(**given)


def is_clear(error: pytest.ExceptionInfo[BrokerwqError], *names: str) -> bool:
    text = str(error.value)
    assert len(text) <= MAX_TEXT
    return any(name in text for name in names)


def an_app(**keywords: Any) -> App:
    app = App(url(), **keywords)

    @app.worker("q")
    async def work(n: int) -> None:
        raise AssertionError(n)

    return app


@pytest.mark.parametrize("value", NO_NUMBERS, ids=repr)
@pytest.mark.parametrize("name", ["lease", "retention", "broker_limit"])
def test_a_queues_properties_are_checked_where_the_app_is_made(name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as error:
        an_app(queues=[a_spec(**{name: value})])
    assert is_clear(error, name)
    assert "'q'" in str(error.value)


@pytest.mark.parametrize("value", [5e-324, 1e-6, timedelta(milliseconds=1)], ids=repr)
async def test_a_lease_too_short_to_do_anything_in_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"the least is 0\.05"):
        App(url()).worker("q", lease=value)
    with pytest.raises(ConfigError, match=r"the least is 0\.05"):
        an_app(queues=[QueueSpec(name="q", lease=value)])
    async with connect(url()) as broker:
        with pytest.raises(ConfigError, match=r"the least is 0\.05"):
            await _claim(broker, lease=value)


@pytest.mark.parametrize("value", NO_TEXTS, ids=lambda value: repr(value)[:20])
def test_a_queues_names_are_checked_where_the_app_is_made(value: Any) -> None:
    for spec in (QueueSpec(name=value), QueueSpec(name="q", dead_letter=value)):
        with pytest.raises(ConfigError) as error:
            an_app(queues=[spec])
        assert is_clear(error, "printable text")


@pytest.mark.parametrize(("name", "value"), [("ordered", 1), ("declare", "maybe"), ("declare", 0)])
def test_a_queues_choices_are_checked_where_the_app_is_made(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        an_app(queues=[a_spec(**{name: value})])


@pytest.mark.parametrize("value", [*NO_SEQUENCES, ["q"], [None]], ids=repr)
def test_what_is_no_list_of_queues_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError) as error:
        an_app(queues=value)
    assert is_clear(error, "QueueSpec")


def test_a_queue_is_described_once() -> None:
    with pytest.raises(ConfigError, match="'q' twice"):
        an_app(queues=[QueueSpec(name="q"), QueueSpec(name="q", lease=3)])


@pytest.mark.parametrize("value", NO_SEQUENCES, ids=repr)
def test_what_is_no_list_of_middleware_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError) as error:
        an_app(middleware=value)
    assert is_clear(error, "middleware")
    with pytest.raises(ConfigError) as error:
        App(url()).worker("q", middleware=value)
    assert is_clear(error, "middleware")


@pytest.mark.parametrize("value", [0, "", [], False, "often"], ids=repr)
def test_what_is_no_retry_policy_is_refused_where_the_app_is_made(value: Any) -> None:
    with pytest.raises(ConfigError, match="RetryPolicy"):
        App(url(), retry=value)


@pytest.mark.parametrize("value", [*NO_NUMBERS, 0, -1, 1.5, 2**63], ids=repr)
def test_a_runner_counts_its_slots_in_whole_numbers(value: Any) -> None:
    with pytest.raises(ConfigError) as error:
        Runner(an_app(), slots=value)
    assert is_clear(error, "slots")


@pytest.mark.parametrize("value", [*NO_NUMBERS, -1], ids=repr)
def test_a_grace_is_seconds(value: Any) -> None:
    with pytest.raises(ConfigError) as error:
        Runner(an_app(), grace=value)
    assert is_clear(error, "grace")


@pytest.mark.parametrize("value", NO_TEXTS, ids=lambda value: repr(value)[:20])
def test_a_runner_wants_names_of_queues(value: Any) -> None:
    with pytest.raises(ConfigError) as error:
        Runner(an_app(), value)
    assert is_clear(error, "queue")


@pytest.mark.parametrize("name", ["heartbeat", "log"])
def test_a_runners_switches_are_true_or_false(name: str) -> None:
    keywords: dict[str, Any] = {name: "no"}
    with pytest.raises(ConfigError, match=f"{name} must be True or False, not 'no'"):
        Runner(an_app(), **keywords)


@pytest.mark.parametrize(
    ("name", "value"),
    [("settle", math.nan), ("settle", 1e300), ("progress", 3), ("include_delayed", "yes")],
)
async def test_a_drain_says_what_it_cannot_take(name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as error:
        await an_app().drain(log=False, **{name: value})
    assert is_clear(error, name)


def test_a_jitter_that_is_none_is_shown_cut() -> None:
    with pytest.raises(ConfigError) as error:
        RetryPolicy(jitter="x" * 100_000)  # type: ignore[arg-type]
    assert is_clear(error, "jitter")


async def refused(call: Callable[[], Awaitable[object]], *names: str) -> None:
    with pytest.raises((ConfigError, PayloadError)) as error:
        await call()
    assert is_clear(error, *names)


@pytest.mark.slow
@pytest.mark.parametrize("value", [*NO_TEXTS, " x"], ids=lambda value: repr(value)[:20])
async def test_the_low_level_send_checks_every_name(value: Any) -> None:
    async with connect(url()) as broker:
        await broker.declare(QueueSpec(name="q"))
        await refused(lambda: broker.send("q", b"", id=value), "id")
        if value not in ("", " x"):
            await refused(lambda: broker.send("q", b"", type=value), "type")
            await refused(lambda: broker.send("q", b"", content_type=value), "content_type")
        if value != " x":
            await refused(lambda: broker.send(value, b""), "queue")
            await refused(lambda: broker.inspect(value), "queue")
            await refused(lambda: broker.purge(value), "queue")
            await refused(lambda: _claim(broker, queue=value), "queue")
        assert (await broker.inspect("q")).ready.value == 0


@pytest.mark.parametrize("value", [3, "text", None, [], {}, 1.5], ids=repr)
async def test_the_low_level_send_takes_bytes_alone(value: Any) -> None:
    async with connect(url()) as broker:
        await broker.declare(QueueSpec(name="q"))
        await refused(lambda: broker.send("q", value), "bytes")
        await refused(lambda: broker.declare(value), "QueueSpec")


@pytest.mark.parametrize("value", [3, "text", {1: "a"}, {"a": 1}, [("a", "b")]], ids=repr)
async def test_headers_are_text_to_text_at_the_low_level_too(value: Any) -> None:
    async with connect(url()) as broker:
        await broker.declare(QueueSpec(name="q"))
        await refused(lambda: broker.send("q", b"", headers=value), "header")


async def _claim(
    broker: Any, *, queue: Any = "q", lease: Any = 60, n: Any = 1, wait: Any = 0, prefetch: Any = 1
) -> None:
    async with broker.claimer(queue, lease=lease, prefetch=prefetch) as claimer:
        await claimer.claim(n, wait=wait)


@pytest.mark.parametrize("value", NO_NUMBERS, ids=repr)
async def test_the_low_level_claim_checks_every_number(value: Any) -> None:
    async with connect(url()) as broker:
        await broker.declare(QueueSpec(name="q"))
        for name in ("lease", "wait", "n", "prefetch"):
            if (name, value) != ("n", 10**400):  # more than there can be is no mistake
                await refused(lambda name=name: _claim(broker, **{name: value}), name)  # type: ignore[misc]
        await broker.send("q", b"kept")
        async with broker.claimer("q", lease=60) as claimer:
            (delivery,) = await claimer.claim(wait=0)
            await refused(lambda: claimer.extend(delivery, value), "seconds")
            await refused(lambda: claimer.release(delivery, delay=value), "delay")
            await refused(lambda: claimer.put_back(delivery, delay=value), "delay")
            await claimer.ack(delivery)


@pytest.mark.parametrize("reason", [None, 3, b"x", ["a"], math.nan, "\ud800", "x" * 100_000])
async def test_any_reason_will_do_for_a_dead_letter_at_the_low_level(reason: Any) -> None:
    async with connect(url()) as broker:
        await broker.declare(QueueSpec(name="q"))
        await broker.send("q", b"kept")
        async with broker.claimer("q", lease=60) as claimer:
            (delivery,) = await claimer.claim(wait=0)
            await claimer.dead_letter(delivery, reason)
        assert (await broker.inspect("q")).dead.value == 1


@pytest.mark.parametrize(
    "text", ["sqlite://[/x", "memory://[x", "amqp://u:secret@[::1/", "sqs://["]
)
def test_a_url_that_no_parser_reads_is_a_setting_that_is_wrong(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a broker URL") as error:
        App(text)
    assert "secret" not in str(error.value)
