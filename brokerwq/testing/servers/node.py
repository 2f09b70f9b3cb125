"""A private RabbitMQ node as a child process, on free ports, with its own data folder."""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from brokerwq.testing.servers.installation import Installation, ServerUnavailableError
from brokerwq.testing.servers.probe import free_port, server_version

START_SECONDS = 90.0
"""A node needs 5 to 10 s on a calm machine and several times that on a busy one."""
STOP_SECONDS = 30.0

_BOOT_SECONDS = 30.0
_NOT_STARTED = "requires the 'rabbit' app to be running"
_ROOT_FOLDER = "/node"
# One scheduler and no busy waiting: a test server must not eat the machine's cores.
_ERLANG = (
    "-kernel inet_dist_use_interface {127,0,0,1} +S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none"
)
# The node, and the port mapper that it leaves behind, end when this process does, however that
# ends: the pipe on its input breaks.
_WATCH = """
"$@" </dev/null & node=$!
exec 3<&0
{ cat <&3 >/dev/null; kill -TERM $node 2>/dev/null; } & watch=$!
wait $node; code=$?
kill $watch 2>/dev/null
eval "$END_EPMD" >/dev/null 2>&1
exit $code
"""
_INSIDE = (
    "mount --make-rprivate / && mount -t proc proc {root}/proc && mount --bind /dev {root}/dev"
    " && mount --bind {folder} {root}{inside} && exec chroot {root} "
)


