"""prepare_servers.py: install what the tests' servers need, beyond the time limits of tests.

What cannot be had is said in a line, and left to the tests: they skip, or fail where
BROKERWQ_REQUIRE names it. What is there already costs a moment.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from brokerwq.testing.servers import postgres
from brokerwq.testing.servers.container import engine_answers
from brokerwq.testing.servers.installation import (
    ServerUnavailableError,
    installed_program,
    local_installation,
    unpacked_installation,
)
from brokerwq.testing.servers.localstack import has_docker, local_python


def rabbitmq() -> None:
    """RabbitMQ from Debian's packages, unless it is given or a container."""
    if "BROKERWQ_TEST_AMQP_URL" not in os.environ and not engine_answers():
        local_installation()
        if "4.3" in os.environ.get("BROKERWQ_TEST_RABBITMQ", ""):
            unpacked_installation()


def databases() -> None:
    """Redis and PostgreSQL from Debian's packages."""
    installed_program("redis-server", "redis-server")
    if postgres.program("initdb") is None:
        installed_program("pg_ctlcluster", "postgresql")


def localstack() -> None:
    """LocalStack from PyPI, unless it is given or a container."""
    if "BROKERWQ_TEST_SQS_ENDPOINT" not in os.environ and not has_docker():
        local_python()


def main() -> None:
    """Have all of them at once; packages of Debian are installed one after the other anyway."""
    parts: list[Callable[[], None]] = [rabbitmq, databases, localstack]
    with ThreadPoolExecutor(len(parts)) as pool:
        for part, result in [(part, pool.submit(part)) for part in parts]:
            try:
                result.result()
            except ServerUnavailableError as exc:
                print(f"{part.__name__}: {exc}")


if __name__ == "__main__":
    main()
