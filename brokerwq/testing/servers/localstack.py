"""LocalStack's SQS for tests: one that is there, one in Docker, or one from PyPI.

``localstack()`` takes the endpoint that ``BROKERWQ_TEST_SQS_ENDPOINT`` names; else it starts a
container where a Docker engine answers; else it installs LocalStack's last free release into a
virtual environment of its own, once, and starts it on a free port. The state is in memory and
gone at the end.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from brokerwq.testing.servers.aws import harmless_environment
from brokerwq.testing.servers.installation import (
    INSTALL_VARIABLE,
    ServerUnavailableError,
    cache_folder,
)

ENDPOINT_VARIABLE: Final = "BROKERWQ_TEST_SQS_ENDPOINT"
"""An SQS endpoint that already runs, e.g. ``http://127.0.0.1:4566``."""

IMAGE: Final = "localstack/localstack:4.14.0"
"""The last tag that starts without an account; newer ones want an auth token."""

_PINS: Final = Path(__file__).with_name(
    "localstack-constraints-3.12.txt"
    if sys.version_info >= (3, 12)
    else "localstack-constraints.txt"
)
_REGION: Final = "us-east-1"
_READY_SECONDS: Final = 90.0
_INSTALL_SECONDS: Final = 900.0
_SETTINGS: Final = {
    "SERVICES": "sqs",
    "EAGER_SERVICE_LOADING": "1",
    "SQS_ENDPOINT_STRATEGY": "path",
    "SQS_DISABLE_CLOUDWATCH_METRICS": "1",
    # As AWS: a deleted name is blocked, and a queue is purged again, only after 60 seconds.
    "SQS_DELAY_RECENTLY_DELETED": "1",
    "SQS_DELAY_PURGE_RETRY": "1",
    "DISABLE_EVENTS": "1",
    "SKIP_SSL_CERT_DOWNLOAD": "1",
    "DNS_ADDRESS": "0",
    "LS_LOG": "warn",
}

