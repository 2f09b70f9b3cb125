"""RabbitMQ keeps the contract, on each release that can be had."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import ClassVar

import pytest
from brokerwq_rabbitmq.driver import RabbitDriver

from brokerwq.driver import Capabilities, Driver
from brokerwq.testing import Harness
from brokerwq.testing.catalogue import Check
from brokerwq.testing.pytest_suite import ConformanceSuite
from brokerwq.testing.servers.proxy import TcpProxy
from brokerwq.testing.servers.rabbitmq import Release
from tests.adapters.rabbit import RELEASES, node_or_skip, place_of, server_or_skip, url_through


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
    def harness(self, request: pytest.FixtureRequest) -> Generator[Harness]:
        shared = server_or_skip(self.release)
        check: Check = request.node.callspec.params["check"]
        # A node of its own for the check that restarts it: by then the shared one has a thousand
        # queues, and would need a minute.
        is_restarted = "restart" in check.hooks and not check.unmet(Capabilities())
        own = node_or_skip(self.release) if is_restarted else None
        server = own or shared

        async def restart() -> None:
            await asyncio.to_thread(server.restart)

        try:
            if own is not None:
                own.start()
            with TcpProxy(*place_of(server)) as proxy:
                yield replace(
                    Harness.from_url(url_through(proxy, server)),
                    loggers=("brokerwq", "brokerwq_rabbitmq", "aiormq", "aio_pika", "asyncio"),
                    patience=10.0,
                    cut_connection=cut,
                    outage=lambda: outage(proxy),
                    restart=restart,
                )
        finally:
            if own is not None:
                own.close()


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
