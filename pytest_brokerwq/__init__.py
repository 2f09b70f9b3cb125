"""brokerwq's pytest plugin; docs/testing.md tells how its fixtures are used.

Loaded in every run of an environment that has brokerwq: so it imports nothing of it until a
fixture is asked for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from brokerwq import App
    from brokerwq.idempotency import Store
    from brokerwq.place import Lifespan
    from brokerwq.testing import FakeClock, TestApp
    from brokerwq.testing.brokers import BrokerUnderTest
    from brokerwq.testing.servers.kinds import Kind, Service

RUN_VARIABLE: Final = "BROKERWQ_TEST_RUN"
"""Folder of the servers that all processes of this test run share."""
REQUIRE_VARIABLE: Final = "BROKERWQ_REQUIRE"
"""Servers without which a test fails instead of being skipped: ``rabbitmq,sqs``."""

_BROKERS: Final = ("memory", "sqlite", "rabbitmq", "sqs")
_SERVERS: Final = ("rabbitmq", "sqs")
_MARKER: Final = "bwq_server"
_IS_OWNER: Final = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """What a project may say in its configuration."""
    parser.addini("bwq_app_path", "MODULE:ATTR of the App that the fixture bwq_app tests")
    parser.addini("bwq_app_url", "memory broker of bwq_app", default="memory://")
    parser.addini("bwq_brokers", "brokers of bwq_broker", type="args", default=list(_BROKERS))


def pytest_configure(config: pytest.Config) -> None:
    """Name the run's folder, for this process and those it will start; nothing is made there."""
    config.addinivalue_line("markers", f"{_MARKER}: needs a server (set by brokerwq's fixtures)")
    config.stash[_IS_OWNER] = RUN_VARIABLE not in os.environ
    if config.stash[_IS_OWNER]:
        base = os.environ.get("TMPDIR", "/tmp")  # noqa: S108  -- its name is nobody's to guess
        name = f"brokerwq-run-{os.getpid()}-{time.time_ns():x}"
        os.environ[RUN_VARIABLE] = os.path.join(base, name)  # noqa: PTH118  -- pathlib is an import


def pytest_unconfigure(config: pytest.Config) -> None:
    """Wait for the run's servers to be gone."""
    if config.stash.get(_IS_OWNER, False):
        folder = os.environ.pop(RUN_VARIABLE)
        if os.path.exists(folder):  # noqa: PTH110  -- as above
            from pathlib import Path

            from brokerwq.testing.servers.shared import finish

            finish(Path(folder))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that asks for ``bwq_broker`` once on each broker."""
    if "bwq_broker" in metafunc.fixturenames:
        names: Sequence[str] = metafunc.config.getini("bwq_brokers")
        unknown = [name for name in names if name not in _BROKERS]
        if unknown:
            msg = f"bwq_brokers: {unknown[0]!r} is none of {', '.join(_BROKERS)}"
            raise pytest.UsageError(msg)
        metafunc.parametrize("bwq_broker", names, indirect=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a server, so that ``-m "not bwq_server"`` leaves it out."""
    for item in items:
        if isinstance(item, pytest.Function) and _needs_server(item):
            item.add_marker(_MARKER)


def _needs_server(item: pytest.Function) -> bool:
    names = set(item.fixturenames)
    if "bwq_broker" in names:
        callspec = getattr(item, "callspec", None)
        if callspec is not None and callspec.params.get("bwq_broker") in _SERVERS:
            return True
    return not names.isdisjoint(
        {"bwq_rabbitmq", "bwq_sqs", "bwq_rabbitmq_server", "bwq_sqs_server"}
    )


# -- behaviour ----------------------------------------------------------------------------


@pytest.fixture
def bwq_app_under_test(pytestconfig: pytest.Config) -> App:
    """The app that ``bwq_app`` tests; override it, or say ``bwq_app_path = "shop.jobs:app"``."""
    from brokerwq.cli.target import load_app
    from brokerwq.errors import ConfigError

    try:
        return load_app(pytestconfig.getini("bwq_app_path") or None)
    except ConfigError as exc:
        msg = (
            f"bwq_app does not know your app: {exc}. Write bwq_app_path = MODULE:ATTR into "
            "pytest's configuration, or override the fixture bwq_app_under_test"
        )
        raise pytest.UsageError(msg) from exc


