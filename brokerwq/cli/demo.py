"""``brokerwq demo``: a real batch with a broken file and a runner that is killed on the way."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from brokerwq.cli.crew import Crew, Member, same_command
from brokerwq.cli.failure import ExitCode, FinishedWithError, say
from brokerwq.cli.loop import run_async
from brokerwq.cli.output import fields
from brokerwq.cli.progress import Progress, progress
from brokerwq.clock import SYSTEM_CLOCK
from brokerwq.errors import ConfigError
from brokerwq.sizing import readable

if TYPE_CHECKING:
    from brokerwq.demo.report import PictureReport

MARKER = ".brokerwq-demo"
APP = "brokerwq.demo.app:app"
_SLOTS = 2
_GRACE = 10.0
_NAMES_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What is to be done.

    Attributes:
        folder: Holds the pictures.
        pictures: Their paths below it.
        work: Gets the thumbnails and the queue.
    """

    folder: Path
    pictures: list[str]
    work: Path


@dataclass(frozen=True, kw_only=True)
class Drained:
    """How the runners fared; ``victim`` is the one that was killed."""

    code: int
    seconds: float
    victim: int | None


@click.command()
@click.argument(
    "folder", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path)
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("brokerwq-demo"),
    show_default=True,
    help="Folder for the thumbnails and the queue.",
)
@click.option(
    "--photos",
    type=click.Path(file_okay=False, path_type=Path),
    help="Without FOLDER: photographs to begin the collection with.",
)
@click.option("--processes", type=click.IntRange(1, 64), default=4, show_default=True)
@click.option("--kill/--no-kill", default=True, help="Whether one runner is killed on the way.")
def demo(
    *, folder: Path | None, out: Path, photos: Path | None, processes: int, kill: bool
) -> None:
    """Make a thumbnail of every picture below FOLDER, and lose none.

    Without FOLDER it draws pictures, 300 in all, and adds a file that is none. Several runner
    processes share one SQLite file; one of them is killed on the way, and what it held is run
    by another. The report is computed from the files and the dead letters, not from what
    anybody counted.
    """
    batch = _prepare(folder, out, photos)
    os.environ["BROKERWQ_DEMO"] = str(batch.work)
    os.environ.setdefault("BROKERWQ_LOG_LEVEL", "CRITICAL")
    _enqueue(batch)
    drained = _drain(batch, processes, kill=kill)
    if drained.code > ExitCode.DEAD_LETTERS:
        raise FinishedWithError(drained.code)
    outcome = _look(batch)
    _print(batch, outcome, drained)
    if outcome.lost:
        raise FinishedWithError(ExitCode.INTERNAL)


def _prepare(folder: Path | None, out: Path, photos: Path | None) -> Batch:
    try:
        from brokerwq.demo.thumbnails import pictures_below
    except ImportError as exc:
        msg = "the demo needs Pillow: pip install 'brokerwq[demo]'"
        raise ConfigError(msg) from exc
    if folder is not None and not any(pictures_below(folder)):
        msg = f"there is no picture below {folder}"
        raise ConfigError(msg)
    work = _fresh(out)
    if folder is None:
        folder = work / "pictures"
        _collect(folder, photos)
        pictures = list(pictures_below(folder))
    else:
        folder = folder.resolve()
        pictures = list(pictures_below(folder, skip=work))
    return Batch(folder=folder, pictures=pictures, work=work)


def _fresh(out: Path) -> Path:
    """``out`` without what an earlier demo left; nothing that is somebody else's is touched."""
    out = out.resolve()
    if out.exists() and any(out.iterdir()) and not (out / MARKER).exists():
        msg = f"{out} is not empty, and not from an earlier demo; name another folder with --out"
        raise ConfigError(msg)
    out.mkdir(parents=True, exist_ok=True)
    (out / MARKER).touch()
    shutil.rmtree(out / "thumbnails", ignore_errors=True)
    for stale in [out / "retried", *out.glob("demo.db*")]:
        stale.unlink(missing_ok=True)
    return out


