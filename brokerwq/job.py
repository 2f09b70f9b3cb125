"""The job: one attempt at running one message, and the context object for it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, Unpack, overload

from brokerwq.durations import Seconds, positive_seconds
from brokerwq.limits import MAX_LEASE
from brokerwq.message import Message, child_message_id, new_message_id
from brokerwq.tx import Tx

if TYPE_CHECKING:
    from brokerwq.workers.worker import KeywordWorker, PayloadWorker, SendOptions

P = ParamSpec("P")
T = TypeVar("T")


class JobLease(Protocol):
    """How long the message is still ours."""

    @property
    def remaining(self) -> float:
        """Seconds for which nobody else can have the message; 0 once it is lost."""
        ...

    @property
    def limit(self) -> float:
        """Longest time in seconds that one receive may be held at this broker."""
        ...

    @property
    def lost(self) -> bool:
        """Whether another runner may have the message by now. May be asked in any thread."""
        ...


class JobPort(Protocol):
    """What a job needs from whatever runs it."""

    @property
    def lease(self) -> JobLease: ...  # noqa: D102

    @property
    def stopping(self) -> bool: ...  # noqa: D102

    @property
    def state(self) -> Any: ...  # noqa: D102

    async def extend(self, seconds: float, /) -> float: ...  # noqa: D102

    def run_from_thread(self, call: Callable[[], Coroutine[Any, Any, float]], /) -> float: ...  # noqa: D102


class Job:
    """One attempt at running one message.

    Attributes:
        message: The message as it was claimed.
        queue: The queue it came from.
        attempt: This attempt's number over all copies of the message, from 1.
        max_attempts: How many there will be at most.
        raw: Native properties and headers of a foreign message, with their types.
        deadline: Clock reading at which the time limit strikes; None without one.
        idempotency_key: The same text at every attempt at this work and for all its
            duplicates: what a remote API may be given as its own key. With ``once`` the
            digest of the worker's key; else the message's key or id.
        fence: With ``once="marker"`` or ``"lease_tx"``: higher for each later owner of the
            work, so that what is written to can refuse the late writes of an earlier one. 0
            without.
        takeover: An earlier owner vanished in the middle of the work.
        tx: The transaction, which the worker is also given; None without one.
    """

    __slots__ = (
        "_children",
        "_port",
        "attempt",
        "deadline",
        "fence",
        "idempotency_key",
        "max_attempts",
        "message",
        "queue",
        "raw",
        "takeover",
        "tx",
    )

    def __init__(
        self,
        *,
        message: Message,
        queue: str,
        attempt: int,
        max_attempts: int,
        port: JobPort,
        raw: Mapping[str, object],
        deadline: float | None = None,
    ) -> None:
        self.message: Message = message
        self.queue: str = queue
        self.attempt: int = attempt
        self.max_attempts: int = max_attempts
        self.raw: Mapping[str, object] = raw
        self.deadline: float | None = deadline
        self.idempotency_key: str = message.key or message.id
        self.fence: int = 0
        self.takeover: bool = False
        self.tx: Tx | None = None
        self._port = port
        self._children: list[Child] | None = None

    @property
    def id(self) -> str:
        """The message's id: the same at every attempt, after a redrive, at every broker."""
        return self.message.id

    @property
    def type(self) -> str:
        """The message's type; of a foreign message what its codec reads, else empty."""
        return self.message.type

    @property
    def headers(self) -> Mapping[str, str]:
        """The sender's own headers."""
        return self.message.headers

    @property
    def enqueued_at(self) -> datetime | None:
        """When it was first sent; None where a foreign sender did not say."""
        return self.message.created_at

    @property
    def lease(self) -> JobLease:
        """How long the message is still ours."""
        return self._port.lease

    @property
    def stopping(self) -> bool:
        """Whether the runner is stopping: finish soon, or raise ``Snooze``."""
        return self._port.stopping

    @property
    def state(self) -> Any:
        """What ``@app.lifespan`` gave this process."""
        return self._port.state

    async def extend(self, seconds: Seconds, /) -> float:
        """Make the lease end ``seconds`` from now, if it would end sooner.

        The heartbeat does this by itself for as long as the job runs; ask for more before a
        stretch in which nothing of this process can run.

        Returns:
            Seconds the lease now runs.

        Raises:
            LeaseLostError: it has ended already.
            CannotExtendError: the broker gives no more; ``limit`` says how much in all.
        """
        return await self._port.extend(positive_seconds(seconds, "seconds", limit=MAX_LEASE))

    def extend_sync(self, seconds: Seconds, /) -> float:
        """``extend`` for a plain function, which runs in a thread."""
        return self._port.run_from_thread(lambda: self.extend(seconds))

    @overload
    def enqueue(
        self,
        worker: PayloadWorker[..., T, object],
        payload: T,
        /,
        **options: Unpack[SendOptions],
    ) -> str: ...
    @overload
    def enqueue(
        self, worker: KeywordWorker[..., P, object], /, *args: P.args, **kwargs: P.kwargs
    ) -> str: ...
    def enqueue(self, worker: Any, /, *args: Any, **kwargs: Any) -> str:
        """Send a message once this job has succeeded, and before it is acked.

        Its id is derived from this message's, so that a second run of this job sends the
        same one. Nothing is sent if the job fails.

        Returns:
            The id it will have.
        """
        children = self._children
        if children is None:
            children = self._children = []
        # A foreign message may have no id; then nothing can be told apart by it.
        child_id = child_message_id(self.id, len(children)) if self.id else new_message_id()
        children.append(worker.child(child_id, self.id, args, kwargs))
        return child_id

    def take_children(self) -> list[Child]:
        """What ``enqueue`` collected; for whoever runs the job."""
        children, self._children = self._children or [], None
        return children


class Child(Protocol):
    """A message that a job will send when it succeeds."""

    @property
    def queue(self) -> str: ...  # noqa: D102

    @property
    def message(self) -> Message: ...  # noqa: D102

    @property
    def delay(self) -> float: ...  # noqa: D102
