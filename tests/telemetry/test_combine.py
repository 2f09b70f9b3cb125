from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, NoReturn

import pytest

from brokerwq import events
from brokerwq.driver.protocol import Delivery
from brokerwq.errors import ConfigError
from brokerwq.events import Event, Instrumentation
from brokerwq.telemetry import EventLog, FanOut, OpenTelemetry, fan_out, select_telemetry
from tests.telemetry.lab import Lab, attributes_of, delivery

CLAIMED = events.MessagesClaimed(queue="images", count=3)


class Notes:
    """An instrumentation that writes down what it is told."""

    def __init__(
        self, name: str, told: list[str], headers: Mapping[str, str] | None = None
    ) -> None:
        self._name = name
        self._told = told
        self._headers = headers or {}

    def emit(self, event: Event, /) -> None:
        self._told.append(f"{self._name} event")

    @contextmanager
    def _around(self, what: str) -> Generator[Any]:
        self._told.append(f"{self._name} enters {what}")
        try:
            yield self._headers
        except ValueError:
            self._told.append(f"{self._name} sees the error")
            raise
        finally:
            self._told.append(f"{self._name} leaves {what}")

    def sending(
        self, queue: str, type_: str, count: int, message_id: str = "", /
    ) -> AbstractContextManager[Mapping[str, str]]:
        return self._around("sending")

    def processing(
        self,
        deliveries: Sequence[Delivery],
        type_: str,
        attempt: int,
        cause: Callable[[], str] = str,
        /,
    ) -> AbstractContextManager[None]:
        return self._around("processing")

    def settling(
        self, queue: str, operation: str, deliveries: Sequence[Delivery], /
    ) -> AbstractContextManager[None]:
        return self._around("settling")


class Swallows(Notes):
    @contextmanager
    def _around(self, what: str) -> Generator[Any]:
        with suppress(ValueError):
            yield {}


class FailsOnEnter(Notes):
    def _around(self, what: str) -> NoReturn:
        raise RuntimeError("broken")


class FailsOnExit(Notes):
    @contextmanager
    def _around(self, what: str) -> Generator[Any]:
        try:
            yield {}
        finally:
            raise RuntimeError("broken")


class YieldsNonsense(Notes):
    @contextmanager
    def _around(self, what: str) -> Generator[Any]:
        yield None


def blocks(instrumentation: Instrumentation) -> list[Callable[[], AbstractContextManager[Any]]]:
    return [
        lambda: instrumentation.sending("images", "thumbnail", 1),
        lambda: instrumentation.processing([delivery()], "thumbnail", 1),
        lambda: instrumentation.settling("images", "ack", [delivery()]),
    ]


def test_everybody_hears_every_event_in_order() -> None:
    told: list[str] = []

    fan_out(
        Notes("a", told), lambda event: told.append(type(event).__name__), Notes("b", told)
    ).emit(CLAIMED)

    assert told == ["a event", "MessagesClaimed", "b event"]


def test_blocks_are_nested_the_first_outermost() -> None:
    told: list[str] = []

    for block in blocks(fan_out(Notes("a", told), Notes("b", told))):
        with block():
            told.append("inside")

    assert told == [
        line
        for what in ("sending", "processing", "settling")
        for line in (
            f"a enters {what}",
            f"b enters {what}",
            "inside",
            f"b leaves {what}",
            f"a leaves {what}",
        )
    ]


def test_everybody_sees_the_handlers_error() -> None:
    told: list[str] = []
    both = fan_out(Notes("a", told), Notes("b", told))

    with pytest.raises(ValueError, match="no"), both.processing([delivery()], "thumbnail", 1):
        raise ValueError("no")

    assert "a sees the error" in told
    assert "b sees the error" in told


def test_headers_of_all_are_sent_and_the_first_one_wins() -> None:
    both = fan_out(
        Notes("a", [], {"traceparent": "a", "x": "a"}),
        Notes("b", [], {"traceparent": "b", "y": "b"}),
    )

    with both.sending("images", "thumbnail", 1) as headers:
        assert headers == {"traceparent": "a", "x": "a", "y": "b"}


