"""The conformance checks as pytest cases; needs the extra ``testing``."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import ClassVar

import pytest

from brokerwq.testing.catalogue import Check
from brokerwq.testing.checks import all_checks
from brokerwq.testing.harness import Harness
from brokerwq.testing.runner import DEFAULT_LIMIT, Verdict, run_check


class ConformanceSuite:
    """Subclass it as ``Test…`` and give it a fixture ``harness``.

    Each check is a case of its own, ``test_conforms[lost_leases.a_late_ack_is_refused]``, on an
    event loop of its own; no plugin for asyncio is needed.

    Attributes:
        known_failures: Names of checks that this broker fails, each with its reason. Such a
            check must fail: when it passes, take it off the list.
        limit: Seconds that one check may take.
    """

    known_failures: ClassVar[Mapping[str, str]] = {}
    limit: ClassVar[float] = DEFAULT_LIMIT

    @pytest.mark.parametrize("check", [pytest.param(each, id=each.name) for each in all_checks()])
    def test_conforms(self, check: Check, harness: Harness) -> None:
        """One check."""
        result = asyncio.run(run_check(check, harness, limit=self.limit))
        known = self.known_failures.get(check.name)
        if result.verdict in (Verdict.NOT_APPLICABLE, Verdict.NOT_RUN):
            pytest.skip(f"{result.verdict.value}: {result.reason}")
        if result.verdict is Verdict.FAILED and known:
            pytest.xfail(known)
        if result.error is not None:
            raise result.error
        if known:
            pytest.fail(f"passes, though it is listed as a known failure: {known}")
