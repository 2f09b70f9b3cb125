"""Batch calls: at most ten entries and 1 MiB each, and one answer per entry."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from brokerwq.driver.rules.sqs import MAX_BYTES, MAX_ENTRIES
from brokerwq.errors import (
    DriverError,
    LeaseLostError,
    MessageRefusedError,
    PermissionDeniedError,
    ProtocolError,
)
from brokerwq_sqs.client import Api
from brokerwq_sqs.errors import entry_error, unanswered
from brokerwq_sqs.queues import Queue


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a batch, without its id, and the bytes it counts for."""

    arguments: Mapping[str, Any]
    size: int = 0


async def call_batch(
    api: Api, operation: str, queue: Queue, entries: Sequence[Entry]
) -> list[DriverError | None]:
    """Call ``operation`` with all ``entries``: one slot each, None for done.

    Raises:
        DriverError: no call succeeded as a whole.
    """
    groups = list(_split(entries))
    if len(groups) == 1:
        return await _call(api, operation, queue, groups[0])
    answers = await asyncio.gather(
        *(_call(api, operation, queue, group) for group in groups), return_exceptions=True
    )
    results: list[DriverError | None] = []
    failures: list[DriverError] = []
    for group, answer in zip(groups, answers, strict=True):
        if isinstance(answer, DriverError):
            failures.append(answer)
            results += [answer] * len(group)
        elif isinstance(answer, BaseException):
            raise answer
        else:
            results += answer
    if failures and len(failures) == len(groups):
        raise failures[0]
    return results


async def probe(api: Api, queue: Queue, *, takes: bool) -> None:
    """Make calls that can have no effect, so that the service says which are not allowed.

    A handle that it never gave out is refused, and so is a batch of nothing. Where that is
    found out before the permission is looked at, nothing is learned.

    Raises:
        PermissionDeniedError: one of them is not allowed.
        DriverError: there was no answer.
    """
    handle: dict[str, Any] = {"Id": "0", "ReceiptHandle": "brokerwq-never-given-out"}
    calls: list[tuple[str, list[dict[str, Any]]]] = [("send_message_batch", [])]
    if takes:
        calls += [
            ("delete_message_batch", [handle]),
            ("change_message_visibility_batch", [{**handle, "VisibilityTimeout": 0}]),
        ]
    for operation, entries in calls:
        try:
            answer = await api(operation, queue.label, QueueUrl=queue.url, Entries=entries)
        except (ProtocolError, LeaseLostError, MessageRefusedError):
            continue  # it was looked at, and refused for what it is
        for failed in answer.get("Failed") or ():
            error = entry_error(failed, operation, queue.label)
            if isinstance(error, PermissionDeniedError):
                raise error


def _split(entries: Sequence[Entry]) -> Generator[list[Entry]]:
    group: list[Entry] = []
    size = 0
    for entry in entries:
        if group and (len(group) == MAX_ENTRIES or size + entry.size > MAX_BYTES):
            yield group
            group, size = [], 0
        group.append(entry)
        size += entry.size
    if group:
        yield group


async def _call(
    api: Api, operation: str, queue: Queue, group: Sequence[Entry]
) -> list[DriverError | None]:
    entries = [{"Id": str(nth), **entry.arguments} for nth, entry in enumerate(group)]
    answer = await api(operation, queue.label, QueueUrl=queue.url, Entries=entries)
    done = {entry["Id"] for entry in answer.get("Successful") or ()}
    failed = {entry["Id"]: entry for entry in answer.get("Failed") or ()}
    results: list[DriverError | None] = []
    for entry in entries:
        key = entry["Id"]
        if key in failed:
            results.append(entry_error(failed[key], operation, queue.label))
        else:
            results.append(None if key in done else unanswered(operation, queue.label))
    return results
