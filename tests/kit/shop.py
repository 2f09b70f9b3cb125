"""What workers in tests work on: a service in memory, and a small database."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any


class Shop:
    """A remote service in memory; each call lets others run, as a network does."""

    def __init__(self) -> None:
        self.tables: dict[str, Any] = {}
        self.done: set[int] = set()
        self.counts: dict[str, int] = {}
        self.files: set[str] = set()

    async def append(self, table: str, row: object) -> None:
        await asyncio.sleep(0)
        self.tables.setdefault(table, []).append(row)
        await asyncio.sleep(0)

    async def put(self, table: str, key: object, row: object) -> None:
        await asyncio.sleep(0)
        self.tables.setdefault(table, {})[key] = row
        await asyncio.sleep(0)

    async def read(self, table: str) -> Any:
        await asyncio.sleep(0)
        return self.tables.get(table, [])

    async def commit(self, order: int) -> None:
        await asyncio.sleep(0)
        self.done.add(order)

    def seen(self) -> Any:
        return self.tables, self.counts

    def clear(self) -> None:
        for each in (self.tables, self.done, self.counts, self.files):
            each.clear()


class Database(sqlite3.Connection):
    def payments(self) -> list[Any]:
        return self.execute("SELECT id FROM payments").fetchall()

    def clear(self) -> None:
        with self:
            self.execute("DELETE FROM payments")
            self.execute("DELETE FROM done")


def open_database(folder: Path) -> Database:
    database = sqlite3.connect(folder / "shop.db", check_same_thread=False, factory=Database)
    with database:
        database.execute("CREATE TABLE payments (id)")
        database.execute("CREATE TABLE done (id)")
    return database
