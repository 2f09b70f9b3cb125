"""From ``once=…`` to the guard of a worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from brokerwq._runtime.guard import Guard
from brokerwq.errors import ConfigError
from brokerwq.once import Once
from brokerwq.workers.keys import KeyReader, value_reader
from brokerwq.workers.options import WorkerOptions
from brokerwq.workers.signature import Signature


class GuardMaker(Protocol):
    """Makes guards on an app's store."""

    def __call__(
        self,
        worker: str,
        once: Once,
        key_version: int,
        read_key: Callable[[Any], object] | None,
        /,
        *,
        is_async: bool,
    ) -> Guard:
        """The guard of ``worker``.

        Raises:
            ConfigError: the store cannot do what ``once`` asks for.
        """
        ...


def exact_key(read_text: KeyReader, read_value: Callable[[Any], object] | None) -> KeyReader:
    """``read_text``, which also refuses what the runner would have no key for."""
    from brokerwq.idempotency.keys import encoded_key  # noqa: PLC0415  -- most need no store

    def read(payload: Any) -> str:
        encoded_key(None if read_value is None else read_value(payload))
        return read_text(payload)

    return read


def guard_for(
    name: str, options: WorkerOptions, signature: Signature, make: GuardMaker | None
) -> Guard | None:
    """The guard that ``options.once`` asks for; None if it asks for none.

    Raises:
        ConfigError: there is no store, or the function's shape does not fit.
    """
    once = options.once
    if signature.takes_tx and (once is None or not once.has_tx):
        msg = 'tx: Tx is there with once="transactional" or once="lease_tx" alone'
        raise ConfigError(msg)
    if once is None:
        return None
    if once.has_tx and not signature.takes_tx:
        msg = (
            f'once="{once.strategy}" is about what the worker writes in its transaction: '
            "take it, (job: Job, tx: Tx, …)"
        )
        raise ConfigError(msg)
    if make is None:
        msg = "once needs a store: App(store=…, name=…)"
        raise ConfigError(msg)
    read_key = value_reader(options.key, signature)
    return make(name, once, options.key_version, read_key, is_async=signature.is_async)
