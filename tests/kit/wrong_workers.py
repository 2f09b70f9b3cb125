"""Workers that must not run twice, each with a mistake that is made in earnest."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brokerwq import App, Job
from brokerwq.workers.decorating import AnyWorker
from tests.kit.shop import Shop, open_database


@dataclass
class Trial:
    """A worker, what to give it, and how to see what it did.

    Attributes:
        found_by: A fault that must find it; empty for a sound worker.
        close: Frees what it works on.
    """

    worker: AnyWorker
    payload: object
    effects: Callable[[], Any]
    reset: Callable[[], Any]
    found_by: str = ""
    close: Callable[[], object] = bool


ORDER = {"order": 7}


def appends_without_a_key(_: Path) -> Trial:
    app, shop = App("memory://"), Shop()

    @app.worker("orders")
    async def place(*, order: int) -> None:
        await shop.append("orders", order)

    return Trial(place, ORDER, shop.seen, shop.clear, found_by="duplicate()")


def marks_before_it_works(_: Path) -> Trial:
    app, shop = App("memory://"), Shop()

    @app.worker("orders")
    async def place(*, order: int) -> None:
        if order in shop.done:
            return
        shop.done.add(order)
        await shop.append("orders", order)

    return Trial(place, ORDER, shop.seen, shop.clear, found_by="crash_at")


def checks_then_acts(_: Path) -> Trial:
    app, shop = App("memory://"), Shop()

    @app.worker("orders")
    async def place(*, order: int) -> None:
        if order not in await shop.read("orders"):
            await shop.append("orders", order)

    return Trial(place, ORDER, shop.seen, shop.clear, found_by="overlap")


def counts_up(_: Path) -> Trial:
    app, shop = App("memory://"), Shop()

    @app.worker("views")
    def count(*, page: str) -> None:
        shop.counts[page] = shop.counts.get(page, 0) + 1

    return Trial(count, {"page": "/"}, shop.seen, shop.clear, found_by="duplicate()")


def mails_before_it_commits(_: Path) -> Trial:
    app, shop = App("memory://"), Shop()

    @app.worker("orders")
    async def confirm(*, order: int) -> None:
        if order in shop.done:
            return
        await shop.append("mails", order)
        await shop.commit(order)

    return Trial(confirm, ORDER, shop.seen, shop.clear, found_by="crash_at")


def enqueues_by_itself(_: Path) -> Trial:
    app = App("memory://")

    @app.worker("mails")
    async def mail(*, order: int) -> None: ...

    @app.worker("orders")
    async def place(*, order: int) -> None:
        await mail.enqueue(order=order)  # not job.enqueue: each run sends another message

    return Trial(place, ORDER, lambda: None, lambda: None, found_by="disconnect('ack')")


def keys_by_attempt(_: Path) -> Trial:
    app, shop = App("memory://"), Shop()

    @app.worker("orders")
    async def place(job: Job, *, order: int) -> None:
        await shop.put("orders", f"{order}/{job.attempt}", order)

    return Trial(place, ORDER, shop.seen, shop.clear, found_by="crash_at('ack')")


def keys_by_chance(_: Path) -> Trial:
    app, shop = App("memory://"), Shop()

    @app.worker("orders")
    async def place(*, order: int) -> None:
        await shop.put("orders", uuid.uuid4().hex, order)

    def effects() -> Any:
        return sorted(shop.tables.get("orders", {}).values())

    return Trial(place, ORDER, effects, shop.clear, found_by="duplicate()")


def cleans_up_whatever_happens(_: Path) -> Trial:
    app, shop = App("memory://"), Shop()

    def reset() -> None:
        shop.clear()
        shop.files.add("upload")

    @app.worker("uploads")
    async def take_in(*, name: str) -> None:
        if name not in shop.files:
            return  # done before, it thinks
        try:
            await shop.append("taken in", name)
            await shop.append("indexed", name)
        finally:
            shop.files.discard(name)

    return Trial(take_in, {"name": "upload"}, lambda: shop.tables, reset, found_by="error_at")


def marks_in_another_transaction(folder: Path) -> Trial:
    app, database = App("memory://"), open_database(folder)

    @app.worker("payments")
    def pay(*, order: int) -> None:
        if database.execute("SELECT 1 FROM done WHERE id = ?", (order,)).fetchone():
            return
        with database:
            database.execute("INSERT INTO payments (id) VALUES (?)", (order,))
        with database:
            database.execute("INSERT INTO done (id) VALUES (?)", (order,))

    return Trial(
        pay, ORDER, database.payments, database.clear, found_by="crash_at", close=database.close
    )


def does_half_of_a_batch(_: Path) -> Trial:
    app, shop = App("memory://"), Shop()

    @app.worker("orders", batch=3, batch_wait=1.0)
    async def place(_: list[Job], orders: list[int]) -> None:
        for order in orders:
            await shop.append("orders", order)

    return Trial(place, [1, 2, 3], shop.seen, shop.clear, found_by="partial_failure")


def swallows_what_fails(_: Path) -> Trial:
    app, shop = App("memory://"), Shop()

    @app.worker("orders")
    async def place(*, order: int) -> None:
        with suppress(Exception):  # the mistake
            await shop.put("orders", order, order)

    return Trial(place, ORDER, shop.seen, shop.clear, found_by="error_at")


def trusts_a_marker_beside_the_work(folder: Path) -> Trial:
    app, shop = App("memory://", store=f"sqlite:///{folder}/keys.db", name="shop"), Shop()

    @app.worker("orders", once="marker", key="order")
    async def place(*, order: int) -> None:
        await shop.append("orders", order)
        await asyncio.sleep(0)

    return Trial(place, ORDER, shop.seen, shop.clear, found_by="crash_at")


WRONG: Sequence[Callable[[Path], Trial]] = (
    appends_without_a_key,
    marks_before_it_works,
    checks_then_acts,
    counts_up,
    mails_before_it_commits,
    enqueues_by_itself,
    keys_by_attempt,
    keys_by_chance,
    cleans_up_whatever_happens,
    marks_in_another_transaction,
    does_half_of_a_batch,
    swallows_what_fails,
    trusts_a_marker_beside_the_work,
)
