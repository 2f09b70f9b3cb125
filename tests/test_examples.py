"""Every example is run as its own text says."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from brokerwq import QueueSpec, connect

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parent.parent / "examples"
TESTED = {"thumbnails", "shop", "celery_task"}
"""The shop is run by tests/test_pytest_plugin.py."""


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
    return done.stdout


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


def test_a_celery_task_is_run_from_celerys_own_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    celery: Any = pytest.importorskip("celery")
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES / "celery_task"))
    producer = celery.Celery("billing")
    sent = producer.amqp.as_task_v2(
        "c0ffee", "billing.tasks.send_receipt", (4711, "EUR"), {"locale": "de"}
    )
    headers = {name: text for name, text in sent.headers.items() if isinstance(text, str)}
    url = f"sqlite:///{tmp_path}/jobs.db"

    async def publish() -> None:
        async with connect(url) as broker:
            await broker.declare(QueueSpec(name="celery"))
            body = json.dumps(sent.body).encode()
            kind = "application/json"
            await broker.send("celery", body, headers=headers, content_type=kind)

    asyncio.run(publish())
    drained = run(tmp_path, "-m", "brokerwq", "drain", "app:app")

    assert drained.startswith("1 done, 0 dead in ")
    assert (tmp_path / "receipts" / "4711.txt").read_text() == "4711 EUR de, task c0ffee\n"
