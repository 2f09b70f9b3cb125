"""brokerwq on RabbitMQ."""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokerwq.driver import Adapter

if TYPE_CHECKING:
    from brokerwq.clock import Clock
    from brokerwq.driver import Driver
    from brokerwq_rabbitmq.settings import RabbitSettings

__all__ = ["adapter"]


def _parse_url(url: str) -> RabbitSettings:
    from brokerwq_rabbitmq.settings import parse_url

    return parse_url(url)


def _build(settings: RabbitSettings, clock: Clock) -> Driver:
    from brokerwq_rabbitmq.driver import RabbitDriver

    return RabbitDriver(settings, clock)


adapter: Adapter[RabbitSettings] = Adapter(
    schemes=("amqp", "amqps"),
    summary="RabbitMQ 3.10 or newer, on quorum queues",
    extra="rabbitmq",
    parse_url=_parse_url,
    build=_build,
)
