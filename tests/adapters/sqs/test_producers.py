"""Programs that send to SQS and end."""

from __future__ import annotations

import secrets

import pytest

from brokerwq.testing.servers.localstack import SqsServer
from tests.adapters.producers import check_silence

pytestmark = pytest.mark.slow


def test_a_program_that_only_sends_ends_without_a_word(server: SqsServer) -> None:
    check_silence(server.url(f"t{secrets.token_hex(4)}"), "q", server.environment)
