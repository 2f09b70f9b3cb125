"""Which broker a verb talks to, and a driver for it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from brokerwq.cli.failure import say
from brokerwq.driver import Delivery, Driver, QueueSpec, dead_letter_name
from brokerwq.driver.registry import redacted, split_urls
from brokerwq.errors import ConfigError

if TYPE_CHECKING:
    from brokerwq.app import App

URL_VARIABLE = "BROKERWQ_URL"
CONNECT_TIMEOUT = 5.0
"""Seconds; somebody sits and waits."""

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Target:
    """A broker by its URL, and the app that says more about its queues, if there is one."""

    url: str
    app: App | None

    def dead_letter_queue(self, queue: str) -> str:
        """Where the dead letters of ``queue`` are."""
        for spec in self.specs():
            if spec.name == queue:
                return spec.dead_letter_queue
        return dead_letter_name(queue)

    def seen(self, queue: str, delivery: Delivery) -> Delivery:
        """``delivery`` with what the app's codec for ``queue`` reads in it."""
        from brokerwq._runtime.strangers import seen_by

        routes = [] if self.app is None else self.app.registry.routes(queue)
        return seen_by(routes, delivery)

    def specs(self) -> list[QueueSpec]:
        """How the app wants its queues; empty without an app."""
        return [] if self.app is None else list(self.app.queue_specs())


def broker_options(command: F) -> F:
    """Add ``--url`` and ``--app`` to a verb."""
    url = click.option("--url", help=f"The broker; else the app's, {URL_VARIABLE} or the default.")
    app = click.option("--app", "app_spec", metavar="MODULE:ATTR", help="The app it is for.")
    return url(app(command))


def target_of(url: str | None, app_spec: str | None) -> Target:
    """The broker that the options, the environment or the defaults mean.

    Raises:
        ConfigError: the app that is named cannot be loaded.
    """
    from brokerwq.cli.target import default_spec, load_app

    app = load_app(app_spec) if app_spec or (url is None and default_spec()) else None
    if url is None:
        url = _configured_url() if app is None else app.url
        if app is not None and len(app.sources) > 1:
            say(f"the app has several brokers; this is {redacted(url)}, --url names another one")
    return Target(url, app)


def targets_of(url: str | None, app_spec: str | None) -> list[Target]:
    """The same for a verb that is for all of an app's brokers: each of them in turn.

    Raises:
        ConfigError: the app that is named cannot be loaded.
    """
    from brokerwq.cli.target import default_spec, load_app

    if url is None and (app_spec or default_spec()):
        app = load_app(app_spec)
        return [Target(place.url, app) for place in app.sources]
    return [target_of(url, app_spec)]


def _configured_url() -> str:
    from brokerwq.settings import DEFAULT_URL, Settings

    urls = split_urls(Settings.load().url.get_secret_value())
    if len(urls) > 1:
        msg = f"{URL_VARIABLE} names several brokers: say by --url which of them is meant"
        raise ConfigError(msg)
    (url,) = urls
    # A look in the wrong folder shall not leave an empty broker behind.
    if url == DEFAULT_URL and not Path(DEFAULT_URL.rpartition("/")[2]).exists():
        msg = f"no broker is named, and {DEFAULT_URL} is not here: give --url or --app"
        raise ConfigError(msg)
    return url


@asynccontextmanager
async def opened(url: str, *, creates: bool = False) -> AsyncGenerator[Driver]:
    """An open driver for ``url``; a look at a mistyped file does not make one.

    Raises:
        ConfigError: the URL is wrong, or the client library is missing.
        DriverError: the broker cannot be reached, or refuses.
    """
    from brokerwq.connecting import connect

    async with connect(url, connect_timeout=CONNECT_TIMEOUT, creates=creates) as broker:
        yield await broker.driver()