class RabbitNode:
    """One node. Not started until ``start``; ``close`` removes everything it left.

    Args:
        installation: Which RabbitMQ.
        name: First part of the node's name; unique among nodes that share an epmd.
        config: Lines for ``rabbitmq.conf``.
        plugins: Plugins to enable.
        cookie: Shared by the nodes of a cluster.
        epmd_port: Shared by the nodes of a cluster.
    """

    def __init__(
        self,
        installation: Installation,
        *,
        name: str = "bwq",
        config: str = "",
        plugins: Sequence[str] = (),
        cookie: str | None = None,
        epmd_port: int | None = None,
    ) -> None:
        self._installation = installation
        self._folder = Path(tempfile.mkdtemp(prefix="brokerwq-rabbitmq-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._epmd_port = epmd_port or free_port()
        self.name = f"{name}@localhost"
        self.host = "127.0.0.1"
        self.port = free_port()
        self.version = ""
        self._lay_out(config, plugins, cookie or secrets.token_hex(16))
        self._environment = self._variables()

    @property
    def url(self) -> str:
        """The default user on the default virtual host."""
        return f"amqp://guest:guest@{self.host}:{self.port}/"

    @property
    def is_running(self) -> bool:
        """Whether the child process is there."""
        return self._process is not None and self._process.poll() is None

    def start(self, *, wait: bool = True) -> None:
        """Start the node, with what it stored before.

        Args:
            wait: Return when it answers; False leaves that to ``wait_until_ready``.

        Raises:
            ServerUnavailableError: it ended, or did not answer in time.
        """
        command = self._command("rabbitmq-server", ())
        with (self._folder / "console.log").open("ab") as console:
            self._process = subprocess.Popen(  # noqa: S603  -- fixed commands
                ["/bin/sh", "-c", _WATCH, "sh", *command],
                stdin=subprocess.PIPE,
                stdout=console,
                stderr=subprocess.STDOUT,
                env={**self._environment, "END_EPMD": shlex.join(self._epmd_kill())},
                start_new_session=True,
            )
        if wait:
            self.wait_until_ready()

    def wait_until_ready(self, timeout: float = START_SECONDS) -> None:
        """Wait until the node speaks AMQP.

        Raises:
            ServerUnavailableError: it ended, or did not within ``timeout`` seconds.
        """
        give_up_at = time.monotonic() + timeout  # noqa: TID251  -- a real process takes real time
        while self.is_running:
            version = server_version(self.host, self.port)
            if version is not None:
                self.version = version
                return
            if time.monotonic() > give_up_at:  # noqa: TID251
                break
            time.sleep(0.1)
        log = (self._folder / "console.log").read_text(errors="replace")[-3000:]
        self.kill()
        msg = f"RabbitMQ did not start within {timeout:g} s:\n{log}"
        raise ServerUnavailableError(msg)

    def stop(self) -> None:
        """Stop the node as an operator would; it can be started again."""
        process = self._process
        if process is None:
            return
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None

    def kill(self) -> None:
        """SIGKILL, as a power cut would end it; it can be started again."""
        process = self._process
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(STOP_SECONDS)
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        self._process = None

    def restart(self) -> None:
        """Stop and start."""
        self.stop()
        self.start()

    def ctl(self, *arguments: str) -> str:
        """Run ``rabbitmqctl`` on the node and return what it printed; takes 1 to 3 s.

        Raises:
            RuntimeError: it failed.
        """
        give_up_at = time.monotonic() + _BOOT_SECONDS  # noqa: TID251  -- as above
        while True:
            try:
                return self._run("rabbitmqctl", ("--quiet", "-n", self.name, *arguments))
            except subprocess.CalledProcessError as exc:
                said = f"{exc.stdout}{exc.stderr}"
                # A node speaks AMQP some milliseconds before it calls itself started.
                if _NOT_STARTED not in said or time.monotonic() > give_up_at:  # noqa: TID251
                    msg = f"rabbitmqctl {arguments[0]} failed with {exc.returncode}: {said[-1000:]}"
                    raise RuntimeError(msg) from None

    def close(self) -> None:
        """Stop the node and remove its data."""
        self.stop()
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            self._run("epmd", ("-port", str(self._epmd_port), "-kill"))
        shutil.rmtree(self._folder, ignore_errors=True)

    def write_config(self, config: str) -> None:
        """Replace ``rabbitmq.conf``; takes effect at the next start."""
        lines = ("log.console.level = warning", "loopback_users = none", config)
        (self._folder / "rabbitmq.conf").write_text("\n".join(lines) + "\n")

    def path_inside(self, name: str) -> str:
        """The file ``name`` of the data folder as the node sees it, for ``config``."""
        return f"{self._inside}/{name}"

    def write_file(self, name: str, content: str) -> None:
        """Put a file, such as a certificate, into the data folder."""
        (self._folder / name).write_text(content)

    @property
    def _inside(self) -> str:
        return str(self._folder) if self._installation.root is None else _ROOT_FOLDER

    def _lay_out(self, config: str, plugins: Sequence[str], cookie: str) -> None:
        for name in ("home", "mnesia", "log"):
            (self._folder / name).mkdir()
        cookie_file = self._folder / "home" / ".erlang.cookie"
        cookie_file.write_text(cookie)
        cookie_file.chmod(0o400)
        (self._folder / "enabled_plugins").write_text(f"[{','.join(plugins)}].\n")
        self.write_config(config)

    def _variables(self) -> dict[str, str]:
        inside = self._inside
        return {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "LANG": "C.UTF-8",
            "HOME": f"{inside}/home",
            "RABBITMQ_NODENAME": self.name,
            "RABBITMQ_NODE_IP_ADDRESS": self.host,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": f"{inside}/mnesia",
            "RABBITMQ_LOG_BASE": f"{inside}/log",
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{inside}/enabled_plugins",
            "RABBITMQ_CONFIG_FILE": f"{inside}/rabbitmq",
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": _ERLANG,
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }

    def _command(self, script: str, arguments: Sequence[str]) -> list[str]:
        is_ours = script.startswith("rabbitmq")
        path = f"{self._installation.scripts}/{script}" if is_ours else script
        root = self._installation.root
        if root is None:
            return [path, *arguments]
        enter = _INSIDE.format(
            root=shlex.quote(str(root)), folder=shlex.quote(str(self._folder)), inside=self._inside
        )
        return ["unshare", "-m", "sh", "-c", enter + shlex.join([path, *arguments])]

    def _epmd_kill(self) -> list[str]:
        # Refused, as it should be, while another node of a cluster still needs it.
        return self._command("epmd", ("-port", str(self._epmd_port), "-kill"))

    def _run(self, script: str, arguments: Sequence[str]) -> str:
        return subprocess.run(  # noqa: S603  -- fixed commands
            self._command(script, arguments),
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
            stdin=subprocess.DEVNULL,
            env=self._environment,
        ).stdout
