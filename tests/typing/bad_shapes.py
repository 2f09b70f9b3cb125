"""Mistakes that both type checkers must see: each is marked as ignored.

A mark without an error is an error itself, by mypy's ``warn_unused_ignores`` and the line below.
"""
# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from pydantic import BaseModel

from brokerwq import App, Job, Tx

app = App("memory://")
guarded = App("memory://", store="sqlite:///keys.db", name="shop")


class Image(BaseModel):
    key: str
    width: int = 256


class Point(BaseModel):
    x: int


@app.worker("q")
async def model(image: Image) -> int:
    return image.width


@app.worker("q")
async def job_and_model(job: Job, image: Image) -> None: ...


@app.worker("q")
async def fields(*, image_id: int) -> None: ...


@app.worker("q")
async def only_job(job: Job) -> None: ...


@app.worker("q", batch=50)
def batch_of_payloads(images: list[Image]) -> None: ...


@app.worker("q")
async def second_parameter(job: Job, image: Image, extra: str = "") -> None: ...


@app.worker("q")
async def job_last(image: Image, job: Job) -> None: ...


@app.worker("q")
async def two_payloads(a: Image, b: Image) -> None: ...


@guarded.worker("q", once="transactional")
async def charge(job: Job, tx: Tx, image: Image) -> None: ...


@guarded.worker("q", once="transactional")
async def tx_last(job: Job, image: Image, tx: Tx) -> None: ...


@app.worker("q", batch=3)  # type: ignore[arg-type]
async def batch_of_one(image: Image) -> None: ...


async def enqueue(job: Job, image: Image) -> None:
    await second_parameter.enqueue(image)  # type: ignore[attr-defined]
    await job_last.enqueue(image)  # type: ignore[attr-defined]
    await two_payloads.enqueue(image)  # type: ignore[attr-defined]

    await tx_last.enqueue(image)  # type: ignore[attr-defined]
    await charge.enqueue(3)  # type: ignore[arg-type]
    await charge(job, image)  # type: ignore[arg-type,call-arg]
    await model.enqueue(3)  # type: ignore[arg-type]
    await model.enqueue(image, image)  # type: ignore[arg-type,call-arg]
    await model.enqueue(None)  # type: ignore[arg-type]
    await model.enqueue(image, dealy=3)  # type: ignore[call-arg]
    await model.enqueue(image, delay="3")  # type: ignore[arg-type]
    await batch_of_payloads.enqueue([image])  # type: ignore[arg-type]
    await model.enqueue_many([Point(x=1)])  # type: ignore[list-item]
    await model.enqueue_many(image)  # type: ignore[arg-type]
    await model.enqueue_many([image], errors="ignore")  # type: ignore[arg-type]

    await fields.enqueue(3)  # type: ignore[call-arg]
    await fields.enqueue(image_id="x")  # type: ignore[arg-type]
    await fields.enqueue()  # type: ignore[call-arg]
    await fields.enqueue(image_id=3, other=1)  # type: ignore[call-arg]
    await fields.enqueue(image_id=3, delay=3)  # type: ignore[call-arg]
    await only_job.enqueue(image)  # type: ignore[call-arg]
    fields.call(image_id="x")  # type: ignore[arg-type]
    fields.options(dealy=3)  # type: ignore[call-arg]
    await fields.enqueue_many([3])  # type: ignore[list-item]

    job.enqueue(model, Point(x=1))  # type: ignore[misc]
    job.enqueue(fields, image_id="x")  # type: ignore[call-overload]

    await job_and_model(image)  # type: ignore[arg-type,call-arg]
    await fields(3)  # type: ignore[call-arg]
    total: str = await model(image)  # type: ignore[assignment]
    print(total)


app.worker("q", lease="60")  # type: ignore[call-overload]
app.worker("q", nmae="x")  # type: ignore[call-overload]
app.worker("q", codec="yaml")  # type: ignore[call-overload]
app.worker("q", codec="selery", foreign=True)  # type: ignore[call-overload]
app.worker("q", codec=3, foreign=True)  # type: ignore[call-overload]
app.worker("q", foreign=True, on_unknown="drop")  # type: ignore[call-overload]
app.worker("q", foreign=True, on_dead=True)  # type: ignore[call-overload]
app.worker("q", once="always")  # type: ignore[call-overload]
app.worker("q", batch=None)  # type: ignore[call-overload]
app.worker("q", batch=3, middleware=[])  # type: ignore[call-overload]
app.worker("q", batch_wait=3)  # type: ignore[call-overload]
