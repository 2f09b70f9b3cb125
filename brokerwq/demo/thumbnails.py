"""Thumbnails by Pillow: where one belongs, and how it is written.

Knows nothing of queues. Both are what a job that may run twice needs: the path follows from
the picture's alone, and the file is there whole or not at all.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from PIL import Image, ImageOps

DEFAULT_SIZE = 256
"""Pixels of the longer side."""


def pictures_below(folder: Path, *, skip: Path | None = None) -> Iterator[str]:
    """Paths relative to ``folder`` of the files that are named like pictures, sorted.

    What is below ``skip`` is left out: the thumbnails may go into the same folder.
    """
    known = frozenset(Image.registered_extensions())
    for path in sorted(folder.rglob("*")):
        is_meant = skip is None or not path.is_relative_to(skip)
        if is_meant and path.suffix.lower() in known and path.is_file():
            yield path.relative_to(folder).as_posix()


def thumbnail_path(picture: str, folder: Path) -> Path:
    """Where the thumbnail of ``picture`` belongs: its own path below ``folder``, as JPEG.

    The old ending stays, so that ``a.png`` and ``a.jpg`` do not share a thumbnail.
    """
    return folder / f"{picture}.jpg"


def write_thumbnail(source: Path, target: Path, size: int = DEFAULT_SIZE) -> None:
    """Write a thumbnail of ``source`` that fits into ``size`` by ``size`` pixels.

    Written beside its place and then moved there, so that nobody ever sees half of it.

    Raises:
        PIL.UnidentifiedImageError: ``source`` is no image.
        OSError: it cannot be read, or ``target`` cannot be written.
    """
    with Image.open(source) as image:
        image.draft("RGB", (size, size))
        small = ImageOps.exif_transpose(image).convert("RGB")
        small.thumbnail((size, size))
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            small.save(file, "JPEG", quality=85)
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
