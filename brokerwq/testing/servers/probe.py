"""Small questions to the network, answered without a client library."""

from __future__ import annotations

import re
import socket

_HEADER = b"AMQP\x00\x00\x09\x01"
_VERSION = re.compile(rb"\x07versionS....([0-9][0-9A-Za-z.+~-]*)", re.DOTALL)


def free_port() -> int:
    """A TCP port of the loopback address that nobody listens on at this moment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def server_version(host: str, port: int, timeout: float = 5.0) -> str | None:
    """What the AMQP 0-9-1 server at that address calls its version; None if none answers."""
    try:
        with socket.create_connection((host, port), timeout) as connection:
            connection.settimeout(timeout)
            connection.sendall(_HEADER)
            answer = b""
            while len(answer) < 7 or len(answer) < 8 + int.from_bytes(answer[3:7]):
                part = connection.recv(65536)
                if not part:
                    return None
                answer += part
    except OSError:
        return None
    found = _VERSION.search(answer)
    return found[1].decode() if answer[:1] == b"\x01" and found else None
