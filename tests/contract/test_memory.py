"""The memory broker keeps the contract, its own and that of the brokers it can be like."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import replace

import pytest

from brokerwq.driver import Driver
from brokerwq.testing import FakeClock, Harness
from brokerwq.testing.pytest_suite import ConformanceSuite


def harness_of(url: str, *, shortest_lease: float = 1.0) -> Harness:
    clock = FakeClock()
    lives = [Harness.from_url(url, clock=clock)]

    async def restart() -> None:
        lives.append(Harness.from_url(url, clock=clock))

    def connect() -> AbstractAsyncContextManager[Driver]:
        return lives[-1].connect()

    return replace(lives[0], connect=connect, restart=restart, shortest_lease=shortest_lease)


class TestMemory(ConformanceSuite):
    @pytest.fixture
    def harness(self) -> Harness:
        return harness_of("memory://")


class TestMemoryLikeSqs(ConformanceSuite):
    @pytest.fixture
    def harness(self) -> Harness:
        return harness_of("memory://?like=sqs", shortest_lease=3.0)


class TestMemoryLikeSqsFifo(ConformanceSuite):
    @pytest.fixture
    def harness(self) -> Harness:
        return harness_of("memory://?like=sqs-fifo", shortest_lease=3.0)


class TestMemoryLikeRabbitmq(ConformanceSuite):
    @pytest.fixture
    def harness(self) -> Harness:
        return harness_of("memory://?like=rabbitmq")
