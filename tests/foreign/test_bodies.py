"""Bodies packed and encoded as their content type and content encoding say."""

from __future__ import annotations

import base64
import bz2
import gzip
import json
import lzma
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from brokerwq.codecs import JSON, CeleryCodec, foreign_codec_for
from brokerwq.codecs.choosing import AnyCodec, codec_for
from brokerwq.codecs.coding import MAX_UNPACKED_BYTES, as_utf8
from brokerwq.errors import EnvelopeError
from brokerwq.message import Message
from tests.cases.lab import Place, dead_letters, declare, send_raw
from tests.foreign.lab import dramatiq_message, refusal, sns_envelope, task, taskiq_message

TEXT = '{"name":"Ærøskøbing"}'
BODY = TEXT.encode()


def gzipped(body: bytes, level: int = 9) -> bytes:
    """The same bytes each time: the names of tests are made of them."""
    return gzip.compress(body, level, mtime=0)


@pytest.mark.parametrize(
    ("body", "content_type", "content_encoding"),
    [
        (BODY, "", ""),
        (BODY, "application/json", "identity"),
        (BODY, 'Application/JSON; Charset="UTF-8"', ""),
        (BODY, "application/vnd.example.order+json; version=2", ""),
        (BODY, "text/plain", "UTF-8"),
        (BODY, "application/json", "utf8"),
        (BODY, "application/json", "binary"),
        (TEXT.encode("latin-1"), "application/json; charset=iso-8859-1", ""),
        (TEXT.encode("cp1252"), "application/json; v=1; charset=windows-1252; q=1", ""),
        (TEXT.encode("utf-16"), "application/json;charset=utf-16", ""),
        (TEXT.encode("utf-16-be"), "application/json", "utf-16be"),
        (gzipped(BODY), "application/json", "gzip"),
        (gzipped(BODY), "application/json", " X-GZIP "),
        (gzipped(BODY[:9]) + gzipped(BODY[9:]), "", "gzip"),
        (zlib.compress(BODY), "", "deflate"),
        (base64.b64encode(BODY), "", "base64"),
        (base64.b64encode(gzipped(BODY)), "", "gzip, base64"),
        (gzipped(TEXT.encode("latin-1")), "application/json; charset=latin1", "gzip"),
        (gzipped(BODY), "application/json", "utf-8, gzip"),
    ],
)
def test_what_is_declared_is_undone(body: bytes, content_type: str, content_encoding: str) -> None:
    assert as_utf8(body, content_type, content_encoding) == BODY


@pytest.mark.parametrize(
    ("body", "content_type", "content_encoding", "why"),
    [
        (BODY, "", "gzip", "no whole gzip"),
        (b"", "", "gzip", "no whole gzip"),
        (gzipped(BODY)[:-5], "", "gzip", "no whole gzip"),
        (gzipped(BODY) + b"rest", "", "gzip", "no whole gzip"),
        (gzipped(b"") * 20, "", "gzip", "no whole gzip"),
        (zlib.compress(BODY)[:-1], "", "deflate", "no whole deflate"),
        (b"%%%", "", "base64", "not base64"),
        (BODY, "", "br", "'br' is not known"),
        (BODY, "", "zstd", "'zstd' is not known"),
        (BODY, "", ",".join(["gzip"] * 5), "5 content encodings"),
        (BODY, "application/json; charset=klingon", "", "'klingon' is not known"),
        (BODY, "application/json; charset=idna", "", "'idna' is not known"),
        (BODY, "application/json; charset=zlib", "", "'zlib' is not known"),
        (BODY, "application/json; charset=a\0b", "", "is not known"),
        (BODY[:-1], "application/json; charset=utf-16", "", "not utf-16"),
        (b"\xff\xff", "application/json; charset=shift_jis", "", "not shift_jis"),
    ],
)
def test_what_does_not_fit_its_declaration_is_refused(
    body: bytes, content_type: str, content_encoding: str, why: str
) -> None:
    with pytest.raises(EnvelopeError, match=why):
        as_utf8(body, content_type, content_encoding)


