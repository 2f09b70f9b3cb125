"""Faults of Amazon SQS that no emulator shows, put between the adapter and any server.

Real SQS throttles, refuses single entries of a batch it answers 200, delivers twice and out of
order, answers a short poll with nothing, and acts on requests whose answer is lost. Give
``SqsFaults.clients`` to ``SqsSettings.clients`` and say what shall go wrong::

    faults = SqsFaults(SdkClients(settings))
    faults.then("send_message_batch", throttled())
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from brokerwq.clock import SYSTEM_CLOCK, Clock

Factory: TypeAlias = Callable[[Any, Any], AbstractAsyncContextManager[Any]]


@dataclass(frozen=True, slots=True)
class Call:
    """One call that a fault may spoil.

    Attributes:
        operation: The client's method.
        arguments: What it was given.
        proceed: Makes the real call, with ``arguments`` or others.
    """

    operation: str
    arguments: dict[str, Any]
    proceed: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


Fault: TypeAlias = Callable[[Call], Awaitable[dict[str, Any]]]


class SqsFaults:
    """Decides for every call of every client it makes whether and how it fails.

    Attributes:
        calls: How often each operation was called.
        received: How many messages the receives have brought.
    """

    def __init__(self, inner: Factory, *, seed: int = 0) -> None:
        self._inner = inner
        self._random = random.Random(seed)  # noqa: S311  -- chance for tests, no secret
        self._next: defaultdict[str, deque[Fault]] = defaultdict(deque)
        self._often: list[tuple[str, float, Fault]] = []
        self.calls: Counter[str] = Counter()
        self.received = 0

    def then(self, operation: str, *faults: Fault) -> None:
        """Let the next calls of ``operation`` meet ``faults``, one each, in order."""
        self._next[operation].extend(faults)

    def often(self, operation: str, share: float, fault: Fault) -> None:
        """Let a ``share`` of the calls of ``operation`` (``*``: of all) meet ``fault``."""
        self._often.append((operation, share, fault))

    def stop(self) -> None:
        """From now on nothing fails."""
        self._next.clear()
        self._often.clear()

    @asynccontextmanager
    async def clients(self, settings: Any, role: Any) -> AsyncGenerator[Any]:
        """A client factory, see ``SqsSettings.clients``."""
        async with self._inner(settings, role) as client:
            yield _FaultyClient(client, self)

    def choose(self, operation: str) -> Fault | None:
        """What the call that begins now shall meet."""
        self.calls[operation] += 1
        if self._next[operation]:
            return self._next[operation].popleft()
        for wanted, share, fault in self._often:
            if wanted in ("*", operation) and self._random.random() < share:
                return fault
        return None


class _FaultyClient:
    def __init__(self, client: Any, faults: SqsFaults) -> None:
        self._client = client
        self._faults = faults

    def __getattr__(self, operation: str) -> Callable[..., Awaitable[dict[str, Any]]]:
        method: Callable[..., Awaitable[dict[str, Any]]] = getattr(self._client, operation)

        async def proceed(arguments: dict[str, Any]) -> dict[str, Any]:
            return await method(**arguments)

        async def call(**arguments: Any) -> dict[str, Any]:
            fault = self._faults.choose(operation)
            if fault is None:
                answer = await proceed(arguments)
            else:
                answer = await fault(Call(operation, arguments, proceed))
            self._faults.received += len(answer.get("Messages") or ())
            return answer

        return call


def refused(code: str, status: int = 400, message: str = "injected") -> Fault:
    """The service answers with an error and does nothing."""

    async def fault(call: Call) -> dict[str, Any]:
        from botocore.exceptions import ClientError  # noqa: PLC0415  -- of the extra

        answer = {
            "Error": {"Code": code, "Message": message, "Type": "Sender"},
            "ResponseMetadata": {"HTTPStatusCode": status},
        }
        raise ClientError(cast("Any", answer), call.operation)

    return fault


def throttled() -> Fault:
    """The service asks for fewer requests."""
    return refused("RequestThrottled")


def unavailable() -> Fault:
    """The service has an error of its own."""
    return refused("ServiceUnavailable", 503)


def denied() -> Fault:
    """The credentials do not allow the call."""
    return refused("AccessDenied", 403)


def answer_lost() -> Fault:
    """The service acts, and its answer never arrives."""

    async def fault(call: Call) -> dict[str, Any]:
        from botocore.exceptions import ReadTimeoutError  # noqa: PLC0415  -- of the extra

        await call.proceed(call.arguments)
        raise ReadTimeoutError(endpoint_url="injected")

    return fault


def hanging(seconds: float, clock: Clock = SYSTEM_CLOCK) -> Fault:
    """The answer takes ``seconds`` longer."""

    async def fault(call: Call) -> dict[str, Any]:
        await clock.sleep(seconds)
        return await call.proceed(call.arguments)

    return fault


def hanging_for_good() -> Fault:
    """No answer ever comes, and nothing happens."""

    async def fault(_: Call) -> dict[str, Any]:
        await asyncio.get_running_loop().create_future()
        return {}

    return fault


def partly_failed(*places: int, code: str = "InternalError", sender_fault: bool = False) -> Fault:
    """The entries at ``places`` fail in an answer of 200; the others are done."""

    async def fault(call: Call) -> dict[str, Any]:
        entries: Sequence[dict[str, Any]] = call.arguments["Entries"]
        failed = [entries[place] for place in places if place < len(entries)]
        kept = [entry for entry in entries if entry not in failed]
        answer: dict[str, Any] = {}
        if kept:
            answer = await call.proceed({**call.arguments, "Entries": kept})
        told = [
            {"Id": entry["Id"], "Code": code, "SenderFault": sender_fault, "Message": "injected"}
            for entry in failed
        ]
        return {**answer, "Failed": [*(answer.get("Failed") or ()), *told]}

    return fault


def left_out(*places: int) -> Fault:
    """The entries at ``places`` are done, and the answer does not mention them."""

    async def fault(call: Call) -> dict[str, Any]:
        answer = await call.proceed(call.arguments)
        ids = {call.arguments["Entries"][place]["Id"] for place in places}
        told = [entry for entry in answer.get("Successful") or () if entry["Id"] not in ids]
        return {**answer, "Successful": told}

    return fault


def without_effect() -> Fault:
    """Every entry is answered as done, and nothing happens."""

    async def fault(call: Call) -> dict[str, Any]:
        return {"Successful": [{"Id": entry["Id"]} for entry in call.arguments["Entries"]]}

    return fault


def nothing_there() -> Fault:
    """A receive that brings nothing although there may be messages."""

    async def fault(_: Call) -> dict[str, Any]:
        return {}

    return fault


def twice() -> Fault:
    """Every received message is delivered twice in one answer."""

    async def fault(call: Call) -> dict[str, Any]:
        answer = await call.proceed(call.arguments)
        messages: list[Any] = answer.get("Messages") or []
        return {**answer, "Messages": [*messages, *messages]}

    return fault


class Handles:
    """The handles that were given out, so that the older ones of a message can be refused.

    The service need not heed any but a message's newest handle; no emulator shows it::

        handles = Handles()
        faults.often("receive_message", 1.0, handles.noting())
        faults.often("delete_message_batch", 1.0, handles.newest_only())
    """

    def __init__(self) -> None:
        self._newest: dict[str, str] = {}
        self._message_of: dict[str, str] = {}

    def noting(self) -> Fault:
        """A receive as it is, its handles noted."""

        async def fault(call: Call) -> dict[str, Any]:
            answer = await call.proceed(call.arguments)
            for message in answer.get("Messages") or ():
                self._newest[message["MessageId"]] = message["ReceiptHandle"]
                self._message_of[message["ReceiptHandle"]] = message["MessageId"]
            return answer

        return fault

    def newest_only(self) -> Fault:
        """Entries whose handle is not the newest of their message fail alone."""

        async def fault(call: Call) -> dict[str, Any]:
            entries: Sequence[dict[str, Any]] = call.arguments["Entries"]
            stale = [
                place
                for place, entry in enumerate(entries)
                if self._newest.get(self._message_of.get(entry["ReceiptHandle"], ""))
                != entry["ReceiptHandle"]
            ]
            return await partly_failed(*stale, code="ReceiptHandleIsInvalid")(call)

        return fault


def reordered() -> Fault:
    """Received messages come in the opposite order."""

    async def fault(call: Call) -> dict[str, Any]:
        answer = await call.proceed(call.arguments)
        return {**answer, "Messages": [*reversed(answer.get("Messages") or [])]}

    return fault
