"""What is SQLite's own: versions of its tables, and pruning without an index."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from brokerwq.errors import StoreError
from brokerwq.idempotency import SqliteStore
from brokerwq.idempotency.record import Busy
from brokerwq.idempotency.stores import _sqlite_rows as rows
from brokerwq.testing.stores import a_claim


def as_version_1(path: Path) -> None:
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("CREATE INDEX brokerwq_key_expiry ON brokerwq_key (expires_at)")
    db.execute("UPDATE brokerwq_meta SET value = '1' WHERE name = 'schema'")
    db.close()


async def test_tables_of_an_older_version_are_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "work.db"
    store = SqliteStore(path)
    await store.claim(a_claim(lease=30.0))
    await store.aclose()
    as_version_1(path)

    careful = SqliteStore(path, create=False)
    with pytest.raises(StoreError, match=r"version 1: run brokerwq keys init"):
        await careful.check()
    await careful.aclose()
    await store.init()

    assert isinstance(await store.claim(a_claim()), Busy)
    await store.aclose()
    db = sqlite3.connect(path)
    assert rows.version_of(db) == rows.VERSION
    names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'index'")]
    assert "brokerwq_key_expiry" not in names
    db.close()


@pytest.mark.slow
async def test_pruning_comes_to_all_that_has_expired_whatever_lies_between(
    tmp_path: Path,
) -> None:
    store = SqliteStore(tmp_path / "work.db")
    await store.init()
    expired = [3, 4, 9_999, 10_000, 10_001, 29_999]
    fill(tmp_path / "work.db", range(30_000), expired)

    assert await store.prune(2) == 2
    fill(tmp_path / "work.db", [1], [1])  # behind where the first call has come to
    counts = [await store.prune(2)]
    while counts[-1]:
        counts.append(await store.prune(2))

    assert sum(counts) == 5
    left = {int.from_bytes(record.key, "big") for record in await store.list(100_000)}
    assert left == set(range(30_000)) - {1, *expired}
    await store.aclose()


def fill(path: Path, keys: Iterable[int], expired: Sequence[int]) -> None:
    """Records of ``keys``, of which some have expired."""
    values = [(key.to_bytes(16, "big"), 0.0 if key in expired else 1e12) for key in keys]
    db = sqlite3.connect(path)
    db.executemany(
        "REPLACE INTO brokerwq_key (key, worker, state, owner, fence, attempt, lease_until, "
        "payload, message_id, generation, created_at, expires_at) "
        "VALUES (?, 'w', 2, x'00', 1, 1, 0, x'00', 'm', 0, 0, ?)",
        values,
    )
    db.commit()
    db.close()
