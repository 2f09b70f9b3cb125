from __future__ import annotations

import subprocess
import sys
import threading
import time
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerwq.message import Message, child_message_id, new_message_id

MILLISECOND = 1_000_000


def test_a_new_id_is_a_uuid_of_version_seven() -> None:
    for _ in range(1000):
        made = uuid.UUID(text := new_message_id())

        assert made.version == 7
        assert made.variant == uuid.RFC_4122
        assert str(made) == text


def test_new_ids_carry_the_time_of_their_making() -> None:
    before = time.time_ns() // MILLISECOND
    made = uuid.UUID(new_message_id())
    after = time.time_ns() // MILLISECOND

    assert before <= made.int >> 80 <= after


def test_ids_made_in_different_milliseconds_sort_by_time() -> None:
    made: list[str] = []
    for _ in range(5):
        made.append(new_message_id())
        second = time.time_ns() // MILLISECOND
        while time.time_ns() // MILLISECOND == second:
            pass

    assert made == sorted(made)


def test_ids_of_many_threads_are_all_different() -> None:
    made: list[list[str]] = []

    def make() -> None:
        made.append([new_message_id() for _ in range(5000)])

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len({id_ for ids in made for id_ in ids}) == 20_000


FORKING = """
import os
from brokerwq.message import new_message_id

new_message_id()
read, write = os.pipe()
if os.fork() == 0:
    os.write(write, " ".join(new_message_id()[-12:] for _ in range(20)).encode())
    os._exit(0)
os.close(write)
os.wait()
theirs = set(os.read(read, 10000).decode().split())
ours = {new_message_id()[-12:] for _ in range(400)}
print(len(theirs), len(theirs & ours))
"""


@pytest.mark.slow
def test_a_forked_child_makes_other_ids_than_its_parent() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKING], capture_output=True, text=True, check=True, timeout=60
    )

    assert done.stdout.split() == ["20", "0"]


@pytest.mark.slow
@given(st.text(st.characters(exclude_categories=["Cs"])), st.integers(0, 10**6))
def test_a_childs_id_depends_on_its_parent_and_its_number_alone(parent: str, nth: int) -> None:
    made = child_message_id(parent, nth)

    assert made == child_message_id(parent, nth)
    assert made != child_message_id(parent, nth + 1)
    assert made != child_message_id(f"{parent}x", nth)
    assert uuid.UUID(made).version == 8
    assert uuid.UUID(made).variant == uuid.RFC_4122


def test_no_parents_name_can_pass_for_another_ones_number() -> None:
    assert child_message_id("a1", 1) != child_message_id("a", 11)


def test_messages_do_not_share_what_could_be_changed() -> None:
    one, other = Message(id="1", body=b""), Message(id="1", body=b"")

    assert one == other
    assert hash(one.id) == hash(other.id)
    assert not one.headers
    assert not one.raw
