"""What may be said of a queue, checked once at the door, before any broker is asked."""

from __future__ import annotations

from typing import Final

from brokerwq.driver.protocol import QueueSpec
from brokerwq.durations import positive_seconds
from brokerwq.errors import ConfigError
from brokerwq.limits import MAX_BROKER_LIMIT, MAX_LEASE, MAX_RETENTION, MIN_LEASE

MAX_QUEUE_NAME_BYTES: Final = 255
"""The longest name that any broker takes; each may ask for less."""

_DECLARE: Final = ("create", "check", "never")
_ON_DEAD: Final = ("dead-letter", "hold")


def check_queue_name(name: object, what: str = "queue") -> str:
    """Return ``name`` if some broker could have a queue of that name.

    Raises:
        ConfigError: it is not 1 to 255 bytes of printable text.
    """
    if (
        not isinstance(name, str)
        or not name.isprintable()
        or not 0 < len(name.encode()) <= MAX_QUEUE_NAME_BYTES
    ):
        msg = f"{what} {name!r:.200} must be 1 to {MAX_QUEUE_NAME_BYTES} bytes of printable text"
        raise ConfigError(msg)
    return name


def check_spec(spec: object) -> QueueSpec:
    """Return ``spec`` if some broker could have a queue like that.

    Raises:
        ConfigError: it is no ``QueueSpec``, or a value of it is out of its range.
    """
    if not isinstance(spec, QueueSpec):
        msg = f"a queue's properties are a QueueSpec, not {spec!r:.200}"
        raise ConfigError(msg)
    check_queue_name(spec.name)
    of = f"of queue {spec.name!r:.100}"
    if spec.dead_letter is not None:
        check_queue_name(spec.dead_letter, f"dead_letter {of}:")
    if spec.dead_letter_queue == spec.name:
        msg = f"queue {spec.name!r} cannot be its own dead-letter queue"
        raise ConfigError(msg)
    if spec.dead_letter_via is not None:
        _check_way(spec, of)
    if spec.lease is not None:
        positive_seconds(spec.lease, f"lease {of}", limit=MAX_LEASE, least=MIN_LEASE)
    if spec.retention is not None:
        positive_seconds(spec.retention, f"retention {of}", limit=MAX_RETENTION)
    _check_limit(spec.broker_limit, of)
    _check_ordered(spec.ordered, of)
    if spec.on_dead not in _ON_DEAD:
        msg = f"on_dead {of} must be one of {', '.join(_ON_DEAD)}, not {spec.on_dead!r:.200}"
        raise ConfigError(msg)
    if spec.on_dead == "hold" and spec.declare != "never":
        msg = f"on_dead='hold' {of} is for declare='never': what brokerwq makes has dead letters"
        raise ConfigError(msg)
    if spec.declare not in _DECLARE:
        msg = f"declare {of} must be one of {', '.join(_DECLARE)}, not {spec.declare!r:.200}"
        raise ConfigError(msg)
    return spec


def check_plain_spec(spec: QueueSpec) -> None:
    """Refuse what a broker that has no rules of its own cannot make of ``spec`` either.

    Raises:
        ConfigError: a name, the lease, or a queue that is its own dead-letter queue.
    """
    for name in (spec.name, spec.dead_letter_queue):
        check_queue_name(name, "queue name")
    if spec.dead_letter_queue == spec.name:
        msg = f"queue {spec.name!r} cannot be its own dead-letter queue"
        raise ConfigError(msg)
    if spec.lease is not None:
        positive_seconds(spec.lease, "lease")


def _check_way(spec: QueueSpec, of: str) -> None:
    if spec.declare != "never":
        msg = f'dead_letter_via {of} is for queues with declare="never"'
        raise ConfigError(msg)
    if spec.dead_letter_via:  # an empty name is one that a broker may have
        check_queue_name(spec.dead_letter_via, f"dead_letter_via {of}:")


def _check_limit(limit: object, of: str) -> None:
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= MAX_BROKER_LIMIT:
        msg = f"broker_limit {of} must be 1 to {MAX_BROKER_LIMIT}, not {limit!r:.200}"
        raise ConfigError(msg)


def _check_ordered(ordered: object, of: str) -> None:
    if not isinstance(ordered, bool):
        msg = f"ordered {of} must be True or False, not {ordered!r:.200}"
        raise ConfigError(msg)
