"""Moves between real brokers with everything that can happen on the way, and back.

``make chaos-migration`` runs the full size; without CAMPAIGN=full it is small enough to see
whether the campaign itself is sound.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import pytest

from brokerwq.testing.servers.localstack import SqsServer

pytest.register_assert_rewrite("tests.migrate.campaign")

from tests.migrate.campaign import Campaign, Sizes  # noqa: E402  -- to show what it asserts
from tests.migrate.lab import Lab  # noqa: E402  -- as above
from tests.migrate.places import queues_at, rabbit, sqs_server, throttled  # noqa: E402  -- as above

IS_FULL = os.environ.get("CAMPAIGN") == "full"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600 if IS_FULL else 400)]

FULL = Sizes(
    messages=10_000,
    held=500,
    delayed=200,
    dead=50,
    misfits=20,
    rate=50.0,
    kills=5,
    slots=8,
    seconds=0.005,
    mover_rate=800,
    patience=1500.0,
)
MIDDLE = Sizes(
    messages=3_000,
    held=200,
    delayed=60,
    dead=20,
    misfits=10,
    rate=50.0,
    kills=5,
    mover_rate=300,
    patience=900.0,
)
SHORT = Sizes(
    messages=200,
    held=20,
    delayed=8,
    dead=5,
    misfits=3,
    rate=20.0,
    kills=2,
    seconds=0.02,
    mover_rate=100,
    patience=120.0,
)


@pytest.fixture(scope="module")
def sqs() -> Generator[SqsServer]:
    yield from sqs_server()


async def moved(source: str, target: str, folder: Path, sizes: Sizes, movers: str = "") -> None:
    lab = Lab(folder, source=source, target=target)
    campaign = Campaign(lab, sizes, target_of_movers=movers)
    await campaign.run()
    print(f"\n{campaign.summary()}")
    assert campaign.kills >= sizes.kills


async def test_rabbitmq_to_sqs_and_back(sqs: SqsServer, tmp_path: Path) -> None:
    plain = queues_at(sqs)
    sizes = FULL if IS_FULL else SHORT
    await moved(rabbit("3.10"), plain, tmp_path, sizes, throttled(plain))


async def test_sqlite_to_sqs_and_back(sqs: SqsServer, tmp_path: Path) -> None:
    source = f"sqlite:///{tmp_path}/source.db"
    await moved(source, queues_at(sqs), tmp_path, MIDDLE if IS_FULL else SHORT)


async def test_sqlite_to_rabbitmq_and_back(tmp_path: Path) -> None:
    source = f"sqlite:///{tmp_path}/source.db"
    target = f"{rabbit('3.10')}?max_message_bytes=100000"
    sizes = replace(MIDDLE if IS_FULL else SHORT, misfit_bytes=150_000)
    await moved(source, target, tmp_path, sizes)


@pytest.mark.skipif(not IS_FULL, reason="two RabbitMQ servers at once, for the full campaign")
async def test_rabbitmq_3_10_to_4_3_and_back(tmp_path: Path) -> None:
    target = f"{rabbit('4.3')}?max_message_bytes=100000"
    await moved(rabbit("3.10"), target, tmp_path, replace(MIDDLE, misfit_bytes=150_000))
