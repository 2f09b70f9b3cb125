"""Workers that may run twice, each by another means."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from brokerwq import App, Job, Tx
from brokerwq.outcomes import Done, Outcome
from tests.kit.shop import Shop, open_database
from tests.kit.wrong_workers import ORDER, Trial


def sets_by_a_natural_key(_: Path) -> Trial:
    app, shop = App("memory://"), Shop()

    @app.worker("orders")
    async def place(*, order: int) -> None:
        await shop.put("orders", order, "placed")

    return Trial(place, ORDER, shop.seen, shop.clear)


def inserts_or_updates(folder: Path) -> Trial:
    app, database = App("memory://"), open_database(folder)
    with database:
        database.execute("CREATE UNIQUE INDEX one_payment ON payments (id)")

    @app.worker("payments")
    def pay(*, order: int) -> None:
        with database:
            database.execute("INSERT INTO payments VALUES (?) ON CONFLICT DO NOTHING", (order,))

    return Trial(pay, ORDER, database.payments, database.clear, close=database.close)


def adds_to_a_set(_: Path) -> Trial:
    app, tags = App("memory://"), set[str]()

    @app.worker("tags")
    def tag(*, name: str) -> None:
        tags.add(name)

    return Trial(tag, {"name": "new"}, lambda: tags, tags.clear)


def compares_and_sets(_: Path) -> Trial:
    app, state = App("memory://"), dict[int, str]()

    @app.worker("orders")
    async def ship(*, order: int) -> None:
        await asyncio.sleep(0)
        if state.get(order) == "paid":  # in one step, as UPDATE … WHERE state = 'paid'
            state[order] = "shipped"

    def reset() -> None:
        state.clear()
        state[7] = "paid"

    return Trial(ship, ORDER, lambda: state, reset)


def enqueues_by_its_job(_: Path) -> Trial:
    app = App("memory://")

    @app.worker("mails")
    async def mail(*, order: int) -> None: ...

    @app.worker("orders")
    async def place(job: Job, *, order: int) -> None:
        job.enqueue(mail, order=order)
        await asyncio.sleep(0)
        job.enqueue(mail, order=order + 1)

    return Trial(place, ORDER, lambda: None, lambda: None)


def writes_in_one_transaction(folder: Path) -> Trial:
    url = f"sqlite:///{folder}/work.db"
    app = App("memory://", store=url, name="shop")
    clear, rows = _effects_in(folder / "work.db")

    @app.worker("orders", once="transactional", key="order")
    async def place(_: Job, tx: Tx, *, order: int) -> None:
        tx.conn.execute("INSERT INTO effects VALUES (?)", (order,))
        await asyncio.sleep(0)

    return Trial(place, ORDER, rows, clear)


def writes_in_one_transaction_from_a_thread(folder: Path) -> Trial:
    app = App("memory://", store=f"sqlite:///{folder}/work.db", name="shop")
    clear, rows = _effects_in(folder / "work.db")

    @app.worker("orders", once="transactional", key="order")
    def place(_: Job, tx: Tx, *, order: int) -> None:
        tx.conn.execute("INSERT INTO effects VALUES (?)", (order,))

    return Trial(place, ORDER, rows, clear)


def completes_what_is_still_its_own(folder: Path) -> Trial:
    app = App("memory://", store=f"sqlite:///{folder}/work.db", name="shop")
    clear, rows = _effects_in(folder / "work.db")

    @app.worker("orders", once="lease_tx", key="order")
    async def report(_: Job, tx: Tx, *, order: int) -> None:
        await asyncio.sleep(0)  # the slow part
        conn = await tx.begin()
        conn.execute("INSERT INTO effects VALUES (?)", (order,))

    return Trial(report, ORDER, rows, clear)


def gives_its_key_to_the_service(_: Path) -> Trial:
    app, shop = App("memory://"), Shop()

    @app.worker("orders", key="order")
    async def charge(job: Job, *, order: int) -> None:
        await shop.put("charges", job.idempotency_key, order)

    return Trial(charge, ORDER, shop.seen, shop.clear)


def puts_a_file_into_place(folder: Path) -> Trial:
    app, file = App("memory://"), folder / "report-7.txt"

    @app.worker("reports")
    def report(job: Job, *, order: int) -> None:
        part = file.with_suffix(f".{job.attempt}.part")
        part.write_text(f"order {order}")
        part.replace(file)

    def effects() -> Any:
        return file.read_text() if file.exists() else None

    return Trial(report, ORDER, effects, lambda: file.unlink(missing_ok=True))


def answers_for_each_of_a_batch(_: Path) -> Trial:
    app, shop = App("memory://"), Shop()

    @app.worker("orders", batch=3, batch_wait=1.0)
    async def place(_: list[Job], orders: list[int]) -> Sequence[Outcome]:
        for order in orders:
            await shop.put("orders", order, "placed")
        return [Done() for _ in orders]

    return Trial(place, [1, 2, 3], shop.seen, shop.clear)


def marks_work_that_may_be_repeated(folder: Path) -> Trial:
    app, shop = App("memory://", store=f"sqlite:///{folder}/keys.db", name="shop"), Shop()

    @app.worker("orders", once="marker", key="order")
    async def place(*, order: int) -> None:
        await shop.put("orders", order, "placed")

    return Trial(place, ORDER, shop.seen, shop.clear)


def _effects_in(file: Path) -> tuple[Callable[[], None], Callable[[], list[Any]]]:
    with closing(sqlite3.connect(file)) as database:
        database.execute("CREATE TABLE effects (n)")

    def clear() -> None:
        with closing(sqlite3.connect(file)) as database, database:
            database.execute("DELETE FROM effects")

    def rows() -> list[Any]:
        with closing(sqlite3.connect(file)) as database:
            return database.execute("SELECT n FROM effects").fetchall()

    return clear, rows


RIGHT: Sequence[Callable[[Path], Trial]] = (
    sets_by_a_natural_key,
    inserts_or_updates,
    adds_to_a_set,
    compares_and_sets,
    enqueues_by_its_job,
    writes_in_one_transaction,
    writes_in_one_transaction_from_a_thread,
    completes_what_is_still_its_own,
    gives_its_key_to_the_service,
    puts_a_file_into_place,
    answers_for_each_of_a_batch,
    marks_work_that_may_be_repeated,
)
