"""Dramatiq's messages: one JSON object, on SQS in base64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from brokerwq.codecs import coding, strict
from brokerwq.codecs.call import check_choice, compact, completed, part, refuse_workflow
from brokerwq.errors import EnvelopeError
from brokerwq.foreign import Arguments, Expired, Reading
from brokerwq.message import Message

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_WHAT: Final = "a message of Dramatiq"
_WORKFLOW: Final = (
    *("pipe_target", "group_completion_callbacks"),
    *("on_success", "on_failure", "on_retry_exhausted"),
)


@dataclass(frozen=True, slots=True)
class DramatiqCodec:
    """Reads Dramatiq's messages; the type of a message is the name of its actor.

    Attributes:
        expired: What becomes of a message that is older than its own ``max_age``; Dramatiq
            gives it up.
        workflows: A message with a pipeline, callbacks or a group's callbacks is a dead
            letter, for nobody here goes on with those; ``ignore`` runs it and drops them.
    """

    expired: Expired = "dead-letter"
    workflows: Literal["refuse", "ignore"] = "refuse"

    def __post_init__(self) -> None:
        """Check the values."""
        check_choice(self.expired, "expired", "discard", "dead-letter")
        check_choice(self.workflows, "workflows", "refuse", "ignore")

    def read(self, message: Message, /) -> Reading:
        """See ``ForeignCodec.read``."""
        body = message.body
        if not body.lstrip().startswith(b"{"):
            body = coding.unbase64(body, "a body that is no JSON object")
        fields = strict.parse_object(body, "the message")
        known = Reading(
            type=part(fields, "actor_name", str, _WHAT), id=part(fields, "message_id", str, _WHAT)
        )
        return completed(known, lambda known: self._whole(fields, known))

    def _whole(self, fields: Mapping[str, object], known: Reading) -> Reading:
        args = part(fields, "args", list[object], _WHAT)
        kwargs = part(fields, "kwargs", dict[str, object], _WHAT)
        options = part(fields, "options", dict[str, object], _WHAT)
        if self.workflows == "refuse":
            refuse_workflow("message", [name for name in _WORKFLOW if options.get(name)])
        created = _moment(fields.get("message_timestamp"), "message_timestamp")
        return replace(
            known,
            # Without the options, which change when Dramatiq sends the same message again.
            body=compact([args, kwargs]),
            arguments=Arguments(args, kwargs),
            created_at=created,
            not_before=_not_before(options),
            expires=_expires(created, options),
            expired=self.expired,
            raw={
                "Dramatiq": {
                    name: value for name, value in fields.items() if name not in ("args", "kwargs")
                }
            },
        )


def _not_before(options: Mapping[str, object]) -> datetime | None:
    eta = options.get("eta")
    # Dramatiq itself takes an eta that is no number for "now".
    is_number = isinstance(eta, int | float) and not isinstance(eta, bool)
    return _moment(eta, "eta") if is_number else None


def _expires(created: datetime | None, options: Mapping[str, object]) -> datetime | None:
    max_age = options.get("max_age")
    # Of 0 Dramatiq itself makes no limit.
    if created is None or not max_age or not isinstance(max_age, int | float):
        return None
    try:
        return created + timedelta(milliseconds=max_age)
    except OverflowError:
        return None  # it is for ever


def _moment(milliseconds: object, name: str) -> datetime | None:
    if milliseconds is None:
        return None
    if not isinstance(milliseconds, int | float) or isinstance(milliseconds, bool):
        msg = f"{name} is no number"
        raise EnvelopeError(msg)
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds)
    except (OverflowError, ValueError):
        msg = f"{name} is beyond the calendar"
        raise EnvelopeError(msg) from None
