"""How fast a mover is, beside what it is made of: draining the source, and filling the target.

    python benchmarks/migrate.py [--items N] [--rounds N] [--moves NAME ...] [--ledger postgres]

Each round measures, on fresh queues of the same servers and one after another: a runner that
drains a source, with a worker that does nothing; ``enqueue_many`` into a target; and the mover
with its ledger, from a source to a target. Shown is how near the mover comes to the slower of the
two.
Rounds are interleaved and medians are shown, so that a busy machine slows all alike.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from brokerwq import App, Runner
from brokerwq.migrate import Migration, MoveReport
from brokerwq.testing.servers.localstack import SqsServer, localstack
from brokerwq.testing.servers.postgres import postgres
from brokerwq.testing.servers.rabbitmq import rabbitmq

QUEUE = "orders"
SLOTS = 100


class Thumbnail(BaseModel):
    key: str
    width: int = 256


@dataclass(frozen=True)
class Move:
    name: str
    source: Callable[[], str]
    target: Callable[[], str]


def app_on(url: str, done: Callable[[], object] = lambda: None) -> tuple[App, Any]:
    app = App(url)

    @app.worker(QUEUE)
    async def thumbnail(_: Thumbnail) -> None:
        done()

    return app, thumbnail


async def filled(url: str, items: int) -> float:
    app, thumbnail = app_on(url)
    async with app:
        await thumbnail.enqueue(Thumbnail(key="first.jpg"))  # declares the queue
        started = time.perf_counter()
        await thumbnail.enqueue_many(Thumbnail(key=f"{n}.jpg") for n in range(items - 1))
        return items / (time.perf_counter() - started)


async def drained(url: str, items: int) -> float:
    await filled(url, items)
    finished, left = asyncio.Event(), items

    def done() -> None:
        nonlocal left
        left -= 1
        if not left:
            finished.set()

    app, _ = app_on(url, done)
    runner = Runner(app, log=False, slots=SLOTS)
    running = asyncio.create_task(runner.run(handle_signals=False))
    while runner.state == "starting":
        await asyncio.sleep(0.001)
    started = time.perf_counter()
    await finished.wait()
    seconds = time.perf_counter() - started
    runner.stop()
    await running
    return items / seconds


async def moved(source: str, target: str, items: int, ledger: str) -> float:
    await filled(source, items)
    last = started = 0.0

    def progressed(report: MoveReport) -> None:
        # What follows the last message is the wait for one more, no work.
        nonlocal last
        if last == started or report.moved > before[0]:
            last = time.perf_counter()
            before[0] = report.moved

    before = [0]
    async with Migration(source, target, {QUEUE: QUEUE}, ledger=ledger) as migration:
        last = started = time.perf_counter()
        report = await migration.run(settle=0.0, on_progress=progressed)
    assert report.moved == items
    return items / (last - started)


async def measure(move: Move, items: int, ledger: str) -> tuple[float, float, float]:
    return (
        await drained(move.source(), items),
        await filled(move.target(), items),
        await moved(move.source(), move.target(), items, ledger),
    )


def moves_of(names: list[str], folder: Path, stack: ExitStack) -> list[Move]:
    def file() -> str:
        return f"sqlite:///{folder}/{secrets.token_hex(4)}.db"

    places: dict[str, Callable[[], str]] = {"sqlite": file}
    if any("rabbitmq" in name for name in names):
        server = stack.enter_context(rabbitmq())

        def vhost() -> str:
            name = f"bench-{secrets.token_hex(4)}"
            server.ctl("add_vhost", name)
            server.ctl("set_permissions", "-p", name, "guest", ".*", ".*", ".*")
            return f"{server.url.rstrip('/')}/{name}"

        places["rabbitmq"] = vhost
    if any("sqs" in name for name in names):
        os.environ.update(SqsServer(endpoint="").environment)
        sqs = stack.enter_context(localstack())
        places["sqs"] = lambda: sqs.url(f"bench-{secrets.token_hex(4)}")
    return [
        Move(name, places[source], places[target])
        for name in names
        for source, _, target in [name.partition("-")]
    ]


def ledgers_of(place: str, folder: Path, stack: ExitStack) -> Callable[[], str]:
    if place == "sqlite":
        return lambda: f"sqlite:///{folder}/{secrets.token_hex(4)}.db"
    server = stack.enter_context(postgres())
    return lambda: f"{server.url}?schema=bench_{secrets.token_hex(4)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--moves",
        nargs="+",
        default=["sqlite-sqlite", "sqlite-rabbitmq", "rabbitmq-sqlite", "rabbitmq-sqs"],
        metavar="SOURCE-TARGET",
    )
    parser.add_argument("--ledger", choices=["sqlite", "postgres"], default="sqlite")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        moves = moves_of(options.moves, folder, stack)
        ledger_of = ledgers_of(options.ledger, folder, stack)
        found: dict[str, list[tuple[float, float, float]]] = {move.name: [] for move in moves}
        for _ in range(options.rounds):
            for move in moves:
                found[move.name].append(asyncio.run(measure(move, options.items, ledger_of())))
    print("| move | drain a second | enqueue a second | mover a second | of the slower |")
    print("|---|---|---|---|---|")
    for name, rounds in found.items():
        drain, enqueue, mover = (statistics.median(column) for column in zip(*rounds, strict=True))
        share = statistics.median(m / min(d, f) for d, f, m in rounds)
        print(f"| {name} | {drain:,.0f} | {enqueue:,.0f} | {mover:,.0f} | {share:.0%} |")


if __name__ == "__main__":
    main()
