from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from brokerwq.demo.pictures import COUNT, NO_IMAGE, draw, fill
from brokerwq.demo.report import picture_report
from brokerwq.demo.thumbnails import pictures_below, thumbnail_path, write_thumbnail
from tests.cli.program import Program
from tests.cli.stock import Cli


def a_picture(path: Path, size: tuple[int, int] = (400, 300)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, "red").save(path)
    return path


def test_a_thumbnail_fits_and_keeps_its_shape(tmp_path: Path) -> None:
    source = a_picture(tmp_path / "a.png")

    write_thumbnail(source, tmp_path / "deep" / "a.png.jpg", 100)

    with Image.open(tmp_path / "deep" / "a.png.jpg") as image:
        assert (image.format, image.size) == ("JPEG", (100, 75))


@pytest.mark.slow
def test_a_file_that_is_no_image_leaves_nothing_behind(tmp_path: Path) -> None:
    source = tmp_path / "a.jpg"
    source.write_text("no image")

    with pytest.raises(OSError, match="cannot identify"):
        write_thumbnail(source, tmp_path / "out" / "a.jpg")

    assert list(tmp_path.rglob("*.jpg")) == [source]


def test_pictures_of_one_stem_get_two_thumbnails(tmp_path: Path) -> None:
    assert thumbnail_path("x/a.png", tmp_path) != thumbnail_path("x/a.jpg", tmp_path)


def test_only_what_is_named_like_a_picture_is_found_and_not_what_was_made(tmp_path: Path) -> None:
    for name in ("b/B.JPG", "a.png", "out/a.png.jpg"):
        a_picture(tmp_path / name)
    (tmp_path / "notes.txt").touch()

    assert list(pictures_below(tmp_path, skip=tmp_path / "out")) == ["a.png", "b/B.JPG"]


@pytest.mark.slow
def test_a_drawing_depends_on_its_number_alone() -> None:
    assert draw(3).tobytes() == draw(3).tobytes()
    assert draw(3).tobytes() != draw(8).tobytes()


@pytest.mark.slow
def test_the_collection_begins_with_photographs(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    for number in range(COUNT - 2):
        a_picture(photos / f"{number}.png", (4, 3))

    counts = fill(tmp_path / "pictures", photos, lambda _: None)

    assert counts == (COUNT - 2, 2)
    found = list(pictures_below(tmp_path / "pictures"))
    assert len(found) == COUNT + 1
    assert NO_IMAGE in found


def test_a_picture_without_thumbnail_or_dead_letter_is_lost(tmp_path: Path) -> None:
    a_picture(thumbnail_path("whole.png", tmp_path))
    thumbnail_path("half.png", tmp_path).write_bytes(b"\xff\xd8\xff")

    outcome = picture_report(
        ["whole.png", "half.png", "dead.png", "gone.png"], tmp_path, {"dead.png": "not-an-image"}
    )

    assert outcome.done == ("whole.png",)
    assert outcome.lost == ("half.png", "gone.png")


def test_a_folder_of_somebody_else_is_not_touched(cli: Cli, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    a_picture(mine / "thumbnails" / "a.png")

    answer = cli("demo", "--out", str(mine))

    assert answer.code == 2
    assert "is not empty, and not from an earlier demo" in answer.err
    assert [path.name for path in mine.iterdir()] == ["thumbnails"]


def test_a_folder_without_pictures_is_a_clear_error(cli: Cli, tmp_path: Path) -> None:
    answer = cli("demo", str(tmp_path), "--out", str(tmp_path / "out"))

    assert answer.code == 2
    assert "there is no picture below" in answer.err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_batch_with_a_killed_runner_and_a_broken_file_loses_nothing(tmp_path: Path) -> None:
    for number in range(240):
        source = tmp_path / "mine" / f"{number}.jpg"
        source.parent.mkdir(exist_ok=True)
        draw(number).save(source)
    (tmp_path / "mine" / "broken.jpg").write_text("no image")

    program = Program(tmp_path, "demo", "mine", "--out", "out", "--processes", "2")

    assert program.end(60) == 0, program.said
    assert "with SIGKILL, on purpose" in program.said
    assert "0 lost: 241 files = 240 thumbnails + 1 dead letters" in program.said
    assert "1 (1 not-an-image: broken.jpg)" in program.said
    assert len(list((tmp_path / "out" / "thumbnails").glob("*.jpg"))) == 240


@pytest.mark.slow
def test_without_pillow_the_demo_says_how_to_get_it(tmp_path: Path) -> None:
    code = "import sys; sys.modules['PIL'] = None; from brokerwq.cli import main; main(['demo'])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert done.stderr == "brokerwq: the demo needs Pillow: pip install 'brokerwq[demo]'\n"
    assert list(tmp_path.iterdir()) == []
