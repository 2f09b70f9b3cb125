"""What a URL may say, what a queue may be called, and when the SDK is missing."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

import pytest
from aiobotocore.session import get_session
from brokerwq_sqs.driver import SqsDriver
from brokerwq_sqs.names import QueueName, queue_name, short_name
from brokerwq_sqs.settings import SqsSettings, parse_url

from brokerwq.clock import SYSTEM_CLOCK
from brokerwq.driver import QueueSpec
from brokerwq.driver.registry import find_adapter
from brokerwq.errors import (
    AuthenticationError,
    ConfigError,
    ConnectionLostError,
    ProtocolError,
)
from brokerwq.message import Message
from brokerwq.testing.servers.localstack import SqsServer


def test_region_prefix_and_options_are_read() -> None:
    url = "sqs://eu-west-1/shop?endpoint_url=http://127.0.0.1:4566&fifo=true&max_wait=20&timeout=3"

    assert parse_url(url) == SqsSettings(
        region="eu-west-1",
        prefix="shop",
        endpoint_url="http://127.0.0.1:4566",
        fifo=True,
        max_wait=20,
        timeout=3.0,
    )


def test_region_and_prefix_may_be_left_to_the_sdk() -> None:
    assert parse_url("sqs://") == SqsSettings()
    assert parse_url("sqs:///shop") == SqsSettings(prefix="shop")


@pytest.mark.parametrize(
    "region", ["us-gov-west-1", "cn-north-1", "eusc-de-east-1", "us-isob-east-1"]
)
def test_regions_of_every_partition_are_known(region: str) -> None:
    assert parse_url(f"sqs://{region}/p").region == region


@pytest.mark.parametrize(
    "url",
    [
        "sqs://myprefix",
        "sqs://eu-west-1/a/b",
        "sqs://eu-west-1/a.b",
        "sqs://key:secret@eu-west-1/p",
        "sqs://eu-west-1/p?nope=1",
        "sqs://eu-west-1/p?fifo=perhaps",
        "sqs://eu-west-1/p?max_wait=0",
        "sqs://eu-west-1/p?max_wait=21",
        "sqs://eu-west-1/p?timeout=nan",
        "sqs://eu-west-1/p?timeout=0",
        "sqs://eu-west-1/p?endpoint_url=localhost:4566",
        "sqs://eu-west-1/p?fifo=1&fifo=0",
    ],
)
def test_a_wrong_url_is_named_before_anything_is_done(url: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_url(url)

    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("queue", "settings", "found"),
    [
        ("q", SqsSettings(), QueueName("q")),
        ("q", SqsSettings(prefix="shop"), QueueName("shop-q")),
        ("q", SqsSettings(prefix="shop_"), QueueName("shop_q")),
        ("q.fifo", SqsSettings(prefix="shop"), QueueName("shop-q.fifo")),
        ("q", SqsSettings(fifo=True), QueueName("q.fifo")),
        ("q.fifo", SqsSettings(fifo=True), QueueName("q.fifo")),
        (
            "arn:aws:sqs:eu-west-1:123456789012:q",
            SqsSettings(prefix="shop"),
            QueueName("q", "123456789012"),
        ),
        (
            "https://sqs.eu-west-1.amazonaws.com/123456789012/q",
            SqsSettings(prefix="shop"),
            QueueName("q", "123456789012", "https://sqs.eu-west-1.amazonaws.com/123456789012/q"),
        ),
        (
            "http://127.0.0.1:4566/queue/us-east-1/000000000000/q.fifo",
            SqsSettings(),
            QueueName(
                "q.fifo",
                "000000000000",
                "http://127.0.0.1:4566/queue/us-east-1/000000000000/q.fifo",
            ),
        ),
    ],
)
def test_a_queue_is_a_name_a_url_or_an_arn(
    queue: str, settings: SqsSettings, found: QueueName
) -> None:
    assert queue_name(queue, settings) == found


@pytest.mark.parametrize(
    "queue",
    [
        *("", "a b", "ü", "a.b", "q.FIFO", ".fifo", "x" * 81),
        *("arn:aws:sns:eu-west-1:123456789012:q", "arn:aws:sqs:eu-west-2:123456789012:q"),
        *("https://example.com/", "https://a/1/q"),
    ],
)
def test_what_is_no_queue_at_sqs_is_a_config_error(queue: str) -> None:
    with pytest.raises(ConfigError):
        queue_name(queue, SqsSettings(region="eu-west-1"))


@pytest.mark.parametrize("settings", [SqsSettings(), SqsSettings(prefix="s", fifo=True)])
def test_a_name_is_found_again_in_a_listing(settings: SqsSettings) -> None:
    assert short_name(queue_name("q", settings).name, settings) == "q"
    assert short_name("other", SqsSettings(prefix="s")) is None


def test_listing_adapters_loads_no_client_library() -> None:
    code = (
        "import sys; from brokerwq.driver.registry import find_adapter; "
        "find_adapter('sqs://eu-west-1').parse_url('sqs://eu-west-1/p'); "
        "sys.exit('botocore' in sys.modules or 'aiobotocore' in sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_url_scheme_finds_the_adapter() -> None:
    adapter = find_adapter("sqs://eu-west-1/p")

    assert adapter.extra == "sqs"
    driver = adapter.build(adapter.parse_url("sqs://eu-west-1/p"), SYSTEM_CLOCK)
    assert driver.capabilities.max_send == 10


@pytest.fixture
def no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", f"{tmp_path}/none")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", f"{tmp_path}/none")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


async def opened(**options: object) -> None:
    driver = SqsDriver(SqsSettings(**options), SYSTEM_CLOCK)  # type: ignore[arg-type]
    try:
        await driver.open()
    finally:
        await driver.aclose()


@pytest.mark.usefixtures("no_credentials")
async def test_a_missing_region_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="no AWS region"):
        await opened()


@pytest.mark.usefixtures("no_credentials")
async def test_missing_credentials_are_named() -> None:
    with pytest.raises(AuthenticationError, match="no complete credentials"):
        await opened(region="eu-west-1", endpoint_url="http://127.0.0.1:9")


@pytest.mark.usefixtures("no_credentials")
async def test_a_missing_profile_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")

    with pytest.raises(ConfigError, match="nobody"):
        await opened(region="eu-west-1")


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "000000000000")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")


@pytest.mark.usefixtures("credentials")
async def test_a_refused_port_is_a_lost_connection() -> None:
    with pytest.raises(ConnectionLostError):
        await opened(region="eu-west-1", endpoint_url="http://127.0.0.1:9")


@pytest.mark.usefixtures("credentials")
async def test_a_name_that_does_not_resolve_is_a_lost_connection() -> None:
    with pytest.raises(ConnectionLostError):
        await opened(region="eu-west-1", endpoint_url="http://nowhere.invalid")


@pytest.mark.usefixtures("credentials")
async def test_another_service_on_the_port_is_a_protocol_error() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        page = b"<html>Not Found</html>"
        head = b"HTTP/1.1 404 Not Found\r\nContent-Type: text/html\r\nConnection: close\r\n"
        writer.write(head + b"Content-Length: %d\r\n\r\n" % len(page) + page)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ProtocolError):
            await opened(region="eu-west-1", endpoint_url=f"http://127.0.0.1:{port}")


@pytest.mark.usefixtures("credentials")
async def test_a_plain_port_behind_https_is_a_failed_handshake() -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(AuthenticationError, match="TLS"):
            await opened(region="eu-west-1", endpoint_url=f"https://127.0.0.1:{port}")


def make_session() -> object:
    return pytest.importorskip("aioboto3").Session()


SESSION = get_session()


@pytest.mark.slow
@pytest.mark.parametrize(
    "session",
    [SESSION, make_session, f"{__name__}:SESSION", f"{__name__}:make_session"],
    ids=["aiobotocore", "aioboto3", "name", "name of a function"],
)
async def test_a_session_of_the_users_own_is_used(server: SqsServer, session: object) -> None:
    await opened(region="us-east-1", endpoint_url=server.endpoint, session=session)


@pytest.mark.slow
@pytest.mark.parametrize("package", ["aiobotocore", "aioboto3"])
async def test_clients_that_the_user_opened_are_used_and_left_open(
    server: SqsServer, package: str
) -> None:
    session: Any = get_session()
    make: Any = session.create_client
    if package == "aioboto3":
        make = pytest.importorskip("aioboto3").Session().client
    async with make("sqs", endpoint_url=server.endpoint, region_name="us-east-1") as client:
        asked: list[str] = []

        def clients(_: SqsSettings, role: str) -> AbstractAsyncContextManager[Any]:
            asked.append(role)
            return nullcontext(client)

        driver = SqsDriver(SqsSettings(clients=clients), SYSTEM_CLOCK)
        await driver.open()
        await driver.declare(QueueSpec(name=f"mine-{package}"))
        message = Message(id="1", body=b"x", type="t")
        assert await driver.send(f"mine-{package}", [message], [0.0]) == [None]
        consumer = await driver.consume(f"mine-{package}", lease=60, prefetch=1)
        (held,) = await consumer.claim(1, 5)
        assert await consumer.ack([held]) == [None]
        await driver.aclose()

        assert asked == ["receive", "control"]
        assert held.message.body == b"x"
        assert (await client.list_queues())["QueueUrls"]


@pytest.mark.parametrize("name", ["nowhere.module:x", "json:nothing", "no name"])
async def test_a_session_that_cannot_be_found_is_a_config_error(name: str) -> None:
    with pytest.raises(ConfigError, match="MODULE:NAME"):
        await opened(region="us-east-1", session=name)
