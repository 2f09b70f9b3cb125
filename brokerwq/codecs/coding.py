"""Bodies as their content type and content encoding say, turned into UTF-8.

Whatever a producer declares is undone, and nothing that it does not declare. What a packed body
may grow to is limited, so that a few kilobytes do not fill a runner's memory.
"""

from __future__ import annotations

import base64
import bz2
import codecs
import lzma
import zlib
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from brokerwq.errors import EnvelopeError
from brokerwq.message import Message

MAX_UNPACKED_BYTES: Final = 16 * 1024 * 1024
"""What a packed body may grow to: the longest message that RabbitMQ takes by default."""

CONTENT_TYPE: Final = "content-type"
CONTENT_ENCODING: Final = "content-encoding"

_MOST_BRACKETS: Final = 1_000_000
"""In a packed body: an empty list takes twenty times its text in memory."""
_MOST_CODINGS: Final = 4
_MOST_MEMBERS: Final = 16
_LZMA_MEMORY: Final = 64 * 1024 * 1024
_EITHER: Final = zlib.MAX_WBITS | 32
_GZIP: Final = zlib.MAX_WBITS | 16

# Encodings of text that can be undone in time and space in proportion to the body. Python knows
# more, and some that are none (``zlib``) or take their time (``idna``).
_CHARSETS: Final = frozenset(
    {
        *("ascii", "utf-8", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le"),
        *("utf-32-be", "shift_jis", "cp932", "euc_jp", "iso2022_jp", "euc_kr", "cp949", "gbk"),
        *("gb2312", "gb18030", "big5", "koi8-r", "koi8-u", "cp437", "cp850"),
        *(f"cp{number}" for number in range(1250, 1259)),
        *(f"iso8859-{number}" for number in range(1, 17)),
    }
)
_NOTHING: Final = frozenset({"", "identity", "binary", "8bit", "7bit"})

Unpack: TypeAlias = Callable[[bytes], bytes]


def declared(message: Message) -> tuple[str, str]:
    """The content type and the content encoding that ``message`` declares, empty for none.

    By the properties of AMQP or the headers of those names, in any case.
    """
    found = {name.lower(): text for name, text in message.headers.items()}
    content_type = message.content_type or found.get(CONTENT_TYPE, "")
    encoding = message.raw.get("content_encoding")
    if not isinstance(encoding, str):
        encoding = found.get(CONTENT_ENCODING, "")
    # What SQS has is text.
    is_text = isinstance(message.raw.get("Body"), str)
    return of_text(content_type, encoding) if is_text else (content_type, encoding)


def of_text(content_type: str, content_encoding: str) -> tuple[str, str]:
    """What is still true of a body that came as text: no character set, unless it is packed."""
    codings = [name.strip() for name in content_encoding.lower().split(",")]
    if any(name not in _NOTHING and not _is_charset(name) for name in codings):
        return content_type, content_encoding
    return without_charset(content_type), ""


def without_charset(content_type: str) -> str:
    """``content_type`` without that parameter."""
    parts = content_type.split(";")
    return ";".join(part for part in parts if part.partition("=")[0].strip().lower() != "charset")


def media_type(content_type: str) -> str:
    """The media type in ``content_type``, lower case, without its parameters."""
    return content_type.partition(";")[0].strip().lower()


def as_utf8(body: bytes, content_type: str, content_encoding: str) -> bytes:
    """``body`` unpacked, and in UTF-8 if it is in another character set.

    Args:
        body: As it came.
        content_type: May have a parameter ``charset``.
        content_encoding: What was done to it, in that order: ``gzip``, ``deflate``,
            ``base64``; or the name of a character set, as several producers have it.

    Raises:
        EnvelopeError: something in it is unknown or does not fit, or it grows beyond
            ``MAX_UNPACKED_BYTES``.
    """
    charset = _charset_of(content_type)
    codings = content_encoding.lower().split(",")
    if len(codings) > _MOST_CODINGS:
        msg = f"the body has {len(codings)} content encodings; the limit is {_MOST_CODINGS}"
        raise EnvelopeError(msg)
    packed = body
    for coding in reversed(codings):
        name = coding.strip()
        unpack = _UNPACKERS.get(name)
        if unpack is not None:
            body = unpack(body)
        elif name not in _NOTHING:
            charset = charset or name
            _ = _known_charset(name)  # or it is a coding that we do not know
    text = _recoded(body, charset) if charset else body
    return text if body is packed else _sparse(text)


def decompressed(body: bytes, compression: str) -> bytes:
    """``body`` as it was before kombu compressed it.

    Args:
        body: As it came.
        compression: kombu's name of the method; empty for none.

    Raises:
        EnvelopeError: it does not fit, or is a method that is not in Python's library.
    """
    if not compression:
        return body
    unpack = _BY_KOMBU.get(compression)
    if unpack is None:
        msg = f"compression {compression!r:.50} is not known here"
        raise EnvelopeError(msg)
    return _sparse(unpack(body))


def _sparse(body: bytes) -> bytes:
    """``body``, if as JSON it would not be a bomb of another kind."""
    if len(body) > _MOST_BRACKETS and body.count(b"[") + body.count(b"{") > _MOST_BRACKETS:
        msg = f"the body unpacks to more than {_MOST_BRACKETS} lists and objects"
        raise EnvelopeError(msg)
    return body


def unbase64(text: bytes, what: str) -> bytes:
    """What ``text`` holds in base64.

    Raises:
        EnvelopeError: it is no base64.
    """
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        msg = f"{what} is not base64"
        raise EnvelopeError(msg) from None


def _charset_of(content_type: str) -> str:
    for parameter in content_type.split(";")[1:]:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            return value.strip().strip('"').lower()
    return ""


def _is_charset(name: str) -> bool:
    try:
        return codecs.lookup(name).name in _CHARSETS
    except (LookupError, ValueError):
        return False


def _known_charset(charset: str) -> str:
    if not _is_charset(charset):
        msg = f"character set or content encoding {charset!r:.50} is not known here"
        raise EnvelopeError(msg)
    return codecs.lookup(charset).name


def _recoded(body: bytes, charset: str) -> bytes:
    name = _known_charset(charset)
    if name in ("utf-8", "ascii"):
        return body  # who reads it looks for himself
    try:
        return body.decode(name).encode()
    except UnicodeError:
        msg = f"the body is not {name}"
        raise EnvelopeError(msg) from None


def _inflate(body: bytes, window: int, what: str) -> bytes:
    unpacked = bytearray()
    for _ in range(_MOST_MEMBERS):
        inflater = zlib.decompressobj(window)
        try:
            unpacked += inflater.decompress(body, MAX_UNPACKED_BYTES + 1 - len(unpacked))
        except zlib.error:
            break
        _check_size(len(unpacked), what)
        if not inflater.eof:
            break
        body = inflater.unused_data
        if not body:
            return bytes(unpacked)
    raise _damaged(what)


def _by_decompressor(
    body: bytes, decompressor: bz2.BZ2Decompressor | lzma.LZMADecompressor, what: str
) -> bytes:
    try:
        unpacked = decompressor.decompress(body, MAX_UNPACKED_BYTES + 1)
    except (OSError, EOFError, lzma.LZMAError, MemoryError):
        raise _damaged(what) from None
    _check_size(len(unpacked), what)
    if not decompressor.eof or decompressor.unused_data:
        raise _damaged(what)
    return unpacked


def _damaged(what: str) -> EnvelopeError:
    return EnvelopeError(f"the body is no whole {what}")


def _check_size(size: int, what: str) -> None:
    if size > MAX_UNPACKED_BYTES:
        msg = f"the body's {what} has more than {MAX_UNPACKED_BYTES} bytes in it"
        raise EnvelopeError(msg)


def _gunzip(body: bytes) -> bytes:
    return _inflate(body, _GZIP, "gzip")


def _undeflate(body: bytes) -> bytes:
    return _inflate(body, zlib.MAX_WBITS, "deflate")


def _unzip(body: bytes) -> bytes:
    return _inflate(body, _EITHER, "gzip or zlib")


def _unbz2(body: bytes) -> bytes:
    return _by_decompressor(body, bz2.BZ2Decompressor(), "bz2")


def _unlzma(body: bytes) -> bytes:
    return _by_decompressor(body, lzma.LZMADecompressor(memlimit=_LZMA_MEMORY), "lzma")


def _unbase64(body: bytes) -> bytes:
    return unbase64(body, "the body")


_UNPACKERS: Final[Mapping[str, Unpack]] = {
    "gzip": _gunzip,
    "x-gzip": _gunzip,
    "deflate": _undeflate,
    "base64": _unbase64,
}
# What kombu calls gzip is zlib's own format.
_BY_KOMBU: Final[Mapping[str, Unpack]] = {
    "application/x-gzip": _unzip,
    "application/x-bz2": _unbz2,
    "application/x-lzma": _unlzma,
}
