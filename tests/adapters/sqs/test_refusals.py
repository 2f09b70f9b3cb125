"""What cannot work ends a command with one clear line and an exit code, and soon."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import uuid
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from brokerwq_sqs.client import SdkClients
from brokerwq_sqs.settings import SqsSettings

from brokerwq.clock import SYSTEM_CLOCK
from brokerwq.testing.servers.localstack import SqsServer
from tests.adapters.sqs.processes import works

pytestmark = [pytest.mark.slow, pytest.mark.beside, pytest.mark.timeout(300)]

NOBODY = {"AWS_CONFIG_FILE": "/nowhere/none", "AWS_SHARED_CREDENTIALS_FILE": "/nowhere/none"}
UNUSED = "http://127.0.0.1:9"


@asynccontextmanager
async def answering(**answers: str) -> AsyncGenerator[str]:
    """An endpoint that answers 200 with nothing, but some operations with an error code."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            fields = {
                line.partition(":")[0].lower(): line.partition(":")[2].strip()
                for line in head.splitlines()
            }
            await reader.readexactly(int(fields.get("content-length", "0")))
            operation = fields.get("x-amz-target", "").rpartition(".")[2]
            code = answers.get(operation) or answers.get("everything")
            body = json.dumps({} if code is None else {"__type": code, "message": "injected"})
            status = "200 OK" if code is None else "403 Forbidden"
            writer.write(
                f"HTTP/1.1 {status}\r\nContent-Type: application/x-amz-json-1.0\r\n"
                f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()
            )
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def refused(
    server: SqsServer, url: str, words: str, code: int, *command: str, **environment: object
) -> None:
    """Start ``command``; it must end with ``code`` and one line that has ``words``."""
    async with works(server, **NOBODY, **environment) as place:
        place.environment["BROKERWQ_URL"] = url
        started_at = SYSTEM_CLOCK.now()

        process = await place.start(*(command or ("run", "jobs:app")))

        found = await asyncio.wait_for(process.wait(), 60)
        told = [line for line in place.log().splitlines() if words in line]
        assert (found, len(told)) == (code, 1), place.log()
        assert SYSTEM_CLOCK.now() - started_at < 20
        assert "Traceback" not in place.log()


@pytest.mark.parametrize(
    ("url", "words", "code", "environment"),
    [
        ("sqs:///p", "no AWS region", 2, {"AWS_DEFAULT_REGION": ""}),
        ("sqs://nowhere/p", "no AWS region", 2, {}),
        ("sqs://us-east-1/p?endpoint_url=localhost:4566", "no http or https address", 2, {}),
        ("sqs://us-east-1/p?nope=1", "nope", 2, {}),
        (f"sqs://us-east-1/p?endpoint_url={UNUSED}", "nobody", 2, {"AWS_PROFILE": "nobody"}),
        (
            f"sqs://us-east-1/p?endpoint_url={UNUSED}",
            "no complete credentials",
            3,
            {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""},
        ),
        (
            f"sqs://us-east-1/p?endpoint_url={UNUSED}",
            "no complete credentials",
            3,
            {"AWS_SECRET_ACCESS_KEY": ""},
        ),
    ],
    ids=[
        *("no region", "a wrong region", "no address", "an unknown option", "no such profile"),
        *("no credentials", "half of the credentials"),
    ],
)
async def test_settings_that_cannot_work(
    server: SqsServer, url: str, words: str, code: int, environment: dict[str, str]
) -> None:
    await refused(server, url, words, code, **environment)


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({"everything": "InvalidClientTokenId"}, "InvalidClientTokenId"),
        ({"everything": "ExpiredToken"}, "ExpiredToken"),
        ({"ListQueues": "AccessDenied", "GetQueueUrl": "AccessDenied"}, "need sqs:GetQueueUrl"),
        (
            {
                "GetQueueUrl": "com.amazonaws.sqs#QueueDoesNotExist",
                "CreateQueue": "AccessDeniedException",
            },
            "need sqs:CreateQueue",
        ),
    ],
    ids=["unknown key", "expired token", "one action denied", "creation denied"],
)
async def test_a_service_that_says_no(
    server: SqsServer, answers: dict[str, str], words: str
) -> None:
    async with answering(**answers) as address:
        await refused(server, f"sqs://us-east-1/p?endpoint_url=http://{address}", words, 3)


async def test_an_endpoint_without_tls(server: SqsServer) -> None:
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        url = f"sqs://us-east-1/p?endpoint_url=https://127.0.0.1:{port}"
        await refused(server, url, "the TLS handshake failed", 3)


@pytest.mark.parametrize(
    ("queue", "words"),
    [
        ("q.FIFO", "not for SQS"),
        # These no broker is asked for.
        *((queue, "letters a-z and A-Z, digits") for queue in ("a b", "ü", ".fifo")),
    ],
)
async def test_a_name_that_sqs_does_not_take(server: SqsServer, queue: str, words: str) -> None:
    command = ("queues", "declare", queue, "--url", server.url())
    await refused(server, server.url(), words, 2, *command)


async def test_more_receives_than_sqs_counts(server: SqsServer) -> None:
    await refused(server, server.url("n"), "SQS takes 1 to 1000", 2, BROKER_LIMIT=1001)


async def test_a_queue_that_must_be_there_and_is_not(server: SqsServer) -> None:
    await refused(server, server.url("n"), "does not exist", 3, DECLARE="check")


async def test_a_queue_that_was_deleted_a_moment_ago(server: SqsServer) -> None:
    prefix = f"gone{uuid.uuid4().hex}"  # another test run may share the server
    url = server.url(prefix)
    settings = SqsSettings(region=server.region, endpoint_url=server.endpoint)
    async with SdkClients(settings)(settings, "control") as client:
        made = await client.create_queue(QueueName=f"{prefix}-q")
        await client.delete_queue(QueueUrl=made["QueueUrl"])

    await refused(server, url, "QueueDeletedRecently", 3, "queues", "declare", "q", "--url", url)


@pytest.mark.parametrize("how", ["refused", "hanging"])
async def test_a_signal_ends_a_start_that_waits_for_its_broker(server: SqsServer, how: str) -> None:
    async def hang(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await asyncio.get_running_loop().create_future()
        writer.close()

    async with AsyncExitStack() as stack:
        endpoint = UNUSED
        if how == "hanging":
            listening = await asyncio.start_server(hang, "127.0.0.1", 0)
            stack.callback(listening.close)
            endpoint = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        place = await stack.enter_async_context(works(server))
        place.environment["BROKERWQ_URL"] = f"sqs://us-east-1/p?endpoint_url={endpoint}"
        process = await place.start("--log", "json")
        await place.until_logged('"starting"')
        await asyncio.sleep(1)

        process.send_signal(signal.SIGTERM)

        await asyncio.wait_for(process.wait(), 4)
        assert "Traceback" not in place.log()
