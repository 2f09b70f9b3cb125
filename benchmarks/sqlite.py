"""The whole library on SQLite: rates, memory, growth, and two peers, in one run.

    python benchmarks/sqlite.py [--items N] [--peer-items N] [--rounds N] [--folder DIR]

Every system writes through to the disk (``synchronous=FULL``, write-ahead log) and runs a job
that does nothing, in one process, with its own way of decoding. Rounds are interleaved and
medians are shown, so that a busy machine slows all of them alike. The file is made in DIR, on
the disk that is to be measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from brokerwq import App, Runner

SMALL = 10_000
DRAIN_SLOTS = 10  # the default of a runner


class Thumbnail(BaseModel):
    key: str
    width: int = 256


def app_on(path: Path) -> tuple[App, Any]:
    app = App(f"sqlite:///{path}")

    @app.worker("thumbnails")
    async def thumbnail(image: Thumbnail) -> None:
        pass

    return app, thumbnail


def measured(items: int, work: Callable[[], object]) -> dict[str, float]:
    """Rate and CPU per item of ``work``, and the highest memory of this process so far."""
    cpu, start = time.process_time(), time.perf_counter()
    work()
    seconds, used = time.perf_counter() - start, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "rate": items / seconds,
        "cpu_us": used / items * 1e6,
        "peak_mb": peak / (1024 if sys.platform != "darwin" else 1024**2),
        "seconds": seconds,
    }


# -- one measurement each, in a process of its own ------------------------------------------


def brokerwq_enqueue(path: Path, items: int) -> dict[str, float]:
    app, thumbnail = app_on(path)

    async def send() -> None:
        async with app:
            await thumbnail.enqueue_many(Thumbnail(key=f"{n}.jpg") for n in range(items))

    return measured(items, lambda: asyncio.run(send()))


def brokerwq_drain(path: Path, items: int) -> dict[str, float]:
    app, _ = app_on(path)
    done = 0

    def drain() -> None:
        nonlocal done
        report = asyncio.run(Runner(app, slots=DRAIN_SLOTS).drain())
        done = report.done
        assert not report.dead
        assert not report.lost

    found = measured(items, drain)
    return found | {"done": done, "cpu_us": found["cpu_us"] * items / max(done, 1)}


def huey_of(path: Path) -> tuple[Any, Any]:
    from huey import SqliteHuey  # pyright: ignore[reportMissingTypeStubs]

    huey: Any = SqliteHuey(filename=str(path), fsync=True, results=False)

    @huey.task()  # type: ignore[untyped-decorator]
    def thumbnail(key: str, width: int = 256) -> None:
        pass

    return huey, thumbnail


def huey_enqueue(path: Path, items: int) -> dict[str, float]:
    _, thumbnail = huey_of(path)

    def send() -> None:
        for n in range(items):
            thumbnail(f"{n}.jpg")

    return measured(items, send)


def huey_drain(path: Path, items: int) -> dict[str, float]:
    huey, _ = huey_of(path)

    def drain() -> None:
        done = 0
        while (task := huey.dequeue()) is not None:
            huey.execute(task)
            done += 1
        assert done == items

    return measured(items, drain)


def persist_queue_of(path: Path) -> Any:
    from persistqueue import SQLiteAckQueue

    queue: Any = SQLiteAckQueue(str(path), auto_commit=True)
    for connection in (queue._putter, queue._getter):
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
    return queue


def persist_queue_enqueue(path: Path, items: int) -> dict[str, float]:
    queue = persist_queue_of(path)

    def send() -> None:
        for n in range(items):
            queue.put({"key": f"{n}.jpg", "width": 256})

    return measured(items, send)


def persist_queue_drain(path: Path, items: int) -> dict[str, float]:
    queue = persist_queue_of(path)

    def drain() -> None:
        done = 0
        while queue.size:
            Thumbnail.model_validate(queue.get(block=False))
            queue.ack(item=None, id=queue.cursor)
            done += 1
        assert done == items

    return measured(items, drain)


PEERS = {
    "brokerwq": (brokerwq_enqueue, brokerwq_drain),
    "SqliteHuey": (huey_enqueue, huey_drain),
    "persist-queue": (persist_queue_enqueue, persist_queue_drain),
}


# -- running them ---------------------------------------------------------------------------


def apart(*calls: tuple[Callable[[Path, int], dict[str, float]], Path, int]) -> list[Any]:
    """Run each call in a fresh process, all at once."""
    with multiprocessing.get_context("spawn").Pool(len(calls), maxtasksperchild=1) as pool:
        waiting = [pool.apply_async(function, (path, items)) for function, path, items in calls]
        return [each.get() for each in waiting]


def growth(folder: Path, items: int) -> dict[str, Any]:
    """CPU per item and peak memory, for few items and for many; two processes drain."""
    found: dict[str, Any] = {}
    for count in (SMALL, items):
        path = folder / f"growth-{count}.db"
        (sent,) = apart((brokerwq_enqueue, path, count))
        drained = apart(*[(brokerwq_drain, path, count)] * 2)
        done = sum(each["done"] for each in drained)
        assert done == count, f"{done} of {count} done"
        found[str(count)] = {
            "enqueue": sent,
            "drain": {
                "rate": count / max(each["seconds"] for each in drained),
                "cpu_us": sum(each["cpu_us"] * each["done"] for each in drained) / count,
                "peak_mb": max(each["peak_mb"] for each in drained),
            },
        }
    return found


def compare(folder: Path, items: int, rounds: int) -> dict[str, Any]:
    """The median rates of all peers, round by round in turn."""
    rates: dict[str, dict[str, list[dict[str, float]]]] = {
        name: {"enqueue": [], "drain": []} for name in PEERS
    }
    for turn in range(rounds):
        for name, (enqueue, drain) in PEERS.items():
            path = folder / f"{name}-{turn}"
            rates[name]["enqueue"] += apart((enqueue, path, items))
            rates[name]["drain"] += apart((drain, path, items))
    return {
        name: {
            what: {
                figure: statistics.median(each[figure] for each in runs)
                for figure in ("rate", "cpu_us")
            }
            for what, runs in by_what.items()
        }
        for name, by_what in rates.items()
    }


def show_growth(found: dict[str, Any]) -> None:
    print(f"\n{'items':>12} {'':8} {'a second':>10} {'us CPU each':>12} {'peak MB':>8}")
    for count, by_what in found.items():
        for what, figures in by_what.items():
            print(
                f"{int(count):12,} {what:8} {figures['rate']:10,.0f} "
                f"{figures['cpu_us']:12.1f} {figures['peak_mb']:8.0f}"
            )
    few, many = found.values()
    for what in ("enqueue", "drain"):
        change = many[what]["cpu_us"] / few[what]["cpu_us"] - 1
        print(f"CPU per item, {what}, many against few: {change:+.0%}")


def show_comparison(found: dict[str, Any]) -> None:
    print(f"\n{'':14} {'enqueue/s':>10} {'us CPU':>8} {'drain/s':>10} {'us CPU':>8}")
    for name, by_what in found.items():
        enqueue, drain = by_what["enqueue"], by_what["drain"]
        print(
            f"{name:14} {enqueue['rate']:10,.0f} {enqueue['cpu_us']:8.1f} "
            f"{drain['rate']:10,.0f} {drain['cpu_us']:8.1f}"
        )
    ours = found["brokerwq"]
    for name, by_what in found.items():
        if name != "brokerwq":
            more = {what: ours[what]["rate"] / by_what[what]["rate"] for what in by_what}
            print(f"against {name}: enqueue {more['enqueue']:.1f}x, drain {more['drain']:.1f}x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--peer-items", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--json", action="store_true", help="figures as JSON, at the end")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        compared = compare(Path(folder).resolve(), options.peer_items, options.rounds)
        show_comparison(compared)
        grown = growth(Path(folder).resolve(), options.items)
        show_growth(grown)
    if options.json:
        print(json.dumps({"compared": compared, "growth": grown}, indent=2))


if __name__ == "__main__":
    main()
