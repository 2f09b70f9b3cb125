"""Which adapter serves a URL: entry points in the group ``brokerwq.adapters``, by scheme."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard
from urllib.parse import unquote

from brokerwq.clock import Clock
from brokerwq.driver.adapter import Adapter
from brokerwq.driver.protocol import Driver
from brokerwq.driver.support import split_url
from brokerwq.errors import AdapterMissingError, ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "brokerwq.adapters"

AnyAdapter: TypeAlias = Adapter[Any]

_NEXT_URL = re.compile(r"\s+(?=[A-Za-z][A-Za-z0-9+.-]*://)")
_SLASH_OR_LATER = re.compile(r"[/?#]")
_SECRET = re.compile(
    r"@|pass|pwd|secret|token|key|auth|cred|sign|user|login|account", re.IGNORECASE
)
_BRACKETED = re.compile(r"\[[0-9a-f:.%]+\](:\d*)?", re.IGNORECASE)


def scheme_of(url: str) -> str:
    """The scheme of ``url``, lower case.

    Raises:
        ConfigError: there is none.
    """
    scheme, separator, _ = url.partition("://")
    if not separator or not scheme:
        msg = f"{redacted(url)!r:.300} is not a broker URL; write for example sqlite:///jobs.db"
        raise ConfigError(msg)
    hosts = split_url(url).netloc.rpartition("@")[2].split(",")
    if any(set("[]") & set(host) and not _BRACKETED.fullmatch(host) for host in hosts):
        msg = f"{redacted(url)!r:.300} is not a broker URL: brackets are for IPv6 addresses"
        raise ConfigError(msg)
    return scheme.lower()


def find_adapter(url: str) -> AnyAdapter:
    """The adapter whose entry point is named like the scheme of ``url``.

    Raises:
        AdapterMissingError: nothing serves the scheme.
        ConfigError: two packages claim it, or the URL has none.
    """
    scheme = scheme_of(url)
    found = [point for point in _entry_points() if point.name == scheme]
    values = sorted({point.value for point in found})
    if not found:
        msg = f"no adapter serves {scheme:.100}://; installed: {', '.join(schemes()) or 'none'}"
        raise AdapterMissingError(msg)
    if len(values) > 1:
        owners = ", ".join(sorted({_owner(point) for point in found}))
        msg = f"{scheme}:// is claimed by {owners}; uninstall all but one of them"
        raise ConfigError(msg)
    try:
        loaded: object = found[0].load()
    except (Exception, SystemExit) as exc:
        # Its module is somebody else's: whatever it raises, it is not there.
        kind = "" if isinstance(exc, ImportError) else f"{type(exc).__name__}: "
        msg = f"the adapter for {scheme}:// ({values[0]}) cannot be imported: {kind}{exc!s:.300}"
        raise AdapterMissingError(msg) from exc
    if not _is_adapter(loaded):
        msg = f"{values[0]}, named for {scheme}://, is no brokerwq.driver.Adapter"
        raise ConfigError(msg)
    return loaded


def split_urls(text: str) -> list[str]:
    """The URLs that stand in ``text`` with blanks between them; a blank may be in one, too."""
    return [url for url in _NEXT_URL.split(text.strip()) if url]


def settings_of(adapter: AnyAdapter, url: str) -> Any:
    """What ``url`` says, as ``adapter`` takes it.

    Raises:
        ConfigError: it says what the adapter does not take.
        AdapterMissingError: the adapter's client library is not installed.
    """
    try:
        return adapter.parse_url(url)
    except ImportError as exc:
        raise missing_client(adapter, exc) from exc


def build_driver(adapter: AnyAdapter, settings: Any, clock: Clock) -> Driver:
    """A driver that is not yet open.

    Raises:
        AdapterMissingError: its client library is not installed.
    """
    try:
        return adapter.build(settings, clock)
    except ImportError as exc:
        raise missing_client(adapter, exc) from exc


def missing_client(adapter: AnyAdapter, cause: ImportError) -> AdapterMissingError:
    """The error for an adapter whose client library is not installed."""
    way_out = f"pip install 'brokerwq[{adapter.extra}]'" if adapter.extra else "reinstall it"
    return AdapterMissingError(
        f"{adapter.schemes[0]}:// needs {cause.name or 'a package'}, which is not installed: "
        f"{way_out}"
    )


def schemes() -> list[str]:
    """The schemes that installed adapters serve, sorted."""
    return sorted({point.name for point in _entry_points()})


def _entry_points() -> Sequence[EntryPoint]:
    from importlib.metadata import entry_points  # noqa: PLC0415  -- slow, and seldom needed

    return tuple(entry_points(group=GROUP))


def redacted(url: str) -> str:
    """``url`` without its password and without options that look secret, fit for a log.

    Errs on the safe side: a password with a ``/``, ``?`` or ``#`` that somebody forgot to write
    as ``%2F`` and the like is taken for one, though the URL then means something else.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "", url
    authority = _SLASH_OR_LATER.split(rest, maxsplit=1)[0]
    user = ""
    if "@" in rest and (not separator or "@" in authority or ":" in authority):
        login, _, rest = rest.rpartition("@")
        name, colon, _ = login.partition(":")
        user = f"{name}:***@" if name and colon else "***@"
    path, mark, query = rest.partition("#")[0].partition("?")
    options = "&".join(map(_redacted_option, query.split("&")))
    return f"{scheme.lower()}{separator}{user}{path}" + (f"?{options}" if mark and query else "")


def _redacted_option(option: str) -> str:
    # All of it, since an address may have a password, or options, of its own.
    name, equals, _ = option.partition("=")
    if equals and not _SECRET.search(unquote(option)):
        return option
    return f"{name}{equals}***" if equals else "***"


def _is_adapter(loaded: object) -> TypeGuard[AnyAdapter]:
    return isinstance(loaded, Adapter)


def _owner(point: EntryPoint) -> str:
    return f"{point.dist.name if point.dist else 'an unknown package'} ({point.value})"
