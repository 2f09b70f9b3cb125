"""Whom the memory broker behaves like: itself, or a real broker whose limits it keeps.

So that what a real broker would refuse, or do otherwise, shows in a unit test. What it takes
and the words of a refusal are the real adapter's, from ``brokerwq.driver.rules``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from brokerwq.clock import Clock
from brokerwq.driver import Capabilities, Lease, Mark, QueueSpec, UncountedReturn
from brokerwq.driver.rules import rabbitmq, sqs, sqs_wire
from brokerwq.driver.spec import check_plain_spec
from brokerwq.durations import positive_seconds
from brokerwq.errors import (
    CannotExtendError,
    ConfigError,
    DriverError,
    MessageRefusedError,
    UnsupportedError,
)
from brokerwq.message import DeadLetterNote, Message

DEFAULT_LEASE: Final = 60.0
"""Seconds; for a queue that was declared without a lease."""
SQS_DEFAULT_LEASE: Final = 30.0
SQS_MAX_WAIT: Final = 10
"""Seconds of one long poll; the adapter's default."""

_MAX_RABBIT_LEASE: Final = rabbitmq.max_lease_of(rabbitmq.CONSUMER_TIMEOUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Likeness:
    """How one broker behaves. Durations are seconds.

    Attributes:
        name: What ``like=`` says; empty for the memory broker itself.
        capabilities: What it can do.
        canonical: The one spelling of a queue's name.
        is_fifo: Whether a queue of that name keeps groups in order.
        check: Raises ``ConfigError`` for a queue that it cannot have.
        lease: The lease for what was asked for and what is the queue's own, each may be None.
        wait_for: How long a claim with that wait and lease really waits.
        delay: A delay as it keeps it.
        refusal: Why it does not take a message with a delay into a queue of that name.
        fitting: A note as much of which as there is room for.
        release_refusal: The answer to a delay above ``max_release_delay``.
        cannot_extend: The answer to an extend above ``max_lease``.
        copies: Whether a release is a copy, from the delay and the time that the receive has.
        unacked: How long a message stays unacked where the connection is the lease.
        copy_delay: The longest delay of what is put back by copy.
        retention: For how long it keeps what a queue is asked to keep so long.
        cannot_list: The answer where ``lists_queues`` is false.
        buries_expired: Whether what is too old becomes a dead letter.
        keeps_limits: Whether retention and the broker's own limit on receives are kept.
    """

    name: str = ""
    capabilities: Capabilities
    canonical: Callable[[str], str] = str
    is_fifo: Callable[[str], bool]
    check: Callable[[QueueSpec], None]
    lease: Callable[[float | None, float | None], float]
    wait_for: Callable[[float, float], float]
    delay: Callable[[float], float]
    refusal: Callable[[str, Message, float], DriverError | None]
    fitting: Callable[[Message, DeadLetterNote], DeadLetterNote]
    release_refusal: Callable[[float], UnsupportedError]
    cannot_extend: Callable[[], CannotExtendError]
    copies: Callable[[float, float], bool]
    unacked: float = math.inf
    copy_delay: float = math.inf
    retention: Callable[[float | None], float]
    cannot_list: Callable[[], UnsupportedError] = rabbitmq.cannot_list
    buries_expired: bool = False
    keeps_limits: bool = True

    def capabilities_of(self, queue: str) -> Capabilities:
        """What a queue of that name can do."""
        if self.is_fifo(queue) and not self.capabilities.ordered_groups:
            return _as_fifo(self.capabilities)
        return self.capabilities

    def counted(self, message: Message, receives: int) -> Mark:
        """The mark of a copy that spent its attempt."""
        return replace(
            Mark.of(message),
            attempts=message.attempts + receives,
            suspect=message.suspect or (self.capabilities.lease is Lease.TIMED and receives > 1),
            not_before=None,
        )

    def timed(self, mark: Mark, delay: float, clock: Clock) -> Mark:
        """``mark`` with the moment at which a delay beyond ``copy_delay`` ends."""
        if delay <= self.copy_delay or mark.not_before is not None:
            return mark
        return replace(mark, not_before=clock.utcnow() + timedelta(seconds=delay))


def likeness_of(name: str) -> Likeness:
    """The likeness that ``?like=NAME`` asks for; the memory broker's own for no name.

    Raises:
        ConfigError: there is none of that name.
    """
    found = _LIKENESSES.get(name)
    if found is None:
        known = ", ".join(sorted(filter(None, _LIKENESSES)))
        msg = f"like={name:.100} is not known; the memory broker can be like {known}"
        raise ConfigError(msg)
    return found


def _as_fifo(capabilities: Capabilities) -> Capabilities:
    return replace(
        capabilities,
        max_send_delay=0,
        uncounted_return=UncountedReturn.COUNTED,
        ordered_groups=True,
    )


def _no(_: object) -> bool:
    return False


def _yes(_: object) -> bool:
    return True


def _whole_note(_: Message, note: DeadLetterNote) -> DeadLetterNote:
    return note


def _same(seconds: float) -> float:
    return seconds


def _plain_lease(asked: float | None, own: float | None) -> float:
    return positive_seconds(asked, "lease") if asked is not None else own or DEFAULT_LEASE


def _not_refused(_: str, __: Message, ___: float) -> None:
    return None


def _boundless() -> CannotExtendError:
    return CannotExtendError("leases have no limit here", limit=math.inf)


def _any_delay(delay: float) -> UnsupportedError:
    return UnsupportedError(f"a delay of {delay:g} seconds")


def _in_place(_: float, __: float) -> bool:
    return False


def _for_ever(_: float | None) -> float:
    return math.inf


def _plain_wait(wait: float, _: float) -> float:
    return wait


_PLAIN: Final = Likeness(
    capabilities=Capabilities(
        max_claim=1000, max_settle=1000, max_send=1000, durable=False, lists_queues=True
    ),
    is_fifo=_no,
    check=check_plain_spec,
    lease=_plain_lease,
    wait_for=_plain_wait,
    delay=_same,
    refusal=_not_refused,
    fitting=_whole_note,
    release_refusal=_any_delay,
    cannot_extend=_boundless,
    copies=_in_place,
    retention=_for_ever,
    keeps_limits=False,
)


def _sqs_name(name: str) -> str:
    if not name:
        msg = "a queue needs a name"
        raise ConfigError(msg)
    return sqs.check_name(name)


def _check_sqs(spec: QueueSpec) -> None:
    sqs.check_spec(spec, _sqs_name(spec.name), _sqs_name(spec.dead_letter_queue))


def _check_fifo(spec: QueueSpec) -> None:
    name, dead_letter = (
        _sqs_name(name and _short(name) + sqs.FIFO) for name in (spec.name, spec.dead_letter_queue)
    )
    sqs.check_spec(spec, name, dead_letter)


def _short(name: str) -> str:
    return name.removesuffix(sqs.FIFO)


def _sqs_lease(asked: float | None, own: float | None) -> float:
    seconds = own or SQS_DEFAULT_LEASE
    if asked is not None:
        seconds = positive_seconds(asked, "lease")
        if seconds > sqs.MAX_LEASE:
            raise sqs.lease_refusal(seconds)
    return float(max(math.ceil(seconds), sqs.SHORTEST_LEASE))


def _sqs_retention(retention: float | None) -> float:
    if retention is None or retention == math.inf:
        return sqs.LONGEST_RETENTION
    return math.ceil(retention)


def _sqs_wait(wait: float, lease: float) -> float:
    # A poll must be short beside the lease, which is counted from before it.
    return min(math.ceil(max(wait, 0.0)), SQS_MAX_WAIT, lease // sqs.SHORTEST_LEASE)


def _sqs_refusal(
    is_fifo: Callable[[str], bool],
) -> Callable[[str, Message, float], DriverError | None]:
    def refusal(queue: str, message: Message, delay: float) -> DriverError | None:
        size = sqs_wire.encode(message).size
        return sqs.refusal(queue, size, math.ceil(delay), is_fifo=is_fifo(queue))

    return refusal


def _sqs_fitting(message: Message, note: DeadLetterNote) -> DeadLetterNote:
    shorter = note
    for shorter in sqs.shorter(note):
        dead = replace(message, attempts=0, dead=shorter)
        if sqs_wire.encode(dead).size <= sqs.MAX_BYTES:
            break
    return shorter


def _ceil(seconds: float) -> float:
    return float(math.ceil(seconds))


def _is_fifo_name(name: str) -> bool:
    return name.endswith(sqs.FIFO)


_SQS_CAPABILITIES: Final = Capabilities(
    max_lease=sqs.MAX_LEASE,
    max_claim=sqs.MAX_ENTRIES,
    max_settle=sqs.MAX_ENTRIES,
    max_send=sqs.MAX_ENTRIES,
    max_message_bytes=sqs.MAX_BYTES,
    max_batch_bytes=sqs.MAX_BYTES,
    max_wait=SQS_MAX_WAIT,
    max_send_delay=sqs.MAX_DELAY,
    max_release_delay=sqs.MAX_LEASE,
    fences=False,
    uncounted_return=UncountedReturn.COPY,
    atomic_dead_letter=False,
    exact_stats=False,
    durable=False,
    lists_queues=True,
)

_SQS: Final = Likeness(
    name="sqs",
    capabilities=_SQS_CAPABILITIES,
    is_fifo=_is_fifo_name,
    check=_check_sqs,
    lease=_sqs_lease,
    wait_for=_sqs_wait,
    delay=_ceil,
    refusal=_sqs_refusal(_is_fifo_name),
    fitting=_sqs_fitting,
    release_refusal=lambda delay: sqs.release_refusal(math.ceil(delay)),
    cannot_extend=sqs.cannot_extend,
    copies=lambda delay, left: delay > left,
    copy_delay=sqs.MAX_DELAY,
    retention=_sqs_retention,
)

_SQS_FIFO: Final = replace(
    _SQS,
    name="sqs-fifo",
    capabilities=_as_fifo(_SQS_CAPABILITIES),
    canonical=_short,
    is_fifo=_yes,
    check=_check_fifo,
    refusal=_sqs_refusal(_yes),
)


def _check_rabbit(spec: QueueSpec) -> None:
    rabbitmq.check(spec, _MAX_RABBIT_LEASE)


def _rabbit_lease(asked: float | None, _: float | None) -> float:
    seconds = DEFAULT_LEASE if asked is None else positive_seconds(asked, "lease")
    if seconds > _MAX_RABBIT_LEASE:
        msg = (
            f"a lease of {seconds:g} s; RabbitMQ allows {_MAX_RABBIT_LEASE:g} "
            f"(from consumer_timeout={rabbitmq.CONSUMER_TIMEOUT:g})"
        )
        raise UnsupportedError(msg)
    return seconds


def _rabbit_retention(retention: float | None) -> float:
    return math.inf if retention is None else retention


def _rabbit_delay(delay: float) -> float:
    return max(delay, float(rabbitmq.LEVELS[0])) if delay > 0 else 0.0


def _rabbit_refusal(_: str, message: Message, delay: float) -> DriverError | None:
    if delay > rabbitmq.LONGEST_DELAY:
        return rabbitmq.delay_refusal(delay)
    try:
        properties = rabbitmq.properties_size(message, delay)
    except MessageRefusedError as exc:
        return exc
    return rabbitmq.size_refusal(properties, len(message.body))


_RABBITMQ: Final = Likeness(
    name="rabbitmq",
    capabilities=Capabilities(
        lease=Lease.CONNECTION,
        max_lease=_MAX_RABBIT_LEASE,
        max_claim=1000,
        max_settle=1000,
        max_send=200,
        max_message_bytes=rabbitmq.MAX_BODY,
        max_send_delay=rabbitmq.LONGEST_DELAY,
        max_release_delay=rabbitmq.LONGEST_DELAY,
        uncounted_return=UncountedReturn.COPY,
        atomic_dead_letter=False,
        exact_stats=False,
        durable=False,
    ),
    is_fifo=_no,
    check=_check_rabbit,
    lease=_rabbit_lease,
    wait_for=_plain_wait,
    delay=_rabbit_delay,
    refusal=_rabbit_refusal,
    fitting=_whole_note,
    release_refusal=rabbitmq.delay_refusal,
    cannot_extend=lambda: rabbitmq.cannot_extend(rabbitmq.CONSUMER_TIMEOUT, _MAX_RABBIT_LEASE),
    copies=lambda delay, _: delay > 0,
    unacked=rabbitmq.CONSUMER_TIMEOUT,
    retention=_rabbit_retention,
    buries_expired=True,
)

_LIKENESSES: Final = {like.name: like for like in (_PLAIN, _SQS, _SQS_FIFO, _RABBITMQ)}
