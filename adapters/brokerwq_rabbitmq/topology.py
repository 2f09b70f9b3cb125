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
from brokerwq.driver.rules.rabbitmq import LEVELS, check, level_for, level_name
from brokerwq.durations import positive_seconds

__all__ = [
    "DEAD_LETTER_LIMIT",
    "LEVELS",
    "Arguments",
    "Inequivalence",
    "QueuePlan",
    "check",
    "dead_letter_plan",
    "differences_of",
    "level_for",
    "level_name",
    "parse_inequivalence",
    "plan",
    "policy_command",
]

DEAD_LETTER_LIMIT: Final = 1_000_000
"""Deliveries. From 4.0 on a queue without a limit has one of 20, and reading a dead-letter
queue that often would empty it."""

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
