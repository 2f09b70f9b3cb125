"""Traces of work that is done once: BQ-50, as far as keys, results and the outbox go."""

from __future__ import annotations

from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from brokerwq import Job
from tests.cases.lab import sqlite
from tests.idempotency.lab import RETRY
from tests.idempotency.store_shop import StoreShop
from tests.idempotency.stores import STORES, TRANSACTIONAL
from tests.telemetry.lab import Lab, id_of, parent_of, trace_of

left_behind: ContextVar[str] = ContextVar("left_behind", default="")


@pytest.mark.slow
@pytest.mark.parametrize("store", TRANSACTIONAL)
async def test_a_job_has_one_span_a_skipped_copy_none_and_a_child_its_parents_trace(
    store: str, tmp_path: Path
) -> None:
    lab = Lab()
    seen: list[str] = []
    async with STORES[store](tmp_path) as bench:
        place = sqlite(tmp_path)
        place.events = lab.otel  # type: ignore[assignment]
        app = place.app(store=bench.store, name="shop", retry=RETRY)
        shop = StoreShop(place, bench.store, app, bench)

        @app.worker("mails")
        async def mail(n: int) -> None:
            assert n
            seen.append(left_behind.get())

        async def enqueue(job: Job, tx: Any, n: int) -> None:
            seen.append(left_behind.get())
            left_behind.set(f"of {n}")
            with lab.tracer.start_as_current_span(f"C{n}"):
                await tx.enqueue(mail, n)
            job.enqueue(mail, 10 + n)

        charge = shop.worker("transactional", enqueue)
        for n in (1, 1, 2):
            with lab.tracer.start_as_current_span(f"P{n}"):
                await charge.enqueue(n)
        report = await shop.place.drain(app, "q", slots=1)
        await shop.place.drain(app, "mails", slots=1)
        await place.aclose()

    assert (report.done, report.duplicates) == (2, 1)
    processed = lab.named("process q")
    assert len(processed) == 2
    for span, n in zip(processed, (1, 2), strict=True):
        assert trace_of(span) == trace_of(lab.named(f"P{n}")[0])
        assert parent_of(lab.one(f"C{n}")) == id_of(span)
    mailed = [trace_of(span) for span in lab.named("process mails")]
    assert sorted(mailed) == sorted(2 * [trace_of(span) for span in processed])
    # What one job has set is not there in the next one, nor in what it sends.
    assert set(seen) == {""}
