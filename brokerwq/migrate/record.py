"""Whose ledger it is: the migration that it belongs to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from brokerwq.errors import ConfigError
from brokerwq.migrate.ledger_database import Statements


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationRecord:
    """Which migration a ledger belongs to.

    Attributes:
        source: The source, by a text that is no other broker's whatever the credentials are.
        target: The target.
        queues: Names at the source and at the target.
    """

    source: str
    target: str
    queues: Mapping[str, str]

    def differences(self, other: MigrationRecord) -> list[str]:
        """In what ``other`` is another migration; empty if it is this one or a part of it."""
        found: list[str] = []
        if (self.source, self.target) != (other.source, other.target):
            found.append(f"{self.source} to {self.target}")
        for name, target in other.queues.items():
            if name in self.queues and self.queues[name] != target:
                found.append(f"{name} goes to {self.queues[name]}")
        return found


def record_in(db: Statements) -> MigrationRecord | None:
    """The migration that a ledger is about; None if that is still open."""
    rows = db.fetch("SELECT source, target, queues FROM migration")
    if not rows:
        return None
    ((source, target, queues),) = rows
    return MigrationRecord(source=source, target=target, queues=json.loads(queues))


def note_record(db: Statements, record: MigrationRecord, name: str) -> None:
    """Make sure that a ledger is about ``record``, and knows its queues.

    Args:
        db: Within a transaction.
        record: The migration.
        name: The ledger's, for people.

    Raises:
        ConfigError: it is about another one.
    """
    known = record_in(db)
    if known is None:
        db.run(
            "INSERT INTO migration (source, target, queues, created_at) VALUES (?, ?, ?, ?)",
            [(record.source, record.target, json.dumps(dict(record.queues)), db.now())],
        )
        return
    if found := known.differences(record):
        msg = f"the ledger {name} belongs to another migration: {', '.join(found)}"
        raise ConfigError(msg)
    if not record.queues.items() <= known.queues.items():
        merged = {**known.queues, **record.queues}
        db.run("UPDATE migration SET queues = ?", [(json.dumps(merged),)])
