"""Runs checks without a test framework; ``brokerwq conform`` is a table around this."""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass

from brokerwq.clock import SYSTEM_CLOCK
from brokerwq.testing.bench import Bench, CheckFailedError, TooSlowError
from brokerwq.testing.catalogue import Check
from brokerwq.testing.checks import all_checks
from brokerwq.testing.clock import FakeClock
from brokerwq.testing.harness import Harness

DEFAULT_LIMIT = 60.0
"""Seconds of the machine's time that one check may take."""

_STRETCHES = (1.0, 3.0, 9.0)
_DYING_TIME = 5.0


class Verdict(enum.Enum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_APPLICABLE = "not applicable"
    """The broker's capabilities leave nothing to check."""
    NOT_RUN = "not run"
    """The harness lacks a hook that it needs: nothing is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What came of one check.

    Attributes:
        check: Which.
        verdict: How it ended.
        reason: Why it failed, did not apply or was not run; empty if it passed.
        error: What it raised, if it failed.
        seconds: How long it took, by the machine's clock.
    """

    check: Check
    verdict: Verdict
    reason: str = ""
    error: BaseException | None = None
    seconds: float = 0.0


def select(patterns: Iterable[str] = ()) -> tuple[Check, ...]:
    """The checks whose names contain one of ``patterns``; all of them without any."""
    wanted = tuple(patterns)
    return tuple(
        check
        for check in all_checks()
        if not wanted or any(pattern in check.name for pattern in wanted)
    )


async def run_checks(
    harness: Harness,
    checks: Sequence[Check] | None = None,
    *,
    limit: float = DEFAULT_LIMIT,
) -> AsyncGenerator[CheckResult]:
    """Run checks one after another and yield what came of each.

    Args:
        harness: The broker under test.
        checks: Which; None takes all.
        limit: Seconds of the machine's time that one check may take.

    Raises:
        BrokerwqError: no connection can be made, so that nothing can be checked.
    """
    async with harness.connect() as driver:
        capabilities = driver.capabilities
    for check in all_checks() if checks is None else checks:
        unmet = check.unmet(capabilities)
        yield (
            _not_applicable(check, unmet) if unmet else await run_check(check, harness, limit=limit)
        )


async def run_check(check: Check, harness: Harness, *, limit: float = DEFAULT_LIMIT) -> CheckResult:
    """Run one check; it fails where no connection can be made.

    Args:
        check: Which.
        harness: The broker under test.
        limit: Seconds of the machine's time that it may take.
    """
    missing = [hook for hook in check.hooks if getattr(harness, hook) is None]
    if missing:
        reason = f"the harness has no {', '.join(missing)}"
        return CheckResult(check=check, verdict=Verdict.NOT_RUN, reason=reason)
    started = SYSTEM_CLOCK.now()
    failure: Exception | None = None
    for stretch in _STRETCHES:
        try:
            await _run_once(check, harness.stretched(stretch), limit)
        except _NotApplicableError as exc:
            return _not_applicable(check, str(exc))
        except TooSlowError as exc:
            failure = exc
            continue
        except Exception as exc:  # noqa: BLE001  -- whatever a driver raises is the result
            failure = exc
        else:
            failure = None
        break
    seconds = SYSTEM_CLOCK.now() - started
    if failure is None:
        return CheckResult(check=check, verdict=Verdict.PASSED, seconds=seconds)
    return CheckResult(
        check=check,
        verdict=Verdict.FAILED,
        reason=_reason(failure),
        error=failure,
        seconds=seconds,
    )


class _NotApplicableError(Exception):
    """The check does not apply; the text says why."""


def _not_applicable(check: Check, reason: str) -> CheckResult:
    return CheckResult(check=check, verdict=Verdict.NOT_APPLICABLE, reason=reason)


def _reason(failure: Exception) -> str:
    text = str(failure)
    return text if isinstance(failure, CheckFailedError) else f"{type(failure).__name__}: {text}"


async def _run_once(check: Check, harness: Harness, limit: float) -> None:
    with _listening(harness.loggers) as heard:
        work = _on_a_bench(check, harness)
        clock = harness.clock
        task = asyncio.ensure_future(clock.drive(work) if isinstance(clock, FakeClock) else work)
        try:
            done, _ = await asyncio.wait({task}, timeout=limit)
        finally:
            if not task.done():
                task.cancel()
                # A driver that swallows its cancellation must not hold up the others.
                await asyncio.wait({task}, timeout=_DYING_TIME)
        if not done:
            msg = f"the check did not end within {limit:g} s"
            raise CheckFailedError(msg)
        if task.cancelled():
            msg = "a call was cancelled that nobody had cancelled"
            raise CheckFailedError(msg)
        task.result()
    if heard:
        msg = f"a driver must not log above DEBUG, but logged {'; '.join(heard)[:400]}"
        raise CheckFailedError(msg)


async def _on_a_bench(check: Check, harness: Harness) -> None:
    async with AsyncExitStack() as stack:
        driver = await stack.enter_async_context(harness.connect())
        if unmet := check.unmet(driver.capabilities):
            raise _NotApplicableError(unmet)
        bench = Bench(harness, driver, stack)
        try:
            await check.body(bench)
        finally:
            await bench.tidy()


class _Ear(logging.Handler):
    def __init__(self, heard: list[str]) -> None:
        super().__init__(logging.DEBUG + 1)
        self._heard = heard

    def emit(self, record: logging.LogRecord) -> None:
        self._heard.append(f"{record.levelname} {record.name}: {record.getMessage()}")


@contextmanager
def _listening(names: Sequence[str]) -> Generator[list[str]]:
    """What is logged above DEBUG by ``names``, and by asyncio about what nobody caught."""
    heard: list[str] = []
    ear = _Ear(heard)
    undo: list[Callable[[], None]] = []
    for name in dict.fromkeys((*names, "asyncio")):
        logger = logging.getLogger(name)
        undo.append(_attach(logger, ear, logging.WARNING if name == "asyncio" else logging.INFO))
    try:
        yield heard
    finally:
        for step in undo:
            step()


def _attach(logger: logging.Logger, ear: _Ear, level: int) -> Callable[[], None]:
    before = logger.level
    logger.addHandler(ear)
    logger.setLevel(min(before or level, level))

    def detach() -> None:
        logger.removeHandler(ear)
        logger.setLevel(before)

    return detach
