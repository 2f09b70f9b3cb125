"""Records in a DynamoDB table, for ``once="marker"``: beside the work, never in its transaction.

The service has no clock that a condition could read. Times are its own all the same, by the
``Date`` of its answers; what that leaves open is covered by a margin on everybody else's lease.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from brokerwq.clock import SYSTEM_CLOCK, Clock
from brokerwq.driver.support import url_options
from brokerwq.durations import Seconds, positive_seconds, seconds_of
from brokerwq.errors import ConfigError
from brokerwq.idempotency.record import Answer, Busy, Claim, Claimed, Record, State, refusal
from brokerwq.idempotency.stores import _dynamodb_items as items
from brokerwq.idempotency.stores._dynamodb_client import (
    ConditionFailedError,
    MakeClient,
    sdk_client,
)
from brokerwq.idempotency.stores._dynamodb_table import Table
from brokerwq.idempotency.stores._lasting import no_outage
from brokerwq.idempotency.stores._newest import Newest

_TABLE: Final = re.compile(r"[A-Za-z0-9_.-]{3,255}")
_TRIES: Final = 20
_BUSY_SECONDS: Final = 0.5
_DELETES_AT_ONCE: Final = 20
_LONGEST_SKEW: Final = 600.0


class DynamodbStore:
    """Records in ``table``; make it with ``brokerwq keys init``.

    Credentials and profiles are the AWS SDK's own business.

    Args:
        table: Its name.
        region: AWS region; None leaves it to the SDK.
        endpoint_url: Another address than the region's own; None leaves it to the SDK.
        session: An ``aioboto3.Session`` or an aiobotocore session of the user's own.
        client: A function that makes a client of aiobotocore's DynamoDB, opened by entering
            it, in place of a session; it is called once for each event loop.
        skew: Seconds by which the clocks of two runners may differ: a lease counts as over
            only so long after its end.
        time: Seconds since 1970 by which leases are counted, for machines whose clocks are
            kept together; None: the service's, by the dates of its answers.
        command_timeout: Seconds for one request.
        clock: Durations; for tests.

    Attributes:
        table: What it keeps them in.

    Raises:
        ConfigError: the name, the address or a number is none.
    """

    def __init__(
        self,
        table: str,
        *,
        region: str | None = None,
        endpoint_url: str | None = None,
        session: Any = None,
        client: MakeClient | None = None,
        skew: Seconds = 2.0,
        time: Callable[[], float] | None = None,
        command_timeout: Seconds = 3.0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if not _TABLE.fullmatch(table):
            msg = f"{table!r:.100} is no name of a table; write dynamodb://REGION/TABLE"
            raise ConfigError(msg)
        self._name = f"dynamodb://{region or ''}/{table}"
        self._skew = seconds_of(skew, "skew", limit=_LONGEST_SKEW)
        if self._skew < 0:
            msg = f"skew is {self._skew} seconds; it must be 0 or more"
            raise ConfigError(msg)
        timeout = positive_seconds(command_timeout, "command_timeout", limit=600.0)
        make = client or sdk_client(session, region, endpoint_url, timeout)
        self.table = Table(table, self._name, make, time=time, clock=clock)
        self._prune_from: items.Item | None = None

    def __repr__(self) -> str:
        """For people."""
        return f"<DynamodbStore {self.name}>"

    @classmethod
    def from_url(cls, url: str, *, clock: Clock = SYSTEM_CLOCK) -> DynamodbStore:
        """The store at ``dynamodb://REGION/TABLE?endpoint_url=…&skew=2``.

        Raises:
            ConfigError: the URL holds something else.
        """
        parts = urlsplit(url)
        if parts.scheme != "dynamodb" or "@" in parts.netloc:
            msg = "write dynamodb://REGION/TABLE; the AWS SDK finds the credentials"
            raise ConfigError(msg)
        known: dict[str, type[Any]] = {"endpoint_url": str, "skew": float, "command_timeout": float}
        options: dict[str, Any] = url_options(url, known)
        table = unquote(parts.path).removeprefix("/")
        return cls(table, region=unquote(parts.netloc) or None, clock=clock, **options)

    @property
    def name(self) -> str:
        """See ``Store.name``."""
        return self._name

    async def check(self) -> None:
        """See ``Store.check``."""
        with no_outage():
            await self.table.check()

    async def claim(self, claim: Claim, /) -> Answer:
        """See ``Store.claim``.

        One conditional write where the key is new. Where it is not, the refusal brings the
        record, and a second write takes it if it may be taken and nobody has changed it.
        """
        found: items.Item | None = None
        for _ in range(_TRIES):
            now = await self.table.now()
            before = None if found is None else items.record_of(found, now, self._skew)
            answer = None if before is None else refusal(before, claim)
            if answer is not None:
                return answer
            item = items.claimed_item(claim, now, before)
            try:
                await self.table.put(item, found=found)
            except ConditionFailedError as refused:
                found = refused.item
            else:
                return Claimed(
                    fence=int(item["fence"]["N"]),
                    attempt=int(item["attempt"]["N"]),
                    takeover=before is not None and items.is_live(before) and bool(before.owner),
                )
        return Busy(remaining=_BUSY_SECONDS)  # it changes hands faster than we can look

    async def extend(self, key: bytes, owner: bytes, lease: float, /) -> bool:
        """See ``Store.extend``."""
        end = await self.table.now() + lease * 1000
        values: items.Item = {":lease_ms": items.number(end), ":ttl": items.number(end / 1000)}
        try:
            await self.table.update(
                key,
                owner,
                "SET #lease_ms = :lease_ms",
                values,
                condition=f"{items.OURS} AND #ttl > :ttl",
            )
        except ConditionFailedError as refused:
            if not items.is_held(refused.item, owner, State.IN_PROGRESS):
                return False
        else:
            return True
        # The lease will outlast the record's time: the service must leave it a while longer.
        values[":ttl"] = items.ttl_of(end)
        try:
            await self.table.update(key, owner, "SET #lease_ms = :lease_ms, #ttl = :ttl", values)
        except ConditionFailedError:
            return False
        return True

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
        expires = await self.table.now() + retention * 1000
        values: items.Item = {
            ":state": items.number(state),
            ":expires_ms": items.number(expires),
            ":ttl": items.ttl_of(expires),
        }
        change = "SET #state = :state, #expires_ms = :expires_ms, #ttl = :ttl"
        if result is None:
            change += " REMOVE #result"
        else:
            change += ", #result = :result"
            values[":result"] = {"S": result}
        try:
            await self.table.update(key, owner, change, values)
        except ConditionFailedError as refused:
            return items.is_held(refused.item, owner, state)
        return True

    async def release(self, key: bytes, owner: bytes, /) -> bool:
        """See ``Store.release``."""
        now = await self.table.now()
        values: items.Item = {":none": {"B": b""}, ":lease_ms": items.number(now)}
        try:
            await self.table.update(key, owner, "SET #owner = :none, #lease_ms = :lease_ms", values)
        except ConditionFailedError:
            return False
        return True

    async def get(self, key: bytes, /) -> Record | None:
        """See ``Store.get``."""
        item = await self.table.get(key)
        return None if item is None else items.record_of(item, await self.table.now(), self._skew)

    async def list(
        self, limit: int, /, *, state: State | None = None, worker: str | None = None
    ) -> Sequence[Record]:
        """See ``Store.list``. It reads the whole table, and reading is charged."""
        newest = Newest(limit, state, worker)
        async for item, _ in self.table.scan():
            newest.add(items.record_of(item, await self.table.now(), self._skew))
        return newest.result()

    async def forget(self, key: bytes, /) -> bool:
        """See ``Store.forget``."""
        return await self.table.delete(key)

    async def prune(self, limit: int, /) -> int:
        """See ``Store.prune``. The service does it by itself, for nothing, within some days."""
        pruned = 0
        batch: list[items.Item] = []
        async for item, after in self.table.scan(start=self._prune_from):
            batch.append(item)
            if len(batch) >= min(_DELETES_AT_ONCE, limit - pruned):
                pruned += await self._delete_expired(batch)
                batch = []
            if pruned >= limit:
                self._prune_from = after
                return pruned
        self._prune_from = None
        return pruned + await self._delete_expired(batch)

    async def _delete_expired(self, batch: Sequence[items.Item]) -> int:
        now = await self.table.now()
        expired = [item for item in batch if items.is_expired(item, now, self._skew)]
        return sum(await asyncio.gather(*map(self.table.delete_same, expired)))

    def schema(self) -> Sequence[str]:
        """See ``Store.schema``: the requests, as the AWS command line takes them."""
        return self.table.schema()

    async def init(self) -> None:
        """See ``Store.init``."""
        await self.table.make()

    async def aclose(self) -> None:
        """See ``Store.aclose``."""
        await self.table.aclose()
