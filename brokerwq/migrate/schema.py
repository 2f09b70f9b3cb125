"""The tables of a ledger, wherever it is kept."""

from __future__ import annotations

from typing import Final

VERSION: Final = 1


def tables(*, blob: str, number: str, entry_options: str = "") -> tuple[str, ...]:
    """The statements that make them.

    Args:
        blob: The type of bytes.
        number: The type of a key that counts by itself.
        entry_options: What is said of the largest table behind its columns.
    """
    return (
        """CREATE TABLE migration (
            source TEXT NOT NULL, target TEXT NOT NULL, queues TEXT NOT NULL,
            created_at DOUBLE PRECISION NOT NULL, closed_at DOUBLE PRECISION)""",
        f"""CREATE TABLE session (
            id {number} PRIMARY KEY, direction TEXT NOT NULL, host TEXT NOT NULL,
            pid INTEGER NOT NULL, started_at DOUBLE PRECISION NOT NULL,
            seen_at DOUBLE PRECISION NOT NULL, ended_at DOUBLE PRECISION)""",
        f"""CREATE TABLE entry (
            direction TEXT NOT NULL, queue TEXT NOT NULL, id TEXT NOT NULL, digest {blob} NOT NULL,
            pending INTEGER NOT NULL, done INTEGER NOT NULL, at DOUBLE PRECISION NOT NULL,
            refusal TEXT, sightings INTEGER NOT NULL DEFAULT 0,
            parked_until DOUBLE PRECISION NOT NULL DEFAULT 0,
            PRIMARY KEY (direction, queue, id)) {entry_options}""",
        """CREATE TABLE emptiness (
            direction TEXT NOT NULL, queue TEXT NOT NULL, since DOUBLE PRECISION NOT NULL,
            PRIMARY KEY (direction, queue))""",
    )
