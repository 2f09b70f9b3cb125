from __future__ import annotations

import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest

from brokerwq.testing.servers.node import RabbitNode
from brokerwq.testing.servers.probe import free_port
from tests.adapters.sqlite_lab import Lab


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path / "jobs.db")


@pytest.fixture(scope="session")
def tls_node(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[RabbitNode, int, Path]]:
    """A node that speaks TLS as ``localhost``, the port, and the file of its authority."""
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"),
            *("-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")),
        ],
        check=True,
        capture_output=True,
    )
    from tests.adapters.rabbit import node_or_skip

    node = node_or_skip("3.10")
    port = free_port()
    for name in ("key.pem", "cert.pem"):
        node.write_file(name, (folder / name).read_text())
    node.write_config(
        "\n".join(
            [
                f"listeners.ssl.1 = 127.0.0.1:{port}",
                f"ssl_options.cacertfile = {node.path_inside('cert.pem')}",
                f"ssl_options.certfile = {node.path_inside('cert.pem')}",
                f"ssl_options.keyfile = {node.path_inside('key.pem')}",
                "ssl_options.verify = verify_none",
            ]
        )
    )
    try:
        node.start()
        yield node, port, folder / "cert.pem"
    finally:
        node.close()
