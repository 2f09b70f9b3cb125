"""What a target does otherwise than the source, from their capabilities alone."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from brokerwq.driver.capabilities import Capabilities, UncountedReturn
from brokerwq.sizing import readable

_MOST_NAMED: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that changes.

    Attributes:
        subject: A word or two: ``size``, ``delay``, ``order``.
        loses: Whether the target can do less; else it can do more.
        text: What is so, in one sentence.
    """

    subject: str
    loses: bool
    text: str


def compare(source: Capabilities, target: Capabilities) -> list[Difference]:
    """What changes for whoever moves from ``source`` to ``target``."""
    return [
        *_sizes(source, target),
        *_delays(source, target),
        *_order(source, target),
        *_leases(source, target),
        *_returns(source, target),
        *_promises(source, target),
    ]


def compare_all(pairs: Mapping[str, tuple[Capabilities, Capabilities]]) -> list[Difference]:
    """The same for queues by their names; what is not so for all of them says for which."""
    found: dict[Difference, list[str]] = {}
    for queue, (source, target) in pairs.items():
        for difference in compare(source, target):
            found.setdefault(difference, []).append(queue)
    return [
        difference
        if len(queues) == len(pairs)
        else replace(difference, text=f"{_few(queues)}: {difference.text}")
        for difference, queues in found.items()
    ]


def _few(queues: Sequence[str]) -> str:
    shown = ", ".join(queues[:_MOST_NAMED])
    more = len(queues) - _MOST_NAMED
    return f"{shown} and {more} more" if more > 0 else shown


def _sizes(source: Capabilities, target: Capabilities) -> Generator[Difference]:
    if source.max_message_bytes != target.max_message_bytes:
        loses = target.max_message_bytes < source.max_message_bytes
        yield Difference(
            subject="size",
            loses=loses,
            text=f"a message may have {_bytes(target.max_message_bytes)} instead of "
            f"{_bytes(source.max_message_bytes)}",
        )


def _delays(source: Capabilities, target: Capabilities) -> Generator[Difference]:
    if source.max_send_delay == target.max_send_delay:
        return
    loses = target.max_send_delay < source.max_send_delay
    if not target.max_send_delay:
        text = "no message can be delayed: what is delayed goes when it is due"
    elif math.isinf(target.max_send_delay):
        text = "a message can be delayed for any time"
    else:
        text = (
            f"beyond {_seconds(target.max_send_delay)} a delay is kept by hops, "
            "for which a runner must be there"
        )
    yield Difference(subject="delay", loses=loses, text=text)


def _order(source: Capabilities, target: Capabilities) -> Generator[Difference]:
    if source.ordered_groups and not target.ordered_groups:
        text = "messages of a group are no longer kept in order"
        yield Difference(subject="order", loses=True, text=text)
    elif target.ordered_groups and not source.ordered_groups:
        text = (
            "messages of a group wait for one another; a second message of one id may be taken "
            "for a repeated send, and dropped, within the target's window for that"
        )
        yield Difference(subject="order", loses=True, text=text)
    elif not target.ordered_groups:
        text = "messages arrive roughly in order, priorities are not kept"
        yield Difference(subject="order", loses=True, text=text)


def _leases(source: Capabilities, target: Capabilities) -> Generator[Difference]:
    if source.max_lease != target.max_lease:
        yield Difference(
            subject="lease",
            loses=target.max_lease < source.max_lease,
            text=f"one attempt may take {_seconds(target.max_lease)} instead of "
            f"{_seconds(source.max_lease)}",
        )
    if source.fences and not target.fences:
        text = "a settle may touch another runner's lease: duplicates are a little likelier"
        yield Difference(subject="fencing", loses=True, text=text)


def _returns(source: Capabilities, target: Capabilities) -> Generator[Difference]:
    if source.uncounted_return is target.uncounted_return:
        return
    text = {
        UncountedReturn.EXACT: "a message is put back in one step",
        UncountedReturn.COPY: "a message is put back by a copy: a crash in between leaves two",
        UncountedReturn.COUNTED: "every return counts as an attempt",
    }[target.uncounted_return]
    order = list(UncountedReturn)
    loses = order.index(target.uncounted_return) > order.index(source.uncounted_return)
    yield Difference(subject="put back", loses=loses, text=text)


def _promises(source: Capabilities, target: Capabilities) -> Generator[Difference]:
    if source.durable != target.durable:
        word = "survives" if target.durable else "does not survive"
        yield Difference(
            subject="durability",
            loses=not target.durable,
            text=f"what was sent {word} a restart of the broker",
        )
    if source.exact_stats != target.exact_stats:
        word = "exact" if target.exact_stats else "estimates, or unknown"
        yield Difference(subject="counts", loses=not target.exact_stats, text=f"counts are {word}")
    if source.counts_receives and not target.counts_receives:
        text = "receives are not counted across a crash"
        yield Difference(subject="receives", loses=True, text=text)


def _bytes(limit: float) -> str:
    return "any number of bytes" if math.isinf(limit) else f"{limit:,.0f} bytes"


def _seconds(limit: float) -> str:
    return "any time" if math.isinf(limit) else readable(round(limit))
