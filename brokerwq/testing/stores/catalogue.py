"""What a check of a store is, and how one is run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from brokerwq.testing.stores.bench import OpenBench, StoreBench

Body: TypeAlias = Callable[[StoreBench], Awaitable[None]]
Hook: TypeAlias = Literal["skewed", "damage", "bare", "outdate", "outage", "work"]
"""A field of ``StoreBench`` that may be None."""

DEFAULT_LIMIT: Final = 60.0


class NotApplicableError(Exception):
    """The bench lacks what a check needs: nothing is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCheck:
    """One fact about a store that must be so.

    Attributes:
        name: ``module.function``; stable.
        summary: What must be so, in a sentence.
        body: Raises if it is not.
        needs: Fields of ``StoreBench`` without which it cannot be run.
    """

    name: str
    summary: str
    body: Body
    needs: tuple[Hook, ...]


_checks: dict[str, StoreCheck] = {}


def check(*needs: Hook) -> Callable[[Body], Body]:
    """Put an async function into the catalogue; its docstring says what must be so."""

    def register(body: Body) -> Body:
        name = f"{body.__module__.rpartition('.')[2]}.{getattr(body, '__name__', 'check')}"
        if name in _checks:
            msg = f"two checks are called {name}"
            raise ValueError(msg)
        summary = " ".join((body.__doc__ or "").split())
        _checks[name] = StoreCheck(name=name, summary=summary, body=body, needs=needs)
        return body

    return register


def registered() -> tuple[StoreCheck, ...]:
    """What has been registered so far; ``all_store_checks`` loads them all."""
    return tuple(_checks.values())


async def run_store_check(
    check: StoreCheck, open_bench: OpenBench, *, limit: float = DEFAULT_LIMIT
) -> None:
    """Run one check on a fresh bench; what it raises is what is wrong.

    Raises:
        NotApplicableError: the bench lacks what the check needs.
    """
    async with open_bench() as bench:
        missing = [need for need in check.needs if getattr(bench, need) is None]
        if missing:
            msg = f"the bench has no {', '.join(missing)}"
            raise NotApplicableError(msg)
        await asyncio.wait_for(check.body(bench), limit)
