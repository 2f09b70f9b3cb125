"""Where an app works: a broker, and what surrounds it there; and the way to another place."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, cast
from weakref import WeakKeyDictionary

from brokerwq.clock import Clock
from brokerwq.driver.adapter import Adapter
from brokerwq.driver.protocol import Driver, QueueSpec
from brokerwq.driver.registry import (
    build_driver,
    find_adapter,
    redacted,
    scheme_of,
    settings_of,
    split_urls,
)
from brokerwq.errors import ConfigError

if TYPE_CHECKING:
    from brokerwq.app import App
    from brokerwq.broker import Broker
    from brokerwq.events import Instrumentation, Listener
    from brokerwq.idempotency.store import Store
    from brokerwq.settings import Settings

Lifespan: TypeAlias = Callable[[], AsyncGenerator[Any]]
WrapDriver: TypeAlias = Callable[[Driver], Driver]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Place:
    """A broker by its URL, and an app's connections to it: one for each event loop.

    Attributes:
        url: The broker's; may hold a password.
        adapter: What serves it.
        settings: What its adapter reads in the URL.
        clock: Time.
        instrumentation: Told of everything; None for nobody.
        lifespan: What every job may use; None for nothing.
        wrap: Put around every driver; None for nothing.
    """

    url: str
    adapter: Adapter[Any]
    settings: Any
    clock: Clock
    instrumentation: Instrumentation | None = None
    lifespan: Lifespan | None = None
    wrap: WrapDriver | None = None
    _brokers: WeakKeyDictionary[asyncio.AbstractEventLoop, Broker] = field(
        default_factory=WeakKeyDictionary["asyncio.AbstractEventLoop", "Broker"], init=False
    )
    _runners: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[bool, int]] = field(
        default_factory=WeakKeyDictionary["asyncio.AbstractEventLoop", "tuple[bool, int]"],
        init=False,
    )

    @classmethod
    def at(
        cls,
        url: str,
        *,
        clock: Clock,
        instrumentation: Instrumentation | None = None,
        lifespan: Lifespan | None = None,
        wrap: WrapDriver | None = None,
    ) -> Place:
        """The place that ``url`` names.

        Raises:
            ConfigError: the URL is wrong, or no adapter serves it.
        """
        adapter = find_adapter(url)
        return cls(
            url=url,
            adapter=adapter,
            settings=settings_of(adapter, url),
            clock=clock,
            instrumentation=instrumentation,
            lifespan=lifespan,
            wrap=wrap,
        )

    def build_driver(self) -> Driver:
        """A driver that is not yet open.

        Raises:
            AdapterMissingError: its client library is not installed.
        """
        driver = build_driver(self.adapter, self.settings, self.clock)
        return driver if self.wrap is None else self.wrap(driver)

    def broker(
        self, build: Callable[[], Driver], connect_timeout: float, specs: Mapping[str, QueueSpec]
    ) -> Broker:
        """The running loop's connection; opened when it is first used."""
        loop = asyncio.get_running_loop()
        broker = self._brokers.get(loop)
        if broker is None or broker.is_closed:
            from brokerwq.broker import Broker  # noqa: PLC0415  -- an import is quick without

            broker = self._brokers[loop] = Broker(
                build(),
                clock=self.clock,
                connect_timeout=connect_timeout,
                instrumentation=self.instrumentation,
                specs=specs,
            )
        return broker

    @property
    def is_connected(self) -> bool:
        """Whether any loop has a connection."""
        return bool(self._brokers)

    def join(self) -> None:
        """A runner begins to use what this loop opens, see ``leave``."""
        loop = asyncio.get_running_loop()
        broker = self._brokers.get(loop)
        is_used = broker is not None and not broker.is_closed
        was_used, runners = self._runners.get(loop, (is_used, 0))
        self._runners[loop] = was_used, runners + 1

    def leave(self) -> bool:
        """A runner ends; whether nobody else is known to use what this loop has opened.

        A program that sent before has it open until the loop ends, or it closes it itself.
        """
        loop = asyncio.get_running_loop()
        was_used, runners = self._runners.pop(loop, (True, 1))
        if runners > 1:
            self._runners[loop] = was_used, runners - 1
        return runners == 1 and not was_used

    async def aclose(self) -> None:
        """Disconnect what this loop has opened."""
        broker = self._brokers.pop(asyncio.get_running_loop(), None)
        if broker is not None:
            await broker.aclose()

    def forget(self) -> None:
        """Drop every connection without touching it: they are another process's."""
        self._brokers.clear()
        self._runners.clear()


