"""What may be said of one enqueue, and of one worker, checked once at the door."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias, TypedDict, cast

from brokerwq.backoff import RetryPolicy, check_policy
from brokerwq.codecs import AnyCodec
from brokerwq.codecs.choosing import reads_only
from brokerwq.durations import Seconds, aware_utc, positive_seconds, seconds_of
from brokerwq.envelope import check_user_headers
from brokerwq.errors import ConfigError
from brokerwq.limits import (
    MAX_BATCH,
    MAX_BATCH_WAIT,
    MAX_DELAY,
    MAX_LEASE,
    MAX_SLOTS,
    MAX_TIMEOUT,
    MIN_LEASE,
)
from brokerwq.middleware import Middleware, check_layers
from brokerwq.once import Once, Strategy, check_key_version
from brokerwq.workers.names import check_foreign_queue, check_foreign_type, check_id, check_name

OnUnknown: TypeAlias = Literal["dead-letter", "leave"]
OnDead: TypeAlias = Literal["dead-letter", "hold"]
Key: TypeAlias = Callable[[Any], object] | str | Sequence[str]
"""What makes two messages the same work: a function of the payload, or names of its fields."""


class SendOptions(TypedDict, total=False):
    """How one message is sent.

    Attributes:
        delay: Run it no sooner than so many seconds (or a ``timedelta``) from now; negative
            means now. At most 10 years.
        at: Run it no sooner than then: an aware ``datetime``; the past means now.
        id: The message's id instead of a new one: 1 to 200 bytes of printable text.
        group: Ordering group, honoured where the broker has ordered groups.
        headers: The sender's own headers, text to text.
        tx: A connection or session of the store's database, in a transaction of the
            caller's: the message is written into the outbox there, and sent by a runner if
            and only if that is committed. Only with ``await …enqueue``.
    """

    delay: Seconds
    at: datetime
    id: str
    group: str
    headers: Mapping[str, str]
    tx: Any


class WorkerKeywords(TypedDict, total=False):
    """What ``App.worker`` takes by name, except ``batch``; see ``WorkerOptions``."""

    name: str | None
    aliases: Sequence[str]
    lease: Seconds | None
    timeout: Seconds | None
    retry: RetryPolicy | None
    slots: int | None
    key: Key | None
    once: Once | Strategy | None
    key_version: int
    codec: AnyCodec | None
    foreign: bool
    on_unknown: OnUnknown
    on_dead: OnDead


_SEND_OPTIONS: Final = frozenset(SendOptions.__annotations__)
_NO_HEADERS: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True)
class CheckedOptions:
    """``SendOptions``, checked."""

    delay: float = 0.0
    id: str | None = None
    group: str | None = None
    headers: Mapping[str, str] = field(default_factory=lambda: _NO_HEADERS)
    tx: Any = None


AT_ONCE: Final = CheckedOptions()


def check_send_options(
    options: Mapping[str, object], now: Callable[[], datetime]
) -> CheckedOptions:
    """``options`` as the sender needs them.

    Raises:
        ConfigError: one is unknown, out of its range, or at odds with another.
    """
    if not options:
        return AT_ONCE
    unknown = options.keys() - _SEND_OPTIONS
    if unknown:
        msg = (
            f"unknown option {', '.join(sorted(map(repr, unknown)))}; "
            f"known: {', '.join(sorted(_SEND_OPTIONS))}"
        )
        raise ConfigError(msg)
    id_, group, headers = options.get("id"), options.get("group"), options.get("headers")
    return CheckedOptions(
        delay=_delay(options.get("delay"), options.get("at"), now),
        id=None if id_ is None else check_id(id_, "id"),
        group=None if group is None else check_id(group, "group"),
        headers=_NO_HEADERS if headers is None else check_user_headers(headers),
        tx=options.get("tx"),
    )


def _delay(delay: object, at: object, now: Callable[[], datetime]) -> float:
    if at is None:
        return 0.0 if delay is None else check_delay(delay)
    if delay is not None:
        msg = "give delay or at, not both"
        raise ConfigError(msg)
    if not isinstance(at, datetime):
        msg = f"at must be a datetime with a time zone, not {at!r:.200}"
        raise ConfigError(msg)
    return _within_limit((aware_utc(at, "at") - now()).total_seconds(), "at")


def check_delay(delay: object) -> float:
    """``delay`` in seconds, 0 or more.

    Raises:
        ConfigError: it is not a finite number of seconds up to ``MAX_DELAY``.
    """
    return _within_limit(seconds_of(delay, "delay"), "delay")


def _within_limit(seconds: float, name: str) -> float:
    if seconds > MAX_DELAY:
        msg = f"{name} is {seconds:g} seconds from now; the limit is {MAX_DELAY:g} (10 years)"
        raise ConfigError(msg)
    return max(seconds, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """What ``App.worker`` takes, with the app's defaults filled in; durations become seconds.

    Attributes:
        queue: The queue: 1 to 80 letters, digits and ``-_.``; with ``foreign`` any printable
            name up to 255 bytes.
        name: The message type; None takes the function's ``__name__``. ``*`` for the foreign
            messages for which the queue has no other worker.
        aliases: Older types that it runs as well, so that a worker can be renamed.
        lease: Seconds a claim lasts, from 0.05 to 7 days; None leaves it to the queue.
        timeout: Seconds one call may take, above 0 and at most 365 days; None has no limit.
        retry: How often and when.
        slots: Most jobs of this worker at once in one runner, from 1; None has no own limit.
        key: What makes two messages the same work; None is the message's id.
        once: How the work is kept from being done twice; None for not at all.
        key_version: Raised when the same key is to mean other work, from 1.
        codec: A codec or its name; None goes by the payload's annotation. ``sns``,
            ``cloudevents``, ``celery``, ``dramatiq``, ``taskiq`` and a ``ForeignCodec`` need
            ``foreign``.
        foreign: Take the messages without a type on a queue that somebody else fills.
        on_unknown: A foreign message of a type that the queue has no worker for becomes a dead
            letter in time, or is left to whoever else reads the queue.
        on_dead: What would be a dead letter is moved, or held in the queue, for a queue that
            has no dead-letter queue.
        batch: Messages in one call, from 1 to 10,000; None for a worker that takes one.
        batch_wait: Seconds to wait for a full batch, 0 to 1 hour.
        middleware: Around the handler, the first outermost.

    Raises:
        ConfigError: a value is out of its range, or at odds with another.
    """

    queue: str
    retry: RetryPolicy
    name: str | None = None
    aliases: Sequence[str] = ()
    lease: Seconds | None = None
    timeout: Seconds | None = None
    slots: int | None = None
    key: Key | None = None
    once: Once | None = None
    key_version: int = 1
    codec: AnyCodec | None = None
    foreign: bool = False
    on_unknown: OnUnknown = "dead-letter"
    on_dead: OnDead = "dead-letter"
    batch: int | None = None
    batch_wait: Seconds = 0.0
    middleware: Sequence[Middleware] = ()

    def __post_init__(self) -> None:
        """Check each value, and set the normal form of those that have several."""
        if self.foreign:
            check_foreign_queue(self.queue)
        else:
            check_name(self.queue, "queue")
        self._check_names()
        if self.lease is not None:
            self._set("lease", _lease(self.lease))
        if self.timeout is not None:
            self._set("timeout", positive_seconds(self.timeout, "timeout", limit=MAX_TIMEOUT))
        check_policy(self.retry)
        check_count(self.slots, "slots", MAX_SLOTS)
        check_count(self.batch, "batch", MAX_BATCH)
        check_flag(self.foreign, "foreign")
        self._check_foreign()
        check_key_version(self.key_version)
        self._check_batch()
        self._set("middleware", check_layers(self.middleware))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _check_names(self) -> None:
        # Of a call of another program's the name is what that program says.
        check = check_foreign_type if self.foreign and reads_only(self.codec) else check_name
        if self.name is not None:
            check(self.name, "worker name")
        self._set("aliases", _names(self.aliases, check))

    def _check_foreign(self) -> None:
        _check_choice(self.on_unknown, "on_unknown", "dead-letter", "leave")
        _check_choice(self.on_dead, "on_dead", "dead-letter", "hold")
        if self.foreign:
            return
        if reads_only(self.codec):
            msg = f"codec {self.codec!r:.100} reads the messages of other programs: foreign=True"
            raise ConfigError(msg)
        if self.on_unknown != "dead-letter" or self.on_dead != "dead-letter":
            msg = "on_unknown and on_dead are for queues that others fill: foreign=True"
            raise ConfigError(msg)

    def _check_batch(self) -> None:
        wait = seconds_of(self.batch_wait, "batch_wait")
        if not 0 <= wait <= MAX_BATCH_WAIT:
            msg = f"batch_wait must be 0 to {MAX_BATCH_WAIT:g} seconds, not {self.batch_wait!r}"
            raise ConfigError(msg)
        self._set("batch_wait", wait)
        if self.batch is None and wait:
            msg = "batch_wait is for workers with batch=…"
            raise ConfigError(msg)
        if self.batch is not None and self.once is not None:
            msg = "once keeps one message's work; a worker with batch=… cannot have it"
            raise ConfigError(msg)
        if self.batch is not None and self.middleware:
            msg = "middleware wraps one job; a worker with batch=… cannot have it"
            raise ConfigError(msg)


def _lease(lease: Seconds) -> float:
    return positive_seconds(lease, "lease", limit=MAX_LEASE, least=MIN_LEASE)


def _check_choice(value: object, name: str, *choices: str) -> None:
    if value not in choices:
        known = " or ".join(map(repr, choices))
        msg = f"{name} must be {known}, not {value!r:.200}"
        raise ConfigError(msg)


def _names(aliases: object, check: Callable[[object, str], str]) -> tuple[str, ...]:
    if isinstance(aliases, str) or not isinstance(aliases, Sequence):
        msg = f"aliases must be a list of names, not {aliases!r:.200}"
        raise ConfigError(msg)
    given = cast("Sequence[object]", aliases)  # whatever they are, they are objects
    names = tuple(check(alias, "alias") for alias in given)
    if len(set(names)) != len(names):
        msg = f"an alias stands twice in {names!r:.200}"
        raise ConfigError(msg)
    return names


def check_flag(value: object, name: str) -> None:
    """Refuse a ``value`` that is neither True nor False.

    Raises:
        ConfigError: it is neither.
    """
    if not isinstance(value, bool):
        msg = f"{name} must be True or False, not {value!r:.200}"
        raise ConfigError(msg)


def check_count(value: object, name: str, limit: int) -> None:
    """Refuse a ``value`` that is neither None nor a whole number from 1 to ``limit``.

    Raises:
        ConfigError: it is neither.
    """
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= limit:
        msg = f"{name} must be a whole number from 1 to {limit}, not {value!r:.200}"
        raise ConfigError(msg)