@pytest.mark.slow
@pytest.mark.parametrize(("pack", "coding"), [(gzip.compress, "gzip"), (zlib.compress, "deflate")])
def test_a_bomb_is_refused_before_it_goes_off(pack: Callable[[bytes], bytes], coding: str) -> None:
    body = pack(bytes(4 * MAX_UNPACKED_BYTES))
    assert len(body) < MAX_UNPACKED_BYTES / 200

    tracemalloc.start()
    try:
        with pytest.raises(EnvelopeError, match=f"more than {MAX_UNPACKED_BYTES} bytes"):
            as_utf8(body, "", coding)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 3 * MAX_UNPACKED_BYTES


@pytest.mark.slow
def test_a_bomb_of_empty_lists_is_refused_before_it_is_parsed() -> None:
    body = b"[" + b"[]," * (MAX_UNPACKED_BYTES // 4) + b"[]]"

    with pytest.raises(EnvelopeError, match="lists and objects"):
        as_utf8(gzipped(body, 1), "", "gzip")
    packed = Message(
        id="",
        body=zlib.compress(b"[" + body + b",{},{}]", 1),
        headers={"task": "t", "compression": "application/x-gzip"},
    )
    assert "lists and objects" in refusal(CeleryCodec(), packed)


@pytest.mark.slow
def test_what_just_fits_is_taken() -> None:
    body = b" " * (MAX_UNPACKED_BYTES - len(BODY)) + BODY

    assert as_utf8(gzipped(body), "", "gzip") == body


@pytest.mark.parametrize(
    ("pack", "name"),
    [
        (zlib.compress, "application/x-gzip"),
        (gzip.compress, "application/x-gzip"),
        (bz2.compress, "application/x-bz2"),
        (lzma.compress, "application/x-lzma"),
    ],
)
def test_a_task_that_kombu_compressed_is_read(pack: Callable[[bytes], bytes], name: str) -> None:
    plain = task("t", 1, headers={"compression": name})
    packed = Message(
        id="", body=pack(plain.body), headers=plain.headers, content_type="application/json"
    )

    arguments = CeleryCodec().read(packed).arguments
    assert arguments is not None
    assert list(arguments.args) == [1]
    for cut in (packed.body[:-3], packed.body + b"x", b""):
        broken = Message(id="", body=cut, headers=plain.headers)
        assert "no whole" in refusal(CeleryCodec(), broken)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pack", "name"),
    [(bz2.compress, "application/x-bz2"), (lzma.compress, "application/x-lzma")],
)
def test_kombus_bombs_are_refused_as_well(pack: Callable[[bytes], bytes], name: str) -> None:
    bomb = Message(
        id="", body=pack(bytes(2 * MAX_UNPACKED_BYTES)), headers={"task": "t", "compression": name}
    )

    assert "more than" in refusal(CeleryCodec(), bomb)


def test_an_unknown_compression_is_named() -> None:
    packed = task("t", headers={"compression": "application/zstd"})
    assert "'application/zstd' is not known" in refusal(CeleryCodec(), packed)


@pytest.mark.parametrize(
    ("headers", "raw"),
    [
        ({"Content-Type": "application/json; charset=latin1", "Content-Encoding": "gzip"}, {}),
        ({"content-type": "application/json; charset=latin1"}, {"content_encoding": "gzip"}),
    ],
)
def test_it_may_be_declared_in_headers_of_any_case_or_in_amqps_property(
    headers: dict[str, str], raw: dict[str, object]
) -> None:
    message = Message(id="", body=gzipped(TEXT.encode("latin-1")), headers=headers, raw=raw)

    assert read(message, codec="json") == {"name": "Ærøskøbing"}


