from __future__ import annotations

import pytest

from brokerwq.cli import main
from tests.cli.stock import Answer, Cli, Stock


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Cli:
    """Runs ``brokerwq`` with arguments, in this process."""

    def run(*arguments: str) -> Answer:
        code = main(arguments)
        out, err = capfd.readouterr()
        assert "Traceback" not in err
        return Answer(code, out, err)

    return run


@pytest.fixture
def stock() -> Stock:
    stock = Stock()
    stock.declare()
    return stock
