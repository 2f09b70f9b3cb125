"""Small things every adapter needs, so that none writes them again."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar
from urllib.parse import parse_qsl, unquote

from brokerwq.driver.capabilities import Capabilities
from brokerwq.driver.protocol import Difference, Mark, QueueSpec
from brokerwq.errors import BrokerwqError, ConfigError, QueueNotFoundError
from brokerwq.message import Message

_T = TypeVar("_T")

_URL = re.compile(r"(?:([^:/?#]*):)?(?://([^/?#]*))?([^?#]*)(?:\?([^#]*))?(?:#(.*))?", re.DOTALL)
"""RFC 3986, appendix B."""


_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
"""What an option's name may look like, even one that is unknown."""


class UrlParts(NamedTuple):
    """The five parts of a URL as they are written, nothing decoded."""

    scheme: str
    netloc: str
    path: str
    query: str
    fragment: str


def split_url(url: str) -> UrlParts:
    """The parts of ``url``; never refuses any.

    The standard library's ``urlsplit`` refuses several hosts with an IPv6 address among them,
    each release a little more.
    """
    match = _URL.fullmatch(url)
    parts = match.groups(default="") if match else ("", "", url, "", "")
    return UrlParts(*parts)


def url_options(url: str, known: dict[str, type[_T]]) -> dict[str, _T]:
    """The options in the query of ``url``, each converted to its type.

    ``bool`` reads ``1``, ``true``, ``yes``, ``on`` and their opposites.

    Raises:
        ConfigError: an option is unknown, given twice, or not of its type.
    """
    options: dict[str, _T] = {}
    parts = split_url(url)
    is_cut = "@" in parts.query and ":" in parts.netloc and "@" not in parts.netloc
    for name, text in parse_qsl(parts.query, keep_blank_values=True):
        if is_cut or not _NAME.fullmatch(name):  # not shown: it may be of a password
            msg = "the URL has a ? in its password, as it seems: write %3F for it"
            raise ConfigError(msg)
        if name not in known:
            msg = f"unknown option {name!r:.100} in the URL; known: {', '.join(sorted(known))}"
            raise ConfigError(msg)
        if name in options:
            msg = f"option {name!r} stands twice in the URL"
            raise ConfigError(msg)
        options[name] = _convert(name, text, known[name])
    return options


_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


def _convert(name: str, text: str, kind: type[_T]) -> _T:
    if kind is bool:
        if text.lower() not in _TRUE | _FALSE:
            msg = f"option {name!r} is {text!r:.100}; write true or false"
            raise ConfigError(msg)
        return kind(text.lower() in _TRUE)  # type: ignore[call-arg]
    try:
        return kind(text)  # type: ignore[call-arg]
    except ValueError as exc:
        msg = f"option {name!r} is {text!r:.100}, which is no {kind.__name__}"
        raise ConfigError(msg) from exc


def split_to_limits(
    sizes: Sequence[int], places: Iterable[int], capabilities: Capabilities
) -> list[list[int]]:
    """``places`` in lists that one ``send`` takes each; ``sizes`` has the bytes at each place."""
    parts: list[list[int]] = []
    size = 0
    for place in places:
        is_full = bool(parts) and len(parts[-1]) >= capabilities.max_send
        if not parts or is_full or size + sizes[place] > capabilities.max_batch_bytes:
            parts.append([])
            size = 0
        parts[-1].append(place)
        size += sizes[place]
    return parts


def unstarted(message: Message, receives: int) -> Mark:
    """The mark of a message that nobody has begun: the last of its ``receives`` is not counted."""
    return replace(
        Mark.of(message),
        attempts=message.attempts + receives - 1,
        # The returned copy's receives start anew, so the suspicion must be written on it.
        suspect=message.suspect or receives > 1,
    )


def bare(exc: BaseException) -> BaseException:
    """``exc`` as a cause that says what it says: without the client library's frames.

    For what is foreseen, such as a wrong password: fifty lines of somebody else's code tell the
    user nothing about it.
    """
    exc.__cause__ = exc.__context__ = None
    return exc.with_traceback(None)


def in_short(error: BrokerwqError) -> BrokerwqError:
    """``error`` as users get it: its text says all, the way it came through us nothing."""
    return error.with_traceback(None)


def no_dead_letter_queue(spec: QueueSpec) -> QueueNotFoundError:
    """The queue of ``spec`` is somebody else's, and where its dead letters would go is nothing."""
    return QueueNotFoundError(
        f"queue {spec.name} has no dead-letter queue {spec.dead_letter_queue}: have it made "
        f"({declare_command(spec, dead_letters_only=True)}), name another one with "
        "QueueSpec(dead_letter=…), or keep in the queue what would go there with "
        'on_dead="hold"'
    )


def listed(differences: Iterable[Difference]) -> str:
    """``differences`` on one line for people, each fix once, behind all that it mends."""
    texts: dict[str, list[str]] = {}
    for difference in differences:
        texts.setdefault(difference.fix, []).append(str(difference))
    return "; ".join(
        "; ".join(found) + (f" (fix: {fix})" if fix else "") for fix, found in texts.items()
    )


def declare_command(spec: QueueSpec, *, dead_letters_only: bool = False) -> str:
    """The command that makes the queue of ``spec``, or its dead-letter queue alone."""
    words = ["brokerwq", "queues", "declare", spec.name]
    if dead_letters_only:
        words.append("--dead-letters-only")
    if spec.dead_letter is not None:
        words += ["--dead-letter", spec.dead_letter]
    if dead_letters_only:
        return shlex.join(words)
    if spec.lease is not None:
        words += ["--lease", f"{spec.lease:.9g}"]
    if spec.retention is not None and spec.retention != math.inf:
        words += ["--retention", f"{spec.retention:.9g}"]
    if spec.ordered:
        words.append("--ordered")
    return shlex.join(words)


def url_path(url: str) -> str:
    """The part between ``scheme://`` and the query, percent-decoded, host included."""
    parts = split_url(url)
    return unquote(parts.netloc + parts.path)
