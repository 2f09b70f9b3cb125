"""The app of ``brokerwq demo``; its folders come from the environment that the verb sets."""

from __future__ import annotations

import os
from pathlib import Path

from PIL import UnidentifiedImageError
from pydantic import BaseModel

from brokerwq.app import App
from brokerwq.backoff import RetryPolicy
from brokerwq.demo.thumbnails import thumbnail_path, write_thumbnail
from brokerwq.errors import ConfigError
from brokerwq.job import Job
from brokerwq.outcomes import DeadLetter

QUEUE = "thumbnails"
VARIABLE = "BROKERWQ_DEMO"
NOT_AN_IMAGE = "not-an-image"

LEASE = 5.0
"""Seconds; short, so that what a killed runner held is soon run by another."""


def _work_folder() -> Path:
    folder = os.environ.get(VARIABLE)
    if not folder:
        msg = f"this app belongs to `brokerwq demo`, which sets {VARIABLE}"
        raise ConfigError(msg)
    return Path(folder)


work = _work_folder()
retried_log = work / "retried"
app = App(f"sqlite:///{work}/demo.db")


class Picture(BaseModel):
    """A picture: the folder that was searched, and its path below."""

    folder: Path
    path: str


@app.worker(
    QUEUE,
    lease=LEASE,
    retry=RetryPolicy(max_attempts=5, on={UnidentifiedImageError: DeadLetter(NOT_AN_IMAGE)}),
)
def thumbnail(job: Job, picture: Picture) -> None:
    """Make one thumbnail. Run twice, it writes the same file to the same place."""
    if job.attempt > 1:
        with retried_log.open("a") as log:
            log.write(f"{picture.path}\n")
    target = thumbnail_path(picture.path, work / "thumbnails")
    write_thumbnail(picture.folder / picture.path, target)
