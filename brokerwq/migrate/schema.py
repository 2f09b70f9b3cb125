"""The tables of a ledger."""

from __future__ import annotations

from typing import Final

APPLICATION_ID: Final = 0x6277716C  # "bwql"; queues in a file have another one
VERSION: Final = 1

STATEMENTS: Final = (
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {VERSION}",
    """CREATE TABLE migration (
        source TEXT NOT NULL, target TEXT NOT NULL, queues TEXT NOT NULL,
        created_at REAL NOT NULL, closed_at REAL)""",
    """CREATE TABLE session (
        id INTEGER PRIMARY KEY, direction TEXT NOT NULL, host TEXT NOT NULL, pid INTEGER NOT NULL,
        started_at REAL NOT NULL, seen_at REAL NOT NULL, ended_at REAL)""",
    """CREATE TABLE entry (
        direction TEXT NOT NULL, queue TEXT NOT NULL, id TEXT NOT NULL, digest BLOB NOT NULL,
        pending INTEGER NOT NULL, done INTEGER NOT NULL, at REAL NOT NULL,
        refusal TEXT, sightings INTEGER NOT NULL DEFAULT 0, parked_until REAL NOT NULL DEFAULT 0,
        PRIMARY KEY (direction, queue, id)) WITHOUT ROWID""",
    """CREATE TABLE emptiness (
        direction TEXT NOT NULL, queue TEXT NOT NULL, since REAL NOT NULL,
        PRIMARY KEY (direction, queue))""",
)
