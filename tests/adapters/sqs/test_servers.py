"""Where the servers for tests come from, and that none is left behind."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest
from brokerwq_sqs.driver import SqsDriver
from brokerwq_sqs.settings import SqsSettings

from brokerwq.clock import SYSTEM_CLOCK
from brokerwq.driver import QueueSpec
from brokerwq.testing.servers import localstack as module
from brokerwq.testing.servers.installation import (
    CACHE_VARIABLE,
    INSTALL_VARIABLE,
    ServerUnavailableError,
)
from brokerwq.testing.servers.localstack import ENDPOINT_VARIABLE, IMAGE, SqsServer, localstack
from brokerwq.testing.sqs_proxy import sqs_proxy

pytestmark = pytest.mark.slow


def get(request: str | urllib.request.Request, timeout: float = 5) -> None:
    urllib.request.urlopen(request, timeout=timeout).close()  # noqa: S310  -- our own server


def answers(endpoint: str) -> bool:
    with suppress(OSError):
        get(f"{endpoint}/_localstack/health")
        return True
    return False


def test_a_server_that_runs_already_is_taken(
    server: SqsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENDPOINT_VARIABLE, f"{server.endpoint}/")

    with localstack() as found:
        assert found.endpoint == server.endpoint

    assert answers(server.endpoint)


def test_its_url_is_one_that_the_adapter_understands(server: SqsServer) -> None:
    from brokerwq_sqs.settings import parse_url

    settings = parse_url(server.url("p", fifo="true", max_wait=2))

    assert settings.endpoint_url == server.endpoint
    assert (settings.prefix, settings.fifo, settings.max_wait) == ("p", True, 2)


def test_where_nothing_may_be_installed_the_error_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setenv(INSTALL_VARIABLE, "0")

    with pytest.raises(ServerUnavailableError, match=INSTALL_VARIABLE):
        module.local_python()


@pytest.mark.parametrize(
    ("pins", "release"),
    [("localstack-constraints.txt", "4.13.1"), ("localstack-constraints-3.12.txt", "2026.3.0")],
)
def test_every_package_of_the_server_is_pinned(pins: str, release: str) -> None:
    lines = Path(module.__file__).with_name(pins).read_text().splitlines()

    packages = [line for line in lines if line and not line.startswith("#")]
    assert len(packages) > 50
    assert all("==" in line for line in packages)
    assert f"localstack-core=={release}" in packages


STAND_IN = """#!/bin/sh
echo "$@" >> "{log}"
case "$1" in
version) echo 28 ;;
run) echo 0123abcd ;;
port) echo "{address}" ;;
esac
"""


def test_a_docker_engine_is_used_where_one_answers(
    server: SqsServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    docker = tmp_path / "docker"
    address = server.endpoint.removeprefix("http://")
    docker.write_text(STAND_IN.format(log=log, address=address))
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv(ENDPOINT_VARIABLE, raising=False)

    with localstack() as found:
        assert found.endpoint == server.endpoint

    calls = log.read_text().splitlines()
    assert calls[1].endswith(IMAGE)
    assert "SERVICES=sqs" in calls[1]
    assert calls[-1] == "rm --force 0123abcd"


@pytest.mark.usefixtures("server")
def test_the_server_ends_with_the_process_that_started_it() -> None:
    code = (
        "import time; from brokerwq.testing.servers.localstack import localstack\n"
        "with localstack() as server: print(server.endpoint, flush=True); time.sleep(60)"
    )
    if module.has_docker() or os.environ.get(ENDPOINT_VARIABLE):
        pytest.skip("the server is no child of its starter here")
    starter = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert starter.stdout is not None
        with starter.stdout:
            endpoint = starter.stdout.readline().strip()
        assert answers(endpoint)
    finally:
        starter.send_signal(signal.SIGKILL)
        starter.wait(10)

    until = SYSTEM_CLOCK.now() + 10
    while answers(endpoint):
        assert SYSTEM_CLOCK.now() < until


LOCALSTACK = Path(__file__).parents[3] / "localstack"


def test_people_with_docker_get_the_same_release() -> None:
    assert f"image: {IMAGE}\n" in (LOCALSTACK / "compose.yaml").read_text()


def test_the_init_script_is_sound() -> None:
    script = LOCALSTACK / "init/ready.d/10-queues.sh"
    shell = shutil.which("sh")
    assert shell is not None
    assert os.access(script, os.X_OK)

    assert subprocess.run([shell, "-n", str(script)], check=False).returncode == 0


# As much of the AWS command line as the script uses; ``--attributes`` is JSON or NAME=VALUE.
AWSLOCAL = """#!{python}
import json, sys
import boto3

