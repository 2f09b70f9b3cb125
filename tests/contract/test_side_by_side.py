"""Checks that run side by side prove what they prove one after another."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import ClassVar

import pytest

from brokerwq.driver import Driver
from brokerwq.testing import Bench, Check, Harness, Verdict
from brokerwq.testing.bench import expect
from brokerwq.testing.catalogue import Hook
from brokerwq.testing.pytest_suite import ConformanceSuite
from brokerwq.testing.side_by_side import side_by_side

pytestmark = pytest.mark.slow


async def cut(_: Driver) -> None: ...


def memory() -> Harness:
    return replace(Harness.from_url("memory://"), cut_connection=cut)


def checking(name: str, body: Callable[[Bench], Awaitable[None]], *hooks: Hook) -> Check:
    return Check(name=f"t.{name}", summary="T.", body=body, needs=(), hooks=hooks, proves=())


async def passes(bench: Bench) -> None:
    await bench.queue()


async def fails(bench: Bench) -> None:
    expect(await bench.queue() == "", "the queue must have no name")


def test_each_check_has_its_own_result() -> None:
    checks = [checking("a", passes), checking("b", fails), checking("c", passes)]

    with side_by_side(memory(), checks, at_once=2) as running:
        verdicts = [running.result(check).verdict for check in checks]

    assert verdicts == [Verdict.PASSED, Verdict.FAILED, Verdict.PASSED]


def test_as_many_run_at_once_as_allowed_and_see_no_task_of_another() -> None:
    together = threading.Barrier(3)

    async def meets(_: Bench) -> None:
        await asyncio.to_thread(together.wait, 30)
        expect(len(asyncio.all_tasks()) <= 2, "the check and its runner are all tasks there are")

    checks = [checking(name, meets) for name in "abc"]
    with side_by_side(memory(), checks, at_once=3) as running:
        assert {running.result(check).verdict for check in checks} == {Verdict.PASSED}


@pytest.mark.slow
def test_a_check_that_harms_the_broker_runs_alone() -> None:
    order: list[str] = []

    def noting(name: str) -> Callable[[Bench], Awaitable[None]]:
        async def note(bench: Bench) -> None:
            order.append(f"{name} begins")
            await bench.clock.sleep(0.02)
            order.append(f"{name} ends")

        return note

    harmful = checking("first", noting("harmful"), "cut_connection")
    checks = [harmful, checking("a", noting("a")), checking("b", noting("b"))]
    with side_by_side(memory(), checks, at_once=3) as running:
        assert running.result(harmful).verdict is Verdict.PASSED

    assert order[-2:] == ["harmful begins", "harmful ends"]
    assert len(order) == 6


def test_a_word_in_the_log_fails_a_check_and_the_levels_are_as_before() -> None:
    logger = logging.getLogger("brokerwq.noisy")
    levels = [logging.getLogger(name).level for name in ("brokerwq", "asyncio")]

    async def speaks(_: Bench) -> None:
        logger.info("hello")

    checks = [checking(name, speaks) for name in "abcd"]
    with side_by_side(memory(), checks, at_once=4) as running:
        results = [running.result(check) for check in checks]

    assert {result.verdict for result in results} == {Verdict.FAILED}
    assert all("hello" in result.reason for result in results)
    assert [logging.getLogger(name).level for name in ("brokerwq", "asyncio")] == levels


class TestASuiteThatRunsSideBySide(ConformanceSuite):
    at_once: ClassVar = 4

    @pytest.fixture
    def harness(self) -> Harness:
        return replace(Harness.from_url("memory://"), shortest_lease=0.3, patience=5.0)
