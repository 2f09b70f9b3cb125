"""Which queue's messages go to which."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from brokerwq.driver.protocol import QueueSpec, dead_letter_name
from brokerwq.driver.spec import check_queue_name
from brokerwq.errors import ConfigError

Direction: TypeAlias = Literal["forth", "back"]
"""From the source to the target, or by a rollback the other way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A queue at the source and the one that takes its messages at the target.

    Attributes:
        source: Name at the source.
        target: Name at the target.
        is_dead: It holds dead letters.
        spec: How the queue shall be at the target; None for a dead-letter queue, which comes
            into being with the queue it belongs to.
    """

    source: str
    target: str
    is_dead: bool = False
    spec: QueueSpec | None = None

    @property
    def name(self) -> str:
        """For people, and in the ledger: the name at the source."""
        return self.source

    def turned(self) -> Pair:
        """The same pair for a rollback."""
        spec = None if self.spec is None else QueueSpec(name=self.source)
        return Pair(source=self.target, target=self.source, is_dead=self.is_dead, spec=spec)

    def key(self, direction: Direction) -> str:
        """Its name in the ledger, the same in both directions."""
        return self.source if direction == "forth" else self.target


def pairs_of(
    queues: Mapping[str, str],
    *,
    specs: Iterable[QueueSpec] = (),
    dead_letters: bool = True,
) -> list[Pair]:
    """The pairs of a migration: each queue, then its dead-letter queue.

    Args:
        queues: Names at the source and at the target.
        specs: How queues shall be, by their names at the target; others get the defaults.
        dead_letters: Whether the dead-letter queues come along.

    Raises:
        ConfigError: a name is none, or two queues would become one.
    """
    known = {spec.name: spec for spec in specs}
    pairs: list[Pair] = []
    for source, target in queues.items():
        check_queue_name(source)
        check_queue_name(target)
        spec = known.get(target, QueueSpec(name=target))
        pairs.append(Pair(source=source, target=target, spec=spec))
        if dead_letters:
            old = known.get(source, QueueSpec(name=source)).dead_letter_queue
            pairs.append(Pair(source=old, target=spec.dead_letter_queue, is_dead=True))
    _refuse_collisions([pair.source for pair in pairs], "source")
    _refuse_collisions([pair.target for pair in pairs], "target")
    return pairs


def _refuse_collisions(names: list[str], side: str) -> None:
    for name in names:
        if names.count(name) > 1:
            msg = (
                f"queue {name!r} stands twice at the {side}; a dead-letter queue "
                f"({dead_letter_name('QUEUE')}) goes with its queue"
            )
            raise ConfigError(msg)