def joined(urls: object) -> str | None:
    """One URL or several as the setting has them: with blanks between.

    Raises:
        ConfigError: it is neither text nor several texts, or there is none.
    """
    if urls is None or isinstance(urls, str):
        return urls
    given = list(cast("Sequence[object]", urls)) if isinstance(urls, Sequence) else []
    texts = [url for url in given if isinstance(url, str)]
    if not texts or len(texts) != len(given):
        msg = f"the broker is a URL, or several of them in a list, not {urls!r:.200}"
        raise ConfigError(msg)
    return " ".join(texts)


def places_of(
    settings: Settings, clock: Clock, telemetry: Instrumentation | Listener | None
) -> tuple[Place, tuple[Place, ...]]:
    """The place that messages are sent to, and all that they are claimed from.

    Args:
        settings: The URLs, with blanks between; and which of them is sent to, by itself or by
            a scheme that only one of them has.
        clock: Time.
        telemetry: See ``selected``.

    Raises:
        ConfigError: a URL is wrong, or stands twice, or ``send_to`` is none of them.
    """
    urls = settings.url.get_secret_value()
    places = tuple(
        Place.at(url, clock=clock, instrumentation=selected(telemetry, url))
        for url in split_urls(urls) or [urls]
    )
    for nth, place in enumerate(places):
        for other in places[:nth]:
            if (place.adapter, place.settings) == (other.adapter, other.settings):
                msg = f"{redacted(place.url)} stands twice among the brokers"
                raise ConfigError(msg)
    if settings.send_to is None:
        return places[0], places
    send_to = settings.send_to.get_secret_value()
    meant = [place for place in places if send_to in (place.url, scheme_of(place.url))]
    if len(meant) != 1:
        known = ", ".join(redacted(place.url) for place in places)
        msg = f"send_to is {redacted(send_to)}; it must be one of {known}, or a scheme of one alone"
        raise ConfigError(msg)
    return meant[0], places


class Changes(TypedDict, total=False):
    """What is different elsewhere; what is left out stays as it is. See ``App.on``.

    Attributes:
        clock: Time there.
        store: For ``once``, in place of the app's own, and of the same kind.
        lifespan: In place of ``@app.lifespan``.
        telemetry: Told of everything there, beside the app's own.
        driver: Put around each driver, for example to make it fail.
    """

    clock: Clock
    store: Store | str
    lifespan: Lifespan
    telemetry: Instrumentation | Listener
    driver: WrapDriver


class Elsewhere:
    """An app on another broker for the length of a block; see ``App.on``. Used once."""

    __slots__ = ("_app", "_before", "_changes", "_restore_store", "_there", "_url")

    def __init__(self, app: App, url: str, changes: Changes) -> None:
        self._app = app
        self._url = url
        self._changes = changes
        self._before: Place | None = None
        self._there: Place | None = None
        self._restore_store: Callable[[], object] | None = None

    def __enter__(self) -> App:
        """Go there.

        Raises:
            ConfigError: the URL is wrong, or this block was entered before.
        """
        if self._there is not None:
            msg = "app.on(…) is entered once; call it again for another block"
            raise ConfigError(msg)
        app, changes = self._app, self._changes
        before = app.place
        there = Place.at(
            self._url,
            clock=changes.get("clock", before.clock),
            instrumentation=_beside(before.instrumentation, changes.get("telemetry"), self._url),
            lifespan=changes.get("lifespan", before.lifespan),
            wrap=changes.get("driver"),
        )
        self._restore_store = app.use_store(there.clock, changes.get("store"))
        self._before, self._there = before, there
        app.place = there
        return app

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Come back. What this loop has opened stays open: leave by ``async with`` for that."""
        if self._before is not None:
            self._app.place = self._before
        if self._restore_store is not None:
            self._restore_store()
            self._restore_store = None

    async def __aenter__(self) -> App:
        """Go there; nothing is connected yet."""
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Disconnect what was opened there, on this loop and by ``…_sync``, and come back."""
        try:
            await self._app.aclose()
            if self._there is not None and self._there.is_connected:
                place = self._there
                await asyncio.to_thread(self._app.run_sync, place.aclose)
        finally:
            self.__exit__(kind, error, trace)


def _beside(
    before: Instrumentation | None, given: Instrumentation | Listener | None, url: str
) -> Instrumentation | None:
    if given is None:
        return before
    from brokerwq.telemetry import fan_out, select_telemetry  # noqa: PLC0415  -- free when off

    return select_telemetry(given, "", url) if before is None else fan_out(before, given)


def selected(given: Instrumentation | Listener | None, url: str) -> Instrumentation | None:
    """What an app on the broker at ``url`` reports to; None for nobody.

    Raises:
        ConfigError: see ``brokerwq.telemetry.select_telemetry``.
    """
    setting = os.environ.get("BROKERWQ_TELEMETRY", "")
    if given is None and not setting:
        return None
    from brokerwq.telemetry import select_telemetry  # noqa: PLC0415  -- free when off

    return select_telemetry(given, setting, url)
