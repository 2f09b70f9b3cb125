"""RabbitMQ keeps the contract, on each release that can be had."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import ClassVar

import pytest
from brokerwq_rabbitmq.driver import RabbitDriver

from brokerwq.driver import Driver
from brokerwq.testing import Harness
from brokerwq.testing.pytest_suite import ConformanceSuite
from brokerwq.testing.servers.proxy import TcpProxy
from brokerwq.testing.servers.rabbitmq import Release
from tests.adapters.rabbit import RELEASES, place_of, server_or_skip, url_through


@asynccontextmanager
async def outage(proxy: TcpProxy) -> AsyncGenerator[None]:
    proxy.refuse()
    try:
        yield
    finally:
        proxy.listen()


async def cut(driver: Driver) -> None:
    assert isinstance(driver, RabbitDriver)
    for link in (driver._consuming, driver._publishing):  # pyright: ignore[reportPrivateUsage]
        if link._transport is not None:  # pyright: ignore[reportPrivateUsage]
            link._transport.abort()  # pyright: ignore[reportPrivateUsage]
    await asyncio.sleep(0.05)


def asked_for(release: Release) -> pytest.MarkDecorator:
    return pytest.mark.skipif(release not in RELEASES, reason=f"not asked for: {release}")


class Conformance(ConformanceSuite):
    release: ClassVar[Release]
    limit: ClassVar[float] = 110.0  # a restart takes half a minute on a busy machine

    @pytest.fixture
    def harness(self) -> Generator[Harness]:
        server = server_or_skip(self.release)

        async def restart() -> None:
            await asyncio.to_thread(server.restart)

        with TcpProxy(*place_of(server)) as proxy:
            yield replace(
                Harness.from_url(url_through(proxy, server)),
                loggers=("brokerwq", "brokerwq_rabbitmq", "aiormq", "aio_pika", "asyncio"),
                patience=10.0,
                cut_connection=cut,
                outage=lambda: outage(proxy),
                restart=restart,
            )


@pytest.mark.slow
@asked_for("3.10")
class TestRabbit310(Conformance):
    release = "3.10"


@pytest.mark.slow
@asked_for("4.3")
class TestRabbit43(Conformance):
    release = "4.3"


@pytest.mark.slow
@asked_for("4.0")
class TestRabbit40(Conformance):
    release = "4.0"
