"""RabbitMQ's management interface: a virtual host for each test, gone afterwards."""

from __future__ import annotations

import base64
import contextlib
import secrets
import urllib.error
import urllib.request
from collections.abc import Generator
from dataclasses import dataclass
from urllib.parse import quote, unquote, urlsplit

from brokerwq.testing.servers.installation import ServerUnavailableError

_SECONDS = 30.0
DEFAULT_PORT = 15672


@dataclass(frozen=True, slots=True, kw_only=True)
class Management:
    """What makes virtual hosts on one server.

    Attributes:
        amqp_url: The server, with the credentials of a user who may manage it.
        address: Its management interface, such as ``http://127.0.0.1:15672``; empty for the
            usual port of the same machine.
    """

    amqp_url: str
    address: str = ""

    @contextlib.contextmanager
    def vhost(self) -> Generator[str]:
        """The URL of a new virtual host, which is deleted with all that is in it.

        Raises:
            ServerUnavailableError: the management interface does not answer, or refuses.
        """
        name = f"bwq-{secrets.token_hex(6)}"
        user = quote(self._credentials[0], safe="")
        self._call("PUT", f"vhosts/{name}")
        try:
            everything = b'{"configure": ".*", "write": ".*", "read": ".*"}'
            self._call("PUT", f"permissions/{name}/{user}", everything)
            parts = urlsplit(self.amqp_url)
            query = f"?{parts.query}" if parts.query else ""
            yield f"{parts.scheme}://{parts.netloc}/{name}{query}"
        finally:
            self._call("DELETE", f"vhosts/{name}")

    @property
    def _credentials(self) -> tuple[str, str]:
        parts = urlsplit(self.amqp_url)
        return unquote(parts.username or "guest"), unquote(parts.password or "guest")

    @property
    def _base(self) -> str:
        host = urlsplit(self.amqp_url).hostname or "localhost"
        return self.address.rstrip("/") or f"http://{host}:{DEFAULT_PORT}"

    def _call(self, method: str, path: str, body: bytes = b"{}") -> None:
        token = base64.b64encode(":".join(self._credentials).encode()).decode()
        request = urllib.request.Request(  # noqa: S310  -- an address that the user gave
            f"{self._base}/api/{path}",
            method=method,
            data=body,
            headers={"Authorization": f"Basic {token}", "Content-Type": "application/json"},
        )
        try:
            urllib.request.urlopen(request, timeout=_SECONDS).close()  # noqa: S310  -- as above
        except urllib.error.HTTPError as exc:
            exc.close()
            if method != "DELETE" or exc.code != 404:
                msg = f"RabbitMQ's management interface refused to {method} {path}: {exc}"
                raise ServerUnavailableError(msg) from None
        except OSError as exc:
            msg = (
                f"RabbitMQ's management interface does not answer at {self._base}: {exc}; each "
                "test gets a virtual host of its own by it"
            )
            raise ServerUnavailableError(msg) from exc
