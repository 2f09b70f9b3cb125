"""Movers of several machines, which share nothing but the brokers and a ledger in PostgreSQL."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from brokerwq.errors import StoreError
from tests.idempotency.postgres import shared_proxy
from tests.migrate.lab import QUEUE, Lab, made
from tests.migrate.postgres import behind_proxy, in_ledger, postgres_ledger

PASSWORD = "geheim"  # noqa: S105 -- the server under test asks for none


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncGenerator[Lab]:
    async with postgres_ledger() as ledger:
        yield Lab(
            tmp_path,
            source=f"sqlite:///{tmp_path}/source.db",
            ledger=ledger.replace("postgres@", f"postgres:{PASSWORD}@"),
        )


@asynccontextmanager
async def started(lab: Lab, verb: str, *options: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    """A verb of ``brokerwq migrate`` in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "brokerwq", "migrate", verb, lab.source, lab.target),
        *("--queue", QUEUE, "--ledger", lab.ledger, *options),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def told(process: asyncio.subprocess.Process) -> tuple[int, str]:
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode is not None
    return process.returncode, output.decode()


async def until_noted(ledger: str, movers: int = 1) -> None:
    """Wait until so many movers have begun, and the first messages are moved."""
    async with asyncio.timeout(60):
        while await in_ledger(ledger, "SELECT to_regclass('entry')") == [None]:
            await asyncio.sleep(0.02)
        while await in_ledger(ledger, "SELECT count(*) FROM session") != [movers]:
            await asyncio.sleep(0.02)
        while await in_ledger(ledger, "SELECT count(*) FROM entry") == [0]:
            await asyncio.sleep(0.02)


async def ids_at(lab: Lab, url: str) -> Counter[str]:
    return Counter(delivery.message.id for delivery in await lab.take(url))


async def test_two_movers_share_the_work_and_one_that_is_killed_costs_nothing(lab: Lab) -> None:
    messages = [made(n) for n in range(400)]
    await lab.declare()
    await lab.send(messages)
    plain = lab.ledger.replace(f":{PASSWORD}@", "@")
    options = ("--rate", "200", "--lease", "2s", "--json", "--settle")

    async with (
        started(lab, "run", *options, "60s") as killed,  # it shall not end before it is killed
        started(lab, "run", *options, "0.5s") as other,
    ):
        await until_noted(plain, movers=2)
        killed.send_signal(signal.SIGKILL)
        code, report = await told(other)
        assert code == 0, report

    arrived = await ids_at(lab, lab.target)
    assert arrived.keys() == {message.id for message in messages}
    assert await lab.counts(lab.source) == (0, 0, 0)
    # What the killed one had noted was not sent again by the other, which found it.
    assert await in_ledger(plain, "SELECT sum(pending) FROM entry") == [0]
    assert await in_ledger(plain, "SELECT count(ended_at) FROM session") == [1]
    for verb, *more in (("status", "--settle", "0s"), ("verify",)):
        async with started(lab, verb, "--json", *more) as looking:
            code, text = await told(looking)
        assert code == 0, text
        assert PASSWORD not in report + text


async def test_a_connection_that_is_lost_again_and_again_costs_no_message_and_no_copy(
    lab: Lab,
) -> None:
    messages = [made(n) for n in range(1000)]
    await lab.declare()
    await lab.send(messages)
    plain, lab.ledger = lab.ledger, behind_proxy(lab.ledger)

    moving = asyncio.create_task(lab.run(rate=1000.0))
    await until_noted(plain.replace(f":{PASSWORD}@", "@"))
    for _ in range(5):
        shared_proxy().cut()
        await asyncio.sleep(0.1)
    report = await asyncio.wait_for(moving, 60)

    assert (report.moved, report.is_complete) == (1000, True)
    assert await ids_at(lab, lab.target) == Counter(message.id for message in messages)
    noted = "SELECT count(*) FROM entry WHERE done = 1 AND pending = 0"
    assert await in_ledger(plain.replace(f":{PASSWORD}@", "@"), noted) == [1000]


async def test_a_ledger_that_is_gone_ends_the_mover_and_everything_is_back(lab: Lab) -> None:
    messages = [made(n) for n in range(1000)]
    await lab.declare()
    await lab.send(messages)

    moving = asyncio.create_task(lab.run(rate=50.0))
    plain = lab.ledger.replace(f":{PASSWORD}@", "@")
    await until_noted(plain)
    await in_ledger(plain, "DROP TABLE entry")
    with pytest.raises(StoreError, match=r'ledger .* cannot be used: relation "entry"'):
        await asyncio.wait_for(moving, 60)

    left = await ids_at(lab, lab.source)
    assert 0 < left.total() < 1000
    assert (left | await ids_at(lab, lab.target)).keys() == {message.id for message in messages}
