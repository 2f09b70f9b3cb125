from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from brokerwq import App, Job
from brokerwq.errors import CannotExtendError, LeaseLostError, PayloadError
from brokerwq.message import child_message_id
from brokerwq.testing import job

app = App("memory://")


@dataclass
class Image:
    key: str
    width: int = 256


@app.worker("images")
async def thumbnail(job: Job, image: Image) -> str:
    await job.extend(30)
    job.enqueue(note, Image(key="child"))
    return f"{image.key} {job.attempt}/{job.max_attempts} {job.lease.lost} {job.stopping}"


@app.worker("notes")
def note(job: Job, image: Image) -> float:
    return job.extend_sync(90 if image.key else 1)


async def test_a_worker_is_called_like_the_function_it_is() -> None:
    this = job(attempt=3, max_attempts=4)

    assert await thumbnail(this, Image(key="a")) == "a 3/4 False False"
    assert this.extended == (30.0,)


async def test_children_are_collected_and_not_sent() -> None:
    this = job(id="parent")

    await thumbnail(this, Image(key="a"))

    [child] = this.children
    assert child.queue == "notes"
    assert child.message.id == child_message_id("parent", 0)
    assert child.message.cause == "parent"


def test_a_plain_function_may_extend_where_no_loop_runs() -> None:
    assert note(job(), Image(key="a")) == 90.0


async def test_a_plain_function_may_extend_beside_a_running_loop() -> None:
    assert note(job(), Image(key="a")) == 90.0
    assert await asyncio.to_thread(note, job(), Image(key="a")) == 90.0


async def test_a_lost_lease_refuses_to_be_extended() -> None:
    this = job()
    this.lease.lost = True

    with pytest.raises(LeaseLostError):
        await this.extend(1)
    assert this.extended == ()


async def test_a_lease_is_not_extended_beyond_its_limit() -> None:
    this = job()
    this.lease.limit = 10.0

    with pytest.raises(CannotExtendError) as caught:
        await this.extend(11)
    assert caught.value.limit == 10.0


async def test_an_extend_never_shortens_what_remains() -> None:
    this = job()

    assert await this.extend(5) == 60.0


def test_a_job_tells_what_it_was_given() -> None:
    this = job(
        {"a": 1},
        queue="q",
        type="t",
        id="i",
        headers={"h": "v"},
        raw={"n": 1},
        state="s",
        attempt=2,
    )
    this.port.stopping = True

    assert (this.queue, this.type, this.id, this.state) == ("q", "t", "i", "s")
    assert (this.headers, this.raw, this.stopping) == ({"h": "v"}, {"n": 1}, True)
    assert this.message.body == b'{"a":1}'
    assert this.message.attempts == 1
    assert this.enqueued_at is not None


@pytest.mark.parametrize(
    ("payload", "body"),
    [(None, b""), (b"\xff", b"\xff"), (Image(key="x"), b'{"key":"x","width":256}')],
)
def test_a_payload_becomes_the_body(payload: object, body: bytes) -> None:
    assert job(payload).message.body == body


def test_a_payload_that_cannot_be_sent_cannot_be_tested_with() -> None:
    with pytest.raises(PayloadError):
        job(float("nan"))
