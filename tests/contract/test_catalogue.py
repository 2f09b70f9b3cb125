"""The list of checks is complete, and grows only on purpose."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest

from brokerwq.driver import Capabilities, Lease, UncountedReturn
from brokerwq.testing import all_checks

APPROVED = Path(__file__).with_name("checks.txt")
SANITY = "admin.capabilities_are_sane"

BOTH_WAYS: dict[str, tuple[object, object]] = {
    "lease": (Lease.TIMED, Lease.CONNECTION),
    "max_lease": (math.inf, 43_140.0),
    "max_claim": (1000, 1),
    "max_settle": (1000, 1),
    "max_send": (1000, 1),
    "max_message_bytes": (math.inf, 2**20),
    "max_batch_bytes": (math.inf, 2**20),
    "max_wait": (math.inf, 20.0),
    "max_send_delay": (math.inf, 0.0),
    "max_release_delay": (math.inf, 0.0),
    "fences": (True, False),
    "counts_receives": (True, False),
    "uncounted_return": (UncountedReturn.EXACT, UncountedReturn.COUNTED),
    "atomic_dead_letter": (True, False),
    "ordered_groups": (True, False),
    "exact_stats": (True, False),
    "durable": (True, False),
    "lists_queues": (True, False),
}
SAME_BOTH_WAYS = {"max_claim", "max_settle", "max_send"}  # one check asks for as many as allowed


def proofs(field: str, value: object) -> set[str]:
    can = replace(Capabilities(), **{field: value})  # type: ignore[arg-type]
    return {
        check.name
        for check in all_checks()
        if field in check.proves and not check.unmet(can) and check.name != SANITY
    }


@pytest.mark.parametrize("field", [field.name for field in fields(Capabilities)])
def test_every_capability_is_proved_where_it_is_there_and_where_it_is_not(field: str) -> None:
    there, absent = (proofs(field, value) for value in BOTH_WAYS[field])

    assert there
    assert absent
    assert field in SAME_BOTH_WAYS or there != absent


@pytest.mark.parametrize("number", range(1, 13))
def test_every_rule_of_the_contract_is_proved(number: int) -> None:
    assert [check.name for check in all_checks() if f"rule {number}" in check.proves]


def test_checks_prove_what_exists() -> None:
    known = {field.name for field in fields(Capabilities)}
    known |= {f"rule {number}" for number in range(1, 13)}

    assert not [check.name for check in all_checks() if not known.issuperset(check.proves)]


def test_every_check_says_in_a_sentence_what_must_be_so() -> None:
    summaries = {check.name: check.summary for check in all_checks()}

    assert not [name for name, text in summaries.items() if not text.endswith(".")]
    assert not [
        name for name, text in summaries.items() if not text[0].isupper() | (text[0] == "`")
    ]


def test_the_list_of_checks_is_the_approved_one() -> None:
    """A new check may turn third parties' adapters red: add it here and to the changelog."""
    assert APPROVED.read_text().split() == [check.name for check in all_checks()]


@pytest.mark.slow
def test_the_kit_needs_neither_pytest_nor_hypothesis() -> None:
    program = (
        "import sys; sys.modules.update(pytest=None, hypothesis=None); "
        "import brokerwq.testing as t; import brokerwq.testing.faults; print(len(t.all_checks()))"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )

    assert int(done.stdout) == len(all_checks())
