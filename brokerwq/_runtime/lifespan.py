"""The application's lifespan: an async generator that yields once, around a runner's work."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any

from brokerwq.errors import ConfigError


class EnteredLifespan(AbstractAsyncContextManager[Any]):
    """A lifespan as a context manager.

    Unlike with ``contextlib.asynccontextmanager`` an error of the work is always raised: a
    lifespan that catches everything to tidy up must not turn it into a success.

    Args:
        lifespan: None yields None.
    """

    def __init__(self, lifespan: Callable[[], AsyncGenerator[Any]] | None) -> None:
        lifespan = lifespan or _nothing
        self._name = getattr(lifespan, "__name__", "")
        self._resources = lifespan()

    async def __aenter__(self) -> Any:
        """What it yields.

        Raises:
            ConfigError: it came to its end without that.
        """
        try:
            return await anext(self._resources)
        except StopAsyncIteration:
            msg = f"the lifespan {self._name} did not yield; it must, once"
            raise ConfigError(msg) from None

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let it come to its end; what was raised inside is raised in it.

        Raises:
            ConfigError: it yielded again.
        """
        try:
            if error is None:
                await anext(self._resources)
            else:
                await self._resources.athrow(error)
        except StopAsyncIteration:
            return
        await self._resources.aclose()
        msg = f"the lifespan {self._name} yielded a second time; it must come to its end"
        raise ConfigError(msg)


async def _nothing() -> AsyncGenerator[None]:
    yield None
