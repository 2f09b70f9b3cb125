from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerwq import envelope
from brokerwq.envelope import check_user_headers, decode, encode, milliseconds, moment_of
from brokerwq.errors import ConfigError
from brokerwq.message import DeadLetterNote, Message

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
words = texts.filter(bool)
counts = st.integers(0, 2**31 - 1)
moments = st.integers(-(10**12), 10**14).map(
    lambda ms: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
)
user_names = words.filter(
    lambda name: not name.lower().startswith("bwq-") and name.lower() != "content-type"
)
notes = st.builds(
    DeadLetterNote,
    reason=words,
    error_type=texts,
    error=texts,
    digest=texts,
    attempts=counts,
    queue=texts,
    first_at=st.none() | moments,
    dead_at=st.none() | moments,
    version=texts,
)
messages = st.builds(
    Message,
    id=texts,
    body=st.binary(max_size=50),
    type=texts,
    content_type=texts,
    headers=st.dictionaries(user_names, texts, max_size=5),
    created_at=st.none() | moments,
    not_before=st.none() | moments,
    attempts=counts,
    redrives=counts,
    key=st.none() | texts,
    group=st.none() | texts,
    cause=st.none() | texts,
    suspect=st.booleans(),
    unknown_since=st.none() | moments,
    snoozed=st.integers(0, 10**9).map(lambda ms: ms / 1000),
    dead=st.none() | notes,
)


@pytest.mark.slow
@given(messages)
def test_what_is_encoded_is_decoded_as_it_was(message: Message) -> None:
    assert decode(encode(message), message.body) == (message, "")


@pytest.mark.slow
@given(messages)
def test_every_header_is_text_and_every_reserved_name_is_lower_case(message: Message) -> None:
    for name, text in encode(message).items():
        assert isinstance(text, str)
        if name not in message.headers:
            assert name == name.lower()
            assert name.startswith("bwq-") or name == "content-type"


@pytest.mark.slow
@given(st.dictionaries(texts | st.sampled_from(sorted(vars(envelope))), texts))
def test_no_headers_make_decoding_fail(headers: dict[str, str]) -> None:
    message, _ = decode(headers, b"body")

    assert message.body == b"body"


TYPED = [
    envelope.CREATED,
    envelope.NOT_BEFORE,
    envelope.UNKNOWN_SINCE,
    envelope.ATTEMPTS,
    envelope.REDRIVES,
    envelope.SNOOZED,
]


@pytest.mark.slow
@given(st.sampled_from(TYPED), texts | st.floats().map(str) | st.integers().map(str))
def test_a_header_is_either_read_or_named_as_a_defect(name: str, text: str) -> None:
    message, defect = decode({name: text}, b"")

    if defect:
        assert defect.startswith(name)
        assert message == Message(id="", body=b"")
    else:
        again, still = decode(encode(message), b"")
        assert not still
        assert again == message


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (envelope.ATTEMPTS, "-1"),
        (envelope.ATTEMPTS, "1.0"),
        (envelope.ATTEMPTS, "\N{ARABIC-INDIC DIGIT ONE}"),
        (envelope.ATTEMPTS, "1_0"),
        (envelope.ATTEMPTS, ""),
        (envelope.ATTEMPTS, "9" * 5000),
        (envelope.CREATED, "2026-01-01T00:00:00Z"),
        (envelope.CREATED, "1_000"),
        (envelope.CREATED, " 1000"),
        (envelope.CREATED, "+1000"),
        (envelope.CREATED, "\N{ARABIC-INDIC DIGIT ONE}"),
        (envelope.CREATED, "9" * 5000),
        (envelope.CREATED, "-99999999999999"),
        (envelope.SNOOZED, "nan"),
        (envelope.SNOOZED, "inf"),
        (envelope.SNOOZED, "-1"),
        (envelope.SNOOZED, "1_0"),
        (envelope.SNOOZED, " 1"),
        (envelope.SNOOZED, "1e3"),
        (envelope.SNOOZED, ".5"),
        (envelope.SNOOZED, "."),
        (envelope.SNOOZED, "10000000000"),
    ],
)
def test_numbers_in_no_form_of_ours_are_defects(name: str, text: str) -> None:
    _, defect = decode({name: text}, b"")

    assert defect.startswith(name)
    assert len(defect) < 200


