"""The examples of the documentation run, together and in their order."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "idempotency.md").read_text(encoding="utf-8")


@pytest.mark.slow
async def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tables = sqlite3.connect("work.db")
    for table in ("charges (order_id, cents)", "reports (id, text)", "orders (id)", "events (id)"):
        tables.execute(f"CREATE TABLE {table}")
    tables.close()
    names: dict[str, Any] = {"__name__": "example"}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(block, "docs/idempotency.md", "exec"), names)  # noqa: S102
    app, db = names["app"], names["db"]
    await app.store.init()

    await names["charge"].enqueue(order_id=1, cents=100)
    await names["charge"].enqueue(order_id=1, cents=100)
    await names["report"].enqueue(report_id=7)
    await names["order"](2)
    for _ in range(2):
        await names["handle"]("e1")
    report = await asyncio.wait_for(app.drain(log=False), 20)
    await app.aclose()

    assert (report.done, report.duplicates) == (3, 1)
    assert sorted(db.execute("SELECT order_id FROM charges")) == [(1,), (2,)]
    assert db.execute("SELECT text FROM reports").fetchall() == [("report 7",)]
    assert db.execute("SELECT count(*) FROM events").fetchone() == (1,)
    db.close()
