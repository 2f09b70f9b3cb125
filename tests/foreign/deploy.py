"""A rolling deploy: an old runner meets messages of a type that only the new one has."""

from __future__ import annotations

import pytest

from brokerwq import Job
from brokerwq.events import UNKNOWN_TYPE, DeadLettered, JobEnded
from tests.cases.lab import Place


async def rolling_deploy(place: Place, queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty messages cost no attempt, and one that nobody learns is dead in the end."""
    monkeypatch.setenv("BROKERWQ_UNKNOWN_AFTER", "40")
    old, new = place.app(), place.app()
    seen: list[int] = []

    async def known() -> None:
        raise AssertionError

    old.worker(queue, name="a")(known)
    new.worker(queue, name="a")(known)

    @new.worker(queue, name="b")
    async def new_type(job: Job) -> None:
        seen.append(job.attempt)

    @place.app().worker(queue, name="c")
    async def nobodys() -> None:
        raise AssertionError

    await new_type.enqueue_many([new_type.call() for _ in range(20)])
    async with place.running(old):
        await place.until(lambda: len(strangers(place)) >= 20)
    assert seen == []
    async with place.running(new):
        await place.until(lambda: len(seen) >= 20)

    monkeypatch.setenv("BROKERWQ_UNKNOWN_AFTER", "2")
    await nobodys.enqueue()
    async with place.running(old) as running:
        await place.until(lambda: place.events.of(DeadLettered))
        report = await running.stop()
    assert seen == [1] * 20
    assert dict(report.dead) == {"unknown-type": 1}


def strangers(place: Place) -> list[JobEnded]:
    return [end for end in place.events.of(JobEnded) if end.reason == UNKNOWN_TYPE]
