"""Which dead letters are meant: one of them as people see it, and a choice among many."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from brokerwq.driver import Delivery
from brokerwq.message import DeadLetterNote, Message

BY_BROKER = "by-broker"
"""The reason shown for a message without a note: the broker itself, or somebody else, moved it."""

_NO_NOTE = DeadLetterNote(reason=BY_BROKER)


@dataclass(frozen=True, slots=True)
class Letter:
    """One message in a dead-letter queue; ``brokerwq.DeadLetter`` is what sends one there.

    Attributes:
        message: The message.
        note: Why it is there; with the reason ``BY_BROKER`` and nothing else where no note says.
    """

    message: Message
    note: DeadLetterNote

    @classmethod
    def of(cls, delivery: Delivery, seen: Delivery | None = None) -> Letter:
        """The dead letter that was claimed as ``delivery``.

        Args:
            delivery: The message as it is.
            seen: The same with what a codec read in it, for a message that nobody has named.
        """
        message = delivery.message
        note = message.dead or _NO_NOTE
        if seen is not None and not message.type:
            view = seen.message
            note = replace(note, id=note.id or view.id, type=note.type or view.type)
        return cls(message, note)

    @property
    def id(self) -> str:
        """What the log called it."""
        return self.note.id or self.message.id

    @property
    def type(self) -> str:
        """Its type, or the one that a codec read in another program's message."""
        return self.message.type or self.note.type

    @property
    def died_at(self) -> datetime | None:
        """When it was given up on; failing that, when it was first sent."""
        return self.note.dead_at or self.message.created_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which dead letters are meant; a field that is empty does not choose.

    Attributes:
        ids: Message ids.
        reasons: As in the note, or ``BY_BROKER``.
        types: Message types.
        digests: Digests of the traceback, whole or their beginnings.
        older_than: Seconds since it was given up on.
    """

    ids: frozenset[str] = frozenset()
    reasons: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()
    digests: frozenset[str] = frozenset()
    older_than: float | None = None

    def matches(self, letter: Letter, now: datetime) -> bool:
        """Whether ``letter`` is meant."""
        digest = letter.note.digest
        return (
            (not self.ids or not self.ids.isdisjoint((letter.id, letter.message.id)))
            and (not self.reasons or letter.note.reason in self.reasons)
            and (not self.types or letter.type in self.types)
            and (not self.digests or any(digest.startswith(text) for text in self.digests if text))
            and (self.older_than is None or _age(letter, now) >= self.older_than)
        )


EVERYTHING = Selection()


def _age(letter: Letter, now: datetime) -> float:
    died_at = letter.died_at
    return -1.0 if died_at is None else (now - died_at).total_seconds()
