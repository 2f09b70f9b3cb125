"""Runs checks side by side: most of what a check does on a real server is to wait."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager

from brokerwq.testing.catalogue import Check
from brokerwq.testing.harness import Harness
from brokerwq.testing.runner import DEFAULT_LIMIT, CheckResult, run_check


class SideBySide:
    """Checks of one broker, several at a time; made by ``side_by_side``."""

    def __init__(
        self, harness: Harness, checks: Sequence[Check], pool: ThreadPoolExecutor, limit: float
    ) -> None:
        self._harness = harness
        self._limit = limit
        self._begun: dict[str, Future[CheckResult]] = {
            check.name: pool.submit(self._run, check) for check in checks if not check.hooks
        }

    def result(self, check: Check) -> CheckResult:
        """What came of ``check``, as soon as it has ended.

        One that harms the broker runs alone, once all others have ended.
        """
        begun = self._begun.get(check.name)
        if begun is not None:
            return begun.result()
        wait(self._begun.values())
        return self._run(check)

    def _run(self, check: Check) -> CheckResult:
        # A loop of its own, since a driver belongs to the loop that opened it, and since some
        # checks look at all tasks of theirs.
        return asyncio.run(run_check(check, self._harness, limit=self._limit))


@contextmanager
def side_by_side(
    harness: Harness, checks: Sequence[Check], *, at_once: int, limit: float = DEFAULT_LIMIT
) -> Generator[SideBySide]:
    """Begin ``checks``, each in a thread and on an event loop of its own.

    What a driver logs above DEBUG fails every check that runs at that moment.

    Args:
        harness: The broker under test, whose hooks may be called from any thread.
        checks: Which, in the order in which they begin.
        at_once: How many run at a time.
        limit: Seconds of the machine's time that one check may take.
    """
    with _levels_kept((*harness.loggers, "asyncio")):
        pool = ThreadPoolExecutor(at_once, thread_name_prefix="check")
        try:
            yield SideBySide(harness, checks, pool, limit)
        finally:
            pool.shutdown(cancel_futures=True)


@contextmanager
def _levels_kept(names: Sequence[str]) -> Generator[None]:
    """Restore the loggers' levels, which checks that overlap cannot."""
    loggers = [logging.getLogger(name) for name in names]
    before = [logger.level for logger in loggers]
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
