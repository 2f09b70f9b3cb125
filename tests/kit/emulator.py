"""A client of an SQS that lets everything through, as emulators do, only more so."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

URL = "http://emulator/queue/000000000000/"


class Emulator:
    """Keeps messages, knows no rule, and notes what reaches it."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.messages: list[dict[str, Any]] = []
        self._handles = itertools.count(1)

    @asynccontextmanager
    async def clients(self, _: Any, __: Any) -> AsyncGenerator[Any]:
        yield self

    def reached(self, operation: str) -> Sequence[dict[str, Any]]:
        return [arguments for name, arguments in self.calls if name == operation]

    async def get_queue_attributes(self, **_: Any) -> dict[str, Any]:
        return {"Attributes": {}}

    async def create_queue(self, **arguments: Any) -> dict[str, Any]:
        self.calls.append(("create_queue", arguments))
        return {"QueueUrl": URL + arguments["QueueName"]}

    async def receive_message(self, **arguments: Any) -> dict[str, Any]:
        self.calls.append(("receive_message", arguments))
        count = arguments.get("MaxNumberOfMessages", 1)
        return {
            "Messages": [
                {**message, "ReceiptHandle": f"handle-{next(self._handles)}"}
                for message in self.messages[:count]
            ]
        }

    def __getattr__(self, operation: str) -> Any:
        async def call(**arguments: Any) -> dict[str, Any]:
            self.calls.append((operation, arguments))
            entries = arguments.get("Entries") or ()
            return {"Successful": [{"Id": entry["Id"]} for entry in entries]}

        return call
