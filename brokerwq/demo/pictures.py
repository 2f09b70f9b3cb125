"""The pictures of the demo: photographs where there are some, the rest drawn."""

from __future__ import annotations

import colorsys
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from PIL import Image, ImageDraw

from brokerwq.demo.thumbnails import pictures_below

COUNT = 300
NO_IMAGE = "broken/not-really.jpg"
_SIZES = ((640, 480), (1024, 768), (960, 540), (768, 1024), (1280, 720))
_ENDINGS = ("jpg", "jpg", "jpg", "png")


def fill(folder: Path, photos: Path | None, drawn: Callable[[int], object]) -> tuple[int, int]:
    """Put ``COUNT`` pictures and one file that is none below ``folder``.

    Those that are there already are kept: what is drawn depends on its number alone.

    Args:
        folder: Where to.
        photos: A folder of photographs to begin with.
        drawn: Told how many pictures there are, after each.

    Returns:
        How many are photographs, and how many were drawn.
    """
    photographs = 0
    for name in [] if photos is None else list(pictures_below(photos))[:COUNT]:
        target = folder / "photographs" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            shutil.copyfile(photos / name, target)  # type: ignore[operator]
        photographs += 1
    for number in range(COUNT - photographs):
        target = folder / f"drawn/{number // 50:02}/{number:03}.{_ENDINGS[number % 4]}"
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            draw(number).save(target, compress_level=1)
        drawn(photographs + number + 1)
    broken = folder / NO_IMAGE
    broken.parent.mkdir(parents=True, exist_ok=True)
    broken.write_text("This file is named like a picture, and is none.\n")
    return photographs, COUNT - photographs


def draw(number: int) -> Image.Image:
    """An abstract landscape; the same for the same number."""
    chance = random.Random(number)  # noqa: S311  -- a drawing, not a secret
    width, height = _SIZES[number % len(_SIZES)]
    hue = chance.random()
    image = _gradient(width, height, _colour(hue, 0.5, 0.95), _colour(hue + 0.1, 0.7, 0.4))
    canvas = ImageDraw.Draw(image)
    radius = chance.randint(height // 14, height // 6)
    x, y = chance.randint(0, width), chance.randint(0, height // 2)
    canvas.ellipse((x - radius, y - radius, x + radius, y + radius), _colour(hue + 0.5, 0.3, 1.0))
    for layer in range(1, 5):
        horizon = height * (3 + layer) // 8
        step = width // chance.randint(6, 16)
        ridge = [
            (at, horizon + chance.randint(-height // 10, height // 10))
            for at in range(-step, width + 2 * step, step)
        ]
        canvas.polygon(
            [(-step, height), *ridge, (width + step, height)],
            _colour(hue + 0.05 * layer, 0.5, 0.7 - 0.14 * layer),
        )
    return image


def _colour(hue: float, saturation: float, value: float) -> tuple[int, int, int]:
    red, green, blue = colorsys.hsv_to_rgb(hue % 1.0, saturation, value)
    return round(red * 255), round(green * 255), round(blue * 255)


def _gradient(
    width: int, height: int, top: tuple[int, int, int], bottom: tuple[int, int, int]
) -> Image.Image:
    # Pillow's stubs mention numpy, which need not be there.
    mask = Image.linear_gradient("L").resize((width, height))  # pyright: ignore[reportUnknownMemberType]
    return Image.composite(
        Image.new("RGB", (width, height), bottom), Image.new("RGB", (width, height), top), mask
    )
