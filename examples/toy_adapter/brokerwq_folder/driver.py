"""A queue is a folder, a message a file in it; one lock is held for every look and change.

Times are the clock's, so that the files are good for one boot of the machine.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote, unquote

from anyio.lowlevel import checkpoint

from brokerwq import envelope
from brokerwq.clock import Clock
from brokerwq.driver import (
    Capabilities,
    Count,
    Delivery,
    Difference,
    Mark,
    QueueSpec,
    QueueStats,
    Results,
)
from brokerwq.durations import positive_seconds, seconds_of
from brokerwq.errors import (
    ClosedError,
    ConfigError,
    DriverError,
    LeaseLostError,
    QueueNotFoundError,
)
from brokerwq.message import DeadLetterNote, Message

CAPABILITIES = Capabilities(max_claim=100, max_settle=100, max_send=100, lists_queues=True)
_numbers = itertools.count()

Batch: TypeAlias = Sequence[Delivery]
Floats: TypeAlias = Sequence[float]
Record: TypeAlias = dict[str, Any]
"""A file: headers, body, sent, receives; ``at``: when its lease or delay ends; ``token``: the
lease's own, empty without one."""
Fate: TypeAlias = "tuple[str, Record, float] | float | None"
"""Of a leased message: goes to that queue as that record after so long; leased until; deleted."""


