"""Where a RabbitMQ that can be started without a container comes from.

Debian packages, in two ways: installed on this machine by apt, or a newer suite's packages
unpacked below a folder that the server process takes for its root. Both need root and Debian.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

INSTALL_VARIABLE = "BROKERWQ_TEST_INSTALL"
"""Set to ``0`` to forbid that tests install packages."""
CACHE_VARIABLE = "BROKERWQ_TEST_CACHE"
"""Folder for unpacked servers; default ``~/.cache/brokerwq/servers``."""

_SCRIPTS = "usr/lib/rabbitmq/bin"
_UNPACKED = (
    "rabbitmq-server",
    *("base-files", "coreutils", "dash", "gawk", "grep", "sed", "procps", "util-linux", "libc-bin"),
)
_APT_SECONDS = 600


class ServerUnavailableError(RuntimeError):
    """No such server can be had on this machine; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """RabbitMQ's scripts.

    Attributes:
        scripts: Folder of ``rabbitmq-server`` and ``rabbitmqctl``, as their process sees it.
        root: What that process takes for ``/``; None for this machine's own.
    """

    scripts: str
    root: Path | None = None


def local_installation() -> Installation:
    """The RabbitMQ of this machine, installed from Debian's packages if it is not there.

    Raises:
        ServerUnavailableError: it is not there and cannot be installed.
    """
    found = _find_local()
    if found is not None:
        return found
    with _locked("apt"):
        found = _find_local()  # another test process may have been faster
        if found is None:
            _require_debian_root("install rabbitmq-server")
            _run(["apt-get", "-qq", "update"])
            _run(
                ["apt-get", "-qq", "-y", "--no-install-recommends", "install", "rabbitmq-server"],
                DEBIAN_FRONTEND="noninteractive",
            )
            found = _find_local()
    if found is None:
        msg = "rabbitmq-server was installed, but its scripts are not where Debian puts them"
        raise ServerUnavailableError(msg)
    return found


def installed_program(program: str, package: str) -> str:
    """Where ``program`` is, installed from Debian's ``package`` if it is not there.

    Raises:
        ServerUnavailableError: it is not there and cannot be installed.
    """
    found = shutil.which(program)
    if found is None:
        with _locked("apt"):
            if shutil.which(program) is None:  # another test process may have been faster
                _require_debian_root(f"install {package}")
                _run(["apt-get", "-qq", "update"])
                _run(
                    ["apt-get", "-qq", "-y", "--no-install-recommends", "install", package],
                    DEBIAN_FRONTEND="noninteractive",
                )
        found = shutil.which(program)
    if found is None:
        msg = f"{package} was installed, but {program} is not on the path"
        raise ServerUnavailableError(msg)
    return found


def unpacked_installation(suite: str = "forky") -> Installation:
    """The RabbitMQ of another Debian suite, unpacked into the cache; nothing is installed.

    Args:
        suite: ``forky`` has 4.3, ``trixie`` has 4.0.

    Raises:
        ServerUnavailableError: not on Debian, not root, or the download failed.
    """
    root = cache_folder() / f"rabbitmq-{suite}"
    with _locked(f"rabbitmq-{suite}"):
        if not (root / _SCRIPTS).is_dir():
            _require_debian_root(f"unpack the packages of {suite}")
            _unpack(suite, root)
    return Installation(scripts=f"/{_SCRIPTS}", root=root)


def cache_folder() -> Path:
    """Where unpacked servers are kept; made if it is missing."""
    chosen = os.environ.get(CACHE_VARIABLE)
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(chosen) if chosen else Path(base).expanduser() / "brokerwq" / "servers"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _find_local() -> Installation | None:
    # Debian's /usr/sbin/rabbitmq-server changes the user and hides the output; the package's
    # own folder has the plain scripts.
    if Path("/", _SCRIPTS, "rabbitmq-server").exists():
        return Installation(scripts=f"/{_SCRIPTS}")
    command = shutil.which("rabbitmq-server")
    return None if command is None else Installation(scripts=str(Path(command).resolve().parent))


def _unpack(suite: str, root: Path) -> None:
    # apt resolves and downloads with a state of its own, so that this machine's package
    # lists and packages stay as they are.
    work = root.with_suffix(".apt")
    fresh = root.with_suffix(".new")
    for folder in (work, fresh):
        shutil.rmtree(folder, ignore_errors=True)
    for name in ("etc/preferences.d", "state/lists/partial", "cache/archives/partial"):
        (work / name).mkdir(parents=True)
    (work / "status").touch()
    mirror = _first_line(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"], "/debian/"
    )
    key = _first_line(["dpkg", "-L", "debian-archive-keyring"], "/debian-archive-keyring.gpg")
    (work / "etc/sources.list").write_text(f"deb [signed-by={key}] {mirror} {suite} main\n")
    places = {
        "Etc": work / "etc",
        "Etc::sourceparts": "-",
        "State": work / "state",
        "State::status": work / "status",
        "Cache": work / "cache",
    }
    apt = ["apt-get", *(f"-oDir::{name}={place}" for name, place in places.items()), "-qq"]
    try:
        _run([*apt, "update"])
        _run([*apt, "-y", "--download-only", "--no-install-recommends", "install", *_UNPACKED])
        fresh.mkdir()
        for package in sorted((work / "cache/archives").glob("*.deb")):
            _run(["dpkg-deb", "-x", str(package), str(fresh)])
        _make_bootable(fresh)
        fresh.rename(root)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        shutil.rmtree(fresh, ignore_errors=True)


def _make_bootable(root: Path) -> None:
    awk = root / "usr/bin/awk"
    awk.unlink(missing_ok=True)
    awk.symlink_to("gawk")
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\n")
    shutil.copy("/etc/hosts", root / "etc/hosts")
    for name in ("proc", "dev", "tmp", "node"):
        (root / name).mkdir(exist_ok=True)
    for name in ("usr/share/doc", "usr/share/man", "usr/share/locale"):
        shutil.rmtree(root / name, ignore_errors=True)


def _require_debian_root(purpose: str) -> None:
    if os.environ.get(INSTALL_VARIABLE) == "0":
        reason = f"{INSTALL_VARIABLE}=0 forbids it"
    elif shutil.which("apt-get") is None:
        reason = "this is no Debian"
    elif os.geteuid() != 0:
        reason = "that needs root"
    else:
        return
    msg = f"cannot {purpose}: {reason}"
    raise ServerUnavailableError(msg)


def _first_line(command: Sequence[str], ending: str) -> str:
    for line in _run(command).splitlines():
        if line.endswith(ending):
            return line
    msg = f"{' '.join(command)} names nothing that ends in {ending}"
    raise ServerUnavailableError(msg)


def _run(command: Sequence[str], **environment: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603  -- fixed commands, no shell
            command,
            check=False,
            capture_output=True,
            text=True,
            timeout=_APT_SECONDS,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **environment},
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        msg = f"{command[0]} failed: {exc}"
        raise ServerUnavailableError(msg) from exc
    if done.returncode:
        msg = f"{' '.join(command)} failed with {done.returncode}: {done.stderr[-1000:]}"
        raise ServerUnavailableError(msg)
    return done.stdout


@contextmanager
def _locked(name: str) -> Generator[None]:
    with (cache_folder() / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
