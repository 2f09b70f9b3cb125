"""The queues behind a queue: how they should be, how they are, and what tells them apart.

``orders`` is a quorum queue; ``orders-dead`` another, where dead letters go; and
``orders.delay.1`` … ``orders.delay.65536`` hold what is claimable later: a message waits there
for the seconds in the name, after which the broker moves it to ``orders``.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from brokerwq.driver import Difference, QueueSpec
from brokerwq.durations import positive_seconds
from brokerwq.errors import ConfigError

LEVELS: Final = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536)
"""Seconds. A longer or odd delay is made of several; the factor keeps both numbers small."""
LONGEST_DELAY: Final = 86400.0
"""Seconds; beyond it the core sends a message on again when it comes."""
DEAD_LETTER_LIMIT: Final = 1_000_000
"""Deliveries. From 4.0 on a queue without a limit has one of 20, and reading a dead-letter
queue that often would empty it."""

_MAX_NAME_BYTES: Final = 255
_INEQUIVALENT: Final = re.compile(
    r"inequivalent arg '(?P<name>[^']+)' for queue .*: received .* but current is (?P<found>.+)$",
    re.DOTALL,
)
_VALUE: Final = re.compile(
    r"(?:the value )?'(?P<text>.*?)'(?: of type '(?P<type>\w+)')?$", re.DOTALL
)

_INTEGERS: Final = frozenset(
    {"byte", "unsignedbyte", "short", "unsignedshort", "signedint", "unsignedint", "long"}
)

Arguments = Mapping[str, str | int]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePlan:
    """One queue as it should be declared."""

    name: str
    arguments: Arguments


def level_name(queue: str, seconds: int) -> str:
    """The queue in which messages for ``queue`` wait ``seconds``."""
    return f"{queue}.delay.{seconds}"


def level_for(delay: float) -> int:
    """The longest wait that does not exceed ``delay``; at least the shortest there is."""
    return max((level for level in LEVELS if level <= delay), default=LEVELS[0])


def plan(spec: QueueSpec) -> list[QueuePlan]:
    """The queues of ``spec``, in the order in which they are made: none is used before its own.

    Raises:
        ConfigError: RabbitMQ does not take such a name, or the limits make no sense.
    """
    work: dict[str, str | int] = {
        **_forwarding(spec.dead_letter_queue),
        "x-delivery-limit": spec.broker_limit,
    }
    if spec.retention is not None:
        work["x-message-ttl"] = _milliseconds(spec.retention)
    return [
        dead_letter_plan(spec.dead_letter_queue),
        *(
            QueuePlan(
                name=level_name(spec.name, seconds),
                arguments={**_forwarding(spec.name), "x-message-ttl": seconds * 1000},
            )
            for seconds in LEVELS
        ),
        QueuePlan(name=spec.name, arguments=work),
    ]


def dead_letter_plan(name: str) -> QueuePlan:
    """A dead-letter queue: it forwards nothing."""
    return QueuePlan(
        name=name,
        arguments={"x-queue-type": "quorum", "x-delivery-limit": DEAD_LETTER_LIMIT},
    )


def _forwarding(target: str) -> dict[str, str | int]:
    # At-least-once needs reject-publish; with any other overflow the broker falls back to
    # at-most-once without a word.
    return {
        "x-queue-type": "quorum",
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": target,
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }


def _milliseconds(seconds: float) -> int:
    return max(1, round(positive_seconds(seconds, "retention") * 1000))


def check(spec: QueueSpec, max_lease: float) -> None:
    """Refuse what no RabbitMQ can be.

    Raises:
        ConfigError: a name, limit or lease is out of range.
    """
    longest = level_name(spec.name, LEVELS[-1])
    for name in (longest if spec.declare == "create" else spec.name, spec.dead_letter_queue):
        size = len(name.encode("utf-8", "surrogatepass"))
        if not 1 <= size <= _MAX_NAME_BYTES or not name.isprintable() or name.startswith("amq."):
            msg = (
                f"queue name {name!r:.300} must be printable, have 1 to {_MAX_NAME_BYTES} bytes "
                "and not start with 'amq.'"
            )
            raise ConfigError(msg)
    if not spec.name:
        msg = "a queue must have a name"
        raise ConfigError(msg)
    if spec.dead_letter_queue == spec.name:
        msg = f"queue {spec.name} cannot be its own dead-letter queue"
        raise ConfigError(msg)
    if spec.broker_limit < 1:
        msg = f"broker_limit must be 1 or more, not {spec.broker_limit}"
        raise ConfigError(msg)
    if spec.lease is not None:
        positive_seconds(spec.lease, "lease", limit=max_lease)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inequivalence:
    """What RabbitMQ names when a declaration differs: the first difference only.

    Attributes:
        name: The argument or property.
        found: What the queue has; None where it has none.
    """

    name: str
    found: str | int | None


def parse_inequivalence(text: str, asked: Arguments) -> Inequivalence | None:
    """The difference that an error text names; None if it names none.

    Args:
        text: What RabbitMQ said.
        asked: The arguments of the declaration: a value without a type is of the type asked for.
    """
    match = _INEQUIVALENT.search(text)
    if match is None:
        return None
    name = match["name"]
    value = _VALUE.match(match["found"].strip())
    if value is None:
        return Inequivalence(name=name, found=None)
    is_number = (
        isinstance(asked.get(name), int) if value["type"] is None else value["type"] in _INTEGERS
    )
    found = value["text"]
    return Inequivalence(name=name, found=int(found) if is_number else found)


def differences_of(
    wanted: QueuePlan, found: Mapping[str, str | int | None], *, durable: bool
) -> list[Difference]:
    """What was found out about a queue, as differences, each with a way to mend it."""
    fix = policy_command(wanted)
    listed = [
        Difference(
            queue=wanted.name,
            property=name,
            wanted=wanted.arguments.get(name),
            found=actual,
            fix=fix if _policy_key(name) else "make a new queue and move the messages",
        )
        for name, actual in found.items()
    ]
    if not durable:
        listed.append(
            Difference(
                queue=wanted.name,
                property="durable",
                wanted=True,
                found=False,
                fix="make a new queue and move the messages",
            )
        )
    return listed


# What a policy can give to a queue that exists (RabbitMQ's documentation, "Policies").
_POLICY_KEYS: Final = (
    "delivery-limit",
    "dead-letter-exchange",
    "dead-letter-routing-key",
    "dead-letter-strategy",
    "overflow",
    "message-ttl",
)


def _policy_key(argument: str) -> str | None:
    key = argument.removeprefix("x-")
    return key if key in _POLICY_KEYS else None


def policy_command(wanted: QueuePlan) -> str:
    """The command that gives an existing quorum queue what ``wanted`` would have given it.

    Where an argument and a policy both set a limit, the lower one counts.
    """
    values = {key: value for name, value in wanted.arguments.items() if (key := _policy_key(name))}
    pattern = f"^{re.escape(wanted.name)}$"
    return shlex.join(
        [
            *("rabbitmqctl", "set_policy", "--apply-to", "queues"),
            *(wanted.name, pattern, json.dumps(values)),
        ]
    )
