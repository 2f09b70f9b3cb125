"""The queues of a migration at their brokers: which there are, and that all are as needed."""

from __future__ import annotations

from collections.abc import Sequence

from brokerwq.driver.protocol import Difference, QueueSpec
from brokerwq.errors import BrokerwqError, ConfigError, QueueMismatchError, QueueNotFoundError
from brokerwq.migrate.pair import Pair
from brokerwq.migrate.side import Side


async def listed(source: Side, specs: Sequence[QueueSpec]) -> list[str]:
    """All queues of the source but the dead-letter queues, which come with the others.

    Raises:
        ConfigError: the source does not list its queues.
        QueueNotFoundError: it has none.
        DriverError: it cannot be asked.
    """
    if not source.driver.capabilities.lists_queues:
        msg = f"{source.url} does not list its queues: name them (--queue)"
        raise ConfigError(msg)
    known = {spec.name: spec for spec in specs}
    with source.named():
        names = list(await source.driver.queues())
    if not names:
        msg = f"there are no queues at {source.url}"
        raise QueueNotFoundError(msg)
    kept: set[str] = set()
    dead: set[str] = set()
    # A queue comes before that of its dead letters, which may have dead letters of its own.
    for name in sorted(names, key=len):
        if name not in dead:
            kept.add(name)
            dead.add(known.get(name, QueueSpec(name=name)).dead_letter_queue)
    return [name for name in names if name in kept and name not in dead]


async def refuse_same(source: Side, target: Side, pairs: Sequence[Pair]) -> None:
    """No queue may be moved to itself, or from where another one is moved to.

    Raises:
        ConfigError: one would be.
    """
    old = {
        identity: pair.source for pair in pairs if (identity := await source.identity(pair.source))
    }
    for pair in pairs:
        same = old.get(await target.identity(pair.target))
        if same is not None:
            raise are_same(f"{source.url} and {target.url}: queue {same}")


def are_same(where: str) -> ConfigError:
    """The error for a source that is the target."""
    return ConfigError(f"source and target are the same: {where}")


async def declare(target: Side, pairs: Sequence[Pair]) -> None:
    """Make the queues that are missing where the messages go.

    Raises:
        QueueMismatchError: one is there with other properties.
        DriverError: the target refuses.
    """
    differences: list[Difference] = []
    with target.named():
        for pair in pairs:
            if pair.spec is not None:
                differences += await target.driver.declare(pair.spec)
    if differences:
        msg = f"the queues at {target.url} differ: {'; '.join(map(str, differences))}"
        raise QueueMismatchError(msg)


async def require(source: Side, target: Side, pairs: Sequence[Pair]) -> None:
    """Make sure that all queues are there.

    Raises:
        QueueNotFoundError: one is not.
    """
    for pair in pairs:
        for side, name in ((source, pair.source), (target, pair.target)):
            if pair.is_dead and side is source:
                continue  # a queue without one has no dead letters
            try:
                await side.driver.inspect(name)
            except QueueNotFoundError as error:
                raise not_there(side, name) from error
            except BrokerwqError:
                continue  # who may not count may still claim and send


def not_there(side: Side, queue: str) -> QueueNotFoundError:
    """The error for a queue that is missing."""
    return QueueNotFoundError(f"there is no queue {queue} at {side.url}")
