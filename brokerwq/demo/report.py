"""What came of the demo, computed from the files and the dead letters alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from brokerwq.demo.thumbnails import thumbnail_path


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureReport:
    """What became of every picture.

    Attributes:
        done: Those that have a thumbnail.
        dead: The reason of those that are dead letters.
        lost: Those that have neither.
    """

    done: tuple[str, ...]
    dead: Mapping[str, str]
    lost: tuple[str, ...]


def picture_report(
    pictures: Iterable[str], thumbnails: Path, dead: Mapping[str, str]
) -> PictureReport:
    """Look for every picture's thumbnail, and for the others among the dead letters."""
    done: list[str] = []
    lost: list[str] = []
    for picture in pictures:
        if _is_whole(thumbnail_path(picture, thumbnails)):
            done.append(picture)
        elif picture not in dead:
            lost.append(picture)
    return PictureReport(done=tuple(done), dead=dead, lost=tuple(lost))


def _is_whole(thumbnail: Path) -> bool:
    try:
        with Image.open(thumbnail) as image:
            image.load()
    except OSError:
        return False
    return True
