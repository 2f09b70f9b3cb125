"""Records in Redis, for ``once="marker"``: beside the work, never in its transaction.

What it promises is what the server keeps. Without its append-only file a Redis that crashes
forgets every finished key since its last snapshot, and the copies of those messages run again;
one that may evict forgets them whenever memory is short. The second is refused at the start,
and the first warned of.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final

from brokerwq.durations import Seconds, positive_seconds
from brokerwq.errors import ConfigError, StoreError, StoreUnavailableError
from brokerwq.idempotency.record import Answer, Busy, Claim, Claimed, Record, State, refusal
from brokerwq.idempotency.stores import _redis_scripts as scripts
from brokerwq.idempotency.stores._lasting import LastingError, no_outage
from brokerwq.idempotency.stores._newest import Newest
from brokerwq.idempotency.stores._per_loop import PerLoop
from brokerwq.idempotency.stores._redis_client import (
    Client,
    MakeClient,
    client_maker,
    namespace_of,
    one_more_try,
    translated,
)

_NAMESPACE: Final = re.compile(r"[A-Za-z0-9_.:{}-]{1,64}")
_LEAST_VERSION: Final = 5
_SCAN_AT_ONCE: Final = 1000
_RETRY_SECONDS: Final = 0.5
_log: Final = logging.getLogger("brokerwq.store")


class RedisStore:
    """Records in the Redis at ``source``; make it ready with ``brokerwq keys init``.

    Each event loop has a client of its own: the runner's for the jobs, and the one that sends
    heartbeats, which must get through while a job blocks.

    Args:
        source: ``redis://`` or ``rediss://`` ``user:password@host:port/db``, with redis-py's
            options in its query; or a client of ``redis.asyncio``, whose settings are taken
            over, not its connections; or a function that makes a client, for Sentinel, say.
        namespace: What the names of all keys begin with.
        connections: Most connections of one event loop.
        command_timeout: Seconds for one command.

    Raises:
        ConfigError: the URL or an option in it is not known, or the client decodes answers.
    """

    def __init__(
        self,
        source: str | MakeClient | Any,
        *,
        namespace: str = "brokerwq",
        connections: int = 10,
        command_timeout: Seconds = 3.0,
    ) -> None:
        timeout = positive_seconds(command_timeout, "command_timeout")
        if isinstance(source, str):
            source, namespace = namespace_of(source, namespace)
        if not _NAMESPACE.fullmatch(namespace):
            msg = f"namespace {namespace!r:.100} must be 1 to 64 letters, digits and _.:{{}}-"
            raise ConfigError(msg)
        self._connections = connections
        self._start = f"{namespace}:".encode()
        self._schema = f"{namespace}:schema"
        options = {
            "max_connections": connections,
            "timeout": timeout,
            "socket_timeout": timeout,
            "socket_connect_timeout": timeout,
            "protocol": 2,
            # Every command may be repeated: a claim and an end name their owner.
            "retry": one_more_try(_RETRY_SECONDS),
            "redis_connect_func": self._connected,
        }
        self._is_known = False
        self._name, make = client_maker(source, options)
        self._clients = PerLoop(lambda: Client(make()))
        self._has_warned = False

    def __repr__(self) -> str:
        """For people, without the password."""
        return f"<RedisStore {self.name}>"

    @property
    def name(self) -> str:
        """See ``Store.name``."""
        return self._name

    async def check(self) -> None:
        """See ``Store.check``; also that the server evicts nothing, and is no replica."""
        with no_outage():
            await self._check()

    async def _check(self) -> None:
        info = await self._call("info")
        version = str(info.get("redis_version", "")).partition(".")[0]
        if version.isdigit() and int(version) < _LEAST_VERSION:
            msg = f"{self.name} is Redis {info['redis_version']}; take {_LEAST_VERSION}.0 or newer"
            raise StoreError(msg)
        policy = info.get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            msg = (
                f"{self.name} has maxmemory-policy {policy}: short of memory it would forget "
                "finished work, which would run again. Set noeviction there, or take another Redis"
            )
            raise StoreError(msg)
        if info.get("role") == "slave":
            msg = f"{self.name} is a replica, which cannot be written to"
            raise StoreUnavailableError(msg)
        if info.get("aof_enabled") == 0 and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "%s has no append-only file: a crash of it loses finished keys, and copies of "
                "their messages run again; set appendonly yes",
                self.name,
            )
        mark = await self._call("get", self._schema)
        if mark is None:
            msg = (
                f"{self.name} has no records of brokerwq, or has lost them: run brokerwq keys init"
            )
            raise StoreError(msg)
        self._is_known = True
        if mark != scripts.VERSION.encode():
            msg = (
                f"the records in {self.name} are of version {mark.decode(errors='replace'):.20}, "
                f"and this brokerwq knows version {scripts.VERSION}: update the older one"
            )
            raise StoreError(msg)

    async def claim(self, claim: Claim, /) -> Answer:
        """See ``Store.claim``."""
        found = await self._run(scripts.CLAIM, claim.key, *scripts.claim_values(claim))
        if found[0]:
            return Claimed(fence=int(found[1]), attempt=found[2], takeover=bool(found[3]))
        record = scripts.record_of(claim.key, found[1], found[2])
        # Never free: the script has the same condition, and has looked at the same record.
        return refusal(record, claim) or Busy(remaining=max(record.lease_left, _RETRY_SECONDS))

    async def extend(self, key: bytes, owner: bytes, lease: float, /) -> bool:
        """See ``Store.extend``."""
        return bool(await self._run(scripts.EXTEND, key, owner, scripts.milliseconds(lease)))

    async def complete(
        self, key: bytes, owner: bytes, retention: float, result: str | None, /
    ) -> bool:
        """See ``Store.complete``."""
        return await self._finish(key, owner, State.COMPLETED, retention, result)

    async def fail(self, key: bytes, owner: bytes, retention: float, reason: str, /) -> bool:
        """See ``Store.fail``."""
        return await self._finish(key, owner, State.FAILED, retention, reason)

    async def _finish(
        self, key: bytes, owner: bytes, state: State, retention: float, result: str | None
    ) -> bool:
        values: list[Any] = [owner, int(state), scripts.milliseconds(retention)]
        if result is not None:
            values.append(result)
        return bool(await self._run(scripts.FINISH, key, *values))

    async def release(self, key: bytes, owner: bytes, /) -> bool:
        """See ``Store.release``."""
        return bool(await self._run(scripts.RELEASE, key, owner))

    async def get(self, key: bytes, /) -> Record | None:
        """See ``Store.get``; what has expired is gone."""
        found = await self._run(scripts.GET, key)
        return None if found is None else scripts.record_of(key, found[0], found[1])

    async def list(
        self, limit: int, /, *, state: State | None = None, worker: str | None = None
    ) -> Sequence[Record]:
        """See ``Store.list``. It reads every record, in steps that keep nobody waiting."""
        newest = Newest(limit, state, worker)
        async for record in self._all():
            newest.add(record)
        return newest.result()

    async def _all(self) -> AsyncGenerator[Record]:
        some: list[bytes] = []
        with translated(self.name):
            names = self._clients.get().native.scan_iter(
                match=self._start + b"*", count=_SCAN_AT_ONCE, _type="hash"
            )
            async for name in names:
                key = scripts.key_in(name, self._start)
                if key is not None:
                    some.append(key)
                if len(some) >= self._connections:
                    for record in await self._found(some):
                        yield record
                    some = []
        for record in await self._found(some):
            yield record

    async def _found(self, keys: Sequence[bytes]) -> Sequence[Record]:
        found = await asyncio.gather(*(self.get(key) for key in keys))
        return [record for record in found if record is not None]

    async def forget(self, key: bytes, /) -> bool:
        """See ``Store.forget``."""
        return bool(await self._call("delete", self._start + key.hex().encode()))

    async def prune(self, _limit: int, /) -> int:
        """See ``Store.prune``: nothing is left to do, since Redis does it by itself."""
        await self._call("ping")
        return 0

    def schema(self) -> Sequence[str]:
        """See ``Store.schema``."""
        return (f"SET {self._schema} {scripts.VERSION} NX",)

    async def init(self) -> None:
        """See ``Store.init``."""
        self._is_known = False
        await self._call("set", self._schema, scripts.VERSION, nx=True)
        self._is_known = True

    async def aclose(self) -> None:
        """See ``Store.aclose``."""
        client = self._clients.pop()
        if client is not None:
            with contextlib.suppress(Exception):  # whatever is wrong with it, it is given up
                await asyncio.wait_for(client.native.aclose(), 5.0)

    # -- the client -----------------------------------------------------------------------

    async def _connected(self, connection: Any) -> None:
        """Look for our mark on each new connection.

        A server that has come back empty has forgotten what was done: nobody may find every
        key free there only because the client had connected anew.
        """
        await connection.on_connect()
        await connection.send_command("GET", self._schema)
        answer = await connection.read_response()
        if answer is None and self._is_known:
            await connection.disconnect()
            msg = f"{self.name} has lost its records; brokerwq keys init begins anew"
            raise LastingError(msg)
        self._is_known = self._is_known or answer is not None

    async def _run(self, script: str, key: bytes, *values: Any) -> Any:
        """What ``script`` answers on the record of ``key``.

        Raises:
            StoreError: it failed; the client's own error is its cause.
        """
        with translated(self.name, key):
            run = self._clients.get().script(script)
            return await run(keys=[self._start + key.hex().encode()], args=values)

    async def _call(self, command: str, *values: Any, **options: Any) -> Any:
        with translated(self.name):
            native = self._clients.get().native
            return await getattr(native, command)(*values, **options)
