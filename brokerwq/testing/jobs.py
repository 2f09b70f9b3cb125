"""A job for a unit test: the worker is called as the plain function that it is."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from brokerwq.codecs import BYTES_CONTENT_TYPE, JSON_CONTENT_TYPE, JsonCodec
from brokerwq.errors import CannotExtendError, LeaseLostError
from brokerwq.job import Child, Job
from brokerwq.message import Message, new_message_id


@dataclass(slots=True, kw_only=True)
class FakeLease:
    """A lease that ends when the test says so.

    Attributes:
        remaining: Seconds; set it to what the test needs.
        limit: Seconds; the longest ``extend`` that is granted.
        lost: Set it to True to take the message away from the job.
    """

    remaining: float = 60.0
    limit: float = 43_200.0
    lost: bool = False


@dataclass(slots=True, kw_only=True)
class FakePort:
    """What runs a ``FakeJob``; nothing waits and nothing is sent.

    Attributes:
        lease: The job's lease.
        stopping: Set it to True to tell the job that the runner stops.
        state: What ``@app.lifespan`` would have given.
        extended: Seconds of every ``extend`` that was granted.
    """

    lease: FakeLease = field(default_factory=FakeLease)
    stopping: bool = False
    state: Any = None
    extended: list[float] = field(default_factory=list[float])

    async def extend(self, seconds: float, /) -> float:
        """See ``Job.extend``."""
        if self.lease.lost:
            msg = "the lease of this job was lost"
            raise LeaseLostError(msg)
        if seconds > self.lease.limit:
            msg = f"no lease is longer than {self.lease.limit:g} s"
            raise CannotExtendError(msg, limit=self.lease.limit)
        self.extended.append(seconds)
        self.lease.remaining = max(self.lease.remaining, seconds)
        return self.lease.remaining

    def run_from_thread(self, call: Callable[[], Coroutine[Any, Any, float]], /) -> float:
        """See ``Job.extend_sync``; may be called with and without a running loop."""
        coroutine = call()
        try:
            coroutine.send(None)
        except StopIteration as done:
            return float(done.value)
        coroutine.close()
        msg = "extend_sync of a fake job cannot wait"
        raise RuntimeError(msg)


class FakeJob(Job):
    """A job that no runner runs. Make one with ``job``.

    Attributes:
        port: What a test sets and looks at: ``lease``, ``stopping``, ``extended``.
    """

    __slots__ = ("port",)

    def __init__(
        self,
        *,
        message: Message,
        queue: str,
        attempt: int,
        max_attempts: int,
        port: FakePort,
        deadline: float | None = None,
    ) -> None:
        super().__init__(
            message=message,
            queue=queue,
            attempt=attempt,
            max_attempts=max_attempts,
            port=port,
            raw=message.raw,
            deadline=deadline,
        )
        self.port: FakePort = port

    @property
    def lease(self) -> FakeLease:
        """The lease; ``job.lease.lost = True`` takes the message away."""
        return self.port.lease

    @property
    def extended(self) -> Sequence[float]:
        """Seconds of every ``extend`` that was granted."""
        return tuple(self.port.extended)

    @property
    def children(self) -> Sequence[Child]:
        """What ``job.enqueue`` has collected, and a runner would send on success."""
        return tuple(self._children or ())


def job(
    payload: object = None,
    *,
    attempt: int = 1,
    max_attempts: int = 5,
    queue: str = "test",
    type: str = "",  # noqa: A002  -- the name it has everywhere else
    id: str | None = None,  # noqa: A002  -- likewise
    headers: Mapping[str, str] | None = None,
    raw: Mapping[str, object] | None = None,
    state: Any = None,
    deadline: float | None = None,
) -> FakeJob:
    """A job to call a worker with, in a unit test: ``await thumbnail(job(), image)``.

    Args:
        payload: What ``job.message.body`` shall hold: ``bytes`` as they are, None for no body,
            anything else as JSON. The worker is given its payload by the call itself.
        attempt: Number of the attempt, from 1.
        max_attempts: How many there will be at most.
        queue: The queue it comes from.
        type: The message's type.
        id: The message's id; None makes a new one.
        headers: The sender's own headers.
        raw: Native properties of a foreign message.
        state: What ``@app.lifespan`` would have given.
        deadline: Clock reading at which the time limit strikes.

    Raises:
        PayloadError: the payload cannot be written as JSON.
    """
    body, content_type = _encoded(payload)
    message = Message(
        id=new_message_id() if id is None else id,
        body=body,
        type=type,
        content_type=content_type,
        headers={} if headers is None else headers,
        created_at=datetime.now(UTC),
        attempts=attempt - 1,
        raw={} if raw is None else raw,
    )
    return FakeJob(
        message=message,
        queue=queue,
        attempt=attempt,
        max_attempts=max_attempts,
        port=FakePort(state=state),
        deadline=deadline,
    )


def _encoded(payload: object) -> tuple[bytes, str]:
    if payload is None:
        return b"", ""
    if isinstance(payload, bytes):
        return payload, BYTES_CONTENT_TYPE
    kind: Any = payload.__class__
    return JsonCodec().bind(kind).encode(payload), JSON_CONTENT_TYPE
