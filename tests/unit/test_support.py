from __future__ import annotations

import shlex

import pytest

from brokerwq.driver import Difference, QueueSpec
from brokerwq.driver.support import declare_command, listed


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
