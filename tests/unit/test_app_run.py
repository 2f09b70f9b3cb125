"""``App.run`` and ``App.drain`` take what ``Runner`` takes."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from brokerwq import App
from brokerwq.errors import ConfigError
from brokerwq.runner import RunnerOptions


def signals() -> list[Any]:
    return [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]


@pytest.mark.parametrize("door", ["run", "drain"])
@pytest.mark.parametrize("takes", [True, False])
async def test_signals_are_taken_unless_the_program_wants_them_itself(
    door: str, *, takes: bool
) -> None:
    app = App("memory://")
    seen: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()

    @app.worker("q")
    async def look() -> None:
        seen.set_result(signals())

    await look.enqueue()
    before = signals()
    call: Any = {"run": app.run, "drain": app.drain}[door]
    running = asyncio.create_task(call("q", handle_signals=takes, log=False))
    during = await asyncio.wait_for(seen, 20)
    running.cancel()
    await asyncio.wait({running})

    assert [now is not was for now, was in zip(during, before, strict=True)] == [takes, takes]
    assert signals() == before


async def test_the_options_of_a_runner_are_passed_on_and_others_refused() -> None:
    app = App("memory://")

    @app.worker("q")
    async def work() -> None: ...

    options = RunnerOptions(slots=3, grace=1, heartbeat=False, log=False)
    report = await app.drain(handle_signals=False, **options)

    assert report.drained
    with pytest.raises(ConfigError, match="slots"):
        await app.run(slots=0)
    with pytest.raises(TypeError, match="slot"):
        await app.drain(slot=3)  # type: ignore[call-arg]
