"""The tables, their versions, and whose file it is.

``message.state`` says what ``message.at`` means; one index, ``message_place``, serves claims,
delays, expiry and counts, so that each of them costs the same however long the queue is:

====== ========= ====================================================================
state  meaning   ``at``
====== ========= ====================================================================
0      ready     wall clock, since when: the order of claims, never compared with now
1      delayed   wall clock, until when, so that a delay survives a restart
2      leased    monotonic clock, until when, so that a set clock ends no lease
====== ========= ====================================================================
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

from brokerwq.errors import ProtocolError

APPLICATION_ID: Final = 0x62777131
"""``bwq1``; at offset 68 of the file (sqlite.org/fileformat.html, section 1.3.14)."""

READY: Final = 0
DELAYED: Final = 1
LEASED: Final = 2

STEPS: Final[Sequence[Sequence[str]]] = (
    (
        """
        CREATE TABLE queue (
            id INTEGER PRIMARY KEY,
            name TEXT NOT NULL UNIQUE,
            lease REAL,
            dead_letter INTEGER REFERENCES queue (id)
        )
        """,
        """
        CREATE TABLE message (
            seq INTEGER PRIMARY KEY,
            queue INTEGER NOT NULL REFERENCES queue (id),
            state INTEGER NOT NULL,
            at REAL NOT NULL,
            token INTEGER,
            receives INTEGER NOT NULL DEFAULT 0,
            sent REAL NOT NULL,
            id TEXT NOT NULL,
            type TEXT NOT NULL,
            content_type TEXT NOT NULL,
            created INTEGER,
            headers TEXT,
            envelope TEXT,
            body BLOB
        )
        """,
        "CREATE INDEX message_place ON message (queue, state, at)",
        # SQLite writes a whole row anew whenever a column changes its size, and a claim must
        # not write a megabyte: a large body lives apart, and its column here is NULL.
        "CREATE TABLE large_body (seq INTEGER PRIMARY KEY, body BLOB NOT NULL)",
        """
        CREATE TRIGGER message_deleted AFTER DELETE ON message WHEN old.body IS NULL
        BEGIN
            DELETE FROM large_body WHERE seq = old.seq;
        END
        """,
        """
        CREATE TABLE machine (
            only INTEGER PRIMARY KEY CHECK (only = 1),
            boot TEXT NOT NULL,
            seen REAL NOT NULL
        )
        """,
        "INSERT INTO machine VALUES (1, '', 0)",
    ),
)
"""What leads from each version to the next; entry 0 makes a new database."""


# In one statement: between two, another process may have made the database, and half of what
# is read would be from before, as if its tables were a stranger's.
_WHOSE = """
    SELECT application_id, user_version, (SELECT count(*) FROM sqlite_master)
    FROM pragma_application_id, pragma_user_version
"""


def version_of(connection: sqlite3.Connection, path: str) -> int:
    """The schema version of the database; 0 if it is new and empty.

    Reads only.

    Raises:
        ProtocolError: it belongs to another application.
    """
    owner, version, tables = connection.execute(_WHOSE).fetchone()
    if owner == APPLICATION_ID:
        return int(version)
    if owner or version or tables:
        msg = f"{path} is the database of another application; brokerwq needs one of its own"
        raise ProtocolError(msg)
    return 0


def upgrade(
    connection: sqlite3.Connection, path: str, steps: Sequence[Sequence[str]] = STEPS
) -> None:
    """Bring the database to the version after the last of ``steps``, in one transaction.

    Raises:
        ProtocolError: it is newer than that, or belongs to another application.
    """
    if version_of(connection, path) == len(steps):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        for step in steps[_known(version_of(connection, path), path, len(steps)) :]:
            for statement in step:
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(steps)}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _known(version: int, path: str, newest: int) -> int:
    if version > newest:
        msg = (
            f"{path} has schema version {version}, this brokerwq reads up to {newest}: "
            "upgrade brokerwq here"
        )
        raise ProtocolError(msg)
    return version
