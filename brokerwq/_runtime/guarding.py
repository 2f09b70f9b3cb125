"""A guard around a handler: admitted before it, finished or abandoned after it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass
from typing import TypeAlias

import anyio

from brokerwq._runtime.children import in_context
from brokerwq._runtime.guard import Admission, Guard, Skip
from brokerwq._runtime.leases import Held
from brokerwq.backoff import RetryPolicy
from brokerwq.errors import StoreUnavailableError
from brokerwq.job import Job
from brokerwq.outcomes import DeadLetter, Done, Outcome, Retry

StoreFailed: TypeAlias = Callable[[BaseException], float]


async def admit(
    guard: Guard, held: Held, job: Job, payload: object, store_failed: StoreFailed
) -> Admission | Skip | Exception:
    """What the guard says; an exception of it is a failed attempt."""
    keeper = held.keeper
    try:
        admitted = await guard.admit(job, payload, keeper.lease - keeper.margin)
    except StoreUnavailableError as error:
        return _later(store_failed(error))
    except Exception as error:  # noqa: BLE001 -- it must not end the slot
        return error
    if not isinstance(admitted, Skip) and admitted.needs_extending:
        held.companion = admitted.extend
    return admitted


@dataclass(frozen=True, slots=True)
class Attempt:
    """What an ended attempt is judged by.

    Attributes:
        job: The job.
        retry: Its worker's policy.
        is_counted: Neither a lost lease nor the runner's stop ended it.
        error: What the handler raised.
        context: What the handler ran in: what it asked for is still its own in a trace.
    """

    job: Job
    retry: RetryPolicy
    is_counted: bool
    error: BaseException | None = None
    context: Context | None = None

    def is_last(self, outcome: Outcome) -> bool:
        """Whether the message is given up on with ``outcome``."""
        if isinstance(outcome, DeadLetter):
            return True
        is_failure = isinstance(outcome, Retry) and self.is_counted
        return is_failure and self.job.attempt >= self.retry.max_attempts

    def repeatable(self, outcome: Outcome) -> BaseException | None:
        """The error of which the handler may be called once more; None for what was asked for."""
        is_failure = isinstance(outcome, Retry) and self.is_counted
        return self.error if is_failure and not isinstance(self.error, Outcome) else None


@dataclass(frozen=True, slots=True)
class Concluded:
    """How a guarded attempt ended, all told.

    Attributes:
        outcome: What it counts as.
        error: The exception, if the guard found one.
        skip: What the guard wants instead of the outcome.
        again: The attempt has not ended: the handler is to be called once more.
    """

    outcome: Outcome
    error: BaseException | None = None
    skip: Skip | None = None
    again: bool = False


async def conclude(
    admission: Admission,
    attempt: Attempt,
    outcome: Outcome,
    answer: object,
    store_failed: StoreFailed,
) -> Concluded:
    """Finish or abandon; nobody can cancel that half-way."""
    concluded = Concluded(outcome)
    with anyio.CancelScope(shield=True):
        try:
            concluded = await _conclude(admission, attempt, outcome, answer)
        except StoreUnavailableError as error:
            concluded = Concluded(outcome, error, _later(store_failed(error)))
        except Outcome as instead:
            concluded = Concluded(instead, instead.__cause__)
        except Exception as error:  # noqa: BLE001 -- what was not finished has failed
            concluded = Concluded(Retry(), error)
    return concluded


async def _conclude(
    admission: Admission, attempt: Attempt, outcome: Outcome, answer: object
) -> Concluded:
    if isinstance(outcome, Done):
        children = attempt.job.take_children() if admission.takes_children else ()
        try:
            finishing = admission.finish(answer, children)
            skip = await (in_context(attempt.context, finishing) if children else finishing)
            return Concluded(outcome, skip=skip)
        except (StoreUnavailableError, Outcome):
            raise
        except Exception as error:
            if await admission.again(error):
                return Concluded(Retry(), error, again=True)
            await admission.abandon(Retry(), is_last=attempt.is_last(Retry()))
            raise
    cause = attempt.repeatable(outcome)
    if cause is not None and await admission.again(cause):
        return Concluded(outcome, again=True)
    return Concluded(
        outcome, skip=await admission.abandon(outcome, is_last=attempt.is_last(outcome))
    )


async def give_up(admission: Admission) -> None:
    """Abandon what a slot that is being ended leaves behind."""
    with anyio.CancelScope(shield=True), suppress(Exception):
        await admission.abandon(Retry(), is_last=False)


def _later(delay: float) -> Skip:
    return Skip(kind="later", delay=delay, reason="store unreachable")
