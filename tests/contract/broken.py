"""Broken drivers, one fault each, and the checks that must find it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from brokerwq.driver import Capabilities
from tests.contract.sound import SoundConsumer, SoundDriver
from tests.contract.sound_capabilities import SOUND

EVERYTHING = SOUND["all that there is"]


@dataclass(frozen=True, kw_only=True)
class Fault:
    caught_by: tuple[str, ...]
    driver: type[SoundDriver] = SoundDriver
    consumer: type[SoundConsumer] = SoundConsumer
    can: Capabilities = EVERYTHING


FAULTS: dict[str, Fault] = {}
"""By the name of the class that is broken."""

_Driver = TypeVar("_Driver", bound=type[SoundDriver])
_Consumer = TypeVar("_Consumer", bound=type[SoundConsumer])


def driver(*caught_by: str, can: Capabilities = EVERYTHING) -> Callable[[_Driver], _Driver]:
    def register(kind: _Driver) -> _Driver:
        assert kind.__name__ not in FAULTS
        FAULTS[kind.__name__] = Fault(caught_by=caught_by, driver=kind, can=can)
        return kind

    return register


def consumer(*caught_by: str, can: Capabilities = EVERYTHING) -> Callable[[_Consumer], _Consumer]:
    def register(kind: _Consumer) -> _Consumer:
        assert kind.__name__ not in FAULTS
        FAULTS[kind.__name__] = Fault(caught_by=caught_by, consumer=kind, can=can)
        return kind

    return register
