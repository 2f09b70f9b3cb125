# The annotations here are real objects; those in test_signature_hints.py are strings.
# ruff: noqa: ARG001, ANN001
import functools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from brokerwq import Job, Outcome
from brokerwq.errors import ConfigError
from brokerwq.workers.signature import Field, Signature, read_signature


class Image(BaseModel):
    key: str


def read(fn: Any, *, batch: bool = False) -> Signature:
    return read_signature(fn, batch=batch, frame_locals={})


def refused(fn: Any, *, batch: bool = False) -> str:
    with pytest.raises(ConfigError) as caught:
        read(fn, batch=batch)
    return str(caught.value)


def test_one_payload() -> None:
    async def f(image: Image) -> None: ...
    def g(image: Image, /) -> None: ...
    def h(job: Job, image: Image) -> None: ...
    def i(context: Job, /, body: bytes) -> None: ...

    assert read(f) == Signature(takes_job=False, is_async=True, kind=Image)
    assert read(g) == Signature(takes_job=False, is_async=False, kind=Image)
    assert read(h) == Signature(takes_job=True, is_async=False, kind=Image)
    assert read(i) == Signature(takes_job=True, is_async=False, kind=bytes)


def test_fields() -> None:
    async def f(job: Job, *, a: int, b: str = "x") -> None: ...
    def g(*, a: Image | None = None) -> None: ...
    def h(job: Job) -> None: ...
    def i() -> None: ...

    assert read(f) == Signature(
        takes_job=True, is_async=True, fields={"a": Field(int), "b": Field(str, "x")}
    )
    assert read(g) == Signature(
        takes_job=False, is_async=False, fields={"a": Field(Image | None, None)}
    )
    assert read(h) == Signature(takes_job=True, is_async=False, fields={})
    assert read(i) == Signature(takes_job=False, is_async=False, fields={})


def test_batches() -> None:
    def f(jobs: list[Job], images: list[Image]) -> list[Outcome]:
        return []

    def g(jobs: Sequence[Job], images: Sequence[Image]) -> None: ...
    async def h(images: list[Image]) -> None: ...

    assert read(f, batch=True) == Signature(takes_job=True, is_async=False, kind=Image)
    assert read(g, batch=True) == Signature(takes_job=True, is_async=False, kind=Image)
    assert read(h, batch=True) == Signature(takes_job=False, is_async=True, kind=Image)


def test_a_payload_may_be_a_list_or_annotated() -> None:
    def f(images: list[Image]) -> None: ...
    def g(n: Annotated[int, "metres"]) -> None: ...

    assert read(f).kind == list[Image]
    assert read(g).kind == Annotated[int, "metres"]


def test_what_is_almost_right_is_refused_with_the_way_out() -> None:
    def second(job: Job, image: Image, extra: str = "") -> None: ...
    def two(a: Image, b: int) -> None: ...
    def mixed(image: Image, *, extra: int = 3) -> None: ...

    assert refused(second) == (
        "worker second: it takes image, extra: one payload or keyword-only fields, "
        "never a mixture; make all of them fields: "
        "write (job: Job, *, image: Image, extra: str = '')"
    )
    assert "write (*, a: Image, b: int)" in refused(two)
    assert "write (*, image: Image, extra: int = 3)" in refused(mixed)


def test_a_job_anywhere_but_first_is_refused() -> None:
    def last(image: Image, job: Job) -> None: ...
    def named(image: Image, *, job: Job) -> None: ...
    def twice(job: Job, other: Job) -> None: ...
    def perhaps(job: Job | None, image: Image) -> None: ...
    def many(jobs: list[Job]) -> None: ...
    def annotated(job: Annotated[Job, "x"], image: Image) -> None: ...

    assert "'job' is a Job, which comes first; write (job: Job, …)" in refused(last)
    assert "which comes first" in refused(named)
    assert "which comes first" in refused(twice)
    assert "write job: Job, as the first parameter" in refused(perhaps)
    assert "say batch=…, or take one Job" in refused(many)
    assert "write job: Job" in refused(annotated)


