"""What the SQS adapter can be told, and how a URL says it.

Credentials, profiles, roles and ``AWS_ENDPOINT_URL`` are the AWS SDK's own business: nothing
here holds a secret.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias
from urllib.parse import unquote, urlsplit

from brokerwq.driver.rules.sqs import LONGEST_POLL
from brokerwq.driver.support import split_url, url_options
from brokerwq.errors import ConfigError

Role: TypeAlias = Literal["receive", "control"]
"""Which of a driver's two clients: long polls, or everything else."""

ClientFactory: TypeAlias = "Callable[[SqsSettings, Role], AbstractAsyncContextManager[Any]]"
"""Makes an open client: an object with the coroutines of aiobotocore's SQS client."""

_REGION = re.compile(r"[a-z]{2,}(-[a-z]+)+-[0-9]+")
_PREFIX = re.compile(r"[A-Za-z0-9_-]{0,60}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SqsSettings:
    """Where the queues are and how the adapter talks to them.

    Attributes:
        region: AWS region; None leaves it to the SDK (``AWS_DEFAULT_REGION``, profile).
        prefix: Put before every queue name, with a hyphen unless it ends in ``-`` or ``_``.
        endpoint_url: Another address than the region's own, e.g. LocalStack's; None leaves it
            to the SDK (``AWS_ENDPOINT_URL``, ``AWS_ENDPOINT_URL_SQS``).
        fifo: Every queue is a FIFO queue: ``orders`` means ``orders.fifo``, groups are kept in
            order, and ``capabilities`` says what FIFO queues cannot do.
        max_wait: Seconds one long poll may last, 1 to 20. A stop waits for the polls in
            flight, and an idle queue costs ``60 / max_wait`` requests a minute.
        timeout: Seconds an answer may take, long polls' own waiting not counted.
        unwrap_sns: Bodies that Amazon SNS wrapped in its envelope are unwrapped.
        session: An ``aioboto3.Session`` or an aiobotocore session of the user's own, or a
            function that makes one; or ``"MODULE:NAME"``, where such a thing is found.
        clients: A ``ClientFactory`` in place of a session, or where one is found.

    Raises:
        ConfigError: a value is out of its range.
    """

    region: str | None = None
    prefix: str = ""
    endpoint_url: str | None = None
    fifo: bool = False
    max_wait: int = 10
    timeout: float = 10.0
    unwrap_sns: bool = False
    session: Any = field(default=None, compare=False)
    clients: ClientFactory | str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.region is not None and not _REGION.fullmatch(self.region):
            msg = f"{self.region!r:.100} is no AWS region; write sqs://eu-west-1/PREFIX"
            raise ConfigError(msg)
        if not _PREFIX.fullmatch(self.prefix):
            msg = (
                f"prefix {self.prefix!r:.100} must be at most 60 letters, digits, hyphens and "
                "underscores, with no slash"
            )
            raise ConfigError(msg)
        if not 1 <= self.max_wait <= LONGEST_POLL:
            msg = f"max_wait is {self.max_wait} seconds; it must be 1 to {LONGEST_POLL}"
            raise ConfigError(msg)
        if not 0 < self.timeout < 3600:  # noqa: PLR2004  -- also false for NaN
            msg = f"timeout is {self.timeout} seconds; it must be above 0 and below 3600"
            raise ConfigError(msg)
        if self.endpoint_url is not None:
            parts = urlsplit(self.endpoint_url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                msg = f"endpoint_url {self.endpoint_url!r:.200} is no http or https address"
                raise ConfigError(msg)


_OPTIONS: dict[str, type[Any]] = {
    "clients": str,
    "endpoint_url": str,
    "fifo": bool,
    "max_wait": int,
    "session": str,
    "timeout": float,
    "unwrap_sns": bool,
}


def parse_url(url: str) -> SqsSettings:
    """``sqs://REGION/PREFIX?endpoint_url=…``; region and prefix may be left out.

    Raises:
        ConfigError: the URL holds something else, or an option that is not known.
    """
    parts = split_url(url)
    if "@" in parts.netloc:
        msg = (
            "an sqs:// URL holds no credentials; the AWS SDK finds them: environment, profile, role"
        )
        raise ConfigError(msg)
    options: dict[str, Any] = url_options(url, _OPTIONS)
    return SqsSettings(
        region=unquote(parts.netloc) or None,
        prefix=unquote(parts.path).strip("/"),
        **options,
    )
