"""Thumbnails of every picture below a folder, made by as many runners as you like.

    python app.py ~/Pictures            sends a message for each picture
    brokerwq drain app:app              makes the thumbnails, until all are done

The broker is a SQLite file in the current folder; set BROKERWQ_URL for another.
"""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import UnidentifiedImageError
from pydantic import BaseModel

from brokerwq import App, DeadLetter, RetryPolicy
from brokerwq.demo.thumbnails import pictures_below, thumbnail_path, write_thumbnail

app = App()


class Picture(BaseModel):
    folder: Path
    path: str
    size: int = 256


# A file that is no image will be none at the next attempt either.
RETRY = RetryPolicy(max_attempts=5, on={UnidentifiedImageError: DeadLetter("not-an-image")})


@app.worker("thumbnails", retry=RETRY)
def thumbnail(picture: Picture) -> None:
    """Runs in a thread. Run twice, it writes the same file to the same place: that is all that
    at-least-once delivery asks of it."""
    target = thumbnail_path(picture.path, Path("thumbnails"))
    write_thumbnail(picture.folder / picture.path, target, picture.size)


def main(folder: str) -> int:
    source = Path(folder).resolve()
    skip = Path("thumbnails").resolve()
    report = thumbnail.enqueue_many_sync(
        Picture(folder=source, path=path) for path in pictures_below(source, skip=skip)
    )
    print(f"{report.sent} pictures sent")
    return report.sent


if __name__ == "__main__":
    main(*sys.argv[1:2] or ["."])
