"""What a handler returned, as text that a record keeps."""

from __future__ import annotations

import json
from typing import Any, Final

from brokerwq.errors import BrokerwqError

MAX_RESULT_BYTES: Final = 4096


class ResultError(BrokerwqError):
    """A result cannot be kept; its job is done all the same."""


def result_text(answer: object) -> str:
    """``answer`` as JSON; pydantic models, dataclasses and moments as pydantic writes them.

    Raises:
        ResultError: it has no JSON, holds NaN or infinity, or is above 4 KiB.
    """
    from pydantic_core import to_jsonable_python  # noqa: PLC0415  -- only where one is kept

    try:
        plain: Any = to_jsonable_python(answer, inf_nan_mode="constants")
        text = json.dumps(plain, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        size = len(text.encode())
    except (ValueError, TypeError, RecursionError) as exc:
        msg = f"a {type(answer).__name__} cannot be kept as a result: {exc!s:.200}"
        raise ResultError(msg) from exc
    if size > MAX_RESULT_BYTES:
        msg = f"the result has {size} bytes; the limit is {MAX_RESULT_BYTES}: keep a pointer to it"
        raise ResultError(msg)
    return text
