"""Servers that are missing: their tests are skipped, except where BROKERWQ_REQUIRE names them."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from brokerwq.testing.servers.installation import ServerUnavailableError


def is_required(server: str) -> bool:
    return server in os.environ.get("BROKERWQ_REQUIRE", "").split(",")


def needs(module: str, server: str) -> None:
    """Skip without ``module``, unless ``server`` has to be tested."""
    if not is_required(server):
        pytest.importorskip(module)


@contextmanager
def or_skipped(server: str) -> Generator[None]:
    """A block that fetches ``server``."""
    try:
        yield
    except (ServerUnavailableError, ImportError) as exc:
        if is_required(server):
            raise
        pytest.skip(str(exc))
