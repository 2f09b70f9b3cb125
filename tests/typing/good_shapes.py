"""Every shape a worker may have, with the types that callers see.

Read by mypy and pyright, and imported by a test, so that what the checkers accept is what the
decorator accepts.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import ParamSpec, TypeVar, assert_type

from pydantic import BaseModel
from typing_extensions import TypedDict

from brokerwq import App, Done, Job, Message, Next, Once, Outcome, RetryPolicy, SendReport, Tx
from brokerwq.codecs import Arguments, DramatiqCodec, Reading
from brokerwq.workers.worker import Call, KeywordWorker, PayloadWorker

app = App("memory://")
guarded = App("memory://", store="sqlite:///keys.db", name="shop")
T = TypeVar("T")
K = ParamSpec("K")


class Image(BaseModel):
    key: str
    width: int = 256


@dataclass
class Point:
    x: int


class Record(TypedDict):
    n: int


class Timing:
    async def __call__(self, job: Job, call_next: Next) -> object:
        return await call_next(job)


@app.worker(
    "q",
    lease=60,
    timeout=timedelta(minutes=5),
    retry=RetryPolicy(max_attempts=3),
    slots=2,
    key="key",
    aliases=["older"],
    middleware=[Timing()],
)
async def job_and_model(job: Job, image: Image) -> None: ...


@app.worker("q", key=lambda image: image.key)
async def model(image: Image) -> int:
    return image.width


@app.worker("q")
def plain_dataclass(job: Job, point: Point) -> str:
    return f"{job.id} {point.x}"


@app.worker("q")
def raw(body: bytes) -> None: ...


@app.worker("q", key=["image_id", "size"])
async def job_and_fields(job: Job, *, image_id: int, size: str = "s") -> None: ...


@app.worker("q")
async def fields(*, image_id: int) -> None: ...


@app.worker("q")
async def nothing() -> None: ...


@app.worker("q")
async def only_job(job: Job) -> None: ...


@app.worker("q")
async def builtins(ids: list[int]) -> None: ...


@app.worker("q")
async def typed_dict(record: Record) -> None: ...


@app.worker("q")
async def optional(image: Image | None) -> None: ...


@app.worker("q")
async def union(event: Image | Point) -> None: ...


@app.worker("orders", codec="json", foreign=True)
async def anything(order: dict[str, object]) -> None: ...


class Legacy:
    def read(self, message: Message, /) -> Reading:
        return Reading(body=message.body)


@app.worker("tasks", codec="celery", foreign=True, name="a.b", on_unknown="leave", on_dead="hold")
async def task(*, order: int) -> None: ...


@app.worker("actors", codec=DramatiqCodec(expired="discard"), foreign=True, name="*")
async def actor(job: Job, call: Arguments) -> None: ...


@app.worker("legacy", codec=Legacy(), foreign=True)
async def legacy(order: dict[str, object]) -> None: ...


@guarded.worker("q", once="marker", key="key", key_version=2)
async def marked(image: Image) -> None: ...


@guarded.worker("q", once="transactional")
async def charge(job: Job, tx: Tx, image: Image) -> None:  # noqa: ARG001 -- it is its shape
    assert_type(await tx.enqueue(model, image), str)
    assert_type(await tx.enqueue(model, image, delay=3), str)
    assert_type(await tx.enqueue(fields, image_id=3), str)


@guarded.worker("q", once=Once(strategy="lease_tx", retention=timedelta(days=7)))
async def charge_fields(job: Job, tx: Tx, *, image_id: int) -> None: ...


@app.worker("batches-a", batch=50, batch_wait=0.5)
async def batch_with_jobs(jobs: list[Job], images: list[Image]) -> Sequence[Outcome] | None:
    return [Done() for _ in zip(jobs, images, strict=True)] or None


@app.worker("batches-b", batch=50)
async def batch_of_sequences(jobs: Sequence[Job], images: Sequence[Image]) -> list[Outcome]:
    return [Done() for _ in zip(jobs, images, strict=True)]


@app.worker("batches-c", batch=50)
def batch_of_payloads(images: list[Image]) -> None: ...


class Resizer:
    async def resize(self, image: Image) -> None: ...


method = app.worker("q")(Resizer().resize)


def payload_of(worker: PayloadWorker[..., T, object]) -> T:
    raise NotImplementedError(worker)


def enqueue_of(worker: KeywordWorker[..., K, object]) -> Callable[K, None]:
    raise NotImplementedError(worker)


def payloads() -> None:
    assert_type(payload_of(job_and_model), Image)
    assert_type(payload_of(model), Image)
    assert_type(payload_of(plain_dataclass), Point)
    assert_type(payload_of(raw), bytes)
    assert_type(payload_of(builtins), list[int])
    assert_type(payload_of(typed_dict), Record)
    assert_type(payload_of(optional), Image | None)
    assert_type(payload_of(union), Image | Point)
    assert_type(payload_of(anything), dict[str, object])
    assert_type(payload_of(batch_with_jobs), Image)
    assert_type(payload_of(batch_of_sequences), Image)
    assert_type(payload_of(batch_of_payloads), Image)
    assert_type(payload_of(method), Image)
    assert_type(payload_of(charge), Image)
    assert_type(enqueue_of(nothing), Callable[[], None])
    assert_type(enqueue_of(only_job), Callable[[], None])


# Plain functions have the same result type for both checkers, so that the whole can be told.
assert_type(plain_dataclass, PayloadWorker[[Job, Point], Point, str])
assert_type(raw, PayloadWorker[[bytes], bytes, None])
assert_type(batch_of_payloads, PayloadWorker[[list[Image]], Image, None])


async def images() -> AsyncIterator[Image]:
    yield Image(key="a")


async def enqueue(image: Image) -> None:
    assert_type(await job_and_model.enqueue(image), str)
    await model.enqueue(image, delay=timedelta(hours=1), id="x", group="g", headers={"a": "b"})
    await model.enqueue(image, at=datetime.now(UTC))
    assert_type(plain_dataclass.enqueue_sync(Point(1), delay=3), str)
    await raw.enqueue(b"x")
    await job_and_fields.enqueue(image_id=3, size="x")
    await job_and_fields.options(delay=3).enqueue(image_id=3)
    await fields.enqueue(image_id=1)
    fields.enqueue_sync(image_id=1)
    await charge.enqueue(image, tx=object())
    await charge_fields.enqueue(image_id=3)
    await charge_fields.options(tx=object()).enqueue(image_id=3)
    await nothing.enqueue()
    await only_job.enqueue()
    await builtins.enqueue([1])
    await typed_dict.enqueue({"n": 1})
    await optional.enqueue(None)
    await union.enqueue(Point(1))
    await batch_with_jobs.enqueue(image)
    await batch_of_payloads.enqueue(image)


async def enqueue_many() -> None:
    assert_type(await model.enqueue_many(Image(key=k) for k in "ab"), SendReport)
    await model.enqueue_many(images(), delay=timedelta(seconds=1), errors="return")
    assert_type(model.enqueue_many_sync([Image(key="a")]), SendReport)
    assert_type(fields.call(image_id=1), Call)
    await fields.enqueue_many(fields.call(image_id=i) for i in range(3))
    fields.enqueue_many_sync([fields.options(delay=1).call(image_id=1)], errors="return")


def children(job: Job, image: Image) -> None:
    assert_type(job.enqueue(model, image), str)
    assert_type(job.enqueue(model, image, delay=3), str)
    assert_type(job.enqueue(fields, image_id=3), str)
    job.enqueue(only_job)


async def call(job: Job, image: Image) -> None:
    assert_type(await job_and_model(job, image), None)
    assert_type(await model(image), int)
    assert_type(plain_dataclass(job, Point(1)), str)
    await job_and_fields(job, image_id=3)
    await batch_with_jobs([job], [image])
    batch_of_payloads([image])
    fn: Callable[[Image], Awaitable[int]] = model.fn
    assert_type(await fn(image), int)


def pass_on(worker: PayloadWorker[..., Image, object]) -> None: ...


pass_on(model)
pass_on(job_and_model)
pass_on(optional)
