"""The samples beside this file: what other programs leave in a queue, and what it means."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from brokerwq_rabbitmq.table import OCTET, PROPERTIES, Properties, encode_table, encode_text

from brokerwq.clock import SystemClock

FOLDER = Path(__file__).with_name("samples")


def sample(name: str) -> Any:
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


def names(ending: str) -> list[str]:
    return sorted(path.name for path in FOLDER.glob(f"*{ending}"))


def poison_bodies() -> dict[str, bytes]:
    """Bodies that no worker with fields can read; without the one that is no bytes."""
    found: dict[str, bytes] = {}
    for row in sample("poison-bodies.json"):
        if "repeat" in row:
            character, count = row["repeat"]
            found[row["id"]] = character.encode() * count
        elif "base64" in row:
            found[row["id"]] = base64.b64decode(row["base64"])
    return found


class Since(SystemClock):
    """The machine's clock, its hands set to a moment."""

    def __init__(self, moment: str) -> None:
        self._ahead = datetime.fromisoformat(moment) - datetime.now(UTC)

    def utcnow(self) -> datetime:
        return super().utcnow() + self._ahead


def amqp_properties(found: Mapping[str, Any]) -> Properties:
    """The properties of a sample, its headers of the types that it names."""
    kinds = dict(PROPERTIES)
    return Properties(
        values={
            name: bytes((value,)) if kinds[name] == OCTET else str(value).encode()
            for name, value in found["properties"].items()
        },
        headers={name: typed(kind, value) for name, (kind, value) in found["headers"].items()},
    )


def typed(kind: str, value: Any) -> bytes:  # noqa: PLR0911  -- a table of types
    """A header value of AMQP, its type octet in front."""
    match kind:
        case "S":
            return encode_text(value)
        case "I":
            return b"I" + struct.pack(">i", value)
        case "T":
            return b"T" + struct.pack(">Q", value)
        case "t":
            return b"t" + bytes((value,))
        case "A":
            items = b"".join(typed("V" if item is None else "I", item) for item in value)
            return b"A" + struct.pack(">I", len(items)) + items
        case "F":
            assert value == {}
            return b"F" + encode_table({})
        case _:
            assert (kind, value) == ("V", None)
            return b"V"


def sqs_attributes(found: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a sample as the SDK takes them."""
    return {
        name: {
            key: base64.b64decode(text) if key == "BinaryValue" else text
            for key, text in value.items()
        }
        for name, value in found["attributes"].items()
    }
