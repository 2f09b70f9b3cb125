"""Records in DynamoDB: one item a key, and the expressions that change it.

Times are in milliseconds, but for ``ttl``, which the service reads as seconds: it removes an
item at some time, perhaps days, after that. Whether a record has expired is decided by
``expires_ms``, always.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from brokerwq.errors import StoreError
from brokerwq.idempotency.record import Claim, Record, State, next_fence

VERSION: Final = "1"
VERSION_KEY: Final = b"brokerwq-schema"
"""Key of the one item that is no record; a record's has 16 bytes."""

Item: TypeAlias = dict[str, dict[str, Any]]
"""Attributes as the service has them: ``{"fence": {"N": "7"}}``."""

KEY_BYTES: Final = 16
SPARE_SECONDS: Final = 86_400
"""For so long the service leaves what has expired, so that a late owner finds its record."""

_NAMES: Final = re.compile(r"#(\w+)")

OURS: Final = "#owner = :owner AND #state = :in_progress"
SAME: Final = (
    "#state = :state AND #owner = :owner AND #fence = :fence AND #lease_ms = :lease_ms "
    "AND #expires_ms = :expires_ms"
)
"""That nobody has changed a record that is to be taken; with ``same_values``."""

_SAME: Final = ("state", "owner", "fence", "lease_ms", "expires_ms")
IN_PROGRESS: Final = {":in_progress": {"N": str(int(State.IN_PROGRESS))}}


def table_definition(table: str) -> dict[str, Any]:
    """The arguments of ``create_table``."""
    return {
        "TableName": table,
        "AttributeDefinitions": [{"AttributeName": "key", "AttributeType": "B"}],
        "KeySchema": [{"AttributeName": "key", "KeyType": "HASH"}],
        "BillingMode": "PAY_PER_REQUEST",
    }


def ttl_definition(table: str) -> dict[str, Any]:
    """The arguments of ``update_time_to_live``."""
    return {
        "TableName": table,
        "TimeToLiveSpecification": {"AttributeName": "ttl", "Enabled": True},
    }


def command_line(command: str, arguments: dict[str, Any]) -> str:
    """A request as the AWS command line takes it."""

    def plain(value: object) -> str:
        if isinstance(value, bytes):
            return base64.b64encode(value).decode()
        raise TypeError(type(value).__name__)

    text = json.dumps(arguments, default=plain)
    return f"aws dynamodb {command} --cli-input-json '{text}'"


def version_item() -> Item:
    """The item that tells which version the records are of."""
    return {"key": {"B": VERSION_KEY}, "version": {"S": VERSION}}


def named(*expressions: str) -> dict[str, str]:
    """``ExpressionAttributeNames`` for ``expressions``; half of our names are reserved words."""
    return {f"#{name}": name for text in expressions for name in _NAMES.findall(text)}


def number(value: float) -> dict[str, str]:
    """A number as the service has it, rounded up."""
    return {"N": str(math.ceil(value))}


def ttl_of(milliseconds: float) -> dict[str, str]:
    """The ``ttl`` of what must be there until then."""
    return number(milliseconds / 1000 + SPARE_SECONDS)


def claimed_item(claim: Claim, now: float, before: Record | None) -> Item:
    """The item of a claim that is granted.

    Args:
        claim: The claim.
        now: Milliseconds since 1970.
        before: The record that it takes; None if there is none.
    """
    lives_on = before if before is not None and is_live(before) else None
    expires = now + max(claim.retention, claim.lease) * 1000
    return {
        "key": {"B": claim.key},
        "worker": {"S": claim.worker},
        "state": IN_PROGRESS[":in_progress"],
        "owner": {"B": claim.owner},
        "fence": number(next_fence(before.fence if before else 0, math.floor(now))),
        "attempt": number(lives_on.attempt + 1 if lives_on else 1),
        "lease_ms": number(now + claim.lease * 1000),
        "payload": {"B": claim.payload},
        "message": {"S": claim.message_id},
        "generation": number(claim.generation),
        "created_ms": number(lives_on.created_at * 1000 if lives_on else now),
        "expires_ms": number(expires),
        "ttl": ttl_of(expires),
    }


def is_live(record: Record) -> bool:
    """Whether it is work that somebody has begun, and that may go on."""
    return record.state is State.IN_PROGRESS and not record.is_expired


def same_values(item: Item) -> Item:
    """The values of ``SAME``."""
    return {f":{name}": item[name] for name in _SAME}


def key_of(item: Mapping[str, Any]) -> bytes:
    """The key of an item."""
    return bytes(item["key"]["B"])


def record_of(item: Item, now: float, skew: float) -> Record:
    """The record in ``item``.

    Args:
        item: All its attributes.
        now: Milliseconds since 1970.
        skew: Seconds that are added to leases, for clocks that differ.

    Raises:
        StoreError: it is damaged.
    """
    try:
        state = State(int(item["state"]["N"]))
        expires = int(item["expires_ms"]["N"])
        lease_left = (int(item["lease_ms"]["N"]) - now) / 1000 + skew
        is_held = state is State.IN_PROGRESS and lease_left > 0
        result = item.get("result")
        return Record(
            key=key_of(item),
            worker=item["worker"]["S"],
            state=state,
            owner=bytes(item["owner"]["B"]),
            fence=int(item["fence"]["N"]),
            attempt=int(item["attempt"]["N"]),
            lease_left=lease_left,
            payload=bytes(item["payload"]["B"]),
            message_id=item["message"]["S"],
            generation=int(item["generation"]["N"]),
            result=None if result is None else result["S"],
            created_at=int(item["created_ms"]["N"]) / 1000,
            expires_at=expires / 1000,
            is_expired=expires <= now and not is_held,
        )
    except (KeyError, ValueError, TypeError, AttributeError) as exc:
        raise damaged(key_of(item), repr(exc)) from exc


def damaged(key: bytes, why: object) -> StoreError:
    """What is said of a record that makes no sense."""
    return StoreError(
        f"the record of key {key.hex()} is damaged: {why}; forget it to run its work again"
    )


def is_expired(item: Item, now: float, skew: float) -> bool:
    """Whether the record in ``item`` means nothing any more; a damaged one is for people."""
    try:
        return record_of(item, now, skew).is_expired
    except StoreError:
        return False


def is_held(item: Item | None, owner: bytes, state: State) -> bool:
    """Whether the record in ``item`` is ``owner``'s, and in ``state``."""
    if item is None:
        return False
    found = item.get("owner", {}).get("B"), item.get("state", {}).get("N")
    return found == (owner, str(int(state)))


def check_key_schema(name: str, table: Mapping[str, Any]) -> None:
    """Refuse a table of another shape.

    Raises:
        StoreError: its key is not ours.
    """
    wanted = table_definition("")
    attributes = table.get("AttributeDefinitions", [])
    types = {each["AttributeName"]: each["AttributeType"] for each in attributes}
    if table.get("KeySchema") != wanted["KeySchema"] or types.get("key") != "B":
        msg = f"the table of {name} has another primary key than key (binary): take a new table"
        raise StoreError(msg)


def check_version(name: str, item: Item | None) -> None:
    """Refuse a table that was not made ready, or for another version.

    Raises:
        StoreError: it was not.
    """
    if item is None:
        msg = f"the table of {name} was not made ready: run brokerwq keys init"
        raise StoreError(msg)
    found = item.get("version", {}).get("S")
    if found != VERSION:
        msg = (
            f"the records of {name} are of version {found!s:.20}, and this brokerwq knows "
            f"version {VERSION}: update the older one"
        )
        raise StoreError(msg)
