"""What a queue is called at SQS: prefix, FIFO ending, URLs and ARNs. Pure functions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from brokerwq.driver.rules.sqs import FIFO, check_name
from brokerwq.errors import ConfigError
from brokerwq_sqs.settings import SqsSettings

_ARN = re.compile(r"arn:(aws[a-z-]*):sqs:([a-z0-9-]+):([0-9]{12}):(.+)")


@dataclass(frozen=True, slots=True)
class QueueName:
    """Where a queue is.

    Attributes:
        name: Its name at SQS, prefix and ``.fifo`` included.
        account: Whose it is; None for the credentials' own account.
        url: Its URL, where that was given.
    """

    name: str
    account: str | None = None
    url: str | None = None

    @property
    def is_fifo(self) -> bool:
        """Whether it keeps groups in order."""
        return self.name.endswith(FIFO)


def queue_name(queue: str, settings: SqsSettings) -> QueueName:
    """What ``queue`` means under ``settings``: a plain name, a queue URL or an ARN.

    The prefix and ``fifo`` apply to plain names only.

    Raises:
        ConfigError: SQS takes no such name, or the ARN is of another region.
    """
    if queue.startswith(("http://", "https://")):
        return _from_url(queue)
    if queue.startswith("arn:"):
        return _from_arn(queue, settings)
    if not queue:
        msg = "a queue needs a name"
        raise ConfigError(msg)
    name = joined_prefix(settings) + queue
    if settings.fifo and not name.endswith(FIFO):
        name += FIFO
    return QueueName(check_name(name))


def short_name(name: str, settings: SqsSettings) -> str | None:
    """The inverse of ``queue_name`` for plain names; None if ``settings`` do not reach it."""
    prefix = joined_prefix(settings)
    if not name.startswith(prefix) or name == prefix or (settings.fifo and not name.endswith(FIFO)):
        return None
    return name.removeprefix(prefix).removesuffix(FIFO if settings.fifo else "")


def joined_prefix(settings: SqsSettings) -> str:
    """The prefix as it stands before a name."""
    prefix = settings.prefix
    return prefix if not prefix or prefix[-1] in "-_" else f"{prefix}-"


def name_of_arn(arn: str) -> str:
    """The name at the end of an ARN."""
    return arn.rpartition(":")[2]


def _from_url(url: str) -> QueueName:
    steps = [unquote(step) for step in urlsplit(url).path.split("/") if step]
    if len(steps) < 2 or not re.fullmatch("[0-9]{12}", steps[-2]):  # noqa: PLR2004
        msg = f"{url!r:.200} is no queue URL: it does not end in /ACCOUNT/NAME"
        raise ConfigError(msg)
    return QueueName(check_name(steps[-1]), steps[-2], url)


def _from_arn(arn: str, settings: SqsSettings) -> QueueName:
    found = _ARN.fullmatch(arn)
    if found is None:
        msg = f"{arn!r:.200} is no ARN of a queue: arn:aws:sqs:REGION:ACCOUNT:NAME"
        raise ConfigError(msg)
    region, account, name = found.group(2, 3, 4)
    if settings.region is not None and region != settings.region:
        msg = f"{arn} is in {region}, but the URL says {settings.region}"
        raise ConfigError(msg)
    return QueueName(check_name(name), account)


_THIS_MACHINE = frozenset({"localhost", "127.0.0.1", "::1"})


def emulator_of(url: str) -> str:
    """Which emulator a queue's URL leads to; empty for Amazon's own service."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if host.endswith((".amazonaws.com", ".amazonaws.com.cn")):
        return ""
    if host in _THIS_MACHINE or host.endswith((".localhost", ".localhost.localstack.cloud")):
        host = "localhost"
    return f"{host}:{parts.port or parts.scheme}"
