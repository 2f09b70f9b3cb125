"""Requests to DynamoDB: one client a loop, answers timed, errors made ours."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from importlib import import_module
from typing import Any, Final, NoReturn, TypeAlias
from urllib.parse import urlsplit

from brokerwq.clock import Clock
from brokerwq.errors import AdapterMissingError, ConfigError, StoreError, StoreUnavailableError
from brokerwq.idempotency.stores._dynamodb_time import ServiceTime
from brokerwq.idempotency.stores._lasting import LastingError

try:
    # Without types for each service; what comes out of it is checked where it is used.
    aiohttp: Any = import_module("aiohttp")
    loaders: Any = import_module("botocore.loaders")
    native: Any = import_module("botocore.exceptions")
    config: Any = import_module("aiobotocore.config")
    sessions: Any = import_module("aiobotocore.session")
except ModuleNotFoundError as exc:
    _MISSING = "DynamodbStore needs aiobotocore: pip install 'brokerwq[dynamodb]'"
    raise AdapterMissingError(_MISSING) from exc

MakeClient: TypeAlias = Callable[[], AbstractAsyncContextManager[Any]]
"""Makes a client of aiobotocore's DynamoDB, which is opened by entering it."""

_SERVER_FAULT: Final = 500
_CONDITION: Final = "ConditionalCheckFailedException"
_LASTING: Final = frozenset(
    {"AccessDeniedException", "MissingAuthenticationToken", "ResourceNotFoundException"}
)
_PASSING: Final = frozenset(
    {
        "InternalFailure",
        "InternalServerError",
        "LimitExceededException",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "ServiceUnavailable",
        "ThrottlingException",
        "TransactionConflictException",
        # Credentials that have run out are renewed, and a clock that is off is set.
        "ExpiredTokenException",
        "InvalidSignatureException",
        "RequestExpired",
        "UnrecognizedClientException",
    }
)


class ConditionFailedError(Exception):
    """A conditional write was refused.

    Attributes:
        item: What is there instead; None if nothing is.
    """

    def __init__(self, item: dict[str, dict[str, Any]] | None) -> None:
        super().__init__("the condition failed")
        self.item = item


def sdk_client(
    session: Any, region: str | None, endpoint_url: str | None, timeout: float
) -> MakeClient:
    """What makes clients of an SDK session.

    Args:
        session: The user's own; None for a new one.
        region: AWS region; None leaves it to the SDK.
        endpoint_url: Another address than the region's own.
        timeout: Seconds for one request.

    Raises:
        ConfigError: ``endpoint_url`` is no address.
    """
    if endpoint_url is not None:
        parts = urlsplit(endpoint_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            msg = f"endpoint_url {endpoint_url!r:.200} is no http or https address"
            raise ConfigError(msg)

    def make() -> AbstractAsyncContextManager[Any]:
        opened = _new_session() if session is None else session
        # aioboto3 calls it client, aiobotocore create_client; both make the same client.
        create = getattr(opened, "create_client", None) or opened.client
        client: AbstractAsyncContextManager[Any] = create(
            "dynamodb",
            region_name=region,
            endpoint_url=endpoint_url,
            config=config.AioConfig(
                connect_timeout=timeout,
                read_timeout=timeout,
                # Every request may be repeated: it names its owner, and so does what is there.
                retries={"mode": "standard", "total_max_attempts": 2},
                max_pool_connections=50,
            ),
        )
        return client

    return make


def _new_session() -> Any:
    session = sessions.get_session()
    # Reading the service's description takes a tenth of a second, most of what opening costs.
    session.register_component("data_loader", _descriptions())
    return session


@functools.cache
def _descriptions() -> Any:
    return loaders.create_loader()


class Connection:
    """The client of one event loop, opened by its first request.

    Args:
        name: The store's, for errors.
        make: Makes the client.
        clock: What requests are timed by.
        service: Told when an answer was written.
    """

    def __init__(self, name: str, make: MakeClient, clock: Clock, service: ServiceTime) -> None:
        self._name = name
        self._make = make
        self._clock = clock
        self._service = service
        self._stack = AsyncExitStack()
        self._opening = asyncio.Lock()
        self._client: Any = None

    async def call(self, operation: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """What the service answers.

        Raises:
            ConditionFailedError: the condition of a write was not met.
            StoreError: it failed; the client's own error is its cause.
        """
        asked = self._clock.now()
        try:
            client = await self._opened()
            asked = self._clock.now()
            answer: dict[str, Any] = await getattr(client, operation)(**arguments)
        except native.ClientError as exc:
            self._hear(exc.response, asked)
            self._refuse(exc)
        except native.NoRegionError as exc:
            msg = f"store {self._name}: write dynamodb://REGION/TABLE or set AWS_DEFAULT_REGION"
            raise LastingError(msg) from exc
        except native.ParamValidationError as exc:
            msg = f"store {self._name}: {exc!s:.500}"
            raise StoreError(msg) from exc
        except (native.BotoCoreError, aiohttp.ClientError, OSError, TimeoutError) as exc:
            msg = f"store {self._name}: {type(exc).__name__}: {exc!s:.500}"
            raise StoreUnavailableError(msg) from exc
        self._hear(answer, asked)
        return answer

    async def aclose(self) -> None:
        """Close the client; whatever is wrong with it, it is given up."""
        with suppress(Exception):
            await self._stack.aclose()
        self._client = None

    async def _opened(self) -> Any:
        if self._client is None:
            async with self._opening:
                if self._client is None:
                    self._client = await self._stack.enter_async_context(self._make())
        return self._client

    def _hear(self, answer: Mapping[str, Any], asked: float) -> None:
        date = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
        if date:
            self._service.heard(date, asked)

    def _refuse(self, exc: Any) -> NoReturn:
        error = exc.response.get("Error", {})
        code = str(error.get("Code", ""))
        if code == _CONDITION:
            raise ConditionFailedError(exc.response.get("Item")) from exc
        text = f"store {self._name}: {code}: {error.get('Message', '')!s:.500}"
        status = exc.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if code in _LASTING:
            text += ": run brokerwq keys init" if code == "ResourceNotFoundException" else ""
            raise LastingError(text) from exc
        if code in _PASSING or status >= _SERVER_FAULT:
            raise StoreUnavailableError(text) from exc
        raise StoreError(text) from exc