service, verb, *rest = sys.argv[1:]
options = dict(zip(rest[::2], rest[1::2], strict=True))
client = boto3.client(service, endpoint_url="{endpoint}", region_name="us-east-1")
attributes = options.get("--attributes", "")
if verb == "create-queue":
    named = dict([attributes.partition("=")[::2]])
    answer = client.create_queue(
        QueueName=options["--queue-name"],
        Attributes=json.loads(attributes) if attributes.startswith("{{") else named,
    )
elif verb == "get-queue-attributes":
    answer = client.get_queue_attributes(
        QueueUrl=options["--queue-url"], AttributeNames=[options["--attribute-names"]]
    )
else:
    sys.exit("not known: " + verb)
for step in options.get("--query", "").split("."):
    answer = answer[step] if step else answer
print(answer)
"""


async def test_the_init_script_makes_the_queues_as_declare_would(
    server: SqsServer, tmp_path: Path
) -> None:
    awslocal = tmp_path / "awslocal"
    awslocal.write_text(AWSLOCAL.format(python=sys.executable, endpoint=server.endpoint))
    awslocal.chmod(0o755)
    prefix = f"init{secrets.token_hex(4)}"
    names = [f"{prefix}-{name}" for name in ("pictures", "videos")]

    await asyncio.to_thread(
        subprocess.run,
        [str(LOCALSTACK / "init/ready.d/10-queues.sh")],
        check=True,
        env={
            **os.environ,
            **server.environment,
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "BROKERWQ_QUEUES": " ".join(names),
        },
    )

    driver = SqsDriver(SqsSettings(region="us-east-1", endpoint_url=server.endpoint), SYSTEM_CLOCK)
    await driver.open()
    for name in names:
        assert await driver.declare(QueueSpec(name=name), check_only=True) == []
    await driver.aclose()


def test_the_compose_file_gives_the_server_what_the_tests_give_it() -> None:
    text = (LOCALSTACK / "compose.yaml").read_text()

    for name, value in module._SETTINGS.items():  # pyright: ignore[reportPrivateUsage]
        if f"{name}:" in text:
            assert re.search(rf'{name}: "?{value}"?\n', text)
    assert "./init/ready.d:/etc/localstack/init/ready.d:ro" in text
    assert "127.0.0.1:4566:4566" in text


def test_the_proxy_counts_requests_and_fails_as_told(server: SqsServer) -> None:
    with sqs_proxy(server.endpoint) as proxy:
        request = urllib.request.Request(  # noqa: S310  -- our own server
            proxy.endpoint,
            data=b"{}",
            headers={
                "X-Amz-Target": "AmazonSQS.ListQueues",
                "Content-Type": "application/x-amz-json-1.0",
                "Authorization": "AWS4-HMAC-SHA256 Credential=0/1/us-east-1/sqs/aws4_request",
            },
        )
        get(request)
        assert proxy.requests == {"ListQueues": 1}
        proxy.be("503")
        with pytest.raises(urllib.error.HTTPError) as raised:
            get(request)
        raised.value.close()
        assert raised.value.code == 503
        for mood in ("refuse", "close"):
            proxy.be(mood)
            with pytest.raises(OSError, match=r"(?i)refused|reset|closed|pipe"):
                get(request)
        proxy.be("hang")
        with pytest.raises(TimeoutError):
            get(request, timeout=0.3)
        proxy.be("pass")
        get(request)
