"""From a claimed message to its settle: who runs it, whether at all, and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from hashlib import blake2b

from brokerwq._runtime.execution import Ended, Shared, Work, execute
from brokerwq._runtime.lane import Lane
from brokerwq._runtime.leases import Held, LeaseKeeper
from brokerwq._runtime.route import Route
from brokerwq._runtime.settler import Settle
from brokerwq._runtime.slots import Slots
from brokerwq._runtime.strangers import named
from brokerwq._runtime.tally import Tally
from brokerwq._runtime.verdict import Verdict, is_crash_suspect
from brokerwq.errors import DriverError, LeaseLostError
from brokerwq.events import DeadLettered, JobEnded, JobStarted

_HELD_PAUSE = 60.0
_MOST_ON_HOLD = 100_000
"""Messages that are remembered; a drain does not end while more are held."""
_TWIN_PAUSE = 1.0
"""Seconds after which a message is offered again whose id still runs in this process."""


class Dispatcher:
    """Takes claimed messages in, and runs what the slots give it.

    Args:
        shared: What all jobs share.
        tally: Counts.
        lanes: The open lanes.
    """

    def __init__(self, shared: Shared, tally: Tally, lanes: Mapping[LeaseKeeper, Lane]) -> None:
        self.is_isolating = False
        self._shared = shared
        self._tally = tally
        self._lanes = lanes
        self._slots: Slots
        self._suspect: Callable[[Lane, Held, Route], object]
        self._beside: Callable[[Lane, Held], object]
        self._watch: Callable[[], object]
        self._ids: dict[str, Held] = {}
        self._on_hold: dict[str, set[str]] = {}

    def join(
        self,
        slots: Slots,
        *,
        suspect: Callable[[Lane, Held, Route], object],
        beside: Callable[[Lane, Held], object],
        watch: Callable[[], object],
    ) -> None:
        """Meet the parts that must know it themselves; before anything is accepted.

        Args:
            slots: What runs the jobs, by ``run``.
            suspect: Given a crash suspect instead of a slot.
            beside: Given what is claimed while one runs alone.
            watch: Told that a handler is about to be called.
        """
        self._slots = slots
        self._suspect = suspect
        self._beside = beside
        self._watch = watch

    @property
    def is_stopping(self) -> bool:
        """Nothing new is started any more."""
        return self._shared.stopping

    # -- taking in ------------------------------------------------------------------------

    def accept(self, lane: Lane, held: Held) -> None:
        """Give one claimed message a slot, or settle it at once."""
        if self.is_stopping:
            self.put_back(lane, held)
            return
        if self.is_isolating:
            self._beside(lane, held)
            return
        route = lane.route_of(held)
        now = self._shared.clock.utcnow()
        if route is None or held.view.defect:
            self._end(lane, held, self._verdict_on_stranger(lane, held, now))
            return
        delivery = held.view
        max_attempts = route.retry.max_attempts
        verdict = lane.judge.before_start(
            delivery, max_attempts=max_attempts, now=now, reading=held.reading
        )
        if verdict is None and delivery.message.id in self._ids:
            verdict = lane.judge.not_started(delivery, _TWIN_PAUSE, now=now)
        if verdict is not None:
            self._end(lane, held, verdict, route=route)
        elif is_crash_suspect(delivery, max_attempts):
            self._suspect(lane, held, route)
        elif lane.buffer is not None:
            self._remember(held)
            lane.buffer.add(held)
        else:
            self.start_alone(route, held)

    def _verdict_on_stranger(self, lane: Lane, held: Held, now: datetime) -> Verdict:
        """What becomes of a message that cannot be read, or that nobody here runs."""
        delivery = held.view
        if delivery.defect:
            # What the codec says of another program's message is said by itself.
            where = "unreadable envelope: " if held.delivery.defect else ""
            return lane.judge.undecodable(delivery, f"{where}{delivery.defect}", now)
        if not held.delivery.message.type and lane.strangers.leaves_unknown:
            return lane.judge.left(delivery, now)
        return lane.judge.unknown_type(delivery, now)

    def start_alone(self, route: Route, held: Held) -> None:
        """Give ``held`` to the slots by itself."""
        self._remember(held)
        self._slots.put(Work(route, [held]))

    def _remember(self, held: Held) -> None:
        if held.view.message.id:
            self._ids[held.view.message.id] = held

    def _forget(self, held: Held) -> None:
        # Another copy, turned away because this id runs, must not end the watch over it.
        if self._ids.get(held.view.message.id) is held:
            del self._ids[held.view.message.id]

    def start_batch(self, route: Route, helds: list[Held]) -> None:
        """Give the messages of one batch call to the slots."""
        self._slots.put(Work(route, helds))

    def put_back(self, lane: Lane, held: Held, delay: float = 0.0) -> None:
        """Return a message unrun and uncounted, for somebody else."""
        self._forget(held)
        now = self._shared.clock.utcnow()
        self._end(lane, held, lane.judge.not_started(held.view, delay, now=now))

    def put_back_stale(self, works: Sequence[Work]) -> None:
        """Return what has waited too long for a slot."""
        for work in works:
            for held in work.helds:
                self.put_back(self._lane_of(held), held, work.pause)

    def put_back_unstarted(self, works: Sequence[Work]) -> None:
        """Return what waits for a slot, and what waits for its batch to fill."""
        self.put_back_stale(works)
        for lane, held in self._unfilled():
            self.put_back(lane, held)

    def set_aside(self, works: Sequence[Work]) -> None:
        """The same for what a crash suspect must not find beside it."""
        unstarted = [(self._lane_of(held), held) for work in works for held in work.helds]
        for lane, held in unstarted + self._unfilled():
            self._forget(held)
            self._beside(lane, held)

    def _unfilled(self) -> list[tuple[Lane, Held]]:
        return [
            (lane, held)
            for lane in self._lanes.values()
            if lane.buffer is not None
            for held in lane.buffer.take()
        ]

    # -- running --------------------------------------------------------------------------

    async def run(self, work: Work) -> None:
        """Run one ``Work`` in the calling slot and hand its messages to the settlers."""
        for held in [held for held in work.helds if held.lost]:
            # Its lease ended while it waited; somebody else may have it by now.
            work.helds.remove(held)
            self._finish(held, Verdict("release", "lost"))
        if not work.helds:
            return
        self._watch()
        for ended in await execute(self._shared, work, self._announce):
            self._finish(ended.held, self._verdict(ended, work), ended, work.route)

    def _announce(self, work: Work) -> None:
        if work.instrumentation is None or not self._shared.detailed:
            return
        emit = work.instrumentation.emit
        for held in work.helds:
            message = held.view.message
            attempt = held.view.attempt
            emit(
                JobStarted(queue=held.view.queue, type=message.type, id=message.id, attempt=attempt)
            )

    def _verdict(self, ended: Ended, work: Work) -> Verdict:
        delivery = ended.held.view
        judge = self._lane_of(ended.held).judge
        now = self._shared.clock.utcnow()
        if ended.undecodable:
            return judge.undecodable(delivery, ended.undecodable, now)
        if ended.skip is not None:
            return judge.skipped(delivery, ended.skip, now)
        if work.cause == "lost":
            return Verdict("release", "lost")
        if ended.cancelled:
            return judge.cancelled(delivery, now)
        return judge.after(
            delivery,
            ended.outcome,
            policy=work.route.retry,
            error=ended.error,
            label=ended.label,
            now=now,
        )

    def _finish(
        self,
        held: Held,
        verdict: Verdict,
        ended: Ended | None = None,
        route: Route | None = None,
    ) -> None:
        self._end(self._lane_of(held), held, verdict, ended, route)

    # -- settling -------------------------------------------------------------------------

    def _end(
        self,
        lane: Lane,
        held: Held,
        verdict: Verdict,
        ended: Ended | None = None,
        route: Route | None = None,
    ) -> None:
        if lane.spec.on_dead == "hold":
            verdict = self._or_held(lane, held, verdict, route)
        if verdict.note is not None and lane.spec.dead_letter_via is None:
            verdict = replace(verdict, note=named(held, verdict.note))
        is_news = self._shared.detailed or verdict.label != "done"
        told = held.keeper.instrumentation
        if is_news and told is not None:
            message = held.view.message
            told.emit(
                JobEnded(
                    queue=lane.queue,
                    type=message.type,
                    id=message.id,
                    attempt=held.view.attempt,
                    outcome=verdict.label,
                    counted=verdict.counted,
                    seconds=ended.seconds if ended else 0.0,
                    error_type=_class_name(ended.error) if ended else "",
                    reason=verdict.reason,
                    error=ended.error if ended else None,
                )
            )
        lane.settler.settle(held, verdict, self._concluded)

    def _or_held(self, lane: Lane, held: Held, verdict: Verdict, route: Route | None) -> Verdict:
        """``verdict``, or what stands for a dead letter where there is no queue for it."""
        message = held.view.message
        on_hold = self._on_hold.setdefault(lane.title, set())
        key = message.id or blake2b(message.body).hexdigest()
        if verdict.operation != "dead_letter":
            on_hold.discard(key)
            return verdict
        if len(on_hold) >= _MOST_ON_HOLD:
            on_hold.clear()  # each comes round again
        on_hold.add(key)
        return lane.judge.held(
            held.view,
            verdict,
            # Longer than what a drain waits for: this one does not come to an end.
            pause=lane.longest_wait + _HELD_PAUSE,
            max_attempts=0 if route is None else route.retry.max_attempts,
        )

    def on_hold(self, lane: Lane) -> int:
        """How many messages of its queue are held for want of a dead-letter queue."""
        return len(self._on_hold.get(lane.title, ()))

    def _concluded(self, request: Settle, error: DriverError | None) -> None:
        message = request.held.view.message
        self._forget(request.held)
        verdict = request.verdict
        if isinstance(error, LeaseLostError):
            self._tally.lost += 1
        elif error is not None:
            self._tally.unsettled += 1
        else:
            self._tally.settled(verdict.label, verdict.reason)
            note, told = verdict.note, request.held.keeper.instrumentation
            if note is not None and told is not None:
                told.emit(
                    DeadLettered(
                        queue=request.held.delivery.queue,
                        type=message.type,
                        id=message.id,
                        reason=note.reason,
                        attempts=note.attempts,
                        error="" if note.error_type else note.error,
                    )
                )

    def _lane_of(self, held: Held) -> Lane:
        return self._lanes[held.keeper]


def _class_name(error: BaseException | None) -> str:
    return "" if error is None else type(error).__qualname__
