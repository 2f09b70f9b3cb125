"""The W3C trace context in a message's headers: written by a sender, read for every job.

A context is either wholly sound or dropped whole: then a new trace starts, and nothing else
comes of it. The checks stand here because OpenTelemetry's propagators keep the sound part and
log a warning for the rest, for every message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import quote, unquote_plus

from opentelemetry import baggage
from opentelemetry.context import Context
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
BAGGAGE: Final = "baggage"

MAX_TRACESTATE: Final = 8192
MAX_BAGGAGE: Final = 8192
"""Bytes, W3C Baggage section 3.3.2; what is longer is neither read nor sent."""

SENT_TRACESTATE: Final = 512
"""Characters that W3C Trace Context section 3.3.1.5 asks for; brokers count every byte."""

_MAX_STATES: Final = 32
_MAX_PAIRS: Final = 180
_MAX_TRACEPARENT: Final = 512

_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_STATE = re.compile(
    r"([a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13}|[a-z][a-z0-9_*/-]{0,255})"
    r"=([\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e])",
    re.ASCII,
)
_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # noqa: S105 -- RFC 9110's word for a name
_PAIR = re.compile(
    rf"({_TOKEN})[ \t]*=[ \t]*([\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]*)"
    rf"([ \t]*;[ \t]*{_TOKEN}[ \t]*(=[ \t]*[\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]*)?)*",
    re.ASCII,
)


class Carried(NamedTuple):
    """What a message brought: its creation context and its baggage, either may be missing."""

    span: SpanContext | None
    baggage: Mapping[str, str]

    def as_context(self) -> Context:
        """A context with nothing but this in it."""
        context = Context()
        for name, value in self.baggage.items():
            context = baggage.set_baggage(name, value, context)
        if self.span is not None:
            context = set_span_in_context(NonRecordingSpan(self.span), context)
        return context


NOTHING: Final = Carried(None, {})


def read(headers: Mapping[str, str]) -> Carried:
    """The context in ``headers``; ``NOTHING`` if there is none or any of it is malformed."""
    parent, members = headers.get(TRACEPARENT), headers.get(BAGGAGE)
    if parent is None and members is None:
        return NOTHING
    try:
        span = None if parent is None else _span(parent, headers.get(TRACESTATE))
        return Carried(span, {} if members is None else _pairs(members))
    except ValueError:
        return NOTHING


def _span(parent: str, states: str | None) -> SpanContext:
    match = _PARENT.fullmatch(parent.strip(" \t")) if len(parent) <= _MAX_TRACEPARENT else None
    if match is None:
        raise ValueError(TRACEPARENT)
    version, trace_id, span_id, flags, more = match.groups()
    if version == "ff" or (version == "00" and more):
        raise ValueError(TRACEPARENT)
    span = SpanContext(
        trace_id=int(trace_id, 16),
        span_id=int(span_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(int(flags, 16)),
        trace_state=None if states is None else _trace_state(states),
    )
    if not span.is_valid:
        raise ValueError(TRACEPARENT)
    return span


def _trace_state(text: str) -> TraceState:
    entries: dict[str, str] = {}
    if len(text) > MAX_TRACESTATE:
        raise ValueError(TRACESTATE)
    for member in text.split(","):
        if not (member := member.strip(" \t")):
            continue
        match = _STATE.fullmatch(member)
        if match is None or match[1] in entries or len(entries) == _MAX_STATES:
            raise ValueError(TRACESTATE)
        entries[match[1]] = match[2]
    return TraceState(list(entries.items()))


def _pairs(text: str) -> Mapping[str, str]:
    if len(text) > MAX_BAGGAGE:
        raise ValueError(BAGGAGE)
    pairs: dict[str, str] = {}
    for member in text.split(","):
        if not (member := member.strip(" \t")):
            continue
        match = _PAIR.fullmatch(member)
        if match is None or len(pairs) == _MAX_PAIRS:
            raise ValueError(BAGGAGE)
        # Properties after the value have no place in OpenTelemetry's API for Python.
        pairs[unquote_plus(match[1])] = unquote_plus(match[2])
    return pairs


def write(span: SpanContext, context: Context) -> dict[str, str]:
    """Headers that make ``span`` the creation context of a message, with ``context``'s baggage.

    What is too long to be carried everywhere is left out: a message that is refused for its
    telemetry would be a lost one.
    """
    headers: dict[str, str] = {}
    if span.is_valid:
        headers[TRACEPARENT] = f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"
        states = span.trace_state.to_header() if span.trace_state else ""
        if 0 < len(states) <= SENT_TRACESTATE:
            headers[TRACESTATE] = states
    pairs = baggage.get_all(context)
    if 0 < len(pairs) <= _MAX_PAIRS:
        members = _members(pairs)
        if 0 < len(members) <= MAX_BAGGAGE:
            headers[BAGGAGE] = members
    return headers


def _members(pairs: Mapping[str, object]) -> str:
    texts = [(str(name), str(value)) for name, value in pairs.items()]
    if sum(len(name) + len(value) for name, value in texts) > MAX_BAGGAGE:
        return ""
    try:
        return ",".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in texts)
    except UnicodeEncodeError:
        return ""
