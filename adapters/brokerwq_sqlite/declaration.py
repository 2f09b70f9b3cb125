"""Queues: making, comparing and listing them."""

from __future__ import annotations

import math
import sqlite3
from typing import Final

from brokerwq.driver import Difference, QueueSpec
from brokerwq.driver.support import no_dead_letter_queue
from brokerwq_sqlite.errors import no_queue
from brokerwq_sqlite.statements import Moment

DEFAULT_LEASE: Final = 60.0
"""Seconds; for a queue that was declared without a lease."""


def check(db: sqlite3.Connection, _: Moment, spec: QueueSpec) -> list[Difference]:
    """What of ``spec`` is otherwise in the database.

    Raises:
        QueueNotFoundError: the queue or its dead-letter queue is missing.
    """
    found = _find(db, spec.name)
    if found is None:
        raise no_queue(spec.name)
    if spec.on_dead != "hold" and _find(db, spec.dead_letter_queue) is None:
        if spec.declare == "never":
            raise no_dead_letter_queue(spec)
        raise no_queue(spec.dead_letter_queue)
    return _differences(spec, found, is_final=True)


def declare(db: sqlite3.Connection, _: Moment, spec: QueueSpec) -> list[Difference]:
    """Make the queue and its dead-letter queue, unless something is otherwise already."""
    found = _find(db, spec.name)
    differences = _differences(spec, found, is_final=False)
    if differences:
        return differences
    if found is not None and found == (spec.lease or found[0], spec.dead_letter_queue):
        return []  # every runner declares at every start: that shall cost no write
    for name in (spec.name, spec.dead_letter_queue):
        db.execute("INSERT INTO queue (name) VALUES (?) ON CONFLICT DO NOTHING", (name,))
    db.execute(
        "UPDATE queue SET lease = coalesce(?, lease), "
        "dead_letter = (SELECT id FROM queue WHERE name = ?) WHERE name = ?",
        (spec.lease, spec.dead_letter_queue, spec.name),
    )
    return []


def check_dead_letter(db: sqlite3.Connection, _: Moment, spec: QueueSpec) -> None:
    """Make sure that the dead-letter queue of ``spec`` is there.

    Raises:
        QueueNotFoundError: it is not.
    """
    if _find(db, spec.dead_letter_queue) is None:
        raise no_queue(spec.dead_letter_queue)


def declare_dead_letter(db: sqlite3.Connection, _: Moment, spec: QueueSpec) -> None:
    """Make the dead-letter queue of ``spec``; a queue that has none yet gets it."""
    dead = spec.dead_letter_queue
    db.execute("INSERT INTO queue (name) VALUES (?) ON CONFLICT DO NOTHING", (dead,))
    db.execute(
        "UPDATE queue SET dead_letter = (SELECT id FROM queue WHERE name = ?) "
        "WHERE name = ? AND dead_letter IS NULL",
        (dead, spec.name),
    )


def find_queue(db: sqlite3.Connection, _: Moment, name: str) -> tuple[int, float]:
    """The id of a queue and its own lease.

    Raises:
        QueueNotFoundError: there is none of that name.
    """
    found = db.execute("SELECT id, lease FROM queue WHERE name = ?", (name,)).fetchone()
    if found is None:
        raise no_queue(name)
    identifier, lease = found
    return identifier, lease or DEFAULT_LEASE


def names(db: sqlite3.Connection, _: Moment) -> list[str]:
    """All queues, sorted."""
    return [name for (name,) in db.execute("SELECT name FROM queue ORDER BY name")]


def _find(db: sqlite3.Connection, name: str) -> tuple[float | None, str | None] | None:
    found: tuple[float | None, str | None] | None = db.execute(
        "SELECT queue.lease, dead.name FROM queue "
        "LEFT JOIN queue AS dead ON dead.id = queue.dead_letter WHERE queue.name = ?",
        (name,),
    ).fetchone()
    return found


def _differences(
    spec: QueueSpec, found: tuple[float | None, str | None] | None, *, is_final: bool
) -> list[Difference]:
    """What of ``spec`` cannot be had.

    A queue that came into being as another's dead-letter queue has none of its own yet; the
    first declaration sets it, unless the answer is final.
    """
    pairs: list[tuple[str, object, object]] = []
    if spec.ordered:
        pairs.append(("ordered", True, False))
    if spec.retention is not None and spec.retention != math.inf:
        pairs.append(("retention", spec.retention, math.inf))
    if found is not None:
        _, dead_letter = found
        if spec.on_dead != "hold" and (is_final or dead_letter is not None):
            pairs.append(("dead_letter", spec.dead_letter_queue, dead_letter))
    return [
        Difference(queue=spec.name, property=name, wanted=wanted, found=actual)
        for name, wanted, actual in pairs
        if wanted != actual
    ]