class FolderDriver:
    """See ``brokerwq.driver.Driver``."""

    capabilities = CAPABILITIES

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.folder, self.clock, self.is_open = folder, clock, False

    async def open(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.is_open = True

    async def aclose(self) -> None:
        self.is_open = False

    async def send(self, queue: str, messages: Sequence[Message], delays: Floats, /) -> Results:
        waits = [seconds_of(delay, "delay", floor=0.0) for delay in delays]
        await checkpoint()
        with self.locked() as now:
            self.properties(queue)
            for message, wait in zip(messages, waits, strict=True):
                self.put(queue, record_of(message) | {"sent": now, "receives": 0}, wait)
        return [None] * len(messages)

    async def consume(self, queue: str, /, *, lease: float | None, prefetch: int) -> FolderConsumer:
        await checkpoint()
        with self.locked():
            own = self.properties(queue)["lease"]
        return FolderConsumer(self, queue, positive_seconds(lease or own or 60.0, "lease"))

    async def declare(self, spec: QueueSpec, /, *, check_only: bool = False) -> list[Difference]:
        dead = spec.dead_letter_queue
        good = [0 < len(name) < 60 and name.isprintable() for name in (spec.name, dead)]
        if spec.name == dead or not all(good):
            raise ConfigError(f"two names of 1 to 60 characters, not {spec.name!r} and {dead!r}")
        await checkpoint()
        with self.locked():
            found = self.properties(spec.name, must_exist=check_only)
            other = self.properties(dead, must_exist=check_only)
            pairs: Record = {"ordered": (spec.ordered, False), "retention": (spec.retention, None)}
            if check_only or found.get("dead_letter"):
                pairs["dead_letter"] = (dead, found["dead_letter"])
            differences = [
                Difference(queue=spec.name, property=name, wanted=wanted, found=actual)
                for name, (wanted, actual) in pairs.items()
                if wanted != actual
            ]
            if not differences and not check_only:
                lease = found.get("lease") if spec.lease is None else spec.lease
                self.write(self.path(spec.name) / "it", {"dead_letter": dead, "lease": lease})
                self.write(self.path(dead) / "it", other or {"dead_letter": None, "lease": None})
        return differences

    async def inspect(self, queue: str, /) -> QueueStats:
        await checkpoint()
        with self.locked() as now:
            dead = self.properties(queue)["dead_letter"]
            records = [record for _, record in self.messages(queue)]
            ages = [now - record["sent"] for record in records if record["at"] <= now]
            due = [r["at"] - now for r in records if r["at"] > now and not r["token"]]
            return QueueStats(
                ready=Count(len(ages)),
                leased=Count(len(records) - len(ages) - len(due)),
                delayed=Count(len(due)),
                dead=Count(len(self.messages(dead)) if dead else 0),
                oldest_age=max(ages, default=None),
                next_due=min(due, default=None),
            )

    async def purge(self, queue: str, /) -> None:
        await checkpoint()
        with self.locked() as now:
            self.properties(queue)
            for file, record in self.messages(queue):
                if record["at"] <= now or not record["token"]:
                    file.unlink()

    async def queues(self) -> Sequence[str]:
        await checkpoint()
        with self.locked():
            return sorted(unquote(path.stem) for path in self.folder.glob("*.queue"))

    @contextmanager
    def locked(self, *, is_open: bool = True) -> Generator[float]:
        """Keep out others, in this process and elsewhere; yields what time it is."""
        if not (self.is_open and is_open):
            raise ClosedError("it is not open")
        with (self.folder / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield self.clock.now()

    def path(self, queue: str) -> Path:
        return self.folder / f"{quote(queue, safe='')}.queue"

    def properties(self, queue: str, *, must_exist: bool = True) -> Record:
        file = self.path(queue) / "it"
        if must_exist and not file.exists():
            raise QueueNotFoundError(f"no queue {queue!r:.100} in {self.folder}; declare it first")
        return dict(json.loads(file.read_text())) if file.exists() else {}

    def messages(self, queue: str) -> list[tuple[Path, Record]]:
        files = sorted(self.path(queue).glob("*.json"))
        return [(file, json.loads(file.read_text())) for file in files]

    def write(self, file: Path, record: Record) -> None:
        file.parent.mkdir(exist_ok=True)
        file.with_suffix(".new").write_text(json.dumps(record))
        file.with_suffix(".new").replace(file)

    def put(self, queue: str, record: Record, delay: float) -> None:
        now = self.clock.now()  # the files' names keep them in order
        file = self.path(queue) / f"{now:020.6f}-{next(_numbers):09}-{os.getpid()}.json"
        self.write(file, record | {"at": now + delay if delay > 0 else 0.0, "token": ""})


def record_of(message: Message) -> Record:
    return {"headers": envelope.encode(message), "body": message.body.decode("latin-1")}


def changed(record: Record, change: Callable[[Message], Message]) -> Record:
    message = envelope.decode(record["headers"], record["body"].encode("latin-1"))[0]
    return record | record_of(change(message)) | {"receives": 0}


class FolderConsumer:
    """See ``brokerwq.driver.Consumer``."""

    def __init__(self, driver: FolderDriver, queue: str, lease: float) -> None:
        self.lease = lease
        self._driver, self._queue, self._is_open, self._is_quiesced = driver, queue, True, False

    async def claim(self, max_items: int, wait: float, /) -> Batch:
        await checkpoint()  # cancelled here, nothing was taken; nothing is held while it waits
        deadline = self._driver.clock.now() + wait
        while True:
            with self._driver.locked(is_open=self._is_open) as now:
                messages = [] if self._is_quiesced else self._driver.messages(self._queue)
                ready = [each for each in messages if each[1]["at"] <= now][: max(0, max_items)]
                taken = [self._lend(file, record, now) for file, record in ready]
            if taken or self._is_quiesced or now >= deadline:
                return taken
            await self._driver.clock.sleep(0.05)

    def _lend(self, file: Path, record: Record, now: float) -> Delivery:
        token, receives = os.urandom(8).hex(), record["receives"] + 1
        lent = {"at": now + self.lease, "token": token, "receives": receives}
        self._driver.write(file, record | lent)
        message, defect = envelope.decode(record["headers"], record["body"].encode("latin-1"))
        return Delivery(
            message=message,
            queue=self._queue,
            handle=(file, token),
            receives=receives,
            lease_left=self.lease,
            defect=defect,
        )

    async def ack(self, batch: Batch, /) -> Results:
        return await self._settle(batch, lambda _, __: None)

    async def extend(self, batch: Batch, seconds: float, /) -> Results:
        until = self._driver.clock.now() + positive_seconds(seconds, "lease")
        return await self._settle(batch, lambda _, __: until)

    async def release(self, batch: Batch, delays: Floats, /) -> Results:
        return await self._settle(batch, lambda n, record: (self._queue, record, delays[n]))

    async def put_back(self, batch: Batch, delays: Floats, marks: Sequence[Mark], /) -> Results:
        return await self._settle(
            batch, lambda n, record: (self._queue, changed(record, marks[n].on), delays[n])
        )

    async def dead_letter(self, batch: Batch, notes: Sequence[DeadLetterNote], /) -> Results:
        def bury(nth: int, record: Record) -> Fate:
            target = self._driver.properties(self._queue)["dead_letter"]
            if target is None:
                raise QueueNotFoundError(f"{self._queue} has no dead-letter queue")
            dead = changed(record, lambda message: replace(message, attempts=0, dead=notes[nth]))
            return target, dead, 0.0

        return await self._settle(batch, bury)

    async def _settle(self, batch: Batch, decide: Callable[[int, Record], Fate]) -> Results:
        await checkpoint()
        with self._driver.locked(is_open=self._is_open) as now:
            return [self._change(nth, each, decide, now) for nth, each in enumerate(batch)]

    def _change(
        self, nth: int, held: Delivery, decide: Callable[[int, Record], Fate], now: float
    ) -> DriverError | None:
        handle: Any = held.handle
        file, token = handle
        record: Record = json.loads(file.read_text()) if file.exists() else {"token": None}
        if record["token"] != token or record["at"] <= now:
            return LeaseLostError(f"the lease of {held.message.id:.100} has ended")
        try:
            fate = decide(nth, record)
        except DriverError as exc:
            return exc
        if isinstance(fate, tuple):
            self._driver.put(*fate)
        if fate is None or isinstance(fate, tuple):
            file.unlink()
        else:
            self._driver.write(file, record | {"at": fate})
        return None

    async def quiesce(self) -> None:
        self._is_quiesced = True

    async def aclose(self) -> None:
        self._is_open = False
