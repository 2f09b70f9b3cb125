"""The runner says of each check what came of it, whatever the driver does to it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import ClassVar

import pytest

from brokerwq.clock import SYSTEM_CLOCK
from brokerwq.driver import Capabilities, Driver
from brokerwq.errors import AdapterMissingError, ConfigError, ConnectionLostError
from brokerwq.testing import (
    Bench,
    Check,
    CheckFailedError,
    FakeClock,
    Harness,
    Verdict,
    all_checks,
    run_check,
    run_checks,
    select,
)
from brokerwq.testing.bench import TooSlowError, expect, some_messages
from brokerwq.testing.catalogue import UNFENCED, Hook, Need
from brokerwq.testing.pytest_suite import ConformanceSuite


def memory() -> Harness:
    return Harness.from_url("memory://", clock=FakeClock())


def checking(
    body: Callable[[Bench], Awaitable[None]],
    *,
    needs: tuple[Need, ...] = (),
    hooks: tuple[Hook, ...] = (),
) -> Check:
    return Check(name="t.t", summary="T.", body=body, needs=needs, hooks=hooks, proves=())


async def passes(bench: Bench) -> None:
    await bench.queue()


async def fails(bench: Bench) -> None:
    expect(await bench.queue() == "", "the queue must have no name")


async def test_a_check_passes_or_fails_with_what_must_be_so() -> None:
    passed = await run_check(checking(passes), memory())
    failed = await run_check(checking(fails), memory())

    assert (passed.verdict, passed.reason, passed.error) == (Verdict.PASSED, "", None)
    assert (failed.verdict, failed.reason) == (Verdict.FAILED, "the queue must have no name")
    assert isinstance(failed.error, CheckFailedError)
    assert failed.seconds > 0


async def test_what_does_not_apply_or_lacks_a_hook_is_never_passed() -> None:
    other = await run_check(checking(fails, needs=(UNFENCED,)), memory())
    blind = await run_check(checking(fails, hooks=("outage", "restart")), memory())

    assert (other.verdict, other.reason) == (Verdict.NOT_APPLICABLE, "needs no fences")
    assert (blind.verdict, blind.reason) == (
        Verdict.NOT_RUN,
        "the harness has no outage, restart",
    )


async def test_any_error_of_a_driver_is_a_failure_that_names_it() -> None:
    async def bursts(_: Bench) -> None:
        raise KeyError("native")

    result = await run_check(checking(bursts), memory())

    assert (result.verdict, result.reason) == (Verdict.FAILED, "KeyError: 'native'")


async def test_a_cancellation_out_of_nowhere_is_a_failure() -> None:
    async def is_cancelled(_: Bench) -> None:
        raise asyncio.CancelledError

    result = await run_check(checking(is_cancelled), memory())

    assert result.verdict is Verdict.FAILED
    assert "cancelled" in result.reason


@pytest.mark.slow
async def test_a_check_that_hangs_ends_at_its_limit() -> None:
    async def hangs(_: Bench) -> None:
        await asyncio.Event().wait()

    result = await run_check(checking(hangs), memory(), limit=0.05)

    assert (result.verdict, result.reason) == (
        Verdict.FAILED,
        "the check did not end within 0.05 s",
    )


async def test_a_check_that_was_too_slow_is_tried_again_with_longer_leases() -> None:
    leases: list[float] = []

    async def is_slow(bench: Bench) -> None:
        leases.append(bench.lease)
        if bench.lease < 2:
            raise TooSlowError("slow")

    result = await run_check(checking(is_slow), memory())

    assert result.verdict is Verdict.PASSED
    assert leases == [1.0, 3.0]


async def test_a_check_that_is_always_too_slow_proves_nothing_and_fails() -> None:
    async def is_slow(_: Bench) -> None:
        raise TooSlowError("slow")

    result = await run_check(checking(is_slow), memory())

    assert result.verdict is Verdict.FAILED
    assert "slow" in result.reason


@pytest.mark.parametrize("level", [logging.INFO, logging.ERROR])
@pytest.mark.parametrize("name", ["brokerwq_memory.driver", "brokerwq.driver"])
async def test_a_driver_that_logs_fails_whatever_it_answers(name: str, level: int) -> None:
    async def logs(_: Bench) -> None:
        logging.getLogger(name).log(level, "hello %s", "world")

    before = logging.getLogger("brokerwq").level
    result = await run_check(checking(logs), memory())

    assert result.verdict is Verdict.FAILED
    assert f"{name}: hello world" in result.reason
    assert logging.getLogger("brokerwq").level == before


async def test_debug_lines_and_those_of_others_are_no_concern() -> None:
    async def logs(_: Bench) -> None:
        logging.getLogger("brokerwq_memory").debug("hello")
        logging.getLogger("somebody.else").error("hello")

    assert (await run_check(checking(logs), memory())).verdict is Verdict.PASSED


async def test_a_check_leaves_no_message_behind() -> None:
    harness = memory()

    async def litters(bench: Bench) -> None:
        queue = await bench.queue()
        await bench.send(queue, *some_messages(2))
        await bench.claim(await bench.consumer(queue))

    await run_check(checking(litters), harness)

    async with harness.connect() as driver:
        names = await driver.queues()
        for name in names:
            stats = await driver.inspect(name)
            assert (stats.ready.value, stats.leased.value) == (0, 0)
    assert len(names) == 2
    assert all(name.startswith("bwq-conform-") for name in names)


async def test_a_broker_that_cannot_be_reached_is_told_before_the_first_check() -> None:
    def connect() -> AbstractAsyncContextManager[Driver]:
        raise ConnectionLostError("nobody there")

    harness = Harness(connect=connect)

    with pytest.raises(ConnectionLostError):
        _ = [result async for result in run_checks(harness)]
    result = await run_check(checking(passes), harness)
    assert result.verdict is Verdict.FAILED


async def test_checks_are_run_one_after_another_and_told_as_they_end() -> None:
    checks = select(["purge", "lists_nothing_like_this"])

    names = [result.check.name async for result in run_checks(memory(), checks)]

    assert names == [check.name for check in checks]
    assert names == [name for name in names if "purge" in name]
    assert select() == all_checks()


def test_a_harness_needs_patience_for_its_lease() -> None:
    def connect() -> AbstractAsyncContextManager[Driver]:
        raise NotImplementedError

    for lease, patience in ((0.0, 10.0), (30.0, 10.0), (1.0, 0.5)):
        with pytest.raises(ConfigError, match="shortest_lease"):
            Harness(connect=connect, shortest_lease=lease, patience=patience)
    with pytest.raises(AdapterMissingError):
        Harness.from_url("nope://")


def test_a_real_clock_is_the_default() -> None:
    harness = Harness.from_url("memory://")

    assert harness.clock is SYSTEM_CLOCK
    assert harness.loggers == ("brokerwq", "brokerwq_memory")


class Suite(ConformanceSuite):
    known_failures: ClassVar[Mapping[str, str]] = {"t.t": "a known gap"}


def test_the_suite_raises_what_a_check_raises() -> None:
    with pytest.raises(CheckFailedError, match="no name"):
        ConformanceSuite().test_conforms(checking(fails), memory())
    ConformanceSuite().test_conforms(checking(passes), memory())


def test_the_suite_skips_with_a_reason() -> None:
    with pytest.raises(pytest.skip.Exception, match="not run: the harness has no restart"):
        ConformanceSuite().test_conforms(checking(passes, hooks=("restart",)), memory())
    with pytest.raises(pytest.skip.Exception, match="not applicable: needs no fences"):
        ConformanceSuite().test_conforms(checking(passes, needs=(UNFENCED,)), memory())


def test_a_known_failure_must_fail() -> None:
    with pytest.raises(pytest.xfail.Exception, match="a known gap"):
        Suite().test_conforms(checking(fails), memory())
    with pytest.raises(pytest.fail.Exception, match="a known gap"):
        Suite().test_conforms(checking(passes), memory())


def test_needs_are_told_in_words() -> None:
    unmet = [check.unmet(Capabilities()) for check in all_checks()]

    assert any(unmet)
    assert all(text.startswith("needs ") for text in unmet if text)
