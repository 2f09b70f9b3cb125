"""Places on SQS for tests of the whole library: a prefix, a proxy, and what was logged."""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from brokerwq_sqs.client import SdkClients
from brokerwq_sqs.settings import SqsSettings

from brokerwq import App
from brokerwq.telemetry.combine import fan_out
from brokerwq.telemetry.logs import EventLog
from brokerwq.testing.servers.localstack import SqsServer
from brokerwq.testing.sqs_faults import SqsFaults
from brokerwq.testing.sqs_proxy import SqsProxy, sqs_proxy
from tests.cases.lab import Place

faults = SqsFaults(SdkClients(SqsSettings()))
"""Found by the URL's ``clients=MODULE:NAME``; for one test at a time."""


def clients(settings: Any, role: Any) -> Any:
    return faults.clients(settings, role)


class Lines(logging.Handler):
    """What the library logs at INFO and above, through a logger of one test's own."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.said: list[str] = []
        # One that no other test can reach.
        self.logger = logging.Logger("of one test", logging.INFO)  # noqa: LOG001
        self.logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


@dataclass
class SqsPlace(Place):
    """A place whose server is reached through a proxy.

    Attributes:
        server: The server itself.
        proxy: Between it and the apps.
        lines: What the apps log.
        prefix: Before the names of its queues.
    """

    server: SqsServer = field(kw_only=True)
    proxy: SqsProxy = field(kw_only=True)
    prefix: str = field(kw_only=True)
    lines: Lines = field(default_factory=Lines)

    def app(self, **keywords: Any) -> App:
        telemetry = fan_out(self.events, EventLog(self.lines.logger))
        app = App(self.url, clock=self.clock, telemetry=telemetry, **keywords)
        self.apps.append(app)
        return app


@asynccontextmanager
async def place_on(server: SqsServer, **options: object) -> AsyncGenerator[SqsPlace]:
    """A place of its own, with ``options`` in its URL."""
    prefix = f"c{secrets.token_hex(4)}"
    with sqs_proxy(server.endpoint) as proxy:
        url = SqsServer(endpoint=proxy.endpoint).url(prefix, **{"max_wait": 2, **options})
        place = SqsPlace(url, server=server, proxy=proxy, prefix=prefix)
        try:
            yield place
        finally:
            proxy.be("pass")
            await place.aclose()
