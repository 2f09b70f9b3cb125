"""What a worker's function takes, read from its signature.

The rule: ``job: Job`` first if wanted, then ``tx: Tx`` if the worker is transactional, then
**either** one payload **or** keyword-only fields. With ``batch=…``: ``jobs: list[Job]`` first
if wanted, then one list of payloads.
Anything else is refused where the function is decorated, with the way out: a shape that is
almost right would lose a parameter, and be found out in production.
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import Parameter
from typing import Any, Final, NoReturn

from brokerwq.codecs import kind_name
from brokerwq.errors import ConfigError
from brokerwq.job import Job
from brokerwq.tx import Tx


@dataclass(frozen=True, slots=True)
class Field:
    """A keyword-only parameter: its type, and its default if it has one."""

    kind: Any
    default: Any = Parameter.empty

    @property
    def required(self) -> bool:
        """Whether it must be given."""
        return self.default is Parameter.empty


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """What a worker's function takes.

    Attributes:
        takes_job: ``Job`` (or the list of them) comes first.
        takes_tx: ``Tx`` comes second.
        kind: The type of the payload, of one of them for a batch; None in the keyword form.
        fields: The fields of the keyword form; None in the payload form.
        is_async: A call must be awaited.
        payload: The name of the payload's parameter.
    """

    takes_job: bool
    is_async: bool
    takes_tx: bool = False
    kind: Any = None
    fields: Mapping[str, Field] | None = None
    payload: str = field(default="payload", compare=False)


def read_signature(
    fn: Callable[..., object], *, batch: bool, frame_locals: Mapping[str, Any]
) -> Signature:
    """Read what ``fn`` takes.

    Args:
        fn: A function or a bound method.
        batch: Whether it takes lists.
        frame_locals: Names at the place of decoration, for annotations that are not global.

    Raises:
        ConfigError: it is of no such shape; the text says what to write instead.
    """
    check_function(fn)
    reader = _Reader(fn, frame_locals)
    parameters = reader.parameters
    jobs, rest = (_batch_jobs if batch else _one_job)(reader, parameters)
    takes_tx, rest = _transaction(reader, rest, is_second=jobs and not batch)
    for parameter in rest:
        _refuse_odd(reader, parameter)
    positional = [each for each in rest if each.kind is not Parameter.KEYWORD_ONLY]
    named = [each for each in rest if each.kind is Parameter.KEYWORD_ONLY]
    is_async = inspect.iscoroutinefunction(fn)
    if batch:
        kind = _batch_kind(reader, positional, named)
        name = positional[0].name
        return Signature(takes_job=jobs, is_async=is_async, kind=kind, payload=name)
    if not positional:
        fields = {each.name: Field(reader.hint(each), each.default) for each in named}
        return Signature(takes_job=jobs, is_async=is_async, takes_tx=takes_tx, fields=fields)
    if len(positional) > 1 or named:
        _refuse_mixture(reader, positional, named, jobs=jobs)
    kind = reader.hint(positional[0])
    if positional[0].default is not Parameter.empty:
        reader.refuse(
            f"the payload {positional[0].name!r} has a default, but every message has a payload",
            f"leave the default out, or write a field: {_shape('*', positional[0], jobs=jobs)}",
        )
    return Signature(
        takes_job=jobs,
        is_async=is_async,
        takes_tx=takes_tx,
        kind=kind,
        payload=positional[0].name,
    )


def check_function(fn: object) -> None:
    """Refuse what is no function or bound method, or yields.

    Raises:
        ConfigError: it is something else; the text says what to do.
    """
    if isinstance(fn, staticmethod | classmethod):
        msg = "put @staticmethod above @app.worker, not below; a class method cannot be a worker"
        raise ConfigError(msg)
    if isinstance(fn, functools.partial):
        msg = "a worker is a function with annotations, not a partial: write a def that calls it"
        raise ConfigError(msg)
    if isinstance(fn, type):
        msg = f"a worker is a function, not a class: decorate a function that makes {fn.__name__}"
        raise ConfigError(msg)
    if not isinstance(fn, types.FunctionType | types.MethodType):
        msg = f"a worker is a function (def or async def), not {kind_name(type(fn))}"
        raise ConfigError(msg)
    if fn.__name__ == "<lambda>":
        msg = "a lambda has neither a name nor annotations: write a def"
        raise ConfigError(msg)
    inner = inspect.unwrap(fn)
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        msg = f"worker {fn.__name__}: a worker returns once; this function yields"
        raise ConfigError(msg)


class _Reader:
    """The parameters of one function and what their annotations mean."""

    def __init__(self, fn: Callable[..., Any], frame_locals: Mapping[str, Any]) -> None:
        self.name: str = fn.__qualname__.rpartition("<locals>.")[2]
        self._locals = dict(frame_locals)
        self._globals: dict[str, Any] = getattr(inspect.unwrap(fn), "__globals__", {})
        self._hints: dict[str, Any] = {}
        self.parameters = list(_signature_of(fn).parameters.values())

    def refuse(self, fault: str, way_out: str) -> NoReturn:
        msg = f"worker {self.name}: {fault}; {way_out}"
        raise ConfigError(msg)

    def hint(self, parameter: Parameter) -> Any:
        """The type that ``parameter`` is annotated with."""
        name = parameter.name
        if name in self._hints:
            return self._hints[name]
        if parameter.annotation is Parameter.empty:
            if name in ("self", "cls"):
                self.refuse(
                    "it is a method, and nothing would be passed as its first parameter",
                    f"decorate the bound method: app.worker(…)(thing.{self.name.split('.')[-1]})",
                )
            self.refuse(f"parameter {name!r} has no annotation", f"write {name}: ItsType")
        hint = self._hints[name] = self._resolve(name, parameter.annotation)
        return hint

    def _resolve(self, name: str, annotation: Any) -> Any:
        # By the standard library's own resolver, one at a time: a return annotation that
        # cannot be resolved is no reason to refuse.
        def carrier() -> None: ...

        carrier.__annotations__ = {name: annotation}
        try:
            return typing.get_type_hints(
                carrier, globalns=self._globals, localns=self._locals, include_extras=True
            )[name]
        except NameError as exc:
            missing = exc.name or str(exc)
            self.refuse(
                f"the annotation of {name!r} names {missing!r}, which is not defined here",
                "import it outside of `if TYPE_CHECKING:`, or define it above the worker",
            )
        except Exception as exc:  # noqa: BLE001  -- an annotation is any expression
            self.refuse(
                f"the annotation of {name!r} cannot be read: {type(exc).__name__}: {exc!s:.100}",
                "write a type",
            )


def _signature_of(fn: Callable[..., Any]) -> inspect.Signature:
    if sys.version_info >= (3, 14):
        # Annotations are evaluated late there, and one unresolvable name would fail them all.
        from annotationlib import Format  # noqa: PLC0415

        return inspect.signature(fn, annotation_format=Format.FORWARDREF)
    return inspect.signature(fn)


def _one_job(reader: _Reader, parameters: Sequence[Parameter]) -> tuple[bool, Sequence[Parameter]]:
    """Whether ``Job`` comes first, and the other parameters."""
    jobs, rest = _leading(reader, parameters, lambda hint: hint is Job)
    for parameter in rest:
        if parameter.annotation is Parameter.empty:
            continue
        hint = reader.hint(parameter)
        if hint is Job:
            reader.refuse(f"{parameter.name!r} is a Job, which comes first", _shape(jobs=True))
        if _item_of(hint) is Job:
            reader.refuse(f"{parameter.name!r} is a list of jobs", "say batch=…, or take one Job")
        if _mentions_job(hint):
            reader.refuse(
                f"{parameter.name!r} is {kind_name(hint)}",
                f"the job is always there: write {parameter.name}: Job, as the first parameter",
            )
    return jobs, rest


def _batch_jobs(
    reader: _Reader, parameters: Sequence[Parameter]
) -> tuple[bool, Sequence[Parameter]]:
    """Whether ``list[Job]`` comes first, and the other parameters."""
    jobs, rest = _leading(reader, parameters, lambda hint: _item_of(hint) is Job)
    for parameter in rest:
        if parameter.annotation is not Parameter.empty and (
            _item_of(reader.hint(parameter)) is Job or _mentions_job(reader.hint(parameter))
        ):
            reader.refuse(
                f"{parameter.name!r} is {kind_name(reader.hint(parameter))}",
                _BATCH_SHAPE,
            )
    return jobs, rest


def _leading(
    reader: _Reader, parameters: Sequence[Parameter], is_job: Callable[[Any], bool]
) -> tuple[bool, Sequence[Parameter]]:
    if not parameters:
        return False, ()
    first = parameters[0]
    if first.kind not in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD):
        return False, parameters
    if is_job(reader.hint(first)):
        return True, parameters[1:]
    return False, parameters


def _transaction(
    reader: _Reader, parameters: Sequence[Parameter], *, is_second: bool
) -> tuple[bool, Sequence[Parameter]]:
    """Whether ``Tx`` comes next, and the parameters after it."""
    taken = bool(parameters) and is_second and _is_tx(reader, parameters[0])
    rest = parameters[1:] if taken else parameters
    for parameter in rest:
        if _is_tx(reader, parameter):
            reader.refuse(
                f"{parameter.name!r} is a Tx, which comes second",
                "write (job: Job, tx: Tx, …)",
            )
    return taken, rest


def _is_tx(reader: _Reader, parameter: Parameter) -> bool:
    return parameter.annotation is not Parameter.empty and reader.hint(parameter) is Tx


def _mentions_job(hint: Any) -> bool:
    if isinstance(hint, type) and not typing.get_args(hint):
        return issubclass(hint, Job)
    return any(_mentions_job(part) for part in typing.get_args(hint))


def _refuse_odd(reader: _Reader, parameter: Parameter) -> None:
    if parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
        reader.refuse(f"{parameter} takes whatever comes", "name what the message holds")


_LIST_ORIGINS: Final = (list, collections.abc.Sequence)
_BATCH_SHAPE: Final = "write (jobs: list[Job], payloads: list[T]) or (payloads: list[T])"


def _item_of(hint: Any) -> Any:
    """``T`` of ``list[T]`` or ``Sequence[T]``; None for anything else."""
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) in _LIST_ORIGINS and len(arguments) == 1:
        return arguments[0]
    return None


def _batch_kind(
    reader: _Reader, positional: Sequence[Parameter], named: Sequence[Parameter]
) -> Any:
    if len(positional) != 1 or named:
        reader.refuse("with batch=… it takes one list of payloads", _BATCH_SHAPE)
    kind = _item_of(reader.hint(positional[0]))
    if kind is None:
        reader.refuse(f"with batch=… {positional[0].name!r} must be a list[T]", _BATCH_SHAPE)
    return kind


def _refuse_mixture(
    reader: _Reader, positional: Sequence[Parameter], named: Sequence[Parameter], *, jobs: bool
) -> NoReturn:
    names = ", ".join(each.name for each in (*positional, *named))
    reader.refuse(
        f"it takes {names}: one payload or keyword-only fields, never a mixture",
        f"make all of them fields: {_shape('*', *positional, *named, jobs=jobs)}",
    )


def _shape(*parts: Parameter | str, jobs: bool) -> str:
    head = ("job: Job",) if jobs else ()
    return f"write ({', '.join((*head, *map(_text, parts or ('…',))))})"


def _text(part: Parameter | str) -> str:
    if isinstance(part, str):
        return part
    text = part.name
    if part.annotation is not Parameter.empty:
        hint = part.annotation
        text += f": {hint if isinstance(hint, str) else kind_name(hint)}"
    if part.default is not Parameter.empty:
        text += f" = {part.default!r:.50}"
    return text
