"""Workers on queues that other programs fill: who gets what, when, and what nobody gets."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel

from brokerwq import App, DeadLetter, Discard, Job, Message, QueueSpec, RetryPolicy
from brokerwq.codecs import (
    Arguments,
    CeleryCodec,
    DramatiqCodec,
    JsonCodec,
    Reading,
    SnsCodec,
    TaskiqCodec,
)
from brokerwq.errors import ConfigError, QueueNotFoundError
from brokerwq.events import DeadLettered, JobEnded
from brokerwq.telemetry.logs import EventLog
from brokerwq.testing import FakeClock
from tests.cases.lab import Place, counts, dead_letters, declare, reasons, send_raw
from tests.foreign.lab import dramatiq_message, enveloped, sns_envelope, task, taskiq_message


async def run(place: Place, app: App, *messages: Message, queue: str = "q") -> None:
    await declare(app, queue)
    await send_raw(app, queue, *messages)
    await place.drain(app)


# -- Celery -----------------------------------------------------------------------------------


SENT = task("billing.tasks.send_receipt", 4711, "EUR", locale="de")


@pytest.mark.parametrize("message", [SENT, enveloped(SENT), enveloped(SENT, outer=False)])
async def test_a_celery_task_runs_the_worker_of_its_name(place: Place, message: Message) -> None:
    app = place.app()
    seen: list[tuple[Any, ...]] = []

    @app.worker("q", codec="celery", foreign=True, name="billing.tasks.send_receipt")
    async def send_receipt(job: Job, *, order: int, currency: str, locale: str = "en") -> None:
        seen.append((job.id, job.type, order, currency, locale))

    await run(place, app, message)

    assert seen == [("task-1", "billing.tasks.send_receipt", 4711, "EUR", "de")]
    assert await counts(app, "q") == (0, 0, 0, 0)


async def test_several_workers_share_a_queue_and_each_gets_its_tasks(place: Place) -> None:
    app = place.app()
    seen: list[tuple[str, Any]] = []

    @app.worker("q", codec="celery", foreign=True, name="t.add", aliases=["t.plus"])
    async def add(*, x: int, y: int) -> None:
        seen.append(("add", x + y))

    @app.worker("q", codec="celery", foreign=True, name="t.greet")
    def greet(name: str) -> None:
        seen.append(("greet", name))

    @app.worker("q", codec="celery", foreign=True, name="*")
    async def rest(job: Job, call: Arguments) -> None:
        seen.append((job.type, (list(call.args), dict(call.kwargs))))

    @app.worker("q", name="ours")
    async def ours(*, n: int) -> None:
        seen.append(("ours", n))

    await declare(app, "q")
    await ours.enqueue(n=7)
    await run(
        place,
        app,
        task("t.add", 1, 2, id_="1"),
        task("t.plus", 1, y=4, id_="2"),
        task("t.greet", "ann", id_="3"),
        task("t.greet", name="bob", id_="4"),
        task("shop.other", 1, [2], a=None, id_="5"),
    )

    assert sorted(seen, key=str) == [
        ("add", 3),
        ("add", 5),
        ("greet", "ann"),
        ("greet", "bob"),
        ("ours", 7),
        ("shop.other", ([1, [2]], {"a": None})),
    ]


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (task("t", 1, 2, 3), "3 arguments by position; the worker takes 2"),
        (task("t", 1, x=2), "two arguments 'x'"),
        (task("t", 1), "y: missing"),
        (task("t", 1, 2, z=3), "z: no such field"),
        (task("t", "one", 2), "x: must be a whole number"),
        (task("t", 1, 2, workflow={"chain": [{"task": "u"}]}), "the task has chain"),
        (task("t", 1, 2, headers={"eta": "soon"}), "eta is no moment"),
        (task("t", {"__type__": "odd", "__value__": 1}, 2), "kombu's type 'odd'"),
        (Message(id="", body=b"[[],{}]", headers={"task": "t"}), r"\[args, kwargs, workflow\]"),
        (Message(id="", body=b"{}", headers={"task": "t"}), r"\[args, kwargs, workflow\]"),
        (
            Message(id="", body=b"x", content_type="application/x-python-serialize",
                    headers={"task": "t"}),
            "only JSON is read",
        ),
        (Message(id="", body=b"hello there"), "not base64"),
        (Message(id="", body=b'{"task": "t", "id": "1"}'), "message protocol 1"),
        (Message(id="", body=b'{"id": "1"}'), "has no headers"),
        (Message(id="", body=b'{"headers": {}, "properties": {}}'), "protocol 2"),
        (enveloped(task("t", 1, 2), body_encoding="rot13"), "body encoding 'rot13'"),
    ],
)  # fmt: skip
async def test_a_task_that_cannot_be_run_is_dead_at_once_and_says_why(
    place: Place, message: Message, why: str
) -> None:
    app = place.app()
    seen: list[int] = []

    @app.worker("q", codec="celery", foreign=True, name="t")
    async def work(*, x: int, y: int) -> None:
        seen.append(x + y)

    await run(place, app, message, task("t", 1, 2, id_="good"))

    assert seen == [3]
    (letter,) = await dead_letters(app, "q")
    assert letter.body == message.body
    assert letter.dead is not None
    assert (letter.dead.reason, letter.dead.attempts) == ("decode", 1)
    assert re.search(why, letter.dead.error), letter.dead.error
    (dead,) = place.events.of(DeadLettered)
    assert dead.error == letter.dead.error  # so that the log says it too


async def test_a_dead_letter_is_called_what_the_log_calls_it(place: Place) -> None:
    app = place.app()

    @app.worker("q", codec="celery", foreign=True, name="t")
    async def work() -> None:
        raise DeadLetter("useless")

    message = task("t", id_="theirs")
    await run(place, app, message)

    (ended,) = place.events.of(JobEnded)
    (dead,) = place.events.of(DeadLettered)
    (letter,) = await dead_letters(app, "q")
    assert (letter.type, dict(letter.headers)) == ("", dict(message.headers))
    assert letter.dead is not None
    assert (letter.dead.id, letter.dead.type) == ("theirs", "t")
    assert (ended.id, ended.type) == (dead.id, dead.type) == ("theirs", "t")


async def test_a_message_without_any_id_gets_the_one_that_the_log_names(place: Place) -> None:
    app = place.app()

    @app.worker("q", codec="json", foreign=True)
    async def work(n: int) -> None:
        raise AssertionError(n)

    await run(place, app, Message(id="", body=b"[]"))

    (ended,) = place.events.of(JobEnded)
    (letter,) = await dead_letters(app, "q")
    assert letter.dead is not None
    assert ended.id
    assert ended.id in (letter.id, letter.dead.id)


async def test_kombus_own_types_come_back_as_what_they_were(place: Place) -> None:
    app = place.app()
    seen: list[Any] = []
    marks = {
        "at": ("datetime", "2026-09-21T14:13:20+02:00"),
        "price": ("decimal", "19.90"),
        "ref": ("uuid", {"hex": "c0ffee00000040008000000000000007"}),
        "text": ("bytes", "abc"),
        "binary": ("base64", base64.b64encode(b"\xff\x00").decode()),
    }
    given: dict[str, Any] = {
        name: {"__type__": kind, "__value__": text} for name, (kind, text) in marks.items()
    }

    @app.worker("q", codec="celery", foreign=True, name="typed")
    async def typed(
        *,
        at: datetime,
        price: Decimal,
        ref: UUID,
        text: bytes,
        binary: bytes,
        tags: tuple[int, ...],
    ) -> None:
        seen.append((at.isoformat(), price, ref.hex, text, binary, tags))

    @app.worker("q", codec="celery", foreign=True, name="plain")
    async def plain(*, at: datetime, price: Decimal) -> None:
        seen.append((at.isoformat(), price))

    some = {name: given[name] for name in ("at", "price")}
    await run(
        place, app, task("typed", id_="1", tags=[1, 2], **given), task("plain", id_="2", **some)
    )

    assert seen == [
        (
            "2026-09-21T14:13:20+02:00",
            Decimal("19.90"),
            "c0ffee00000040008000000000000007",
            b"abc",
            b"\xff\x00",
            (1, 2),
        ),
        ("2026-09-21T14:13:20+02:00", Decimal("19.90")),
    ]


async def test_an_eta_is_kept_and_takes_no_attempt(place: Place) -> None:
    app = place.app()
    clock = place.clock
    assert isinstance(clock, FakeClock)
    started, eta = clock.utcnow(), clock.utcnow() + timedelta(seconds=90)
    seen: list[tuple[float, int]] = []

    @app.worker("q", codec="celery", foreign=True, name="t")
    async def work(job: Job, *, n: int) -> None:
        assert n == 1
        seen.append(((clock.utcnow() - started).total_seconds(), job.attempt))

    await declare(app, "q")
    await send_raw(app, "q", task("t", 1, headers={"eta": eta.isoformat()}))
    await place.drain(app, include_delayed=True)

    ((after, attempt),) = seen
    assert 90 <= after < 100
    assert attempt == 1


LONG_AGO = "0001-01-01T00:00:00+14:00"
NEVER = "9999-12-31T23:59:59.999999-14:00"


@pytest.mark.parametrize(
    ("headers", "seen", "left"),
    [
        ({"eta": LONG_AGO}, [1], 0),
        ({"eta": NEVER}, [], 1),
        ({"expires": LONG_AGO}, [], 0),
        ({"expires": NEVER}, [1], 0),
    ],
)
async def test_a_moment_that_utc_has_no_name_for_is_past_or_to_come(
    place: Place, headers: dict[str, str], seen: list[int], left: int
) -> None:
    app = place.app()
    ran: list[int] = []

    @app.worker("q", codec="celery", foreign=True, name="t")
    async def work(*, n: int) -> None:
        ran.append(n)

    await run(place, app, task("t", 1, headers=headers))

    assert ran == seen
    assert await counts(app, "q") == (0, 0, left, 0)


@pytest.mark.parametrize("offset", ["", "Z", "+02:00"])
def test_an_eta_without_an_offset_is_in_utc(offset: str) -> None:
    reading = CeleryCodec().read(task("t", headers={"eta": f"2026-09-21T14:00:00{offset}"}))

    hours = 12 if offset == "+02:00" else 14
    assert reading.not_before == datetime(2026, 9, 21, hours, tzinfo=UTC)


@pytest.mark.parametrize(
    ("codec", "message", "dead"),
    [
        (CeleryCodec(), task("t", 1, headers={"expires": "2020-01-01T00:00:00+00:00"}), []),
        (
            CeleryCodec(expired="dead-letter"),
            task("t", 1, headers={"expires": "2020-01-01T00:00:00+00:00"}),
            ["expired"],
        ),
        (DramatiqCodec(), dramatiq_message("t", 1, options={"max_age": -1e12}), ["expired"]),
        (
            DramatiqCodec(expired="discard"),
            dramatiq_message("t", 1, options={"max_age": -1e12}),
            [],
        ),
    ],
)
async def test_what_has_expired_is_not_run(
    place: Place, codec: Any, message: Message, dead: list[str]
) -> None:
    app = place.app()

    @app.worker("q", codec=codec, foreign=True, name="t")
    async def work(*, n: int) -> None:
        raise AssertionError(n)

    await declare(app, "q")
    await send_raw(app, "q", message)
    report = await place.drain(app)

    assert (report.discarded, await reasons(app, "q")) == (0 if dead else 1, dead)


async def test_a_dramatiq_message_of_age_limit_0_has_none(place: Place) -> None:
    app = place.app()
    seen: list[int] = []

    @app.worker("q", codec="dramatiq", foreign=True, name="t")
    async def work(*, n: int) -> None:
        seen.append(n)

    await run(place, app, dramatiq_message("t", 1, options={"max_age": 0}))

    assert seen == [1]


async def test_a_workflow_can_be_dropped_in_so_many_words(place: Place) -> None:
    app = place.app()
    seen: list[int] = []

    @app.worker("q", codec=CeleryCodec(workflows="ignore"), foreign=True, name="t")
    async def work(*, n: int) -> None:
        seen.append(n)

    await run(place, app, task("t", 1, workflow={"chain": [{"task": "u"}]}))

    assert seen == [1]


async def test_a_task_that_nobody_runs_here_waits_for_a_runner_that_does(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKERWQ_UNKNOWN_AFTER", "20")
    old, new = place.app(), place.app()
    seen: list[tuple[int, int]] = []

    @old.worker("q", codec="celery", foreign=True, name="t.a")
    async def a(*, n: int) -> None:
        raise AssertionError(n)

    @new.worker("q", codec="celery", foreign=True, name="t.b")
    async def b(job: Job, *, n: int) -> None:
        seen.append((n, job.attempt))

    await declare(old, "q")
    await send_raw(old, "q", task("t.b", 1, id_="1"))
    async with place.running(old):
        await place.passes(5)
    assert seen == []
    async with place.running(new):
        await place.until(lambda: seen == [(1, 1)], step=0.5)
    async with place.running(old):
        await send_raw(old, "q", task("t.c", 1, id_="2"))
        await place.passes(30)
    assert await reasons(old, "q") == ["unknown-type"]


async def test_a_task_of_others_can_be_left_to_them_for_ever(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKERWQ_UNKNOWN_AFTER", "20")
    app = place.app()

    @app.worker("q", codec="celery", foreign=True, name="t.a", on_unknown="leave")
    async def a(*, n: int) -> None:
        raise AssertionError(n)

    await declare(app, "q")
    await send_raw(app, "q", task("t.b", 1))
    async with place.running(app):
        await place.passes(120)

    ready, leased, delayed, dead = await counts(app, "q")
    assert (ready + leased + delayed, dead) == (1, 0)
    await place.passes(5)
    consumer = await (await app.broker().driver()).consume("q", lease=60.0, prefetch=1)
    (delivery,) = await consumer.claim(1, 0.0)
    assert delivery.attempt == 1
    assert dict(delivery.message.headers) == dict(task("t.b", 1).headers)


CHAINED = {"chain": [{"task": "t.c"}]}


REFUSED: list[tuple[str, Callable[[str], Message]]] = [
    ("celery", lambda name: task(name, 1, workflow=CHAINED, id_=name)),
    ("celery", lambda name: enveloped(task(name, id_=name), body_encoding="rot13")),
    (
        "celery",
        lambda name: Message(
            id="",
            body=b"\x80\x04]",
            content_type="application/x-python-serialize",
            headers={"task": name, "id": name},
        ),
    ),
    (
        "dramatiq",
        lambda name: dramatiq_message(name, id_=name, options={"pipe_target": {"a": 1}}),
    ),
    ("taskiq", lambda name: taskiq_message(name, id_=name, labels={"_pipe_data": "[]"})),
    (
        "cloudevents",
        lambda name: Message(
            id="",
            body=b"{}",
            content_type="application/json",
            headers={
                "ce-specversion": "1.0",
                "ce-id": name,
                "ce-source": "/a",
                "ce-type": name,
                "ce-time": "noon",
            },
        ),
    ),
]


@pytest.mark.parametrize(("codec", "refused"), REFUSED)
async def test_what_cannot_be_run_dies_under_its_name_and_only_where_it_has_a_worker(
    place: Place, codec: Any, refused: Callable[[str], Message]
) -> None:
    app = place.app()

    @app.worker("q", codec=codec, foreign=True, name="t.a", on_unknown="leave")
    async def a(n: int) -> None:
        raise AssertionError(n)

    theirs = refused("t.b")
    await declare(app, "q")
    await send_raw(app, "q", refused("t.a"), theirs)
    async with place.running(app):
        await place.passes(60)

    ready, leased, delayed, dead = await counts(app, "q")
    assert (ready + leased + delayed, dead) == (1, 1)
    (event,) = place.events.of(DeadLettered)
    assert (event.id.removeprefix("/a "), event.type, event.reason) == ("t.a", "t.a", "decode")
    await place.passes(5)
    consumer = await (await app.broker().driver()).consume("q", lease=60.0, prefetch=1)
    (delivery,) = await consumer.claim(1, 0.0)
    assert (delivery.message.body, delivery.attempt) == (theirs.body, 1)


async def test_a_failing_task_is_retried_by_the_workers_own_policy(place: Place) -> None:
    app = place.app()
    seen: list[tuple[int, str]] = []

    @app.worker("q", codec="celery", foreign=True, name="t", retry=RetryPolicy(max_attempts=3))
    async def work(job: Job, *, n: int) -> None:
        seen.append((job.attempt, job.id))
        raise ValueError(n)

    await run(place, app, task("t", 1, headers={"retries": "7"}))

    assert seen == [(1, "task-1"), (2, "task-1"), (3, "task-1")]
    assert await reasons(app, "q") == ["failed"]


async def test_a_task_can_be_made_a_job_of_our_own_on_the_way(place: Place) -> None:
    app = place.app()
    seen: list[int] = []

    @app.worker("ours")
    async def work(*, n: int) -> None:
        seen.append(n)

    @app.worker("q", codec="celery", foreign=True, name="t")
    async def forward(job: Job, *, n: int) -> None:
        job.enqueue(work, n=n)

    await run(place, app, task("t", 3))

    assert seen == [3]


async def test_celerys_messages_are_not_enqueued(place: Place) -> None:
    app = place.app()

    @app.worker("q", codec="celery", foreign=True, name="t")
    async def work(*, n: int) -> None:
        raise AssertionError(n)

    with pytest.raises(ConfigError, match="another program"):
        await work.enqueue(n=1)


# -- Dramatiq ---------------------------------------------------------------------------------


async def test_a_dramatiq_message_runs_the_worker_of_its_actor(place: Place) -> None:
    app = place.app()
    seen: list[Any] = []

    @app.worker("q", codec="dramatiq", foreign=True)
    async def send_receipt(job: Job, *, order: int, locale: str) -> None:
        created = job.enqueued_at
        assert created is not None
        seen.append((job.id, created.timestamp(), order, locale))

    plain = dramatiq_message("send_receipt", 4711, kwargs={"locale": "de"})
    packed = dramatiq_message("send_receipt", 4712, id_="dq-2", kwargs={"locale": "fr"})
    on_sqs = Message(id="", body=base64.b64encode(packed.body))
    await run(place, app, plain, on_sqs)

    assert seen == [
        ("dq-1", 1_790_000_000, 4711, "de"),
        ("dq-2", 1_790_000_000, 4712, "fr"),
    ]


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (dramatiq_message("t", 1, options={"pipe_target": {"x": 1}}), "has pipe_target"),
        (dramatiq_message("t", 1, options={"on_retry_exhausted": "u"}), "has on_retry_exhausted"),
        (dramatiq_message("t", 1, message_timestamp="now"), "message_timestamp is no number"),
        (dramatiq_message("t", 1, message_timestamp=10**30), "beyond the calendar"),
        (dramatiq_message("t", 1, kwargs=[]), "no kwargs"),
        (Message(id="", body=b'{"actor_name": "t"}'), "no message_id"),
        (Message(id="", body=b'{"actor_name": "t", "message_id": "m"}'), "no args"),
        (Message(id="", body=b"gASV"), "not UTF-8"),
    ],
)
async def test_a_dramatiq_message_that_cannot_be_run_says_why(
    place: Place, message: Message, why: str
) -> None:
    app = place.app()

    @app.worker("q", codec="dramatiq", foreign=True, name="t")
    async def work(*, n: int) -> None:
        raise AssertionError(n)

    await run(place, app, message)

    (letter,) = await dead_letters(app, "q")
    assert letter.dead is not None
    assert letter.dead.reason == "decode"
    assert why in letter.dead.error


async def test_a_delay_queue_of_dramatiqs_is_worked_off_when_its_messages_are_due(
    place: Place,
) -> None:
    app = place.app(queues=[QueueSpec(name="default.DQ", dead_letter="default.XQ")])
    clock = place.clock
    assert isinstance(clock, FakeClock)
    due = clock.utcnow() + timedelta(seconds=30)
    seen: list[float] = []

    @app.worker("default.DQ", codec="dramatiq", foreign=True)
    async def send_receipt(*, order: int) -> None:
        assert order == 1
        seen.append((clock.utcnow() - due).total_seconds())
        raise DeadLetter("no-such-order")

    await declare(app, "default.DQ", dead_letter="default.XQ")
    eta = round(due.timestamp() * 1000)
    await send_raw(app, "default.DQ", dramatiq_message("send_receipt", 1, options={"eta": eta}))
    await place.drain(app, include_delayed=True)

    assert 0 <= seen[0] < 5
    assert (await counts(app, "default.DQ"))[3] == 1
    assert (await app.broker().inspect("default.XQ")).ready.value == 1


# -- Taskiq -----------------------------------------------------------------------------------


async def test_a_taskiq_message_runs_the_worker_of_its_task_with_labels_of_their_types(
    place: Place,
) -> None:
    app = place.app()
    seen: list[Any] = []

    @app.worker("q", codec="taskiq", foreign=True, name="shop.tasks:send_receipt")
    async def send_receipt(job: Job, *, order: int, locale: str) -> None:
        labels: Any = job.raw["Taskiq"]
        seen.append((job.id, order, locale, labels["labels"]))

    labels = {"a": "5", "b": "0.5", "c": "True", "d": "AP8=", "e": "x", "f": 3, "g": "no", "h": "?"}
    kinds = {"a": 2, "b": 4, "c": 5, "d": 6, "e": 3, "f": 2, "g": 2, "i": 2}
    name = "shop.tasks:send_receipt"
    more: dict[str, Any] = {"kwargs": {"locale": "de"}, "labels": labels, "labels_types": kinds}
    await run(place, app, taskiq_message(name, 4711, **more))

    typed = {"a": 5, "b": 0.5, "c": True, "d": b"\0\xff", "e": "x", "f": 3, "g": "no", "h": "?"}
    assert seen == [("tq-1", 4711, "de", typed)]


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (taskiq_message("t", 1, labels={"_pipe_data": "[]"}), "has _pipe_data"),
        (taskiq_message("t", 1, kwargs=[]), "no kwargs, as a message of Taskiq has"),
        (taskiq_message("t", 1, task_id=None), "no task_id"),
        (taskiq_message("t", float("nan")), "NaN is not JSON"),
        (Message(id="", body=b"\x80\x05]"), "not UTF-8"),
    ],
)
async def test_a_taskiq_message_that_cannot_be_run_says_why(
    place: Place, message: Message, why: str
) -> None:
    app = place.app()

    @app.worker("q", codec="taskiq", foreign=True, name="t")
    async def work(*, n: int) -> None:
        raise AssertionError(n)

    await run(place, app, message)

    (letter,) = await dead_letters(app, "q")
    assert letter.dead is not None
    assert why in letter.dead.error


@pytest.mark.slow
async def test_a_taskiq_message_that_is_sent_again_is_the_same_work(
    real_time: Place, tmp_path: Path
) -> None:
    app = real_time.app(store=f"sqlite:///{tmp_path / 'keys.db'}", name="shop")
    seen: list[int] = []

    @app.worker("q", codec="taskiq", foreign=True, once="marker", name="t")
    async def work(*, n: int) -> None:
        seen.append(n)

    again = [taskiq_message("t", 1, labels={"_retries": str(count)}) for count in range(2)]
    await run(real_time, app, *again)

    assert seen == [1]
    assert await reasons(app, "q") == []


# -- Amazon SNS -------------------------------------------------------------------------------


class Order(BaseModel):
    order_id: int
    total: Decimal


LOOK_ALIKE = b'{"Type":"Notification","Message":"x"}'


async def test_sns_is_unwrapped_where_it_wrapped_and_nothing_else_is(place: Place) -> None:
    app = place.app()
    seen: list[Any] = []

    @app.worker("q", codec="sns", foreign=True)
    async def work(job: Job, payload: Any) -> None:
        seen.append((job.id, payload, dict(job.headers), job.raw.get("Sns") is not None))

    twice = sns_envelope(sns_envelope("{}").body.decode(), MessageId="outer")
    attributes = {"tenant": {"Type": "String.Array", "Value": '["t-17"]'},
                  "sig": {"Type": "Binary", "Value": "AP8Q"}}  # fmt: skip
    await run(
        place,
        app,
        sns_envelope('{"n":1}', MessageAttributes=attributes),
        Message(id="raw", body=b'{"n":2}', headers={"tenant": "t"}),
        Message(id="look-alike", body=LOOK_ALIKE),
        twice,
    )

    assert seen[:3] == [
        ("sns-1", {"n": 1}, {"tenant": '["t-17"]'}, True),
        ("raw", {"n": 2}, {"tenant": "t"}, False),
        ("look-alike", json.loads(LOOK_ALIKE), {}, False),
    ]
    assert (seen[3][0], seen[3][1]["Type"]) == ("outer", "Notification")


async def test_an_sns_message_is_validated(place: Place) -> None:
    app = place.app()
    seen: list[Order] = []

    @app.worker("q", codec="sns", foreign=True)
    async def work(order: Order) -> None:
        seen.append(order)

    good = sns_envelope('{"order_id":1,"total":"19.90"}')
    await run(
        place, app, good, sns_envelope("{}", MessageId="2"), sns_envelope("hello", MessageId="3")
    )

    assert [str(order.total) for order in seen] == ["19.90"]
    assert await reasons(app, "q") == ["decode", "decode"]


async def test_what_sns_itself_says_of_a_subscription_is_no_payload(place: Place) -> None:
    app = place.app()

    @app.worker("q", codec="sns", foreign=True)
    async def work(event: dict[str, Any]) -> None:
        raise AssertionError(event)

    said = {"Type": "SubscriptionConfirmation", "Token": "t", "SubscribeURL": "https://a.example"}
    await run(place, app, sns_envelope("You have chosen to subscribe", **said))

    (letter,) = await dead_letters(app, "q")
    assert letter.dead is not None
    assert letter.dead.reason == "decode"
    assert "'SubscriptionConfirmation'" in letter.dead.error
    assert b"https://a.example" in letter.body


@pytest.mark.slow
async def test_two_subscriptions_of_one_topic_are_one_work_to_a_store(
    real_time: Place, tmp_path: Path
) -> None:
    app = real_time.app(store=f"sqlite:///{tmp_path / 'keys.db'}", name="shop")
    seen: list[int] = []

    @app.worker("q", codec="sns", foreign=True, once="marker")
    async def work(*, n: int) -> None:
        seen.append(n)

    now = datetime.now(UTC).isoformat()
    first, again = (sns_envelope('{"n":1}', UnsubscribeURL=url, Timestamp=now) for url in "ab")
    second = Message(id="native-2", body=again.body)
    await run(real_time, app, first, second)

    assert seen == [1]
    assert await reasons(app, "q") == []


# -- S3 ---------------------------------------------------------------------------------------


def s3_event(sequencer: str) -> bytes:
    name = {"bucket": {"name": "b"}, "object": {"key": "in/a+b.csv", "sequencer": sequencer}}
    return json.dumps({"Records": [{"eventName": "ObjectCreated:Put", "s3": name}]}).encode()


def s3_key(event: dict[str, Any]) -> list[str]:
    s3 = event["Records"][0]["s3"]
    return [s3["bucket"]["name"], s3["object"]["key"], s3["object"]["sequencer"]]


async def test_the_key_of_a_foreign_message_is_read_from_its_payload(place: Place) -> None:
    app = place.app()
    seen: list[str | None] = []

    @app.worker("q", codec="json", foreign=True, key=s3_key)
    async def work(job: Job, event: dict[str, Any]) -> None:
        assert event["Records"]
        seen.append(job.message.key)
        assert job.idempotency_key == job.message.key

    await run(
        place,
        app,
        Message(id="1", body=s3_event("1")),
        Message(id="2", body=s3_event("1")),
        Message(id="3", body=s3_event("2")),
        Message(id="4", body=b"{}"),
    )

    assert seen == ['["b","in/a+b.csv","1"]'] * 2 + ['["b","in/a+b.csv","2"]']
    (letter,) = await dead_letters(app, "q")
    assert letter.dead is not None
    assert letter.dead.error == "the key function failed: KeyError"


@pytest.mark.slow
async def test_a_store_knows_a_foreign_message_by_the_key_of_its_payload(
    real_time: Place, tmp_path: Path
) -> None:
    app = real_time.app(store=f"sqlite:///{tmp_path / 'keys.db'}", name="shop")
    seen: list[str] = []

    @app.worker("q", codec="json", foreign=True, once="marker", key=s3_key)
    async def work(job: Job, event: dict[str, Any]) -> None:
        assert event["Records"]
        seen.append(job.id)

    copies = [Message(id=str(n), body=s3_event("1")) for n in range(3)]
    await run(real_time, app, *copies, Message(id="4", body=s3_event("2")))

    assert len(seen) == 2
    assert "4" in seen
    assert await reasons(app, "q") == []


async def test_a_test_event_can_be_dropped_and_counted(place: Place) -> None:
    app = place.app()
    seen: list[int] = []

    @app.worker("q", codec="json", foreign=True)
    async def work(event: dict[str, Any]) -> None:
        if event.get("Event") == "s3:TestEvent":
            raise Discard("s3-test-event")
        seen.append(len(event["Records"]))

    await declare(app, "q")
    test = Message(id="1", body=b'{"Service":"Amazon S3","Event":"s3:TestEvent","Bucket":"b"}')
    await send_raw(app, "q", test, Message(id="2", body=s3_event("1")))
    report = await place.drain(app)

    assert (seen, report.discarded, report.done) == ([1], 1, 1)


# -- codecs of the user's own -----------------------------------------------------------------


class OwnCodec:
    def read(self, message: Message, /) -> Reading:
        found = json.loads(message.body)
        return Reading(
            type=found["task_name"],
            id=message.headers["task_id"],
            arguments=Arguments(found["args"], found["kwargs"]),
            body=message.body,
        )


OWN = OwnCodec()


async def test_a_codec_of_ones_own_reads_any_protocol(place: Place) -> None:
    app = place.app()
    seen: list[Any] = []

    @app.worker("q", codec=OWN, foreign=True, name="shop.tasks:send_receipt")
    async def send_receipt(job: Job, *, order: int, locale: str) -> None:
        seen.append((job.id, order, locale))

    body = {"task_name": "shop.tasks:send_receipt", "args": [4711], "kwargs": {"locale": "de"}}
    good = Message(id="", body=json.dumps(body).encode(), headers={"task_id": "a1"})
    await run(place, app, good, Message(id="", body=b"{}", headers={}))

    assert seen == [("a1", 4711, "de")]
    (letter,) = await dead_letters(app, "q")
    assert letter.dead is not None
    assert letter.dead.error == "KeyError while reading the message"


class Broken:
    def __init__(self, fault: BaseException | None, answer: Any = None) -> None:
        self.fault = fault
        self.answer = answer

    def read(self, message: Message, /) -> Reading:
        if message.body == b"1":
            return Reading(body=b"1")
        if self.fault is not None:
            raise self.fault
        answer: Any = self.answer() if callable(self.answer) else self.answer
        return answer  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "codec",
    [
        *(Broken(fault()) for fault in (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError)),
        Broken(RecursionError("x" * 10_000)),
        Broken(None, b"no reading"),
        Broken(None, lambda: Reading(not_before=datetime(2026, 1, 1))),  # noqa: DTZ001
        Broken(None, lambda: Reading(id="\ud800")),
        Broken(None, lambda: Reading(id="x" * 5000)),
        Broken(None, lambda: Reading(type="x" * 300)),
        Broken(None, lambda: Reading(body="text")),  # type: ignore[arg-type]
        Broken(None, lambda: Reading(headers={"a": 1})),  # type: ignore[dict-item]
        Broken(None, lambda: Reading(arguments=Arguments([object()]))),
        Broken(None, lambda: Reading(defect="useless")),
    ],
)
async def test_a_codec_that_fails_makes_a_dead_letter_not_a_dead_runner(
    place: Place, codec: Broken
) -> None:
    app = place.app()
    seen: list[int] = []

    @app.worker("q", codec=codec, foreign=True)
    async def work(n: int) -> None:
        seen.append(n)

    await run(place, app, Message(id="a", body=b"0"), Message(id="b", body=b"1"))

    assert seen == [1]
    assert await reasons(app, "q") == ["decode"]


async def test_a_message_that_names_no_worker_has_one_only_if_there_is_one(place: Place) -> None:
    app = place.app()
    codec = Broken(None, Reading(body=b"2"))

    @app.worker("q", codec=codec, foreign=True)
    async def one(n: int) -> None:
        raise AssertionError(n)

    @app.worker("q", codec=codec, foreign=True)
    async def two(n: int) -> None:
        raise AssertionError(n)

    await run(place, app, Message(id="a", body=b"0"))

    (letter,) = await dead_letters(app, "q")
    assert letter.dead is not None
    assert "names no worker" in letter.dead.error


async def test_a_batch_worker_takes_foreign_messages_too(place: Place) -> None:
    app = place.app()
    seen: list[list[int]] = []

    @app.worker("q", codec="celery", foreign=True, name="t", batch=10, batch_wait=1)
    async def work(jobs: list[Job], numbers: list[int]) -> None:
        assert [job.id for job in jobs] == [f"i{n}" for n in numbers]
        seen.append(numbers)

    await run(place, app, *(task("t", n, id_=f"i{n}") for n in range(3)), task("t", id_="none"))

    assert sorted(n for part in seen for n in part) == [0, 1, 2]
    assert await reasons(app, "q") == ["decode"]


# -- where dead letters go --------------------------------------------------------------------


async def test_a_runner_does_not_start_without_a_place_for_dead_letters(place: Place) -> None:
    app, other = place.app(), place.app()

    @app.worker("q-dead", codec="json", foreign=True)  # a queue without one of its own
    async def work(n: int) -> None:
        raise AssertionError(n)

    await declare(other, "q")

    with pytest.raises(QueueNotFoundError, match="q-dead-dead"):
        await place.drain(app)


@pytest.mark.slow
async def test_what_would_be_dead_is_held_where_it_is_told_to(place: Place) -> None:
    app, other = place.app(), place.app()
    seen: list[int] = []

    @app.worker(
        "q-dead", codec="json", foreign=True, on_dead="hold", retry=RetryPolicy(max_attempts=2)
    )
    async def work(job: Job, n: int) -> None:
        seen.append(job.attempt)
        if n == 1:
            raise ValueError(n)
        if n == 2:
            raise DeadLetter("no")

    await declare(other, "q")
    bodies: Mapping[str, bytes] = {"fails": b"1", "gives up": b"2", "bad": b"?", "good": b"3"}
    await send_raw(app, "q-dead", *(Message(id=name, body=body) for name, body in bodies.items()))
    async with place.running(app):
        await place.until(lambda: len(seen) == 4, step=0.5)
        await place.passes(5000)

    assert sorted(seen) == [1, 1, 1, 2]  # nothing ran again
    ready, leased, delayed, _ = await counts(app, "q-dead")
    assert (ready, leased, delayed) == (0, 0, 3)


def test_held_messages_are_told_of_every_two_seconds_at_most(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = EventLog(clock=FakeClock())
    held = JobEnded(
        queue="q", type="t", id="1", attempt=1, outcome="held", counted=False, seconds=0.0
    )

    for _ in range(100):
        log(held)

    assert [record.getMessage() for record in caplog.records] == [
        "message held, for want of a dead-letter queue"
    ]


# -- what is refused at the decorator ---------------------------------------------------------


def number(n: int) -> None:
    raise AssertionError(n)


@pytest.mark.parametrize(
    ("keywords", "why"),
    [
        ({"codec": "selery", "foreign": True}, "'json', 'bytes', 'sns', 'cloudevents', 'celery'"),
        ({"codec": "celery"}, "foreign=True"),
        ({"codec": CeleryCodec()}, "foreign=True"),
        ({"codec": CeleryCodec, "foreign": True}, r"not a class: write CeleryCodec\(\)"),
        ({"codec": JsonCodec}, r"not a class: write JsonCodec\(\)"),
        ({"codec": 3, "foreign": True}, "a name, a Codec or a ForeignCodec"),
        ({"on_unknown": "leave"}, "foreign=True"),
        ({"on_dead": "hold"}, "foreign=True"),
        ({"on_dead": "drop", "foreign": True}, "on_dead must be 'dead-letter' or 'hold'"),
        ({"on_unknown": True, "foreign": True}, "on_unknown must be"),
        ({"codec": "json", "foreign": True, "name": "a:b"}, "letters"),
        ({"codec": "celery", "foreign": True, "name": "a\n"}, "printable"),
        ({"codec": "celery", "foreign": True, "name": ""}, "printable"),
    ],
)
def test_what_does_not_fit_is_refused_where_it_is_written(
    place: Place, keywords: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        place.app().worker("q", **keywords)(number)


def test_a_queue_is_read_in_one_way(place: Place) -> None:
    app = place.app()
    app.worker("q", codec="celery", foreign=True, name="a")(number)

    with pytest.raises(ConfigError, match="another codec"):
        app.worker("q", codec="dramatiq", foreign=True, name="b")(number)
    with pytest.raises(ConfigError, match="another codec"):
        app.worker("q", codec=CeleryCodec(expired="dead-letter"), foreign=True, name="b")(number)
    with pytest.raises(ConfigError, match="foreign messages already"):
        app.worker("q", codec="json", foreign=True, name="c")(number)
    app.worker("q", codec=CeleryCodec(), foreign=True, name="d")(number)
    app.worker("p", codec=SnsCodec(), foreign=True, name="e")(number)
    with pytest.raises(ConfigError, match="foreign messages already"):
        app.worker("p", codec=SnsCodec(), foreign=True, name="f")(number)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: CeleryCodec(expired="drop"),  # type: ignore[arg-type]
        lambda: CeleryCodec(workflows=True),  # type: ignore[arg-type]
        lambda: DramatiqCodec(workflows="run"),  # type: ignore[arg-type]
        lambda: TaskiqCodec(workflows="run"),  # type: ignore[arg-type]
    ],
)
def test_a_codec_with_a_wrong_option_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="must be"):
        wrong()
