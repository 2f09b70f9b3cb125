"""Bodies that nobody can read, in memory and in SQLite; RabbitMQ and SQS have their own tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerwq import Message, RetryPolicy
from tests.cases.lab import Place, dead_letters, declare, memory, send_raw, sqlite
from tests.foreign.samples import poison_bodies


@pytest.mark.slow
@pytest.mark.parametrize("broker", ["memory", "sqlite"])
@pytest.mark.parametrize("is_foreign", [True, False])
async def test_poison_dies_at_once_untouched_and_holds_nobody_up(
    broker: str, tmp_path: Path, *, is_foreign: bool
) -> None:
    place: Place = memory() if broker == "memory" else sqlite(tmp_path)
    bodies = poison_bodies()
    app = place.app()
    seen: list[int] = []

    @app.worker("q", name="take", foreign=is_foreign, retry=RetryPolicy(max_attempts=3))
    async def take(*, n: int) -> None:
        seen.append(n)

    type_ = "" if is_foreign else "take"
    await declare(app, "q")
    poison = [Message(id=name, type=type_, body=body) for name, body in bodies.items()]
    await send_raw(app, "q", *poison, Message(id="good", type=type_, body=b'{"n":1}'))
    report = await place.drain(app)

    assert seen == [1]
    assert dict(report.dead) == {"decode": len(bodies)}
    letters = await dead_letters(app, "q")
    assert {letter.id: letter.body for letter in letters} == bodies
    assert {letter.dead.attempts for letter in letters if letter.dead} == {1}
    await place.aclose()
