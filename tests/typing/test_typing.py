"""What mypy and pyright infer of a worker is part of the API."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


@pytest.mark.slow
@pytest.mark.parametrize(
    ("checker", "options"), [("mypy", []), ("pyright", ["--pythonpath", sys.executable])]
)
def test_every_good_shape_infers_and_every_bad_one_is_seen(
    checker: str, options: list[str]
) -> None:
    pytest.importorskip(checker)
    shapes = [str(HERE / "good_shapes.py"), str(HERE / "bad_shapes.py")]

    done = subprocess.run(
        [sys.executable, "-m", checker, *options, *shapes],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_decorator_takes_what_the_checkers_take() -> None:
    from tests.typing import good_shapes

    assert good_shapes.model.name == "model"
    assert repr(good_shapes.method) == "<worker resize on queue q>"
