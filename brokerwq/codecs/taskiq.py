"""Taskiq's messages: one JSON object, whose labels have their types beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, cast

from brokerwq.codecs import coding, strict
from brokerwq.codecs.call import check_choice, compact, completed, part, refuse_workflow
from brokerwq.errors import EnvelopeError
from brokerwq.foreign import Arguments, Reading
from brokerwq.message import Message

_WHAT: Final = "a message of Taskiq"
_WORKFLOW: Final = ("_pipe_data",)
"""Of taskiq-pipelines."""


@dataclass(frozen=True, slots=True)
class TaskiqCodec:
    """Reads Taskiq's messages; the type of a message is the name of its task.

    Attributes:
        workflows: A message with a pipeline is a dead letter, for nobody here goes on with
            that; ``ignore`` runs it and drops the rest.
    """

    workflows: Literal["refuse", "ignore"] = "refuse"

    def __post_init__(self) -> None:
        """Check the value."""
        check_choice(self.workflows, "workflows", "refuse", "ignore")

    def read(self, message: Message, /) -> Reading:
        """See ``ForeignCodec.read``."""
        fields = strict.parse_object(message.body, "the message")
        known = Reading(
            type=part(fields, "task_name", str, _WHAT), id=part(fields, "task_id", str, _WHAT)
        )
        return completed(known, lambda known: self._whole(fields, known))

    def _whole(self, fields: Mapping[str, object], known: Reading) -> Reading:
        args = part(fields, "args", list[object], _WHAT)
        kwargs = part(fields, "kwargs", dict[str, object], _WHAT)
        labels = part(fields, "labels", dict[str, object], _WHAT)
        if self.workflows == "refuse":
            refuse_workflow("message", [name for name in _WORKFLOW if labels.get(name)])
        kinds = fields.get("labels_types")
        types = cast("dict[str, object]", kinds) if isinstance(kinds, dict) else {}
        typed = {name: _label(value, types.get(name)) for name, value in labels.items()}
        return replace(
            known,
            # Without the labels, which change when Taskiq sends the same message again.
            body=compact([args, kwargs]),
            arguments=Arguments(args, kwargs),
            raw={"Taskiq": {"labels": typed}},
        )


def _label(value: object, kind: object) -> object:
    """A label as it was before Taskiq made a text of it."""
    parse = _PARSERS.get(kind) if isinstance(kind, int) else None
    if parse is None or not isinstance(value, str):
        return value
    try:
        return parse(value)
    except (ValueError, EnvelopeError):
        return value


def _unbase64(text: str) -> bytes:
    return coding.unbase64(text.encode("utf-8", "surrogatepass"), "a label")


def _is_true(text: str) -> bool:
    return text.lower() == "true"


# Numbers of Taskiq's ``LabelType``; the others are texts.
_PARSERS: Final[Mapping[int, Callable[[str], object]]] = {
    2: int,
    4: float,
    5: _is_true,
    6: _unbase64,
}
