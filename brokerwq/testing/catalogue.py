"""What a conformance check is, and how one is found."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from brokerwq.driver.capabilities import Capabilities, Lease, UncountedReturn

if TYPE_CHECKING:
    from brokerwq.testing.bench import Bench

Hook: TypeAlias = Literal["cut_connection", "outage", "restart"]
"""A field of ``Harness`` that is None unless the adapter's author can provide it."""

Body: TypeAlias = "Callable[[Bench], Awaitable[None]]"

MEASURABLE_BYTES: Final = 64 * 2**20
"""A size limit above this is taken at its word: proving it would take too much memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a check asks of the broker, in words and as a test."""

    words: str
    holds: Callable[[Capabilities], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One fact about a driver that must be so.

    Attributes:
        name: ``module.function``; stable, since people name checks in their own tests.
        summary: What must be so, in a sentence.
        body: Raises if it is not.
        needs: All must hold, or the check does not apply.
        hooks: All must be provided by the harness, or the check cannot be run.
        proves: The rules (``rule 5``) and fields of ``Capabilities`` it stands for.
    """

    name: str
    summary: str
    body: Body
    needs: tuple[Need, ...]
    hooks: tuple[Hook, ...]
    proves: tuple[str, ...]

    def unmet(self, capabilities: Capabilities) -> str:
        """Why it does not apply to a broker with ``capabilities``; empty if it does."""
        return "; ".join(
            f"needs {need.words}" for need in self.needs if not need.holds(capabilities)
        )


_checks: dict[str, Check] = {}


def check(
    *proves: str, needs: tuple[Need, ...] = (), hooks: tuple[Hook, ...] = ()
) -> Callable[[Body], Body]:
    """Put an async function into the catalogue.

    The function's docstring says what must be so; it is shown to people.

    Args:
        proves: What it stands for, see ``Check.proves``.
        needs: When it applies.
        hooks: What the harness must provide.
    """

    def register(body: Body) -> Body:
        module: str = body.__module__
        name = f"{module.rpartition('.')[2]}.{getattr(body, '__name__', 'check')}"
        if name in _checks:
            msg = f"two checks are called {name}"
            raise ValueError(msg)
        _checks[name] = Check(
            name=name,
            summary=" ".join((body.__doc__ or "").split("\n\n")[0].split()),
            body=body,
            needs=needs,
            hooks=hooks,
            proves=proves,
        )
        return body

    return register


def registered() -> tuple[Check, ...]:
    """What has been registered so far; ``brokerwq.testing.checks.all_checks`` loads them all."""
    return tuple(_checks.values())


TIMED: Final = Need(words="lease TIMED", holds=lambda can: can.lease is Lease.TIMED)
CONNECTION: Final = Need(words="lease CONNECTION", holds=lambda can: can.lease is Lease.CONNECTION)
FENCED: Final = Need(words="fences", holds=lambda can: can.fences)
UNFENCED: Final = Need(words="no fences", holds=lambda can: not can.fences)
COUNTING: Final = Need(words="counts_receives", holds=lambda can: can.counts_receives)
UNCOUNTING: Final = Need(words="no counts_receives", holds=lambda can: not can.counts_receives)
UNCOUNTED: Final = Need(
    words="uncounted_return EXACT or COPY",
    holds=lambda can: can.uncounted_return is not UncountedReturn.COUNTED,
)
COUNTED: Final = Need(
    words="uncounted_return COUNTED",
    holds=lambda can: can.uncounted_return is UncountedReturn.COUNTED,
)
SEND_DELAY: Final = Need(words="max_send_delay above 0", holds=lambda can: can.max_send_delay > 0)
RELEASE_DELAY: Final = Need(
    words="max_release_delay above 0", holds=lambda can: can.max_release_delay > 0
)
LISTING: Final = Need(words="lists_queues", holds=lambda can: can.lists_queues)
NOT_LISTING: Final = Need(words="no lists_queues", holds=lambda can: not can.lists_queues)
ORDERED: Final = Need(words="ordered_groups", holds=lambda can: can.ordered_groups)
UNORDERED: Final = Need(words="no ordered_groups", holds=lambda can: not can.ordered_groups)
EXACT_STATS: Final = Need(words="exact_stats", holds=lambda can: can.exact_stats)
ESTIMATES: Final = Need(words="no exact_stats", holds=lambda can: not can.exact_stats)
DURABLE: Final = Need(words="durable", holds=lambda can: can.durable)
NOT_DURABLE: Final = Need(words="not durable", holds=lambda can: not can.durable)
BATCHES: Final = Need(words="max_settle of 3 or more", holds=lambda can: can.max_settle >= 3)
ATOMIC_DEAD_LETTER: Final = Need(
    words="atomic_dead_letter", holds=lambda can: can.atomic_dead_letter
)


def finite(field: str) -> Need:
    """The limit ``field`` is a number that can be reached in a test."""
    return Need(
        words=f"a {field} that a test can reach",
        holds=lambda can: float(getattr(can, field)) <= _REACHABLE.get(field, 10.0**9),
    )


def boundless(field: str) -> Need:
    """The opposite of ``finite``."""
    return Need(
        words=f"a {field} beyond what a test can reach",
        holds=lambda can: float(getattr(can, field)) > _REACHABLE.get(field, 10.0**9),
    )


_REACHABLE: Final = {
    "max_message_bytes": float(MEASURABLE_BYTES),
    "max_batch_bytes": float(MEASURABLE_BYTES),
}
