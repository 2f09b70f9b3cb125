"""The example of one Celery task, on Celery's own message."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from brokerwq import QueueSpec, connect
from tests.test_examples import EXAMPLES, run

pytestmark = pytest.mark.slow


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
