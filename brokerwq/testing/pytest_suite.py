"""The conformance checks as pytest cases; needs the extra ``testing``."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import ClassVar

import pytest

from brokerwq.testing.catalogue import Check
from brokerwq.testing.checks import all_checks
from brokerwq.testing.harness import Harness
from brokerwq.testing.runner import DEFAULT_LIMIT, CheckResult, Verdict, run_check
from brokerwq.testing.side_by_side import SideBySide, side_by_side


class ConformanceSuite:
    """Subclass it as ``Test…`` and give it a fixture ``harness``.

    Each check is a case of its own, ``test_conforms[lost_leases.a_late_ack_is_refused]``, on an
    event loop of its own; no plugin for asyncio is needed.

    Attributes:
        known_failures: Names of checks that this broker fails, each with its reason. Such a
            check must fail: when it passes, take it off the list.
        limit: Seconds that one check may take.
        at_once: How many checks may run side by side, for servers on which most of a check is
            waiting. Above 1 the first harness is used for all, and must live as long as the
            class.
    """

    known_failures: ClassVar[Mapping[str, str]] = {}
    limit: ClassVar[float] = DEFAULT_LIMIT
    at_once: ClassVar[int] = 1

    _request: pytest.FixtureRequest | None = None

    @pytest.fixture(autouse=True)
    def _take_request(self, request: pytest.FixtureRequest) -> None:
        self._request = request

    @pytest.mark.parametrize("check", [pytest.param(each, id=each.name) for each in all_checks()])
    def test_conforms(self, check: Check, harness: Harness) -> None:
        """One check."""
        result = self._result(check, harness)
        known = self.known_failures.get(check.name)
        if result.verdict in (Verdict.NOT_APPLICABLE, Verdict.NOT_RUN):
            pytest.skip(f"{result.verdict.value}: {result.reason}")
        if result.verdict is Verdict.FAILED and known:
            pytest.xfail(known)
        if result.error is not None:
            raise result.error
        if known:
            pytest.fail(f"passes, though it is listed as a known failure: {known}")

    def _result(self, check: Check, harness: Harness) -> CheckResult:
        group = None if self._request is None else self._request.node.getparent(pytest.Class)
        if self.at_once == 1 or self._request is None or group is None:
            return asyncio.run(run_check(check, harness, limit=self.limit))
        running: SideBySide | None = group.stash.get(_RUNNING, None)
        if running is None:
            checks = _checks_of(group, self._request.session)
            block = side_by_side(harness, checks, at_once=self.at_once, limit=self.limit)
            running = group.stash[_RUNNING] = block.__enter__()
            group.addfinalizer(lambda: block.__exit__(None, None, None))
        return running.result(check)


_RUNNING = pytest.StashKey[SideBySide]()


def _checks_of(group: pytest.Class, session: pytest.Session) -> list[Check]:
    """The checks that were selected of one class."""
    parameters = [
        item.callspec.params.get("check")
        for item in session.items
        if isinstance(item, pytest.Function) and item.parent is group and hasattr(item, "callspec")
    ]
    return [check for check in parameters if isinstance(check, Check)]
