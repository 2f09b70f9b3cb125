"""The plan: what would be moved, what of it cannot be, and what the target does otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

from brokerwq.clock import Clock
from brokerwq.driver.capabilities import Capabilities
from brokerwq.driver.moving import Foresight, abilities_of
from brokerwq.driver.protocol import Delivery, Driver, QueueStats, Results
from brokerwq.errors import (
    DriverError,
    MessageTooLargeError,
    QueueNotFoundError,
    TransientError,
)
from brokerwq.migrate.cargo import REFUSALS, Cargo, cargo_of
from brokerwq.migrate.differences import Difference, compare_all
from brokerwq.migrate.fitting import Fitting
from brokerwq.migrate.looking import are_newer, know, look_through
from brokerwq.migrate.pair import Pair
from brokerwq.migrate.side import Side

DEFAULT_SAMPLE = 1000

_CHUNK = 200
_SKEW = 1.0
_CLAIM = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """A message that the target will not take.

    Attributes:
        queue: Where it is.
        id: Its id; empty for a message of another program that has none.
        type: Its type.
        reason: Why not.
    """

    queue: str
    id: str
    type: str
    reason: str


@dataclass(slots=True, kw_only=True)
class QueuePlan:
    """What is known of one queue.

    Attributes:
        source: Its name at the source.
        target: Its name at the target.
        is_dead: It holds dead letters.
        stats: The counts at the source; None where there is no such queue.
        target_exists: Whether it exists at the target; else ``run`` makes it.
        sampled: Messages looked at.
        is_complete: Whether those were all that can be claimed now.
        foreign: Those of them that other programs sent.
        made_in_future: Those that say they were made later than now, and by how many seconds
            at most: the clocks differ.
    """

    source: str
    target: str
    is_dead: bool
    stats: QueueStats | None = None
    target_exists: bool = False
    sampled: int = 0
    is_complete: bool = False
    foreign: int = 0
    made_in_future: int = 0
    skew: float = 0.0


@dataclass(slots=True, kw_only=True)
class MigrationPlan:
    """See the module.

    Attributes:
        source: URL of the source without its password.
        target: URL of the target.
        differences: What the target does otherwise, for all messages.
        queues: Queue by queue.
        misfits: Messages that the target will not take, among those looked at.
        denials: What the credentials for the target are known not to allow.
    """

    source: str
    target: str
    differences: list[Difference] = field(default_factory=list[Difference])
    queues: list[QueuePlan] = field(default_factory=list[QueuePlan])
    misfits: list[Misfit] = field(default_factory=list[Misfit])
    denials: list[str] = field(default_factory=list[str])

    @property
    def fits(self) -> bool:
        """Whether everything that was looked at can be moved, as far as is known."""
        return not self.misfits and not self.denials

    @property
    def certainty(self) -> Literal["all", "sample"]:
        """Whether every claimable message was looked at."""
        return "all" if all(queue.is_complete for queue in self.queues) else "sample"


class Planner:
    """Looks at both sides and changes nothing: what it claims it puts back uncounted.

    Args:
        source: Where messages are.
        target: Where they would go.
        keeps_raw: Both sides are brokers of one kind.
        clock: Time.
    """

    def __init__(self, source: Side, target: Side, *, keeps_raw: bool, clock: Clock) -> None:
        self._source = source
        self._target = target
        self._keeps_raw = keeps_raw
        self._clock = clock

    async def plan(self, pairs: Sequence[Pair], *, sample: int = DEFAULT_SAMPLE) -> MigrationPlan:
        """Look at up to ``sample`` messages of each queue.

        Raises:
            QueueNotFoundError: there is no such queue at the source.
            PermissionDeniedError: what is looked at could not be put back.
            DriverError: one of the sides cannot be asked.
        """
        plan = MigrationPlan(source=self._source.url, target=self._target.url)
        with suppress(TransientError):
            denials = await self._target.denials([pair.target for pair in pairs], takes=False)
            plan.denials = [str(denial) for denial in denials]
        able: dict[str, tuple[Capabilities, Capabilities]] = {}
        for pair in pairs:
            plan.queues.append(await self._look_at(pair, plan, sample, able))
        plan.differences = compare_all(able)
        return plan

    async def _look_at(
        self,
        pair: Pair,
        plan: MigrationPlan,
        sample: int,
        able: dict[str, tuple[Capabilities, Capabilities]],
    ) -> QueuePlan:
        found = QueuePlan(source=pair.source, target=pair.target, is_dead=pair.is_dead)
        target = abilities_of(self._target.driver, pair.target)
        fitting = Fitting(target, keeps_raw=self._keeps_raw)
        found.target_exists = await _exists(self._target, pair.target)
        await know(self._source, pair)
        try:
            with self._source.named():
                found.stats = await self._source.driver.inspect(pair.source)
        except QueueNotFoundError as error:
            if not pair.is_dead:
                msg = f"there is no queue {pair.source} at {self._source.url}"
                raise QueueNotFoundError(msg) from error
            found.is_complete = True
            return found
        started = self._clock.utcnow()
        async with look_through(self._source, pair, self._clock, max_held=sample) as sweep:
            if not pair.is_dead:
                able[pair.source] = sweep.capabilities, target
            while claimed := await sweep.claim(min(_CLAIM, sweep.max_claim)):
                await self._judge(claimed, pair, found, plan, fitting)
                if are_newer([delivery.message for delivery in claimed], started):
                    break
            # One that was full to the brim may have been all there was.
            found.is_complete = sweep.is_complete or found.sampled == found.stats.ready.value
        return found

    async def _judge(
        self,
        claimed: Sequence[Delivery],
        pair: Pair,
        found: QueuePlan,
        plan: MigrationPlan,
        fitting: Fitting,
    ) -> None:
        now = self._clock.utcnow()
        cargo: list[Cargo] = []
        for delivery in claimed:
            message = delivery.message
            found.sampled += 1
            found.foreign += bool(message.raw)
            ahead = (
                0.0 if message.created_at is None else (message.created_at - now).total_seconds()
            )
            if ahead > _SKEW:
                found.made_in_future += 1
                found.skew = max(found.skew, ahead)
            cargo.append(
                cargo_of(
                    delivery,
                    now=now,
                    is_dead=pair.is_dead,
                    forgiven=0,
                    keeps_raw=self._keeps_raw,
                )
            )
        with self._target.named():
            answers = await foresee(self._target.driver, pair.target, cargo)
        for delivery, one, answer in zip(claimed, cargo, answers, strict=True):
            error = fitting.obstacle(delivery, one) or answer
            if error is None:
                fitting.accepted(one)
            else:
                message = delivery.message
                plan.misfits.append(
                    Misfit(queue=pair.source, id=message.id, type=message.type, reason=str(error))
                )


async def foresee(driver: Driver, queue: str, cargo: Sequence[Cargo]) -> list[DriverError | None]:
    """What the target would refuse; by its size alone where the adapter cannot tell."""
    answers: list[DriverError | None] = []
    limit = abilities_of(driver, queue).max_send_delay
    for start in range(0, len(cargo), _CHUNK):
        part = cargo[start : start + _CHUNK]
        if isinstance(driver, Foresight):
            delays = [min(one.delay, limit) for one in part]
            told: Results = await driver.foresee(queue, [one.message for one in part], delays)
            answers += [each if isinstance(each, REFUSALS) else None for each in told]
        else:
            answers += [_too_large(driver, one) for one in part]
    return answers


def _too_large(driver: Driver, one: Cargo) -> DriverError | None:
    message, limit = one.message, driver.capabilities.max_message_bytes
    size = len(message.body) + sum(
        len(text.encode("utf-8", "surrogatepass"))
        for pair in message.headers.items()
        for text in pair
    )
    if size <= limit:
        return None
    return MessageTooLargeError(f"it has {size} bytes and more; the target takes {limit:g}")


async def _exists(side: Side, queue: str) -> bool:
    try:
        with side.named():
            await side.driver.inspect(queue)
    except QueueNotFoundError:
        return False
    return True
