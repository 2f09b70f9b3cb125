"""What users import: the names are pinned here, so that a change of them is seen."""

from __future__ import annotations

import importlib
import inspect

import pytest

import brokerwq

PUBLIC = {
    "brokerwq": """
        App Broker BrokerwqError Claimer DeadLetter DeadLetterNote Delivery Discard Done
        EnqueueError Job Message Middleware Next Once Outcome QueueSpec QueueStats Retry RetryPolicy
        RunReport Runner SendReport Snooze Tx __version__ connect
    """,
    "brokerwq.idempotency": """
        Guards KeyBusyError NoKeyError PayloadMismatchError Processed Record SqliteStore State
        Store TransactionAbortedError TransactionConflictError TransactionalStore open_store
        processed
    """,
    "brokerwq.driver": """
        Adapter Capabilities Certainty Consumer Count DEFAULT_BROKER_LIMIT Delivery Difference
        Driver Lease Mark Particular QueueSpec QueueStats Results UNKNOWN_COUNT UncountedReturn
        Watchful capabilities_of dead_letter_name
    """,
}
PACKAGES = [
    "brokerwq",
    "brokerwq.driver",
    "brokerwq.idempotency",
    "brokerwq.testing",
    "brokerwq.telemetry",
]


@pytest.mark.parametrize("package", PUBLIC)
def test_the_public_names_are_the_approved_ones(package: str) -> None:
    assert set(importlib.import_module(package).__all__) == set(PUBLIC[package].split())


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_there(package: str) -> None:
    module = importlib.import_module(package)

    assert [name for name in module.__all__ if not hasattr(module, name)] == []
    assert len(set(module.__all__)) == len(module.__all__)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_class_and_function_says_what_it_is_for(package: str) -> None:
    module = importlib.import_module(package)
    things = {name: getattr(module, name) for name in module.__all__}

    silent = [
        name
        for name, thing in things.items()
        if (inspect.isclass(thing) or inspect.isfunction(thing)) and not thing.__doc__
    ]

    assert silent == []


def test_every_public_name_is_offered_to_whoever_asks() -> None:
    assert set(brokerwq.__all__) <= set(dir(brokerwq))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        brokerwq.nonsense  # noqa: B018