def _collect(folder: Path, photos: Path | None) -> None:
    from brokerwq.demo.pictures import COUNT, fill

    with progress("pictures", COUNT) as bar:
        photographs, drawn = fill(folder, photos, bar.update)
    parts = [f"{photographs} photographs"] if photographs else []
    say(f"{', '.join([*parts, f'{drawn} drawings'])} and one file that is no picture")


def _enqueue(batch: Batch) -> None:
    from brokerwq.demo.app import Picture, app, thumbnail

    async def enqueue() -> None:
        async with app:
            await thumbnail.enqueue_many(
                Picture(folder=batch.folder, path=path) for path in batch.pictures
            )

    run_async(enqueue)


class Killer:
    """Shows the progress, and kills one runner once a third of the work is done."""

    def __init__(self, total: int, bar: Progress, *, kill: bool) -> None:
        self._total = self._left = total
        self._bar = bar
        self._kill = kill
        self.victim: int | None = None

    def hear(self, member: Member, news: dict[str, Any]) -> None:
        """Take in what a runner tells."""
        if "left" not in news:
            return
        self._left = min(self._left, int(news["left"]))
        done = self._total - self._left
        self._bar.update(done, self._total)
        if self._kill and self.victim is None and 3 * done >= self._total and self._left:
            self.victim = member.number
            say(f"killing runner {member.number} (pid {member.pid}) with SIGKILL, on purpose")
            member.signal(signal.SIGKILL)


def _drain(batch: Batch, processes: int, *, kill: bool) -> Drained:
    started = SYSTEM_CLOCK.now()

    async def main(killer: Killer) -> int:
        command = same_command("drain", APP, "--slots", str(_SLOTS), "--grace", str(_GRACE))
        crew = Crew(command, processes, grace=_GRACE, until_done=True, on_news=killer.hear)
        return await crew.run()

    say(f"{len(batch.pictures):,} messages for {processes} runner processes on one SQLite file")
    with progress("thumbnails", len(batch.pictures)) as bar:
        killer = Killer(len(batch.pictures), bar, kill=kill)
        code = asyncio.run(main(killer))
    return Drained(code=code, seconds=SYSTEM_CLOCK.now() - started, victim=killer.victim)


def _look(batch: Batch) -> PictureReport:
    from brokerwq.cli.connection import opened
    from brokerwq.dead_letters import DeadLetters
    from brokerwq.demo.app import QUEUE, Picture, app
    from brokerwq.demo.report import picture_report

    async def dead() -> dict[str, str]:
        async with opened(app.url, creates=True) as driver:
            letters, _ = await DeadLetters(driver, QUEUE).find()
        return {
            Picture.model_validate_json(letter.message.body).path: letter.note.reason
            for letter in letters
        }

    return picture_report(batch.pictures, batch.work / "thumbnails", run_async(dead))


def _print(batch: Batch, outcome: PictureReport, drained: Drained) -> None:
    log = batch.work / "retried"
    retried = len(log.read_text().splitlines()) if log.exists() else 0
    victim = f"runner {drained.victim}" if drained.victim else "none: it was over too soon"
    reasons = ", ".join(f"{n} {reason}" for reason, n in Counter(outcome.dead.values()).items())
    done, dead, lost = len(outcome.done), len(outcome.dead), len(outcome.lost)
    rate = f"{done / drained.seconds:,.1f} pictures/s"
    fields(
        [
            ("done", f"{done:,} thumbnails in {batch.work / 'thumbnails'}"),
            ("retried", f"{retried:,}"),
            ("killed", victim),
            ("dead", f"{dead:,}" + (f" ({reasons}: {_some(tuple(outcome.dead))})" if dead else "")),
            ("time", f"{readable(drained.seconds)}, {rate}"),
            ("lost", _some(outcome.lost) if lost else ""),
        ]
    )
    total = len(batch.pictures)
    click.echo(
        f"{lost:,} lost: {total:,} files = {done:,} thumbnails + {dead:,} dead letters"
        + (f" + {lost:,}" if lost else "")
    )


def _some(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:_NAMES_SHOWN])
    return shown + (f" and {len(names) - _NAMES_SHOWN:,} more" if len(names) > _NAMES_SHOWN else "")