def test_a_subclass_of_job_is_refused() -> None:
    class MyJob(Job): ...

    def f(job: MyJob, image: Image) -> None: ...

    assert "write job: Job" in refused(f)


def test_a_parameter_without_annotation_is_refused() -> None:
    def payload(image) -> None: ...  # type: ignore[no-untyped-def]
    def after_job(job: Job, image) -> None: ...  # type: ignore[no-untyped-def]
    def job(job, image: Image) -> None: ...  # type: ignore[no-untyped-def]
    def field(*, a) -> None: ...  # type: ignore[no-untyped-def]

    assert "parameter 'image' has no annotation; write image: ItsType" in refused(payload)
    assert "parameter 'image' has no annotation" in refused(after_job)
    assert "parameter 'job' has no annotation" in refused(job)
    assert "parameter 'a' has no annotation" in refused(field)


def test_a_payload_with_a_default_is_refused() -> None:
    def f(image: Image | None = None) -> None: ...

    assert "the payload 'image' has a default" in refused(f)
    assert "write (*, image: " in refused(f)


def test_stars_are_refused() -> None:
    def args(*images: Image) -> None: ...
    def kwargs(**fields: int) -> None: ...
    def both(job: Job, *args: Any, **kwargs: Any) -> None: ...

    for fn in (args, kwargs, both):
        assert "takes whatever comes; name what the message holds" in refused(fn)


def test_batches_of_another_shape_are_refused() -> None:
    def one(image: Image) -> None: ...
    def one_job(job: Job, images: list[Image]) -> None: ...
    def jobs_last(images: list[Image], jobs: list[Job]) -> None: ...
    def only_jobs(jobs: list[Job]) -> None: ...
    def named(jobs: list[Job], *, a: list[int]) -> None: ...
    def nothing() -> None: ...
    def bare(images: Any) -> None: ...

    bare.__annotations__["images"] = list

    def a_tuple(images: tuple[Image, ...]) -> None: ...

    shapes: tuple[Any, ...] = (one, one_job, jobs_last, only_jobs, named, nothing, bare, a_tuple)
    for fn in shapes:
        assert "write (jobs: list[Job], payloads: list[T])" in refused(fn, batch=True), fn


def test_only_functions_and_bound_methods_are_workers() -> None:
    class Handler:
        def handle(self, image: Image) -> None: ...

        @staticmethod
        def static(image: Image) -> None: ...

        def __call__(self, image: Image) -> None: ...

    def f(image: Image, n: int) -> None: ...

    assert read(Handler().handle).kind is Image
    assert read(Handler.static).kind is Image
    assert "a method" in refused(Handler.handle)
    assert "thing.handle" in refused(Handler.handle)
    assert "put @staticmethod above" in refused(Handler.__dict__["static"])
    assert "not a class" in refused(Handler)
    assert "not Handler" in refused(Handler())
    assert "not a partial" in refused(functools.partial(f, n=3))
    assert "write a def" in refused(lambda: None)
    assert "not builtin_function_or_method" in refused(print)
    assert "not int" in refused(3)


def test_a_function_that_yields_is_refused() -> None:
    def generator(image: Image) -> Iterator[int]:
        yield 1

    async def async_generator(image: Image) -> AsyncIterator[int]:
        yield 1

    @functools.wraps(generator)
    def wrapper(image: Image) -> Iterator[int]:
        return generator(image)

    for fn in (generator, async_generator, wrapper):
        assert "this function yields" in refused(fn)


def test_a_wrapped_function_is_read_through_its_wrapper() -> None:
    async def inner(job: Job, image: Image) -> None: ...

    def logged(fn: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fn)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return fn(*args, **kwargs)

        return wrapper

    # Not async itself: it may run a loop of its own. Whatever it hands on is awaited.
    assert read(logged(inner)) == Signature(takes_job=True, is_async=False, kind=Image)