def test_listeners_alone_cost_no_blocks() -> None:
    told: list[Event] = []
    only = fan_out(told.append)

    with only.sending("images", "thumbnail", 1) as headers:
        assert headers == {}
    for block in blocks(only):
        with block():
            pass

    only.emit(CLAIMED)
    assert told == [CLAIMED]


@pytest.mark.parametrize("kind", [Swallows, FailsOnEnter, FailsOnExit])
def test_no_member_can_hide_or_replace_what_a_handler_raises(kind: type[Notes]) -> None:
    told: list[str] = []

    for block in blocks(fan_out(kind("bad", told), Notes("good", told))):
        with pytest.raises(ValueError, match="the handler's own"), block():
            raise ValueError("the handler's own")

    assert told.count("good sees the error") == 3


@pytest.mark.parametrize("kind", [FailsOnEnter, FailsOnExit])
def test_a_failing_member_is_reported_once(
    kind: type[Notes], caplog: pytest.LogCaptureFixture
) -> None:
    guarded = fan_out(kind("bad", []))

    for block in blocks(guarded) * 2:
        with block():
            pass

    assert [record.name for record in caplog.records] == ["brokerwq.telemetry"]


def test_a_member_that_yields_no_headers_breaks_no_send(caplog: pytest.LogCaptureFixture) -> None:
    with fan_out(YieldsNonsense("bad", []), Notes("good", [], {"x": "1"})).sending(
        "images", "thumbnail", 1
    ) as headers:
        assert headers == {"x": "1"}

    assert len(caplog.records) == 1


def test_a_failing_listener_is_reported_once_and_the_others_hear(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[Event] = []

    def bad(_event: Event) -> NoReturn:
        raise RuntimeError("broken")

    both = fan_out(bad, told.append)
    both.emit(CLAIMED)
    both.emit(CLAIMED)

    assert told == [CLAIMED, CLAIMED]
    assert len(caplog.records) == 1


def test_something_else_is_refused() -> None:
    nonsense: Any = 7

    with pytest.raises(ConfigError, match="7 is neither"):
        fan_out(nonsense)


# -- selection ------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["", "off", " OFF "])
def test_telemetry_is_off_unless_asked_for(setting: str) -> None:
    assert select_telemetry(None, setting, "memory://") is None


def test_the_setting_turns_opentelemetry_on() -> None:
    assert isinstance(select_telemetry(None, "otel", "memory://"), OpenTelemetry)


def test_an_unknown_setting_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="BROKERWQ_TELEMETRY is 'jaeger'"):
        select_telemetry(None, "jaeger", "memory://")


def test_what_was_given_decides_over_the_setting(lab: Lab) -> None:
    chosen = select_telemetry(lab.otel, "off", "sqlite:///jobs.db")

    assert chosen is not None
    with chosen.processing([delivery()], "thumbnail", 1):
        pass
    assert attributes_of(lab.one("process images"))["messaging.system"] == "sqlite"


def test_members_of_a_fan_out_learn_the_broker(lab: Lab) -> None:
    chosen = select_telemetry(fan_out(EventLog(), lab.otel), "", "amqp://u:p@host/")

    assert isinstance(chosen, FanOut)
    with chosen.processing([delivery()], "thumbnail", 1):
        pass
    chosen.emit(CLAIMED)
    assert attributes_of(lab.one("process images"))["messaging.system"] == "rabbitmq"
    ((labels, _),) = lab.points("messaging.client.consumed.messages")
    assert labels["messaging.system"] == "rabbitmq"


def test_a_bare_listener_can_be_given() -> None:
    told: list[Event] = []

    chosen = select_telemetry(told.append, "", "memory://")

    assert chosen is not None
    chosen.emit(CLAIMED)
    assert told == [CLAIMED]


def test_somebody_elses_instrumentation_is_guarded(caplog: pytest.LogCaptureFixture) -> None:
    chosen = select_telemetry(FailsOnEnter("bad", []), "", "memory://")

    assert chosen is not None
    with chosen.processing([delivery()], "thumbnail", 1):
        pass
    assert len(caplog.records) == 1
