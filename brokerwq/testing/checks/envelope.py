"""Rule 10: what is sent is what comes back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from brokerwq.envelope import MAX_HEADER_NAME_BYTES
from brokerwq.message import DeadLetterNote, Message
from brokerwq.testing.bench import Bench, a_message, expect_equal
from brokerwq.testing.catalogue import check
from brokerwq.testing.checks.support import exact_milliseconds, full_message

_TRICKY_BODIES: Sequence[bytes] = (
    b"",
    b" ",
    b"\n",
    b"\x00",
    b"cGFy",
    b"base64:cGFy",
    b'{"n": 1}',
    b'"',
    b"{",
    b"null",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"\xef\xbf\xbe",
    b"\x0b\x1b",
    "Grüße 🐙".encode(),
    "\N{BYTE ORDER MARK}x".encode(),
    b"  padded  \r\n",
    b"<!-- & -->",
)


async def _there_and_back(bench: Bench, messages: Sequence[Message]) -> dict[str, Message]:
    queue = await bench.queue()
    await bench.send(queue, *messages)
    consumer = await bench.consumer(queue, prefetch=len(messages))
    found = await bench.claim(consumer, len(messages))
    for delivery in found:
        expect_equal(delivery.defect, "", "the defect of a sound message")
    return {delivery.message.id: delivery.message for delivery in found}


async def _expect_headers(bench: Bench, headers: Mapping[str, str]) -> None:
    sent = a_message(headers=headers)
    found = await _there_and_back(bench, [sent])
    back = dict(found[sent.id].headers)
    for name in sorted({*headers, *back}):
        expect_equal(back.get(name), headers.get(name), f"the header {name!r:.100}")


@check("rule 10")
async def every_byte_comes_back(bench: Bench) -> None:
    """A body with every value a byte can have comes back unchanged."""
    sent = a_message(bytes(range(256)) * 3)

    found = await _there_and_back(bench, [sent])

    expect_equal(found[sent.id].body, sent.body, "the body")


@check("rule 10")
async def no_body_is_misread(bench: Bench) -> None:
    """Bodies that are empty, or look like an encoding, JSON or broken text, come back unchanged."""
    messages = [a_message(body) for body in _TRICKY_BODIES]

    found = await _there_and_back(bench, messages)

    for sent in messages:
        expect_equal(found[sent.id].body, sent.body, "the body")


@check("rule 10")
async def every_field_comes_back(bench: Bench) -> None:
    """A message with every field set comes back equal."""
    moment = exact_milliseconds(bench)
    sent = replace(
        full_message(bench),
        not_before=moment + timedelta(days=2),
        suspect=True,
        unknown_since=moment - timedelta(minutes=3),
        snoozed=0.125,
        dead=DeadLetterNote(reason="timeout", attempts=3, queue="orders", dead_at=moment),
    )

    found = await _there_and_back(bench, [sent])

    expect_equal(found[sent.id], sent, "the message")


@check("rule 10")
async def what_was_not_set_stays_so(bench: Bench) -> None:
    """A message that has an id and a body alone comes back equal."""
    sent = replace(a_message(), type="")

    found = await _there_and_back(bench, [sent])

    expect_equal(found[sent.id], sent, "the message")


@check("rule 10")
async def empty_texts_are_not_absent(bench: Bench) -> None:
    """A key, group or header whose text is empty comes back as empty, not as absent."""
    sent = a_message(key="", headers={"empty": ""})

    found = await _there_and_back(bench, [sent])

    expect_equal(found[sent.id].key, "", "the key")
    expect_equal(dict(found[sent.id].headers), {"empty": ""}, "the headers")


@check("rule 10")
async def forty_headers_come_back(bench: Bench) -> None:
    """Forty headers of a hundred characters come back, each with its value."""
    await _expect_headers(bench, {f"header-{nth}": f"{nth:03}" * 33 for nth in range(40)})


@check("rule 10")
async def header_names_keep_their_case(bench: Bench) -> None:
    """Header names that differ in case only are different headers."""
    await _expect_headers(bench, {"X-Trace": "1", "x-trace": "2", "X-TRACE": "3"})


@check("rule 10")
async def odd_header_names_come_back(bench: Bench) -> None:
    """Long names, names with blanks, punctuation, letters of any alphabet: all come back."""
    names = (
        "n" * MAX_HEADER_NAME_BYTES,
        "ü" * (MAX_HEADER_NAME_BYTES // 2),
        "two words",
        "a:b/c?d=e&f",
        "AWS.trace",
        "Amazon.x",
        "x-death",
        "x-delivery-count",
        "x-match",
        ".dot.",
        "-",
        "0",
        "bwq",
        "id",
        "body",
        "headers",
        "type",
        "日本語",
        "tab\tand\x01control",
        '"quoted"',
        "$ref",
    )
    await _expect_headers(bench, {name: f"value {nth}" for nth, name in enumerate(names)})


@check("rule 10")
async def odd_header_values_come_back(bench: Bench) -> None:
    """Values with capitals, any alphabet, control characters, blanks or numbers: unchanged."""
    values = (
        "CamelCase",
        "Grüße, 世界 🐙",
        "line\nfeed\r\n\ttab",
        "".join(map(chr, range(1, 32))),
        "\x00",
        "\x7f\x80\x9f",
        "\N{BYTE ORDER MARK}",
        "\ufffe\uffff",
        "  padded  ",
        " ",
        "12",
        "1.50",
        "true",
        "null",
        '{"a": [1]}',
        "=?utf-8?b?eA==?=",
        "cGFy",
        "x" * 4096,
    )
    await _expect_headers(bench, {f"h{nth}": value for nth, value in enumerate(values)})


@check("rule 10")
async def a_message_can_travel_twice(bench: Bench) -> None:
    """A message that was claimed and is sent on as it is comes back equal again."""
    sent = full_message(bench)
    first = await _there_and_back(bench, [sent])

    second = await _there_and_back(bench, [first[sent.id]])

    expect_equal(second[sent.id], sent, "the message after two journeys")
