"""The conformance checks, one module per subject."""

from __future__ import annotations

from importlib import import_module

from brokerwq.testing.catalogue import Check, registered

SUBJECTS = (
    "sending",
    "claiming",
    "settling",
    "returning",
    "leases",
    "lost_leases",
    "delays",
    "dead_letters",
    "envelope",
    "admin",
    "lifecycle",
    "failures",
)


def all_checks() -> tuple[Check, ...]:
    """Every check, in the order of ``SUBJECTS``."""
    for subject in SUBJECTS:
        import_module(f"{__name__}.{subject}")
    order = {subject: nth for nth, subject in enumerate(SUBJECTS)}
    return tuple(
        sorted(registered(), key=lambda check: order.get(check.name.partition(".")[0], len(order)))
    )
