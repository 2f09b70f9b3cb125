"""Several instrumentations and listeners behind one seam, each kept from harming a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import TracebackType
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

from brokerwq.driver.protocol import Delivery
from brokerwq.errors import ConfigError
from brokerwq.events import Event, Instrumentation, Listener
from brokerwq.telemetry._fault import Fault

_Open: TypeAlias = Callable[[], AbstractContextManager[Any]]

_NOTHING: Final = nullcontext()
_NO_HEADERS: Final[AbstractContextManager[Mapping[str, str]]] = nullcontext({})


@runtime_checkable
class NamesBroker(Protocol):
    """An instrumentation that wants to know which broker it is told about."""

    def for_broker(self, url: str, /) -> Instrumentation:
        """The same for the broker at ``url``, which may hold a password."""
        ...


def bound_to(url: str, member: Instrumentation | Listener) -> Instrumentation | Listener:
    """``member`` for the broker at ``url``, if it wants to know."""
    whole: object = member
    return whole.for_broker(url) if isinstance(whole, NamesBroker) else member


def fan_out(*members: Instrumentation | Listener) -> FanOut:
    """One instrumentation that passes everything on to all ``members``, in order.

    What a member raises is logged once and goes no further, and no member can swallow what a
    handler raises: so ``fan_out(mine)`` is also how to plug in code that may fail. Of a header
    that several members give, the first one's is sent.

    Raises:
        ConfigError: a member is neither.
    """
    return FanOut(members)


class FanOut:
    """See ``fan_out``."""

    __slots__ = ("_fault", "_instrumentations", "_members", "_takers")

    def __init__(self, members: Sequence[Instrumentation | Listener]) -> None:
        self._members = tuple(members)
        self._fault = Fault()
        self._instrumentations: list[Instrumentation] = []
        self._takers: list[Listener] = []
        for member in members:
            if isinstance(member, Instrumentation):
                self._instrumentations.append(member)
                self._takers.append(member.emit)
            else:
                self._takers.append(_callable(member))

    def for_broker(self, url: str, /) -> FanOut:
        """The same, each member that wants to know told of the broker."""
        return FanOut([bound_to(url, member) for member in self._members])

    def emit(self, event: Event, /) -> None:
        """See ``Instrumentation.emit``."""
        for taker in self._takers:
            try:
                taker(event)
            except BaseException as exc:  # noqa: BLE001 -- telemetry never breaks a job
                self._fault.report(f"a listener to {type(event).__name__}", exc)

    def sending(
        self, queue: str, type_: str, count: int, message_id: str = "", /
    ) -> AbstractContextManager[Mapping[str, str]]:
        """See ``Instrumentation.sending``."""
        if not self._instrumentations:
            return _NO_HEADERS
        return _AllSending(
            self._fault,
            [
                partial(member.sending, queue, type_, count, message_id)
                for member in self._instrumentations
            ],
        )

    def processing(
        self,
        deliveries: Sequence[Delivery],
        type_: str,
        attempt: int,
        cause: Callable[[], str] = str,
        /,
    ) -> AbstractContextManager[None]:
        """See ``Instrumentation.processing``."""
        if not self._instrumentations:
            return _NOTHING
        return _AllAround(
            self._fault,
            [
                partial(member.processing, deliveries, type_, attempt, cause)
                for member in self._instrumentations
            ],
        )

    def settling(
        self, queue: str, operation: str, deliveries: Sequence[Delivery], /
    ) -> AbstractContextManager[None]:
        """See ``Instrumentation.settling``."""
        if not self._instrumentations:
            return _NOTHING
        return _AllAround(
            self._fault,
            [
                partial(member.settling, queue, operation, deliveries)
                for member in self._instrumentations
            ],
        )


def _callable(member: Listener) -> Listener:
    # Checked although the types say so: most callers run no type checker.
    given: object = member
    if not callable(given):
        msg = f"{member!r:.200} is neither an Instrumentation nor a function that takes events"
        raise ConfigError(msg)
    return member


class _Nested:
    """Several context managers, the first outermost, none able to do harm."""

    __slots__ = ("_entered", "_fault", "_openers")

    def __init__(self, fault: Fault, openers: Sequence[_Open]) -> None:
        self._fault = fault
        self._openers = openers
        self._entered: list[AbstractContextManager[Any]] = []

    def _enter(self) -> list[Any]:
        values: list[Any] = []
        for opener in self._openers:
            try:
                manager = opener()
                values.append(manager.__enter__())
                self._entered.append(manager)
            except BaseException as exc:  # noqa: BLE001 -- telemetry never breaks a job
                self._fault.report("the start of a span", exc)
        return values

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        while self._entered:
            try:
                self._entered.pop().__exit__(kind, error, traceback)
            except BaseException as exc:  # noqa: BLE001 -- telemetry never breaks a job
                self._fault.report("the end of a span", exc)


class _AllAround(_Nested, AbstractContextManager[None]):
    __slots__ = ()

    def __enter__(self) -> None:
        self._enter()


class _AllSending(_Nested, AbstractContextManager[Mapping[str, str]]):
    __slots__ = ()

    def __enter__(self) -> Mapping[str, str]:
        headers: dict[str, str] = {}
        for given in reversed(self._enter()):
            try:
                headers.update(given)
            except BaseException as exc:  # noqa: BLE001 -- telemetry never breaks a send
                self._fault.report("the trace context", exc)
        return headers
