from __future__ import annotations

import shlex

import pytest

from brokerwq.driver import Capabilities, Difference, QueueSpec
from brokerwq.driver.support import declare_command, listed, split_to_limits


def difference(name: str, fix: str = "") -> Difference:
    return Difference(queue="q", property=name, wanted=1, found=2, fix=fix)


def test_a_fix_of_several_differences_is_said_once() -> None:
    text = listed([difference("a", "mend"), difference("b"), difference("c", "mend")])

    assert text == "q: a is 2, wanted 1; q: c is 2, wanted 1 (fix: mend); q: b is 2, wanted 1"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (QueueSpec(name="their queue"), ["their queue"]),
        (
            QueueSpec(name="q", dead_letter="x", lease=90, retention=60.5, ordered=True),
            ["q", "--dead-letter", "x", "--lease", "90", "--retention", "60.5", "--ordered"],
        ),
        (QueueSpec(name="q", lease=90, retention=float("inf")), ["q", "--lease", "90"]),
    ],
)
def test_the_command_that_makes_a_queue_says_all_of_it(spec: QueueSpec, words: list[str]) -> None:
    assert shlex.split(declare_command(spec)) == ["brokerwq", "queues", "declare", *words]


def test_the_command_for_a_dead_letter_queue_leaves_the_queue_alone() -> None:
    spec = QueueSpec(name="q", dead_letter="x", lease=90, declare="never")

    words = shlex.split(declare_command(spec, dead_letters_only=True))

    assert words[2:] == ["declare", "q", "--dead-letters-only", "--dead-letter", "x"]


@pytest.mark.parametrize(
    ("places", "parts"),
    [
        ([], []),
        ([0, 1, 2, 3], [[0, 1, 2], [3]]),  # by count
        ([4, 0, 5], [[4, 0], [5]]),  # by size
        ([6, 0], [[6], [0]]),  # one that is too large goes alone, for the broker to refuse
    ],
)
def test_what_is_sent_is_split_to_the_brokers_limits(
    places: list[int], parts: list[list[int]]
) -> None:
    sizes = [1, 1, 1, 1, 60, 50, 500]

    limits = Capabilities(max_send=3, max_batch_bytes=100)

    assert split_to_limits(sizes, places, limits) == parts
