"""The two AWS clients of a driver, and calls on them: bounded in time, errors made ours.

Receiving and control are apart, because ten long polls fill a connection pool of ten and a
heartbeat would wait behind them. Neither repeats anything by itself: a repeated receive hides
a batch of messages for a lease, and for the rest the core decides.
"""

from __future__ import annotations

import asyncio
import functools
import pkgutil
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from importlib.metadata import version
from types import TracebackType
from typing import Any, Final

import botocore.loaders
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session

from brokerwq.clock import Clock, move_on_after
from brokerwq.driver.support import bare
from brokerwq.errors import ClosedError, ConfigError, ConnectionLostError
from brokerwq_sqs import answers
from brokerwq_sqs.errors import to_error
from brokerwq_sqs.settings import ClientFactory, Role, SqsSettings

_CONNECT_SECONDS: Final = 5.0
_POOLS: Final[dict[Role, int]] = {"receive": 1000, "control": 100}


class Api:
    """One client. Call it with an operation, the queue's name for errors, and arguments."""

    def __init__(self, client: Any, clock: Clock, seconds: float) -> None:
        self._client = client
        self._meta: object = getattr(client, "meta", None)
        self._clock = clock
        self._seconds = seconds
        self._calls = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_closed = False

    @property
    def endpoint(self) -> str:
        """Where calls go; empty where the client does not say."""
        return str(getattr(self._meta, "endpoint_url", None) or "")

    @property
    def region(self) -> str:
        """The region it is for; empty where the client does not say."""
        return str(getattr(self._meta, "region_name", None) or "")

    async def __call__(
        self, operation: str, queue: str, /, *, extra: float = 0.0, **arguments: object
    ) -> dict[str, Any]:
        """Call once.

        Args:
            operation: A method of aiobotocore's SQS client.
            queue: Its name, for errors.
            extra: Seconds that the answer may take beyond the timeout.
            arguments: What the method takes.

        Raises:
            DriverError: it failed; ``ConnectionLostError`` also where no answer came in time.
        """
        if self._is_closed:
            msg = "the driver is closed"
            raise ClosedError(msg)
        self._calls += 1
        self._idle.clear()
        try:
            # The client's own timeouts bound each step of a call, not the whole of it.
            with move_on_after(self._clock, self._seconds + extra):
                answer: dict[str, Any] = await getattr(self._client, operation)(**arguments)
                return answer
        except Exception as exc:
            ours = to_error(exc, operation, queue)
            if ours is None:
                raise
            raise ours from bare(exc)
        finally:
            self._calls -= 1
            if not self._calls:
                self._idle.set()
        msg = f"{operation} on {queue}: no answer within {self._seconds + extra:g} seconds"
        raise ConnectionLostError(msg)

    async def aclose(self) -> None:
        """Take no more calls, and wait for those in flight.

        Closing the client under a call leaks a connection, and aiobotocore 2 even opens it anew.
        """
        self._is_closed = True
        await self._idle.wait()


def _found(given: Any) -> Any:
    """``given``, or what stands at ``MODULE:NAME``."""
    if not isinstance(given, str):
        return given
    try:
        return pkgutil.resolve_name(given)
    except (ImportError, AttributeError, ValueError) as exc:
        msg = f"{given!r:.200} in the URL cannot be found: {exc}; write MODULE:NAME"
        raise ConfigError(msg) from exc


def _new_session() -> Any:
    session = get_session()
    # Reading the service's description takes a tenth of a second, most of what opening costs.
    session.register_component("data_loader", _descriptions())
    return session


@functools.cache
def _descriptions() -> Any:
    return botocore.loaders.create_loader()


class SdkClients:
    """Clients of one SDK session, so that both share its credentials."""

    def __init__(self, settings: SqsSettings) -> None:
        given = _found(settings.session)
        is_session = hasattr(given, "create_client") or hasattr(given, "client")
        self._session: Any = _new_session() if given is None else given if is_session else given()

    def __call__(self, settings: SqsSettings, role: Role, /) -> AbstractAsyncContextManager[Any]:
        """A client that is opened by entering it; see ``ClientFactory``."""
        config = AioConfig(
            connect_timeout=_CONNECT_SECONDS,
            read_timeout=settings.timeout + (settings.max_wait if role == "receive" else 0),
            retries={"mode": "standard", "total_max_attempts": 1},
            max_pool_connections=_POOLS[role],
            # What is sent is checked here already, by rules the SDK does not know.
            parameter_validation=False,
            # A fixed one, since the SDK makes its own anew for each request: 70 us of 1400.
            user_agent=f"aiobotocore/{version('aiobotocore')} brokerwq/{version('brokerwq')}",
        )
        arguments: dict[str, Any] = {
            "region_name": settings.region,
            "endpoint_url": settings.endpoint_url,
            "config": config,
        }
        if (settings.endpoint_url or "").startswith("http://"):
            # Loading the certificates takes longer than all else, and no one is shown any.
            arguments["verify"] = False
        # aioboto3 calls it client, aiobotocore create_client; both make the same client.
        create = getattr(self._session, "create_client", None) or self._session.client
        return _Opening(create("sqs", **arguments))


class _Opening:
    # No generator: a loop that ends closes those, in any order and all at once.

    def __init__(self, opening: AbstractAsyncContextManager[Any]) -> None:
        self._opening = opening

    async def __aenter__(self) -> Any:
        client = await self._opening.__aenter__()
        answers.speed_up(client)
        return client

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._opening.__aexit__(kind, error, trace)


async def open_apis(settings: SqsSettings, clock: Clock, stack: AsyncExitStack) -> tuple[Api, Api]:
    """The receiving and the control side, closed by ``stack``. Nothing is sent yet."""
    factory: ClientFactory = _found(settings.clients) or SdkClients(settings)
    try:
        receive = await stack.enter_async_context(factory(settings, "receive"))
        control = await stack.enter_async_context(factory(settings, "control"))
    except Exception as exc:
        ours = to_error(exc, "create_client", "")
        if ours is None:
            raise
        raise ours from bare(exc)
    # Above the client's own timeouts, so that those speak first: they say what hung.
    seconds = settings.timeout + _CONNECT_SECONDS + 1
    return Api(receive, clock, seconds), Api(control, clock, seconds)
