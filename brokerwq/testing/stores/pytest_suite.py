"""The checks of stores as pytest cases; needs the extra ``testing``."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import pytest

from brokerwq.testing.stores import StoreCheck, all_store_checks, run_store_check
from brokerwq.testing.stores.bench import OpenBench
from brokerwq.testing.stores.catalogue import DEFAULT_LIMIT, NotApplicableError


class StoreConformanceSuite:
    """Subclass it as ``Test…`` and give it a fixture ``open_bench``.

    Each check is a case of its own, ``test_conforms[records.one_claim_is_granted]``, on a store
    and an event loop of its own.

    Attributes:
        limit: Seconds that one check may take.
    """

    limit: ClassVar[float] = DEFAULT_LIMIT

    @pytest.mark.parametrize(
        "check", [pytest.param(each, id=each.name) for each in all_store_checks()]
    )
    def test_conforms(self, check: StoreCheck, open_bench: OpenBench) -> None:
        """One check."""
        try:
            asyncio.run(run_store_check(check, open_bench, limit=self.limit))
        except NotApplicableError as exc:
            pytest.skip(str(exc))
