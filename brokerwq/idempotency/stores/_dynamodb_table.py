"""A table in DynamoDB: the requests to it, how it is made, and what is wrong with it."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from brokerwq.clock import Clock
from brokerwq.errors import StoreError, StoreUnavailableError
from brokerwq.idempotency.stores import _dynamodb_items as items
from brokerwq.idempotency.stores._dynamodb_client import (
    ConditionFailedError,
    Connection,
    MakeClient,
)
from brokerwq.idempotency.stores._dynamodb_time import ServiceTime
from brokerwq.idempotency.stores._lasting import LastingError
from brokerwq.idempotency.stores._per_loop import PerLoop

_PATIENCE: Final = 120
_IS_NEW: Final = "attribute_not_exists(#key)"
_log: Final = logging.getLogger("brokerwq.store")


class Table:
    """See the module.

    Args:
        table: Its name at the service.
        store: The store's name, for people.
        make: Makes clients.
        time: Seconds since 1970; None for the service's own, by the dates of its answers.
        clock: Durations.
    """

    def __init__(
        self,
        table: str,
        store: str,
        make: MakeClient,
        *,
        time: Callable[[], float] | None,
        clock: Clock,
    ) -> None:
        self._table = table
        self._store = store
        self._clock = clock
        self._time = time
        self._service = ServiceTime(clock)
        self._connections = PerLoop(lambda: Connection(store, make, clock, self._service))
        self._has_warned = False

    async def now(self) -> float:
        """Milliseconds since 1970."""
        if self._time is not None:
            return self._time() * 1000
        now = self._service.now()
        if now is None:
            await self.get(items.VERSION_KEY)
            now = self._service.now()
        if now is None:
            msg = f"the answers of {self._store} have no Date: give DynamodbStore(time=…)"
            raise StoreError(msg)
        return now * 1000

    async def aclose(self) -> None:
        """Close the running loop's client."""
        connection = self._connections.pop()
        if connection is not None:
            await connection.aclose()

    # -- requests -------------------------------------------------------------------------

    async def call(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """What the service answers to ``operation`` on the table.

        Raises:
            ConditionFailedError: the condition of a write was not met.
            StoreError: it failed; the client's own error is its cause.
        """
        arguments.setdefault("TableName", self._table)
        return await self._connections.get().call(operation, arguments)

    async def get(self, key: bytes) -> items.Item | None:
        """The item of ``key``; None if there is none."""
        answer = await self.call("get_item", Key={"key": {"B": key}}, ConsistentRead=True)
        item: items.Item | None = answer.get("Item")
        return item

    async def put(self, item: items.Item, *, found: items.Item | None) -> None:
        """Write ``item``, if what is there is still ``found``: nothing, or another one.

        Raises:
            ConditionFailedError: it is not.
        """
        condition = _IS_NEW if found is None else items.SAME
        values = {} if found is None else {"ExpressionAttributeValues": items.same_values(found)}
        await self.call(
            "put_item",
            Item=item,
            ConditionExpression=condition,
            ExpressionAttributeNames=items.named(condition),
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
            **values,
        )

    async def update(
        self,
        key: bytes,
        owner: bytes,
        change: str,
        values: items.Item,
        *,
        condition: str = items.OURS,
    ) -> None:
        """Change the record of ``key`` while its work is ``owner``'s.

        Raises:
            ConditionFailedError: it is not.
        """
        await self.call(
            "update_item",
            Key={"key": {"B": key}},
            UpdateExpression=change,
            ConditionExpression=condition,
            ExpressionAttributeNames=items.named(change, condition),
            ExpressionAttributeValues={**values, **items.IN_PROGRESS, ":owner": {"B": owner}},
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
        )

    async def delete(self, key: bytes) -> bool:
        """Delete the item of ``key``; whether there was one."""
        answer = await self.call("delete_item", Key={"key": {"B": key}}, ReturnValues="ALL_OLD")
        return "Attributes" in answer

    async def delete_same(self, item: items.Item) -> bool:
        """Delete ``item`` if nobody has changed it; whether nobody had."""
        try:
            await self.call(
                "delete_item",
                Key={"key": item["key"]},
                ConditionExpression=items.SAME,
                ExpressionAttributeNames=items.named(items.SAME),
                ExpressionAttributeValues=items.same_values(item),
            )
        except ConditionFailedError:
            return False
        return True

    async def scan(
        self, *, start: items.Item | None = None
    ) -> AsyncGenerator[tuple[items.Item, items.Item]]:
        """Every record after ``start``, each with what continues behind it."""
        while True:
            more: dict[str, Any] = {} if start is None else {"ExclusiveStartKey": start}
            page = await self.call("scan", ConsistentRead=True, **more)
            for item in page.get("Items", []):
                if len(items.key_of(item)) == items.KEY_BYTES:
                    yield item, {"key": item["key"]}
            start = page.get("LastEvaluatedKey")
            if not start:
                return

    # -- the table itself -----------------------------------------------------------------

    async def check(self) -> None:
        """Find out whether records can be kept here.

        Raises:
            StoreError: they cannot; the text says what to do.
        """
        table = (await self.call("describe_table"))["Table"]
        items.check_key_schema(self._store, table)
        if table.get("TableStatus") not in ("ACTIVE", "UPDATING"):
            msg = f"the table of {self._store} is {table.get('TableStatus')}"
            raise StoreUnavailableError(msg)
        is_global = table.get("Replicas") and table.get("MultiRegionConsistency") != "STRONG"
        if is_global and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "%s is a global table: claims in two regions do not see each other in time",
                self._store,
            )
        items.check_version(self._store, await self.get(items.VERSION_KEY))

    def schema(self) -> Sequence[str]:
        """The requests of ``make``, as the AWS command line takes them."""
        version = {"TableName": self._table, "Item": items.version_item()}
        return (
            items.command_line("create-table", items.table_definition(self._table)),
            items.command_line("update-time-to-live", items.ttl_definition(self._table)),
            items.command_line("put-item", version),
        )

    async def make(self) -> None:
        """Make it, or what is missing of it."""
        try:
            await self.call("create_table", **items.table_definition(self._table))
        except StoreError as exc:
            if "ResourceInUseException" not in str(exc):
                raise
        await self._made()
        ttl = (await self.call("describe_time_to_live"))["TimeToLiveDescription"]
        if ttl.get("TimeToLiveStatus") not in ("ENABLED", "ENABLING"):
            await self.call("update_time_to_live", **items.ttl_definition(self._table))
        with suppress(ConditionFailedError):
            await self.put(items.version_item(), found=None)

    async def _made(self) -> None:
        """Wait for a new table, which at first is not there and then is being made."""
        for _ in range(_PATIENCE):
            with suppress(LastingError):
                if (await self.call("describe_table"))["Table"]["TableStatus"] != "CREATING":
                    return
            await self._clock.sleep(1.0)
        msg = f"the table of {self._store} is not there after {_PATIENCE} seconds"
        raise StoreUnavailableError(msg)