@pytest.mark.parametrize("kind", ["application/json; charset=latin1", 'a/b;charset="utf-16";v=1'])
def test_a_body_that_came_as_text_has_no_character_set_but_its_own(kind: str) -> None:
    on_sqs = Message(id="", body=BODY, content_type=kind, raw={"Body": TEXT})
    on_sns = sns_envelope(
        TEXT, MessageAttributes={"content-type": {"Type": "String", "Value": kind}}
    )
    arguments = (
        CeleryCodec()
        .read(
            Message(
                id="",
                body=json.dumps(
                    {
                        "body": f"[[{TEXT}],{{}},{{}}]",
                        "content-type": "application/json",
                        "content-encoding": "latin1",
                        "headers": {"task": "t"},
                        "properties": {},
                    }
                ).encode(),
            )
        )
        .arguments
    )

    assert read(on_sqs, codec="json") == read(on_sns, codec="sns") == {"name": "Ærøskøbing"}
    assert arguments is not None
    assert arguments.args == [{"name": "Ærøskøbing"}]


def test_a_text_that_is_packed_has_the_character_set_that_it_says() -> None:
    packed = base64.b64encode(TEXT.encode("latin-1"))
    headers = {"content-type": "a/json; charset=latin1", "content-encoding": "base64"}
    message = Message(id="", body=packed, headers=headers, raw={"Body": packed.decode()})

    assert read(message, codec="json") == {"name": "Ærøskøbing"}
    odd = Message(id="", body=BODY, headers={"content-encoding": "br"}, raw={"Body": TEXT})
    with pytest.raises(EnvelopeError, match="'br' is not known"):
        read(odd, codec="json")


def test_bytes_are_never_unpacked() -> None:
    packed = gzipped(BODY)

    assert read(Message(id="", body=packed, raw={"content_encoding": "gzip"}), kind=bytes) == packed


def read(message: Message, *, codec: AnyCodec | None = None, kind: Any = Any) -> object:
    from brokerwq import App

    def work(payload: Any) -> None:
        raise AssertionError(payload)

    work.__annotations__["payload"] = kind
    route = App("memory://").worker("q", codec=codec, foreign=True)(work).route()
    assert route.foreign is not None
    reading: Any = route.foreign.read(message)
    return route.foreign.decode(reading)


def test_every_codec_is_known_by_its_name() -> None:
    names: list[Any] = ["json", "bytes", "sns", "cloudevents", "celery", "dramatiq", "taskiq"]

    for name in names:
        kind = bytes if name == "bytes" else int
        message = SOUND.get(name, Message(id="", body=b"1"))
        reading = foreign_codec_for(name, codec_for(name, kind)).read(message)
        assert reading.body is not None
    assert codec_for("celery", int) is JSON


SOUND: dict[str, Message] = {
    "celery": task("t"),
    "dramatiq": dramatiq_message("t"),
    "taskiq": taskiq_message("t"),
    "cloudevents": Message(
        id="", body=b'{"specversion":"1.0","id":"1","source":"/a","type":"t","data":1}'
    ),
}


async def test_a_packed_body_reaches_its_worker_and_a_broken_one_the_dead_letters(
    place: Place,
) -> None:
    app = place.app()
    packed = gzipped(BODY)
    seen: list[Any] = []

    @app.worker("q", codec="json", foreign=True)
    async def work(*, name: str) -> None:
        seen.append(name)

    headers = {"content-encoding": "gzip"}
    await declare(app, "q")
    await send_raw(
        app,
        "q",
        Message(id="1", body=packed, headers=headers),
        Message(id="2", body=packed[:20], headers=headers),
        Message(id="3", body=packed),
    )
    await place.drain(app)

    assert seen == ["Ærøskøbing"]
    letters = {letter.id: letter for letter in await dead_letters(app, "q")}
    assert letters.keys() == {"2", "3"}
    assert letters["2"].body == packed[:20]
