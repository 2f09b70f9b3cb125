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
    (folder / "names").write_text("subjectAltName=DNS:localhost\n")
    new = ("-newkey", "rsa:2048", "-nodes")
    for command in (
        ("req", "-x509", *new, "-subj", "/CN=authority", "-keyout", "ca-key.pem", "-out", "ca.pem"),
        ("req", *new, "-subj", "/CN=local-host", "-keyout", "key.pem", "-out", "request.pem"),
        (
            *("x509", "-req", "-in", "request.pem", "-CA", "ca.pem", "-CAkey", "ca-key.pem"),
            *("-CAcreateserial", "-days", "2", "-extfile", "names", "-out", "cert.pem"),
        ),
    ):
        subprocess.run(["openssl", *command], cwd=folder, check=True, capture_output=True)
    from tests.adapters.rabbit import node_or_skip

    node = node_or_skip("3.10")
    port = free_port()
    for name in ("key.pem", "cert.pem", "ca.pem"):
        node.write_file(name, (folder / name).read_text())
    node.write_file("enabled_plugins", "[rabbitmq_auth_mechanism_ssl].\n")
    node.write_config(
        "\n".join(
            [
                f"listeners.ssl.1 = 127.0.0.1:{port}",
                f"ssl_options.cacertfile = {node.path_inside('ca.pem')}",
                f"ssl_options.certfile = {node.path_inside('cert.pem')}",
                f"ssl_options.keyfile = {node.path_inside('key.pem')}",
                "ssl_options.verify = verify_peer",
                "ssl_options.fail_if_no_peer_cert = false",
                "ssl_cert_login_from = common_name",
                "auth_mechanisms.1 = PLAIN",
                "auth_mechanisms.2 = EXTERNAL",
            ]
        )
    )
    try:
        node.start()
        yield node, port, folder / "ca.pem"
    finally:
        node.close()
