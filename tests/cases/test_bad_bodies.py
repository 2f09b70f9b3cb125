"""Bodies and envelopes that nobody can read, and what is behind them in the queue."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel

from brokerwq import App, Job, Message, QueueSpec, RetryPolicy
from brokerwq.codecs import BoundCodec
from brokerwq.driver import dead_letter_name
from tests.cases.lab import Place, dead_letters, declare, send_raw

NOT_THIS_MODEL: dict[str, bytes] = {
    "empty": b"",
    "not UTF-8": b"\xff\xfe\x00abc",
    "UTF-16": '{"n": 1}'.encode("utf-16"),
    "byte order mark": b'\xef\xbb\xbf{"n":1}',
    "NaN": b'{"n":NaN}',
    "Infinity": b'{"n":-Infinity}',
    "a key twice": b'{"n":1,"n":2}',
    "null": b"null",
    "a number": b"7",
    "a string": b'"cGFy"',
    "a list": b'[{"n":1}]',
    "no JSON": b"hello from the console",
    "cut off": b'{"n":',
    "two documents": b'{"n":1}{"n":2}',
    "single quotes": b"{'n':1}",
    "deep": b"[" * 100_000,
    "deep in the field": b'{"n":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "control character": b"a\x07b",
    "NUL": b"a\x00b",
    "noncharacter": b"a\xef\xbf\xbeb",
    "CR LF emoji": b"a\r\n\xf0\x9f\x91\xbfb",
    "300 KiB": b"a" * 307_200,
    "a MiB": b'"' + b"a" * 1_048_577 + b'"',
    "gzip": b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\xabV\xcaN\xb4",
    "pickle": b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00}\x94\x8c\x01n\x94K\x01s.",
    "field missing": b"{}",
    "field too many": b'{"n":1,"m":2}',
    "field of another type": b'{"n":"one"}',
    "huge number": b'{"n":1' + b"0" * 5000 + b"}",
    "lone surrogate": b'{"n":"\\ud800"}',
}


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [1, 10])
async def test_what_cannot_be_read_is_dead_at_once_untouched_and_holds_nobody_up(
    both: Place, ahead: int
) -> None:
    app = both.app()
    seen: list[int] = []

    @app.worker("q", retry=RetryPolicy(max_attempts=3))
    async def work(*, n: int) -> None:
        seen.append(n)

    await declare(app, "q", lease=60.0)
    for name, body in NOT_THIS_MODEL.items():
        message = Message(id=name, type="work", content_type="application/json", body=body)
        await send_raw(app, "q", message)
    await work.enqueue(n=1)
    report = await both.drain(app, slots=ahead)

    assert seen == [1]
    assert (report.done, report.failed) == (1, 0)
    assert dict(report.dead) == {"decode": len(NOT_THIS_MODEL)}
    letters = await dead_letters(app, "q")
    assert {letter.id: letter.body for letter in letters} == NOT_THIS_MODEL
    for letter in letters:
        assert letter.dead is not None
        assert (letter.dead.reason, letter.dead.attempts) == ("decode", 1)
        assert letter.dead.error
        assert len(letter.dead.error) <= 1000


@pytest.mark.slow
async def test_bytes_arrive_as_they_were_sent(both: Place) -> None:
    app = both.app()
    seen: dict[str, bytes] = {}

    @app.worker("q")
    async def work(job: Job, body: bytes) -> None:
        seen[job.id] = body

    for name, body in NOT_THIS_MODEL.items():
        await work.enqueue(body, id=name)
    report = await both.drain(app)

    assert seen == NOT_THIS_MODEL
    assert report.done == len(NOT_THIS_MODEL)


@pytest.mark.slow
async def test_a_foreign_queue_gives_its_bodies_as_they_are(both: Place) -> None:
    app = both.app()
    seen: list[Any] = []

    @app.worker("q", foreign=True, codec="json")
    async def take(body: Any) -> None:
        seen.append(body)

    await declare(app, "q")
    for body in (b'"cGFy"', b'{"b64_field":"cGFy"}', b"null", b"[1]", b"cGFy"):
        await send_raw(app, "q", Message(id="", body=body))
    report = await both.drain(app, slots=1)

    assert seen == ["cGFy", {"b64_field": "cGFy"}, None, [1]]
    assert dict(report.dead) == {"decode": 1}


async def test_a_body_of_another_content_type_is_not_guessed_at(place: Place) -> None:
    app = place.app()

    @app.worker("q")
    async def work(*, n: int) -> None:
        raise AssertionError(n)

    await declare(app, "q", lease=60.0)
    for kind in ("text/plain", "application/x-python-serialize", "application/gzip"):
        await send_raw(app, "q", Message(id=kind, type="work", content_type=kind, body=b'{"n":1}'))
    report = await place.drain(app)
    assert dict(report.dead) == {"decode": 3}


# -- user code that reads ---------------------------------------------------------------------


class FarOutError(BaseException):
    pass


FAULTS: list[type[BaseException]] = [
    ValueError,
    KeyError,
    RecursionError,
    MemoryError,
    SystemExit,
    KeyboardInterrupt,
    GeneratorExit,
    FarOutError,
]


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_validator_that_fails_makes_a_bad_body_not_a_dead_runner(
    place: Place, fault: type[BaseException]
) -> None:
    app = place.app()
    seen: list[int] = []

    def check(n: int) -> int:
        if n == 0 and armed:
            raise fault
        return n

    class Numbered(BaseModel):
        n: Annotated[int, AfterValidator(check)]

    armed: list[bool] = []

    @app.worker("q")
    async def work(payload: Numbered) -> None:
        seen.append(payload.n)

    await work.enqueue(Numbered(n=0))
    await work.enqueue(Numbered(n=1))
    armed.append(True)
    report = await place.drain(app, slots=1)

    assert seen == [1]
    assert (report.done, dict(report.dead), report.exit_code) == (1, {"decode": 1}, 0)


class OddCodec:
    content_type = "text/x-odd"

    def __init__(self, fault: type[BaseException]) -> None:
        self.fault = fault

    def bind(self, kind: Any, /) -> BoundCodec:
        return self

    def encode(self, payload: Any, /) -> bytes:
        return str(payload).encode()

    def decode(self, body: bytes, content_type: str, /) -> object:
        if body == b"bad":
            raise self.fault
        return body.decode()


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_codec_that_fails_makes_a_bad_body_not_a_dead_runner(
    place: Place, fault: type[BaseException]
) -> None:
    app = place.app()
    seen: list[str] = []

    @app.worker("q", codec=OddCodec(fault))
    async def work(text: str) -> None:
        seen.append(text)

    await work.enqueue("bad")
    await work.enqueue("good")
    report = await place.drain(app, slots=1)

    assert seen == ["good"]
    assert (report.done, dict(report.dead)) == (1, {"decode": 1})


# -- envelopes --------------------------------------------------------------------------------

BAD_HEADERS: Sequence[dict[str, str]] = [
    {"bwq-v": "99"},
    {"bwq-v": ""},
    {"bwq-attempts": "many"},
    {"bwq-attempts": "-1"},
    {"bwq-attempts": "9" * 400},
    {"bwq-not-before": "tomorrow"},
    {"bwq-not-before": "9" * 15},
    {"bwq-snoozed": "nan"},
    {"bwq-redrives": "1.5"},
    {"bwq-unknown-since": "\ud83d\ude00"},
]


@pytest.mark.slow
@pytest.mark.parametrize("headers", BAD_HEADERS)
async def test_an_envelope_that_cannot_be_read_is_a_dead_letter_not_a_dead_runner(
    real: Place, tmp_path: Path, headers: dict[str, str]
) -> None:
    app = real.app()
    seen: list[int] = []

    @app.worker("q")
    async def work(*, n: int) -> None:
        seen.append(n)

    await work.enqueue(n=0)
    await app.aclose()
    with contextlib.closing(sqlite3.connect(tmp_path / "queue.db")) as file, file:
        file.execute("UPDATE message SET envelope = ?", [json.dumps(headers)])
    await work.enqueue(n=1)
    report = await real.drain(app)

    assert seen == [1]
    assert (report.done, dict(report.dead)) == (1, {"decode": 1})
    (letter,) = await dead_letters(app, "q")
    assert letter.body == b'{"n":0}'
    assert letter.dead is not None
    assert "unreadable envelope" in letter.dead.error


@pytest.mark.slow
async def test_names_and_headers_of_any_kind_reach_the_dead_letter_queue(both: Place) -> None:
    app = both.app(queues=[QueueSpec(name="q", lease=60.0)])
    headers = {"a:b": "1", "with space": "", "ünï": "🖼\r\n\x1b[31m", "x" * 200: "y" * 5000}

    @app.worker("q")
    async def work(*, n: int) -> None:
        raise AssertionError(n)

    await declare(app, "q", lease=60.0)
    await send_raw(app, "q", Message(id="i" * 200, type="work", body=b"?", headers=headers))
    await both.drain(app)
    (letter,) = await dead_letters(app, "q")
    assert dict(letter.headers) == headers
    assert letter.id == "i" * 200


@pytest.mark.slow
async def test_a_dead_letter_queue_may_be_worked_off_by_an_app_of_its_own(both: Place) -> None:
    app, mender = both.app(), both.app()
    mended: list[tuple[str, bytes, int]] = []

    @app.worker("q")
    async def work(*, n: int) -> None:
        raise AssertionError(n)

    await declare(app, "q", lease=60.0)
    await send_raw(app, "q", Message(id="m", type="work", body=b"?"))
    await both.drain(app)
    await _mend(both, mender, mended)
    assert mended == [("decode", b"?", 1)]


async def _mend(place: Place, mender: App, mended: list[tuple[str, bytes, int]]) -> None:
    @mender.worker(dead_letter_name("q"), name="work", codec="bytes", lease=None)
    async def mend(job: Job, body: bytes) -> None:
        note = job.message.dead
        mended.append((note.reason if note else "", body, job.attempt))

    report = await place.drain(mender)
    assert report.done == 1
