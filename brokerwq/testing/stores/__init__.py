"""The conformance suite for stores of processed keys: one for all of them.

Nothing here needs pytest, but ``brokerwq.testing.stores.pytest_suite``.
"""

from importlib import import_module

from brokerwq.testing.stores.bench import OpenBench, Own, StoreBench, Work, a_claim
from brokerwq.testing.stores.catalogue import StoreCheck, registered, run_store_check

_MODULES = ("records", "races", "trouble", "transactions", "outbox", "blocks")


def all_store_checks() -> tuple[StoreCheck, ...]:
    """Every check, in a fixed order."""
    for name in _MODULES:
        import_module(f"{__name__}.{name}")
    return registered()


__all__ = [
    "OpenBench",
    "Own",
    "StoreBench",
    "StoreCheck",
    "Work",
    "a_claim",
    "all_store_checks",
    "run_store_check",
]
