"""``once=…``: how work is kept from being done twice, and what happens where that is in doubt."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal, TypeAlias

from brokerwq.durations import Seconds, positive_seconds
from brokerwq.errors import ConfigError

Strategy: TypeAlias = Literal["marker", "transactional", "lease_tx"]

RETENTION: Final = timedelta(days=35).total_seconds()
"""Seconds: 14 days in a queue, 14 in a dead-letter queue, and 7 to spare."""

_MAX_RETENTION: Final = timedelta(days=3650).total_seconds()
MAX_KEY_VERSION: Final = 1_000_000

_CHOICES: Final = {
    "strategy": ("marker", "transactional", "lease_tx"),
    "on_mismatch": ("dead-letter", "ack"),
    "on_owner_lost": ("rerun", "park"),
    "on_store_lost": ("ack", "leave"),
    "stale": ("park", "run"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Once:
    """A strategy and its policies; ``once="marker"`` is ``once=Once(strategy="marker")``.

    Attributes:
        strategy: ``marker``: a record beside the work: at-least-once with far fewer
            duplicates. ``transactional``: record and effect in one transaction of the
            database: the effect happens once. ``lease_tx``: the same for long handlers,
            whose transaction opens when the slow part is over.
        retention: Seconds (or ``timedelta``) for which a finished key is remembered. A
            message older than that can no longer be told from a duplicate; see ``stale``.
        keep_result: Keep what the handler returned with the record, as JSON, up to 4 KiB.
        on_mismatch: A message with a known key and another payload: ``dead-letter`` with
            reason ``payload-mismatch``, or ``ack`` where only the key matters.
        on_owner_lost: An owner vanished in the middle of the work: ``rerun`` it, or ``park``
            the message as dead letter ``owner-lost`` for somebody to look at.
        on_store_lost: ``marker`` only, the work is done and its record cannot be written
            while the lease lasts: ``ack``, since leaving the message would make a second run
            certain, or ``leave`` it.
        stale: A message older than ``retention``: ``park`` it as dead letter
            ``older-than-dedup-window``, or ``run`` it.

    Raises:
        ConfigError: a value is none of these.
    """

    strategy: Strategy
    retention: Seconds = RETENTION
    keep_result: bool = False
    on_mismatch: Literal["dead-letter", "ack"] = "dead-letter"
    on_owner_lost: Literal["rerun", "park"] = "rerun"
    on_store_lost: Literal["ack", "leave"] = "ack"
    stale: Literal["park", "run"] = "park"

    def __post_init__(self) -> None:
        """Check each value."""
        for name, choices in _CHOICES.items():
            found: object = getattr(self, name)
            if found not in choices:
                said = ", ".join(map(repr, choices))
                name = "once" if name == "strategy" else name  # noqa: PLW2901
                msg = f"{name} must be one of {said}, not {found!r:.100}"
                raise ConfigError(msg)
        seconds = positive_seconds(self.retention, "retention", limit=_MAX_RETENTION)
        object.__setattr__(self, "retention", seconds)

    @property
    def has_tx(self) -> bool:
        """Whether the handler gets a transaction."""
        return self.strategy != "marker"


def once_of(value: object) -> Once | None:
    """What ``worker(once=value)`` means.

    Raises:
        ConfigError: it is no strategy.
    """
    if value is None or isinstance(value, Once):
        return value
    return Once(strategy=value)  # type: ignore[arg-type]  # it says so itself if it is none


def check_key_version(value: object) -> int:
    """``value``, if it is a version of a key.

    Raises:
        ConfigError: it is no whole number from 1 to 1,000,000.
    """
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_KEY_VERSION:
        return value
    msg = f"key_version must be a whole number from 1 to {MAX_KEY_VERSION}, not {value!r:.100}"
    raise ConfigError(msg)
