"""brokerwq on Amazon SQS, through whichever asyncio AWS client is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokerwq.driver import Adapter

if TYPE_CHECKING:
    from brokerwq.clock import Clock
    from brokerwq.driver import Driver
    from brokerwq_sqs.settings import SqsSettings

__all__ = ["adapter"]


def _parse_url(url: str) -> SqsSettings:
    from brokerwq_sqs.settings import parse_url

    return parse_url(url)


def _build(settings: SqsSettings, clock: Clock) -> Driver:
    import aiobotocore  # noqa: F401  # pyright: ignore[reportUnusedImport]  -- fail here if missing

    from brokerwq_sqs.driver import SqsDriver

    return SqsDriver(settings, clock)


adapter: Adapter[SqsSettings] = Adapter(
    schemes=("sqs",),
    summary="Amazon SQS, standard and FIFO queues",
    extra="sqs",
    parse_url=_parse_url,
    build=_build,
)