@pytest.fixture
def bwq_clock() -> FakeClock:
    """The clock of ``bwq_app``; override it for another date."""
    from brokerwq.testing import FakeClock

    return FakeClock()


@pytest.fixture
def bwq_store(bwq_app_under_test: App, tmp_path: Path) -> Store | str | None:
    """The store of ``bwq_app``: a new file in place of a SQLite store, else the app's own.

    Override it to give the app a store of your tests.
    """
    from brokerwq.idempotency import SqliteStore

    if isinstance(bwq_app_under_test.store, SqliteStore):
        return f"sqlite:///{tmp_path / 'brokerwq-keys.db'}"
    return None


@pytest.fixture
def bwq_lifespan() -> Lifespan | None:
    """The lifespan of ``bwq_app``; override it to give jobs a state of your tests."""
    return None


@pytest.fixture
def bwq_app(
    bwq_app_under_test: App,
    bwq_clock: FakeClock,
    bwq_store: Store | str | None,
    bwq_lifespan: Lifespan | None,
    pytestconfig: pytest.Config,
) -> Generator[TestApp]:
    """Your app in memory, on a fake clock; afterwards it is where it was."""
    from brokerwq.testing import TestApp

    url = pytestconfig.getini("bwq_app_url")
    with TestApp(
        bwq_app_under_test, url, clock=bwq_clock, store=bwq_store, lifespan=bwq_lifespan
    ) as tested:
        yield tested


# -- integration --------------------------------------------------------------------------


@pytest.fixture(scope="session")
def bwq_rabbitmq_server() -> Generator[Service]:
    """The RabbitMQ that all tests of the run share."""
    yield from _server("rabbitmq")


@pytest.fixture(scope="session")
def bwq_sqs_server() -> Generator[Service]:
    """The SQS that all tests of the run share."""
    yield from _server("sqs")


@pytest.fixture
def bwq_rabbitmq(bwq_rabbitmq_server: Service) -> Generator[BrokerUnderTest]:
    """A virtual host of RabbitMQ that is this test's own, deleted afterwards."""
    from brokerwq.testing.brokers import on_rabbitmq

    with on_rabbitmq(bwq_rabbitmq_server) as broker:
        yield broker


@pytest.fixture
def bwq_sqs(bwq_sqs_server: Service) -> Generator[BrokerUnderTest]:
    """SQS, with a prefix of names that is this test's own; its queues are deleted afterwards."""
    from brokerwq.testing.brokers import on_sqs

    with on_sqs(bwq_sqs_server) as broker:
        yield broker


@pytest.fixture
def bwq_broker(request: pytest.FixtureRequest) -> BrokerUnderTest:
    """Each broker in turn; the ini option ``bwq_brokers`` says which."""
    broker: BrokerUnderTest = request.getfixturevalue(f"bwq_{request.param}")
    return broker


@pytest.fixture
def bwq_memory() -> BrokerUnderTest:
    """A memory broker, on the machine's clock."""
    from brokerwq.testing.brokers import in_memory

    return in_memory()


@pytest.fixture
def bwq_sqlite(tmp_path: Path) -> BrokerUnderTest:
    """A SQLite file of the test's own."""
    from brokerwq.testing.brokers import on_sqlite

    return on_sqlite(tmp_path)


def _server(kind: Kind) -> Generator[Service]:
    from pathlib import Path

    from brokerwq.testing.servers.installation import ServerUnavailableError
    from brokerwq.testing.servers.shared import require_client, use

    try:
        require_client(kind)
        server = use(kind, Path(os.environ[RUN_VARIABLE]))
    except ServerUnavailableError as exc:
        if kind in os.environ.get(REQUIRE_VARIABLE, "").replace(" ", "").split(","):
            raise
        pytest.skip(f"no {kind}: {exc} ({REQUIRE_VARIABLE}={kind} makes this a failure)")
    try:
        yield server.service
    finally:
        server.close()
