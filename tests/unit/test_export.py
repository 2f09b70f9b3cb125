from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerwq.dead_letters.export import left_out, line_of, message_of
from brokerwq.errors import EnvelopeError
from brokerwq.message import DeadLetterNote, Message


def test_a_message_survives_being_written_and_read() -> None:
    message = Message(
        id="a",
        body="größer".encode(),
        type="thumbnail",
        content_type="text/plain",
        headers={"tenant": "é\n"},
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        redrives=2,
        key="k",
        dead=DeadLetterNote(reason="failed", error="line\nline", queue="orders", attempts=5),
    )

    assert message_of(line_of(message)) == message


@pytest.mark.slow
@given(st.binary())
def test_any_body_survives(body: bytes) -> None:
    line = line_of(Message(id="a", body=body))

    assert "\n" not in line
    assert message_of(line).body == body


def test_a_body_of_text_can_be_read_by_people() -> None:
    assert json.loads(line_of(Message(id="a", body="größer".encode())))["body"] == "größer"


class Native(dict[str, object]):
    """``Message.raw`` as an adapter makes it."""

    def untranslatable(self) -> Sequence[str]:
        return list(self)


def test_what_packs_the_body_is_kept_and_what_a_line_cannot_hold_is_named() -> None:
    raw = Native(content_encoding="gzip", reply_to="answers")
    message = Message(id="a", body=b"\x1f\x8b", headers={"lang": "py"}, raw=raw)

    again = message_of(line_of(message))

    assert again.headers == {"lang": "py", "content-encoding": "gzip"}
    assert left_out(message) == ["reply_to"]
    assert left_out(again) == []


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("", "no JSON"),
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("7", "no JSON object"),
        ("{}", '"headers" must be'),
        ('{"headers": {"a": 1}, "body": ""}', "header 'a' must be text"),
        ('{"headers": {}}', "needs"),
        ('{"headers": {}, "body": 7}', "needs"),
        ('{"headers": {}, "body": "\\ud800"}', "lone surrogate"),
        ('{"headers": {}, "body_base64": "%%%"}', "no base64"),
        ('{"headers": {"bwq-attempts": "many"}, "body": ""}', "unreadable headers"),
    ],
)
def test_a_line_that_is_wrong_says_what_is_wrong(line: str, fault: str) -> None:
    with pytest.raises(EnvelopeError, match=fault):
        message_of(line)