def test_a_count_beyond_any_use_is_cut() -> None:
    message, defect = decode({envelope.ATTEMPTS: "9999999999"}, b"")

    assert message.attempts == 2**31 - 1
    assert not defect


def test_every_defect_is_named_and_the_rest_is_read() -> None:
    message, defect = decode(
        {envelope.ID: "a", envelope.ATTEMPTS: "x", envelope.CREATED: "y", "mine": "z"}, b"body"
    )

    assert defect == "bwq-created='y', bwq-attempts='x'"
    assert (message.id, message.headers, message.body) == ("a", {"mine": "z"}, b"body")


@pytest.mark.parametrize("version", ["2", "", "x" * 500])
def test_another_version_is_a_defect(version: str) -> None:
    message, defect = decode({envelope.V: version, envelope.ID: "a"}, b"")

    assert defect.startswith("bwq-v=")
    assert "reads 1" in defect
    assert len(defect) < 200
    assert message.id == "a"


def test_a_message_of_somebody_else_is_sound_and_keeps_its_headers() -> None:
    message, defect = decode({"X-Trace": "1", "content-type": "text/plain"}, b"hello")

    assert not defect
    assert (message.id, message.type, message.content_type) == ("", "", "text/plain")
    assert message.headers == {"X-Trace": "1"}


def test_reserved_headers_of_a_later_version_are_not_given_to_the_user() -> None:
    message, defect = decode({"bwq-colour": "blue"}, b"")

    assert not message.headers
    assert not defect


def test_a_first_message_carries_no_more_than_it_must() -> None:
    message = Message(id="a", body=b"", type="t", content_type="text/plain")

    assert encode(message) == {
        "bwq-v": "1",
        "bwq-id": "a",
        "bwq-type": "t",
        "content-type": "text/plain",
    }


@pytest.mark.slow
@given(st.datetimes(min_value=datetime(1, 1, 2), max_value=datetime(9999, 12, 30)))  # noqa: DTZ001
def test_moments_are_rounded_up_to_the_millisecond(moment: datetime) -> None:
    aware = moment.replace(tzinfo=UTC)

    read = moment_of(milliseconds(aware))

    assert timedelta(0) <= read - aware < timedelta(milliseconds=1)
    assert milliseconds(read) == milliseconds(aware)


def test_an_empty_key_is_not_no_key() -> None:
    message = Message(id="a", body=b"", key="")

    assert decode(encode(message), b"")[0].key == ""
    assert decode(encode(replace(message, key=None)), b"")[0].key is None


@pytest.mark.slow
@given(st.dictionaries(user_names.filter(lambda name: len(name.encode()) <= 200), texts))
def test_headers_that_every_broker_can_carry_are_taken(headers: dict[str, str]) -> None:
    check_user_headers(headers)


@pytest.mark.parametrize(
    "headers",
    [
        {"": "empty name"},
        {"n" * 201: "long name"},
        {"ü" * 101: "long in bytes"},
        {"bwq-id": "reserved"},
        {"BWQ-Anything": "reserved"},
        {"Content-Type": "reserved"},
        {"a": 1},
        {"a": None},
        {"a": b"bytes"},
        {"a": "\ud800"},
        {"\udfff": "a"},
    ],
)
def test_headers_that_some_broker_cannot_carry_are_refused(headers: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        check_user_headers(headers)


def test_the_longest_name_is_taken() -> None:
    check_user_headers({"n" * 200: "", "ü" * 100: ""})
