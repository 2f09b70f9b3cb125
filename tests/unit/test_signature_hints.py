"""Annotations as strings, and the names they may use."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel

from brokerwq import Job
from brokerwq.errors import ConfigError
from tests.unit.recording import RecordingSender

if TYPE_CHECKING:
    from decimal import Decimal


class Image(BaseModel):
    key: str


def test_names_of_the_module_and_of_the_decorating_function_resolve() -> None:
    class Local(BaseModel):
        n: int

    def outer(image: Image) -> None: ...
    def inner(job: Job, local: Local) -> None: ...
    def nested(*, locals_: list[Local] | None = None) -> None: ...

    worker = RecordingSender().worker

    assert worker(outer).parse(b'{"key":"a"}') == Image(key="a")
    assert worker(inner).parse(b'{"n":1}') == Local(n=1)
    assert worker(nested).parse(b'{"locals_":[{"n":1}]}').fields == {"locals_": [Local(n=1)]}


def test_a_local_name_hides_a_global_one() -> None:
    class Image(BaseModel):
        other: int

    def f(image: Image) -> None: ...

    assert RecordingSender().worker(f).parse(b'{"other":1}') == Image(other=1)


def test_a_name_that_only_type_checkers_see_is_refused_naming_the_cause() -> None:
    def f(price: Decimal) -> None: ...
    def g(*, price: list[Decimal]) -> None: ...

    for fn in (f, g):
        with pytest.raises(ConfigError) as caught:
            RecordingSender().worker(fn)
        assert "the annotation of 'price' names 'Decimal', which is not defined here" in str(
            caught.value
        )
        assert "if TYPE_CHECKING:" in str(caught.value)


def test_a_return_annotation_need_not_resolve() -> None:
    def f(image: Image) -> Decimal: ...  # type: ignore[empty-body]

    assert RecordingSender().worker(f).name == "f"


@pytest.mark.parametrize("annotation", ["Image[", "1 / 0", "Image.missing"])
def test_an_annotation_that_is_no_type_is_refused(annotation: str) -> None:
    def f(image: Any) -> None: ...

    f.__annotations__["image"] = annotation

    with pytest.raises(ConfigError, match=r"the annotation of 'image' cannot be read"):
        RecordingSender().worker(f)


def test_a_worker_may_be_made_of_a_bound_method() -> None:
    class Resizer:
        def __init__(self) -> None:
            self.seen: list[str] = []

        def resize(self, image: Image) -> None:
            self.seen.append(image.key)

    resizer = Resizer()
    worker: Any = RecordingSender().worker(resizer.resize)
    worker(Image(key="a"))

    assert worker.name == "resize"
    assert resizer.seen == ["a"]


def test_workers_of_a_factory_have_types_of_their_own() -> None:
    def make(kind: type[BaseModel]) -> Callable[..., Any]:
        def f(payload: kind) -> None: ...  # type: ignore[valid-type]

        return RecordingSender().worker(f)  # type: ignore[no-any-return]

    class Other(BaseModel):
        n: int

    first: Any = make(Image)
    second: Any = make(Other)

    assert first.parse(b'{"key":"a"}') == Image(key="a")
    assert second.parse(b'{"n":1}') == Other(n=1)