# The server ends with the program that started it, even with one that is killed: its standard
# input is a pipe that nobody writes to, and it closes when the starter is gone.
_BOOT: Final = """
import os, runpy, threading
def watch():
    while os.read(0, 1):
        pass
    os._exit(1)
threading.Thread(target=watch, daemon=True).start()
runpy.run_module("localstack.runtime.main", run_name="__main__")
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SqsServer:
    """A running server that speaks SQS.

    Attributes:
        endpoint: Its address.
        region: A region it serves.
        environment: See ``harmless_environment``.
    """

    endpoint: str
    region: str = _REGION
    environment: Mapping[str, str] = field(default_factory=harmless_environment)

    def url(self, prefix: str = "", **options: object) -> str:
        """A brokerwq URL for it, with ``options`` in its query."""
        query = "".join(f"&{name}={value}" for name, value in options.items())
        return f"sqs://{self.region}/{prefix}?endpoint_url={self.endpoint}{query}"


@contextlib.contextmanager
def localstack() -> Generator[SqsServer]:
    """A LocalStack whose SQS answers, for as long as the block runs.

    Raises:
        ServerUnavailableError: none is there and none can be started.
    """
    given = os.environ.get(ENDPOINT_VARIABLE)
    if given:
        _wait_ready(given.rstrip("/"), lambda: "")
        yield SqsServer(endpoint=given.rstrip("/"))
    elif has_docker():
        with _container() as endpoint:
            yield SqsServer(endpoint=endpoint)
    else:
        with _process(local_python()) as endpoint:
            yield SqsServer(endpoint=endpoint)


def has_docker() -> bool:
    """Whether a Docker engine answers."""
    if shutil.which("docker") is None:
        return False
    with contextlib.suppress(subprocess.TimeoutExpired, OSError):
        answer = subprocess.run(
            ["docker", "version", "--format", "{{.Server.Version}}"],  # noqa: S607
            capture_output=True,
            check=False,
            timeout=10,
        )
        return answer.returncode == 0
    return False


@contextlib.contextmanager
def _container() -> Generator[str]:
    settings = [f"--env={name}={value}" for name, value in _SETTINGS.items()]
    command = ["docker", "run", "--detach", "--rm", "--publish=127.0.0.1::4566", *settings, IMAGE]
    container = _run(command, _INSTALL_SECONDS).strip()
    try:
        address = _run(["docker", "port", container, "4566/tcp"], 30).split()[0]
        endpoint = f"http://{address}"
        _wait_ready(endpoint, lambda: "")
        yield endpoint
    finally:
        with contextlib.suppress(ServerUnavailableError):
            _run(["docker", "rm", "--force", container], 60)


@contextlib.contextmanager
def _process(python: Path) -> Generator[str]:
    port = _free_port()
    address = f"127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(prefix="brokerwq-localstack-") as name:
        folder = Path(name)
        inherited = {
            key: os.environ[key] for key in ("PATH", "LANG", "LC_ALL") if key in os.environ
        }
        environment = (
            inherited
            | _SETTINGS
            | {
                "GATEWAY_LISTEN": address,
                "LOCALSTACK_HOST": address,
                # Its default server ignores the host and listens on every interface.
                "GATEWAY_SERVER": "hypercorn",
                "HOME": name,
                "CONFIG_DIR": str(folder / "conf"),
                "FILESYSTEM_ROOT": str(folder / "fs"),
                "PYTHONUNBUFFERED": "1",
            }
        )
        log = folder / "localstack.log"
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603
                [str(python), "-c", _BOOT],
                env=environment,
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            _wait_ready(f"http://{address}", lambda: _end_of(process, log))
            yield f"http://{address}"
        finally:
            _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(3)
    except subprocess.TimeoutExpired:
        # One stop in twenty hangs in its web server; the state is in memory anyway.
        process.kill()
        process.wait(10)
    if process.stdin is not None:
        process.stdin.close()


def _end_of(process: subprocess.Popen[bytes], log: Path) -> str:
    code = process.poll()
    return (
        "" if code is None else f"it ended with {code}: {log.read_text('utf-8', 'replace')[-3000:]}"
    )


def _wait_ready(endpoint: str, end_of: Callable[[], str]) -> None:
    until = time.monotonic() + _READY_SECONDS  # noqa: TID251  -- waits for another process
    while not _is_ready(endpoint):
        ended = end_of()
        if ended:
            msg = f"LocalStack at {endpoint} is not there: {ended}"
            raise ServerUnavailableError(msg)
        if time.monotonic() > until:  # noqa: TID251
            msg = f"LocalStack at {endpoint} was not ready within {_READY_SECONDS:g} seconds"
            raise ServerUnavailableError(msg)
        time.sleep(0.1)
    _ask_first(endpoint)


def _is_ready(endpoint: str) -> bool:
    with (
        contextlib.suppress(OSError, ValueError, KeyError),
        urllib.request.urlopen(f"{endpoint}/_localstack/health", timeout=5) as answer,  # noqa: S310
    ):
        return json.load(answer)["services"]["sqs"] in ("running", "available")
    return False


def _ask_first(endpoint: str) -> None:
    """The first request loads the service, which takes seconds where it never ran before."""
    request = urllib.request.Request(  # noqa: S310  -- our own server
        endpoint,
        data=b"{}",
        headers={
            "X-Amz-Target": "AmazonSQS.ListQueues",
            "Content-Type": "application/x-amz-json-1.0",
            "Authorization": f"AWS4-HMAC-SHA256 Credential=0/1/{_REGION}/sqs/aws4_request",
        },
    )
    with contextlib.suppress(OSError):  # whoever comes next will tell
        urllib.request.urlopen(request, timeout=_READY_SECONDS).close()  # noqa: S310


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def local_python() -> Path:
    """The Python of LocalStack's own virtual environment, made on the first call.

    Its own, since LocalStack pins versions that no AWS client can share. Every package is
    pinned: upstream is archived and will not follow its dependencies.

    Raises:
        ServerUnavailableError: it is not installed, and cannot or must not be.
    """
    version = f"{sys.version_info.major}{sys.version_info.minor}"
    digest = hashlib.sha256(_PINS.read_bytes()).hexdigest()[:8]
    folder = cache_folder() / f"localstack-py{version}-{digest}"
    python = folder / "bin" / "python"
    done = folder / "installed"
    if done.exists():
        return python
    if os.environ.get(INSTALL_VARIABLE) == "0":
        msg = f"LocalStack is not installed in {folder}, and {INSTALL_VARIABLE}=0 forbids it"
        raise ServerUnavailableError(msg)
    with _locked(folder.with_suffix(".lock")):
        if not done.exists():  # another test process may have been faster
            shutil.rmtree(folder, ignore_errors=True)
            venv.create(folder, with_pip=True, symlinks=True)
            install = [str(python), "-m", "pip", "install", "--quiet", "--no-input"]
            _run([*install, "--disable-pip-version-check", "-r", str(_PINS)], _INSTALL_SECONDS)
            done.touch()
    return python


@contextlib.contextmanager
def _locked(path: Path) -> Generator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(command: list[str], seconds: float) -> str:
    try:
        answer = subprocess.run(  # noqa: S603
            command, capture_output=True, check=True, text=True, timeout=seconds
        )
    except subprocess.CalledProcessError as exc:
        msg = f"{' '.join(command[:4])} … failed: {exc.stderr[-3000:]}"
        raise ServerUnavailableError(msg) from exc
    except (OSError, subprocess.TimeoutExpired) as exc:
        msg = f"{' '.join(command[:4])} … failed: {exc}"
        raise ServerUnavailableError(msg) from exc
    return answer.stdout
