from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import baggage, trace
from opentelemetry.context import attach, detach

from brokerwq.envelope import check_user_headers
from tests.telemetry.lab import Journal, Lab, attributes_of, delivery, parent_of, trace_of

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"
SOUND = f"00-{TRACE}-{SPAN}-01"


def processed_trace(lab: Lab, headers: dict[str, str]) -> int:
    with lab.otel.processing([delivery(headers)], "thumbnail", 1):
        pass
    return trace_of(lab.named("process images")[-1])


@pytest.mark.parametrize(
    "headers",
    [
        {"traceparent": SOUND},
        {"traceparent": f" {SOUND}\t"},
        {"traceparent": SOUND, "tracestate": "vendor=abc, other@system=x y"},
        {"traceparent": SOUND, "tracestate": ""},
        {"traceparent": SOUND, "baggage": "user=ann,  tenant = 7 ;meta;k=v"},
        {"traceparent": f"01-{TRACE}-{SPAN}-01-what-a-later-version-adds"},
    ],
)
def test_a_sound_context_is_continued(lab: Lab, headers: dict[str, str]) -> None:
    assert f"{processed_trace(lab, headers):032x}" == TRACE


MALFORMED = [
    {"traceparent": ""},
    {"traceparent": "rubbish"},
    {"traceparent": SOUND.upper()},
    {"traceparent": SOUND[:-1]},
    {"traceparent": f"{SOUND}-more"},
    {"traceparent": f"{SOUND}\n"},
    {"traceparent": f"ff-{TRACE}-{SPAN}-01"},
    {"traceparent": f"00-{'0' * 32}-{SPAN}-01"},
    {"traceparent": f"00-{TRACE}-{'0' * 16}-01"},
    {"traceparent": f"00-{TRACE}-{SPAN}-\u0660\u0661"},
    {"traceparent": f"01-{TRACE}-{SPAN}-01-" + "x" * 100_000},
    {"traceparent": SOUND, "tracestate": "no equals sign"},
    {"traceparent": SOUND, "tracestate": "Upper=1"},
    {"traceparent": SOUND, "tracestate": "a=1,a=2"},
    {"traceparent": SOUND, "tracestate": "ä=1"},
    {"traceparent": SOUND, "tracestate": ",".join(f"k{n}=v" for n in range(33))},
    {"traceparent": SOUND, "tracestate": "a=" + "x" * 9000},
    {"traceparent": SOUND, "tracestate": ",".join(f"k{n}={'x' * 255}" for n in range(32))},
    {"traceparent": f"00-{'0' * 32}-{SPAN}-01", "baggage": "user=ann"},
    {"traceparent": SOUND, "baggage": "no equals sign"},
    {"traceparent": SOUND, "baggage": "user=änn"},
    {"traceparent": SOUND, "baggage": 'user="ann"'},
    {"traceparent": SOUND, "baggage": "user=" + "x" * 10_000},
    {"traceparent": SOUND, "baggage": ",".join(f"k{n}=v" for n in range(181))},
    {"baggage": "user=\ud800"},
]


@pytest.mark.parametrize("headers", MALFORMED)
def test_a_malformed_context_starts_a_new_trace_and_nothing_else(
    lab: Lab, headers: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    with lab.otel.processing([delivery(headers)], "thumbnail", 1):
        assert baggage.get_all() == {}
        assert trace.get_current_span().get_span_context().is_valid

    processed = lab.one("process images")
    assert f"{trace_of(processed):032x}" != TRACE
    assert processed.parent is None
    assert processed.links == ()
    assert attributes_of(processed)["brokerwq.outcome"] == "done"
    assert caplog.records == []


def test_one_malformed_context_of_a_batch_costs_its_link_alone(lab: Lab) -> None:
    batch = [delivery({"traceparent": "rubbish"}), delivery({"traceparent": SOUND})]

    with lab.otel.processing(batch, "thumbnail", 1):
        pass

    (link,) = lab.one("process images").links
    assert f"{link.context.trace_id:032x}" == TRACE


header_text = st.text(max_size=60) | st.text("0123456789abcdef-,=;@ %x", max_size=80)


@pytest.mark.slow
@given(
    st.fixed_dictionaries(
        {},
        optional={"traceparent": header_text, "tracestate": header_text, "baggage": header_text},
    )
)
def test_no_header_whatever_breaks_a_job_or_is_logged(headers: dict[str, str]) -> None:
    lab = Lab()
    journal = Journal()
    logging.getLogger().addHandler(journal)
    try:
        with lab.otel.processing([delivery(headers)], "thumbnail", 1):
            pass
    finally:
        logging.getLogger().removeHandler(journal)

    assert lab.one("process images").get_span_context() is not None
    assert journal.records == []


# -- what is sent ---------------------------------------------------------------------------


def sent_with(lab: Lab, pairs: dict[str, object]) -> dict[str, str]:
    token = None
    context = None
    for name, value in pairs.items():
        context = baggage.set_baggage(name, value, context)
    if context is not None:
        token = attach(context)
    try:
        return lab.send()
    finally:
        if token is not None:
            detach(token)


@pytest.mark.parametrize(
    "value", ["ann", "Änn & Bob, 100% = a;b", "two words", "a+b", "", "日本語"]
)
def test_baggage_arrives_as_it_was_set(lab: Lab, value: str) -> None:
    headers = sent_with(lab, {"user": value})

    with lab.otel.processing([delivery(headers)], "thumbnail", 1):
        assert baggage.get_all() == {"user": value}
    assert all(text.isascii() for text in headers.values())


def test_what_is_sent_is_legal_in_every_envelope(lab: Lab) -> None:
    check_user_headers(sent_with(lab, {"user name": "Änn"}))


@pytest.mark.parametrize(
    "pairs",
    [
        {"user": "x" * 10_000},
        {"user": "ä" * 4000},
        {f"k{n}": "v" for n in range(200)},
        {"user": "\ud800"},
    ],
)
def test_baggage_that_no_broker_would_take_is_left_out(
    lab: Lab, pairs: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    headers = sent_with(lab, pairs)

    assert list(headers) == ["traceparent"]
    assert caplog.records == []


def test_the_trace_state_travels_on(lab: Lab) -> None:
    carried = {"traceparent": SOUND, "tracestate": "vendor=abc"}

    with lab.otel.processing([delivery(carried)], "thumbnail", 1):
        onward = lab.send("next")

    assert onward["tracestate"] == "vendor=abc"


def test_a_trace_state_longer_than_brokers_bear_is_left_out(lab: Lab) -> None:
    carried = {"traceparent": SOUND, "tracestate": ",".join(f"v{n}={'x' * 200}" for n in range(5))}

    with lab.otel.processing([delivery(carried)], "thumbnail", 1):
        onward = lab.send("next")

    assert "tracestate" not in onward
    assert TRACE in onward["traceparent"]


def test_a_child_message_continues_the_trace_of_its_parent(lab: Lab) -> None:
    with lab.otel.processing([delivery({"traceparent": SOUND})], "thumbnail", 1):
        onward = lab.send("next")
    with lab.otel.processing([delivery(onward, queue="next")], "publish", 1):
        pass

    assert {f"{trace_of(span):032x}" for span in lab.spans} == {TRACE}
    assert parent_of(lab.one("process next")) is not None
