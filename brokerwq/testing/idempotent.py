"""Whether a worker may run twice: tried, with every fault once."""

from __future__ import annotations

import copy
import inspect
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

from brokerwq.app import App
from brokerwq.errors import ConfigError
from brokerwq.testing.mishap import (
    Mishap,
    crash_at,
    disconnect,
    duplicate,
    error_at,
    lose_lease,
    overlap,
    partial_failure,
    throttle,
)
from brokerwq.testing.play import Played, play
from brokerwq.workers.decorating import AnyWorker

Effects: TypeAlias = Callable[[], Any] | Callable[[], Awaitable[Any]]
Schedule: TypeAlias = tuple[Mishap, ...]

_MOST_SHOWN: Final = 3
_CUT: Final = 600
_LONGEST_MIX: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A schedule that changed the effects.

    Attributes:
        schedule: What befell the worker.
        where: Its points, in words.
        wanted: The effects of an undisturbed run.
        found: The effects with the faults.
        note: What else is to be known.
    """

    schedule: Schedule
    where: str
    wanted: object
    found: object
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdempotencyReport:
    """What was tried.

    Attributes:
        worker: The worker's name.
        schedules: How many.
        points: How many points an undisturbed run has.
        failures: Those that changed the effects, the shortest first.
    """

    worker: str
    schedules: int
    points: int
    failures: Sequence[Failure]


class NotIdempotentError(AssertionError):
    """A fault changes what a worker does; the text says which, and how to see it again.

    Attributes:
        report: All that was found.
    """

    def __init__(self, report: IdempotencyReport, seed: int) -> None:
        super().__init__(_words(report, seed))
        self.report = report


async def assert_idempotent(
    worker: AnyWorker,
    payload: object,
    /,
    *,
    effects: Effects,
    reset: Callable[[], Any] | None = None,
    faults: Sequence[Mishap] | None = None,
    seed: int = 0,
    mixes: int = 10,
    most_points: int = 60,
) -> IdempotencyReport:
    """Run a worker with every fault once, and expect the effects of an undisturbed run each time.

    On a broker in memory and a fake clock: a crash, an error, a lost lease and a second copy at
    each point of a run, a crash before the ack, a connection that breaks, a duplicate; then mixes
    of them at random. What the worker enqueues counts as an effect, and is not run: one message
    sent again under its old id, as by ``job.enqueue``, counts once.

    Args:
        worker: The worker; its app may be on any broker, and is not disturbed.
        payload: What to enqueue: its payload, the fields of a worker that takes them by name, or
            a list of payloads for a batch worker.
        effects: What the worker has done so far, to be compared by ``==``; may be async.
        reset: Undo all effects; may be async. Not needed where ``effects`` takes out what it
            reads.
        faults: Only this one schedule: what befalls the first run, the second one, and so on.
        seed: Of the mixes; the same seed gives the same ones.
        mixes: How many of them.
        most_points: Of a run with more points than this, so many are tried, drawn by the seed.

    Raises:
        NotIdempotentError: a schedule gives other effects.
        ConfigError: nothing can be compared: the worker has no effect that ``effects`` sees, or
            two undisturbed runs differ, or ``reset`` is missing.
    """
    app = worker.sender
    if not isinstance(app, App):
        msg = f"worker {worker.name} belongs to no App"
        raise ConfigError(msg)
    trial = _Trial(app, worker, payload, effects, reset)
    clean = await trial.clean()
    if faults is not None:
        schedules = [tuple(faults)]
    else:
        schedules = _all(worker, payload, clean, random.Random(seed), most_points)  # noqa: S311
    tried = 0
    failures: list[Failure] = []
    for schedule in schedules:
        tried += 1
        if (failure := await trial.failure(schedule)) is not None:
            failures.append(failure)
    if faults is None and not failures:
        draw = random.Random(f"{seed}")  # noqa: S311  -- repeatable, no secret
        for schedule in _mixed(schedules, draw, mixes):
            tried += 1
            if (failure := await trial.failure(schedule)) is not None:
                failures.append(await trial.shortest(failure))
                break
    report = IdempotencyReport(
        worker=worker.name,
        schedules=tried,
        points=len(clean.points),
        failures=sorted(failures, key=lambda failure: len(failure.schedule)),
    )
    if failures:
        raise NotIdempotentError(report, seed)
    return report


class _Trial:
    """One worker and payload under trial."""

    def __init__(
        self,
        app: App,
        worker: AnyWorker,
        payload: object,
        effects: Effects,
        reset: Callable[[], Any] | None,
    ) -> None:
        self._app = app
        self._worker = worker
        self._payload = payload
        self._effects = effects
        self._reset = reset
        self._before: Any = None
        self._wanted: Any = None
        self._children: dict[Any, int] = {}

    async def clean(self) -> Played:
        """Two undisturbed runs, which must be alike."""
        await _answer(self._reset)
        self._before = await self._snapshot()
        played, self._wanted = await self._play(())
        self._children = played.children
        name = self._worker.name
        if played.stuck or played.dead:
            why = f"was given up on ({played.dead[0]})" if played.dead else "does not end"
            msg = f"even undisturbed the message of worker {name} {why}"
            raise ConfigError(msg)
        if self._wanted == self._before and not played.children:
            msg = f"worker {name} has no effect that effects() can see, and enqueues nothing"
            raise ConfigError(msg)
        again, found = await self._play(())
        if found != self._wanted or again.children != self._children:
            msg = (
                f"two undisturbed runs of worker {name} have different effects, so that nothing "
                f"can be compared; leave out of effects() what is made anew each time, such as "
                f"times and random ids:\n  {self._wanted!r:.{_CUT}}\n  {found!r:.{_CUT}}"
            )
            raise ConfigError(msg)
        return played

    async def failure(self, schedule: Schedule) -> Failure | None:
        """What ``schedule`` changed; None for nothing, also where it never came to it."""
        played, found = await self._play(schedule)
        is_same = found == self._wanted and played.children == self._children
        if is_same and not played.stuck:
            return None
        wanted: object = self._wanted
        if found == self._wanted:
            wanted, found = _readable(self._children), _readable(played.children)
        note = "it never came to an end" if played.stuck else ""
        if played.dead:
            note = f"the message was given up on: {', '.join(played.dead)}"
        return Failure(
            schedule=schedule,
            where=_where(schedule, played),
            wanted=wanted,
            found=found,
            note=note,
        )

    async def shortest(self, failure: Failure) -> Failure:
        """The same with as few faults as will do."""
        while len(failure.schedule) > 1:
            for left_out in range(len(failure.schedule)):
                shorter = failure.schedule[:left_out] + failure.schedule[left_out + 1 :]
                found = await self.failure(shorter)
                if found is not None:
                    failure = found
                    break
            else:
                break
        return failure

    async def _play(self, schedule: Schedule) -> tuple[Played, Any]:
        await _answer(self._reset)
        if await self._snapshot() != self._before:
            msg = (
                "the effects of an earlier run are still there: give reset=, a function that "
                "undoes them, or let effects() take out what it reads"
            )
            raise ConfigError(msg)
        played = await play(self._app, self._worker, self._payload, schedule)
        found = await self._snapshot()
        await played.bury()  # only now: what its cleanup does is no effect
        await (_answer(self._reset) if self._reset else self._snapshot())
        return played, found

    async def _snapshot(self) -> Any:
        return copy.deepcopy(await _answer(self._effects))


async def _answer(call: Callable[[], Any] | None) -> Any:
    answer = None if call is None else call()
    return await answer if inspect.isawaitable(answer) else answer


def _all(
    worker: AnyWorker, payload: object, clean: Played, draw: random.Random, most: int
) -> list[Schedule]:
    """Every fault once."""
    route = worker.route()
    mishaps = [
        duplicate(),
        crash_at("ack"),
        disconnect("ack"),
        disconnect("ack", done=True),
        throttle("ack"),
    ]
    if clean.children:
        mishaps += [crash_at("send"), disconnect("send"), disconnect("send", done=True)]
        mishaps += [throttle("send")]
    if route.batch and isinstance(payload, Sequence):
        count = len(cast("Sequence[object]", payload))
        mishaps += [partial_failure(place) for place in range(count)]
    points = list(range(1, len(clean.points) + 1))
    if len(points) > most:
        points = sorted(draw.sample(points, most))
    for point in points:
        is_await = clean.points[point - 1].kind == "await"
        mishaps += [crash_at(point), error_at(point)]
        if is_await or not route.is_async:
            mishaps += [overlap(point), lose_lease(point)]
    return [(mishap,) for mishap in mishaps]


def _mixed(schedules: Sequence[Schedule], draw: random.Random, count: int) -> list[Schedule]:
    singles = [mishap for (mishap,) in schedules]
    return [
        tuple(draw.choice(singles) for _ in range(draw.randint(2, _LONGEST_MIX)))
        for _ in range(count)
    ]


def _where(schedule: Schedule, played: Played) -> str:
    places: list[str] = []
    for mishap, run in zip(schedule, played.runs, strict=False):
        if mishap.at and mishap.at <= len(run.points):
            places.append(str(run.points[mishap.at - 1]))
    return "; ".join(places)


def _readable(children: dict[Any, int]) -> list[str]:
    return sorted(
        f"{count} of {type_} to {queue}: {body!r:.80}"
        for (queue, type_, body), count in children.items()
    )


def _written(schedule: Schedule) -> str:
    return f"[{', '.join(map(str, schedule))}]"


def _words(report: IdempotencyReport, seed: int) -> str:
    failures = report.failures
    lines = [
        (
            f"worker {report.worker} is not idempotent: "
            f"{len(failures)} of {report.schedules} schedules change its effects"
        )
    ]
    for failure in failures[:_MOST_SHOWN]:
        lines += [
            "",
            f"  faults={_written(failure.schedule)}",
            *([f"    {failure.where}"] if failure.where else []),
            f"    expected  {failure.wanted!r:.{_CUT}}",
            f"    found     {failure.found!r:.{_CUT}}",
            *([f"    {failure.note}"] if failure.note else []),
        ]
    rest = [_written(failure.schedule) for failure in failures[_MOST_SHOWN:]]
    if rest:
        lines += ["", f"  and {', '.join(rest)}"[:_CUT]]
    first = _written(failures[0].schedule)
    lines += [
        "",
        f"To see the first one alone: assert_idempotent(…, faults={first}), the faults from",
        f"brokerwq.testing.mishap. To see all of it again: seed={seed}.",
    ]
    return "\n".join(lines)
