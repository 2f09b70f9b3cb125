"""Every example is run as its own text says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parent.parent / "examples"
TESTED = {"thumbnails", "shop", "toy_adapter", "celery_task"}
"""The shop is run by tests/test_pytest_plugin.py, the task by tests/foreign/test_example.py."""


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "BROKERWQ_URL": f"sqlite:///{folder}/jobs.db"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout or done.stderr


def test_no_example_goes_untested() -> None:
    assert {path.name for path in EXAMPLES.iterdir() if path.is_dir()} == TESTED


def test_thumbnails_makes_one_of_every_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES / "thumbnails"))
    pictures = tmp_path / "Pictures"
    pictures.mkdir()
    for name in ("a.png", "b.jpg"):
        Image.new("RGB", (400, 300)).save(pictures / name)
    (pictures / "c.jpg").write_text("no image")

    sent = run(tmp_path, str(EXAMPLES / "thumbnails" / "app.py"), "Pictures")
    drained = run(tmp_path, "-m", "brokerwq", "drain", "app:app")
    dead = run(tmp_path, "-m", "brokerwq", "dlq", "groups", "thumbnails")

    assert sent == "3 pictures sent\n"
    assert drained.startswith("2 done, 1 dead (1 not-an-image) in ")
    assert "not-an-image" in dead
    assert {path.name for path in (tmp_path / "thumbnails").iterdir()} == {"a.png.jpg", "b.jpg.jpg"}


def test_a_toy_adapter_of_another_package_is_found_once_it_is_installed_and_conforms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = EXAMPLES / "toy_adapter"
    copy, installed = tmp_path / "source", tmp_path / "installed"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("build", "dist", "__pycache__"))
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target")
    run(tmp_path, "-m", "pip", "install", *options, str(installed), str(copy))

    check = ("-m", "brokerwq", "conform", "--only", "sending", "--lease", "0.3s", "folder://spool")

    assert "no adapter serves folder://" in run(tmp_path, *check)
    monkeypatch.setenv("PYTHONPATH", str(installed))
    told = run(tmp_path, *check)
    assert "passed" in told
    assert "FAILED" not in told
    suite = run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(copy))
    assert re.search(r"^1\d\d passed, \d+ skipped in", suite, re.MULTILINE), suite


def test_the_toy_adapter_is_short() -> None:
    files = (EXAMPLES / "toy_adapter" / "brokerwq_folder").glob("*.py")

    assert sum(bool(line.strip()) for file in files for line in file.read_text().splitlines()) < 250
