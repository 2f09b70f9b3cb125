"""``assert_idempotent`` finds the fault in each wrong worker, and passes each right one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from brokerwq import App, Job, RetryPolicy
from brokerwq.errors import ConfigError
from brokerwq.testing import mishap as mishaps
from brokerwq.testing.idempotent import NotIdempotentError, Schedule, assert_idempotent
from brokerwq.testing.mishap import (
    Mishap,
    crash_at,
    disconnect,
    error_at,
    lose_lease,
    overlap,
    partial_failure,
)
from tests.kit.right_workers import RIGHT
from tests.kit.wrong_workers import WRONG, Trial, appends_without_a_key, marks_before_it_works


@pytest.mark.slow
@pytest.mark.parametrize("make", WRONG, ids=lambda make: make.__name__)
async def test_the_fault_is_found(make: Callable[[Path], Trial], tmp_path: Path) -> None:
    trial = make(tmp_path)

    with pytest.raises(NotIdempotentError) as told:
        await assert_idempotent(
            trial.worker, trial.payload, effects=trial.effects, reset=trial.reset
        )

    trial.close()
    found = [str(failure.schedule[0]) for failure in told.value.report.failures]
    assert any(each.startswith(trial.found_by) for each in found), found
    assert found[0] in str(told.value)


@pytest.mark.slow
@pytest.mark.parametrize("make", RIGHT, ids=lambda make: make.__name__)
async def test_a_sound_worker_passes(make: Callable[[Path], Trial], tmp_path: Path) -> None:
    trial = make(tmp_path)

    report = await assert_idempotent(
        trial.worker, trial.payload, effects=trial.effects, reset=trial.reset
    )

    trial.close()
    assert report.failures == []
    assert report.schedules > 10


@pytest.mark.slow
async def test_a_failing_schedule_can_be_seen_alone(tmp_path: Path) -> None:
    trial = marks_before_it_works(tmp_path)
    with pytest.raises(NotIdempotentError) as first:
        await assert_idempotent(
            trial.worker, trial.payload, effects=trial.effects, reset=trial.reset
        )
    shortest = first.value.report.failures[0]

    with pytest.raises(NotIdempotentError) as again:
        await assert_idempotent(
            trial.worker,
            trial.payload,
            effects=trial.effects,
            reset=trial.reset,
            faults=shortest.schedule,
        )

    assert again.value.report.failures == [shortest]
    assert f"faults=[{shortest.schedule[0]}]" in str(first.value)
    assert "wrong_workers.py:" in shortest.where


class Twice:
    """Survives any one fault, but not its second run after two of them."""

    def __init__(self) -> None:
        self.app = App("memory://")
        self.effects: list[str] = []

        @self.app.worker("q")
        async def work(job: Job, _: int) -> None:
            if job.attempt <= 2:
                self.effects[:] = ["done"]
            else:
                self.effects.append("done")
            await asyncio.sleep(0)

        self.work = work

    async def trial(self, seed: int) -> list[Schedule]:
        with pytest.raises(NotIdempotentError) as told:
            await assert_idempotent(
                self.work,
                1,
                effects=lambda: self.effects,
                reset=self.effects.clear,
                seed=seed,
                mixes=40,
            )
        assert f"seed={seed}" in str(told.value)
        return [failure.schedule for failure in told.value.report.failures]


@pytest.mark.slow
async def test_what_takes_several_faults_is_found_by_the_seed_and_cut_to_the_shortest() -> None:
    first = await Twice().trial(seed=3)

    assert first == await Twice().trial(seed=3)
    assert [len(schedule) for schedule in first] == [2]


async def test_effects_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    trial = marks_before_it_works(tmp_path)

    async def without_reset(**options: Any) -> None:
        await assert_idempotent(trial.worker, trial.payload, **options)

    with pytest.raises(ConfigError, match="no effect that effects\\(\\) can see"):
        await without_reset(effects=lambda: None)
    trial = appends_without_a_key(tmp_path)
    with pytest.raises(ConfigError, match="give reset="):
        await without_reset(effects=trial.effects)
    with pytest.raises(ConfigError, match="two undisturbed runs"):
        await without_reset(effects=Popping().effects)


class Popping:
    """Effects that are empty before a run and never the same after one."""

    def __init__(self) -> None:
        self._reads = 0

    def effects(self) -> int:
        # Read before a run, after it, and once more to see that nothing is left.
        self._reads += 1
        return self._reads if self._reads % 3 == 0 else -1


async def test_a_message_that_is_given_up_on_without_a_fault_is_told() -> None:
    app = App("memory://")

    @app.worker("q", retry=RetryPolicy(max_attempts=1))
    async def fails(_: int) -> None:
        msg = "always"
        raise ValueError(msg)

    with pytest.raises(ConfigError, match="given up on \\(failed\\)"):
        await assert_idempotent(fails, 1, effects=list)


@pytest.mark.slow
async def test_effects_and_reset_may_be_async_and_the_app_stays_where_it_was(
    tmp_path: Path,
) -> None:
    app = App(f"sqlite:///{tmp_path}/queue.db")
    place = app.place
    state: dict[int, int] = {}

    @app.worker("q")
    async def work(n: int) -> None:
        state[n] = n

    async def effects() -> dict[int, int]:
        await asyncio.sleep(0)
        return state

    async def reset() -> None:
        state.clear()

    report = await assert_idempotent(work, 7, effects=effects, reset=reset)

    assert report.points > 0
    assert app.place is place
    assert not (tmp_path / "queue.db").exists()


async def test_only_what_a_crash_leaves_behind_is_seen_of_a_worker() -> None:
    app = App("memory://")
    seen: list[str] = []

    @app.worker("q")
    async def work(_: int) -> None:
        try:
            seen.append("begun")
            await asyncio.sleep(0)
            seen.append("done")
        finally:
            seen.append("cleaned up")

    with pytest.raises(NotIdempotentError) as told:
        await assert_idempotent(
            work, 1, effects=lambda: seen, reset=seen.clear, faults=[crash_at(3)]
        )

    (failure,) = told.value.report.failures
    assert failure.where.startswith("while waiting in test_idempotent.py")
    assert failure.found == ["begun", "begun", "done", "cleaned up"]


@pytest.mark.slow
async def test_a_lock_of_the_process_itself_dies_with_it() -> None:
    app, lock, state = App("memory://"), asyncio.Lock(), dict[int, int]()

    @app.worker("q")
    async def work(*, n: int) -> None:
        await lock.acquire()
        try:
            await asyncio.sleep(0)
            state[n] = n
        finally:
            lock.release()

    report = await assert_idempotent(
        work, {"n": 1}, effects=lambda: state, reset=state.clear, faults=[crash_at(3)]
    )

    assert report.failures == []


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: crash_at(0),
        lambda: crash_at("extend"),  # type: ignore[arg-type]
        lambda: error_at(True),  # noqa: FBT003
        partial_failure,
        lambda: partial_failure(-1),
        lambda: disconnect("claim"),  # type: ignore[arg-type]
    ],
)
def test_a_fault_that_cannot_be_is_refused(wrong: Callable[[], object]) -> None:
    with pytest.raises(ConfigError):
        wrong()


@pytest.mark.slow
@pytest.mark.parametrize("faults", [[overlap(2)], [crash_at(2)], [lose_lease(2), error_at(2)]])
async def test_who_is_kept_out_by_a_lock_waits_for_it(faults: list[Mishap]) -> None:
    app, lock, state = App("memory://"), threading.Lock(), dict[int, int]()

    @app.worker("q")
    def work(n: int) -> None:
        with lock:
            state[n] = n

    report = await assert_idempotent(
        work, 1, effects=lambda: state, reset=state.clear, faults=faults
    )

    assert report.failures == []


@pytest.mark.parametrize(
    "mishap",
    [
        crash_at(3),
        crash_at("ack"),
        error_at(1),
        lose_lease(2),
        overlap(2),
        mishaps.duplicate(),
        disconnect("send"),
        disconnect("ack", done=True),
        mishaps.throttle(),
        partial_failure(0, 2),
    ],
)
def test_a_fault_is_shown_as_it_is_written(mishap: Mishap) -> None:
    assert eval(str(mishap), dict(vars(mishaps))) == mishap  # noqa: S307
