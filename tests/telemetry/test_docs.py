from __future__ import annotations

import logging
import re
from collections.abc import Generator
from pathlib import Path

import pytest

from brokerwq.telemetry import _names
from brokerwq.telemetry.logs import ENDED, LINES

PAGE = (Path(__file__).parents[2] / "docs" / "telemetry.md").read_text()


@pytest.fixture
def root_logger() -> Generator[logging.Logger]:
    root = logging.getLogger()
    handlers = list(root.handlers)
    yield root
    root.handlers[:] = handlers


@pytest.mark.usefixtures("root_logger")
@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
def test_every_example_runs(block: str) -> None:
    exec(compile(block, "docs/telemetry.md", "exec"), {"__name__": "example"})  # noqa: S102


def test_every_metric_and_attribute_is_listed() -> None:
    names = {
        value
        for name, value in vars(_names).items()
        if name.isupper() and isinstance(value, str) and "." in value
    }

    assert {name for name in names if name not in PAGE and "exception." not in name} == set()


def test_every_log_text_is_listed() -> None:
    texts = {text for _, text in (*LINES.values(), *ENDED.values())}

    assert {text for text in texts if f"`{text}`" not in PAGE} <= {"job ended"}
