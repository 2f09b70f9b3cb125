"""Texts fit for a log or a span: cut, without credentials, without payloads."""

from __future__ import annotations

import itertools
import re
import traceback
from pathlib import Path
from typing import Any, Final

LIMIT: Final = 200
"""Characters that one value keeps."""

_WINDOW: Final = 10 * LIMIT
_CHAIN: Final = 5
_FRAMES: Final = 20
STACK_LIMIT: Final = 8000
"""Characters that a stack keeps: its end, where the exception was raised."""

_CALLERS: Final = tuple(
    str(Path(__file__).parent.parent / part) for part in ("_runtime", "workers", "middleware.py")
)
"""Where handlers are called from; the same in every stack, and nobody's concern."""


# Greedy up to the last "@": a password that was not percent-encoded may hold one itself.
_USER_INFO = re.compile(r"://[^\s'\"<>]*@")
_SECRET = re.compile(
    r"(passw(?:or)?d|pwd|secret|token|credential|signature|authorization|api[_-]?key|access[_-]?key)"
    r"([\w-]{0,40}[\"']?\s*[=:]\s*[\"']?)((?:bearer|basic)\s+)?[^\s&\"',;]+",
    re.IGNORECASE,
)


def cut(text: str, limit: int = LIMIT) -> str:
    """``text``, at most ``limit`` characters long; a cut one ends in an ellipsis."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def presentable(text: str, limit: int = LIMIT) -> str:
    """``text`` cut, and without what looks like a password, a token or a key."""
    if "://" in text or ":" in text or "=" in text:
        text = text[: max(_WINDOW, limit)]
        text = _SECRET.sub(r"\1\2***", _USER_INFO.sub("://***@", text))
    return cut(text, limit)


def text_of(error: BaseException) -> str:
    """What ``error`` says, presentable; empty if it cannot be had.

    pydantic's errors quote the input, which is the payload: of them only the places and the
    complaints are kept.
    """
    try:
        return presentable(_complaints(error) or str(error))
    except Exception:  # noqa: BLE001 -- a user's __str__ may raise anything
        return ""


def _complaints(error: BaseException) -> str:
    if type(error).__module__.partition(".")[0] not in ("pydantic", "pydantic_core"):
        return ""
    listed: Any = getattr(error, "errors", None)
    if listed is None:
        return ""
    return "; ".join(
        f"{'.'.join(map(str, one['loc']))}: {one['msg']}"
        for one in listed(include_url=False, include_context=False, include_input=False)
    )


def type_of(error: BaseException) -> str:
    """The class of ``error`` as events name it."""
    return cut(type(error).__qualname__)


def full_type_of(error: BaseException) -> str:
    """The class of ``error`` with its module, as OpenTelemetry's ``exception.type`` has it."""
    module = type(error).__module__
    name = type(error).__qualname__
    return cut(name if module == "builtins" else f"{module}.{name}")


def stack_of(error: BaseException) -> str:
    """Where ``error`` and its causes were raised: frames and classes, none of their texts."""
    pieces: list[str] = []
    current: BaseException | None = error
    while current is not None and len(pieces) < _CHAIN:
        frames = _of_handler(traceback.extract_tb(current.__traceback__))[-_FRAMES:]
        pieces.append("".join(traceback.format_list(frames)) + full_type_of(current))
        hidden = current.__suppress_context__
        current = current.__cause__ or (None if hidden else current.__context__)
    # Lines of source are shown, and some hold a password.
    return presentable("\n\nled to\n\n".join(reversed(pieces))[-STACK_LIMIT:], STACK_LIMIT)


def _of_handler(frames: traceback.StackSummary) -> list[traceback.FrameSummary]:
    """``frames`` from the handler on; all of them where it was not reached."""
    outer = itertools.takewhile(lambda frame: frame.filename.startswith(_CALLERS), frames)
    return frames[len(list(outer)) :] or list(frames)


def described(error: BaseException) -> str:
    """Where ``error`` was raised, and in its last line what it says, presentable."""
    text = text_of(error)
    return f"{stack_of(error)}: {text}" if text else stack_of(error)
