from __future__ import annotations

import math
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from annotated_types import Gt
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    Json,
    PlainSerializer,
    SecretStr,
    computed_field,
    field_validator,
)

from brokerwq.codecs import BYTES, JSON, MAX_ERROR_CHARS, BoundCodec, codec_for
from brokerwq.errors import ConfigError, EnvelopeError, PayloadError


class Image(BaseModel):
    key: str
    width: int = 256


class Node(BaseModel):
    value: float | None = None
    other: Any = None
    children: list[Node] = Field(default_factory=list["Node"])


@dataclass
class Point:
    x: int
    y: float = 0.0
    tags: dict[str, str] = field(default_factory=dict[str, str])


class Colour(Enum):
    RED = "red"


def round_trip(kind: Any, payload: Any) -> Any:
    bound = JSON.bind(kind)
    return bound.decode(bound.encode(payload), JSON.content_type)


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (Image, Image(key="a.jpg", width=3)),
        (Node, Node(value=1.5, children=[Node(value=None, other={"a": [1, None, "x"]})])),
        (Point, Point(1, 2.5, {"a": "b"})),
        (int, 5),
        (int, 10**30),
        (str, "cGFy"),
        (str, "a\x07b\x00c\ufffe 👻\r\n"),
        (float, -0.5),
        (bool, True),
        (type(None), None),
        (list[int], [1, 2]),
        (dict[str, list[Point]], {"a": [Point(1)]}),
        (tuple[int, str], (1, "a")),
        (set[int], {1, 2}),
        (Image | None, None),
        (Image | Point, Point(3)),
        (Literal["a", "b"], "b"),
        (Colour, Colour.RED),
        (datetime, datetime(2026, 1, 1, tzinfo=UTC)),
        (date, date(2026, 1, 1)),
        (timedelta, timedelta(seconds=1.5)),
        (Decimal, Decimal("0.10")),
        (UUID, UUID(int=7)),
        (object, {"a": [1, 2.5, None, True]}),
        (dict[str, Any], {"n": 1}),
    ],
)
def test_a_payload_comes_back_as_it_was_sent(kind: Any, payload: Any) -> None:
    assert round_trip(kind, payload) == payload


def test_the_body_is_compact() -> None:
    assert JSON.bind(Image).encode(Image(key="ü")) == '{"key":"ü","width":256}'.encode()


class Aliased(BaseModel):
    image_key: str = Field(alias="imageKey")


class Computed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    raw: Json[list[int]]
    width: int = Field(serialization_alias="w")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def area(self) -> int:
        return self.width**2


def test_aliases_computed_fields_and_nested_json_survive_the_round_trip() -> None:
    aliased = Aliased(imageKey="a")
    computed = Computed.model_validate({"raw": "[1]", "width": 2})

    assert round_trip(Aliased, aliased) == aliased
    assert round_trip(Computed, computed) == computed


def test_a_foreign_body_may_use_aliases() -> None:
    assert JSON.bind(Aliased).decode(b'{"imageKey":"a"}', "") == Aliased(imageKey="a")


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (Image, Point(1)),
        (Image, {"key": "a"}),
        (Image, None),
        (Point, Image(key="a")),
        (list[Image], [Image(key="a"), 3]),
        (list[Image], [{"key": "a"}]),
        (list[int], (1, 2)),
        (list[int], 1),
        (Image | None, Point(1)),
        (Image | Point, "a"),
        (int, "1"),
        (int, True),
        (int, None),
        (str, b"a"),
        (Literal["a"], "b"),
        (dict[str, int], {"a": "b"}),
        (Annotated[int, Gt(0)], 0),
    ],
)
def test_a_payload_of_another_type_is_refused_at_once(kind: Any, payload: Any) -> None:
    with pytest.raises(PayloadError):
        JSON.bind(kind).encode(payload)


def test_a_field_that_was_given_another_type_afterwards_is_refused() -> None:
    # pydantic names the field from 2.12 on.
    text = r"^(field '(width|x)'|a part of the payload) must be int, not str$"
    image = Image(key="a")
    image.width = "wide"  # type: ignore[assignment]

    with pytest.raises(PayloadError, match=text):
        JSON.bind(Image).encode(image)
    with pytest.raises(PayloadError, match=text):
        JSON.bind(Point).encode(Point("secret"))  # type: ignore[arg-type]


def fields_around(value: Any) -> dict[str, tuple[Any, Any]]:
    return {
        "payload": (float, value),
        "payload.value": (Node, Node(value=value)),
        "payload.children.0.value": (Node, Node(children=[Node(value=value)])),
        "payload.other.a.0": (Node, Node(other={"a": [value]})),
        "payload.y": (Point, Point(1, value)),
        "payload.k": (dict[str, float], {"k": value}),
        "payload.1.x": (list[Any], [None, {"x": value}]),
    }


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", list(fields_around(0.0)))
def test_nan_and_infinity_are_refused_wherever_they_stand(where: str, value: float) -> None:
    kind, payload = fields_around(value)[where]

    with pytest.raises(PayloadError) as caught:
        JSON.bind(kind).encode(payload)

    assert str(caught.value) == f"{where} is {value}, which JSON cannot carry"


def test_text_that_only_looks_like_nan_is_sent() -> None:
    assert round_trip(list[str | None], ["NaN", "Infinity", "null", None]) == [
        "NaN",
        "Infinity",
        "null",
        None,
    ]


@pytest.mark.parametrize(
    ("kind", "payload", "where"),
    [
        (str, "a\ud800b", "payload holds"),
        (Image, Image.model_construct(key="a\ud800b"), "payload.key holds"),
        (Node, Node(other=["x", {"k": "\udfff"}]), "payload.other.1.k holds"),
        (dict[str, int], {"\ud800": 1}, "a key of payload holds"),
    ],
)
def test_a_lone_surrogate_is_refused_and_its_place_named(
    kind: Any, payload: Any, where: str
) -> None:
    with pytest.raises(PayloadError, match=where) as caught:
        JSON.bind(kind).encode(payload)

    assert str(caught.value).isprintable()


def test_a_payload_that_holds_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)

    with pytest.raises(PayloadError):
        JSON.bind(list[Any]).encode(loop)


def test_a_serializer_that_fails_is_a_payload_error() -> None:
    def fail(value: int) -> str:
        raise LookupError(value)

    with pytest.raises(PayloadError):
        JSON.bind(Annotated[int, PlainSerializer(fail)]).encode(3)


def test_no_error_text_shows_a_value() -> None:
    secret = "s3cret-value"  # noqa: S105
    bound = JSON.bind(dict[str, int])

    with pytest.raises(PayloadError) as sending:
        bound.encode({"a": secret})
    with pytest.raises(EnvelopeError) as reading:
        bound.decode(f'{{"a":"{secret}"}}'.encode(), "")

    for error in (sending.value, reading.value):
        assert secret not in str(error)
        assert error.__cause__ is None
        assert len(str(error)) <= MAX_ERROR_CHARS


class Numbered(BaseModel):
    a: int


POISON = {
    "empty": b"",
    "not-utf8": b"\xff\xfe\x00abc",
    "json-bom": b'\xef\xbb\xbf{"a":1}',
    "json-nan": b'{"a":NaN}',
    "json-dup-keys": b'{"a":1,"a":2}',
    "json-null": b"null",
    "scalar-that-is-base64": b"cGFy",
    "base64-looking-field": b'{"b64_field":"cGFy"}',
    "not-json": b"hello from the console",
    "truncated-json": b'{"a":',
    "deep-json": b"[" * 100_000,
    "deep-nested-value": b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}",
    "control-char": b"a\x07b",
    "nul": b"a\x00b",
    "noncharacter": "a\ufffeb".encode(),
    "cr-lf-emoji": "a\r\n👻b".encode(),
    "long": b"a" * 307_200,
    "gzip-truncated": bytes.fromhex("1f8b0800000000000203ab56ca2f4a492d"),
    "lone-surrogate-escape": b'{"a":1,"b":"\\ud800"}',
    "raw-surrogate": b'{"a":"\xed\xa0\x80"}',
    "trailing-garbage": b'{"a":1}x',
    "two-documents": b'{"a":1}{"a":2}',
    "wrong-type": b'{"a":"x"}',
    "fraction": b'{"a":1.5}',
    "utf-16": '{"a":1}'.encode("utf-16"),
    "huge-number": b'{"a":' + b"9" * 5000 + b"}",
    "infinity": b'{"a":1,"b":-Infinity}',
    "nested-duplicate": b'{"a":1,"b":[{"c":1,"c":1}]}',
    "escaped-duplicate": b'{"a":1,"\\u0061":2}',
}


@pytest.mark.parametrize("body", POISON.values(), ids=POISON.keys())
def test_every_poison_body_is_an_envelope_error(body: bytes) -> None:
    with pytest.raises(EnvelopeError) as caught:
        JSON.bind(Numbered).decode(body, "")

    assert 0 < len(str(caught.value)) <= MAX_ERROR_CHARS
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"\xff\xfe", "the body is not UTF-8 (byte 0 of 2)"),
        (b'\xef\xbb\xbf{"a":1}', "the body starts with a byte order mark"),
        (b'{"a":1,"a":2}', "an object names the same key twice"),
        (b'{"a":1,"b":NaN}', "NaN is not JSON"),
        (b'{"a":1,"b":-1e400}', "a number is too large"),
        (b"{}", "a: missing"),
        (b"null", "the whole: must be an object"),
        (b"{", "Invalid JSON: EOF while parsing an object at line 1 column 1"),
    ],
)
def test_the_error_says_what_is_wrong(body: bytes, text: str) -> None:
    with pytest.raises(EnvelopeError) as caught:
        JSON.bind(Numbered).decode(body, "")

    assert str(caught.value) == text


class Price(BaseModel):
    amount: Decimal
    rate: float = 0.0


@pytest.mark.parametrize("kind", [Price, dict[str, Decimal], dict[str, Decimal | None]])
@pytest.mark.parametrize("number", ["12345678901234567.89", "1.000000000000000001", "1e-400"])
def test_a_decimal_is_never_rounded(kind: Any, number: str) -> None:
    bound = JSON.bind(kind)

    with pytest.raises(EnvelopeError, match="more digits than are read of it; have it sent as"):
        bound.decode(f'{{"amount":{number}}}'.encode(), "")

    for exact in (f'"{number}"', "19.90", "1e2", "123456789012345678901234567890"):
        payload: Any = bound.decode(f'{{"amount":{exact}}}'.encode(), "")
        found = payload.amount if kind is Price else payload["amount"]
        assert found == Decimal(exact.strip('"'))


def test_a_float_may_have_as_many_digits_as_its_sender_likes() -> None:
    assert JSON.bind(list[float]).decode(b"[0.10000000000000001]", "") == [0.1]


def test_a_misspelt_field_is_named_beside_the_missing_one() -> None:
    class Exact(BaseModel):
        model_config = ConfigDict(extra="forbid")
        number: int

    with pytest.raises(EnvelopeError) as caught:
        JSON.bind(Exact).decode(b'{"nubmer": 5}', "")

    assert str(caught.value) == "number: missing; nubmer: no such field"


def test_of_many_faults_three_are_told_and_all_are_counted() -> None:
    with pytest.raises(EnvelopeError) as caught:
        JSON.bind(list[int]).decode(b'["a", "b", "c", "d"]', "")

    assert str(caught.value) == (
        "0: must be a whole number; 1: must be a whole number; 2: must be a whole number (4 faults)"
    )


def test_what_looks_like_base64_stays_as_it_is() -> None:
    assert JSON.bind(str).decode(b'"cGFy"', "") == "cGFy"
    assert JSON.bind(dict[str, str]).decode(b'{"b64":"cGFy"}', "") == {"b64": "cGFy"}


def test_white_space_around_a_body_is_json() -> None:
    assert JSON.bind(list[int]).decode(b" \r\n\t[1, 2]\n ", "") == [1, 2]


def test_json_is_read_as_pydantic_reads_json() -> None:
    class Strict(BaseModel):
        model_config = ConfigDict(strict=True)
        a: int

    assert JSON.bind(Numbered).decode(b'{"a":"5","extra":1}', "") == Numbered(a=5)
    with pytest.raises(EnvelopeError, match="a: must be a whole number"):
        JSON.bind(Strict).decode(b'{"a":"5"}', "")


def test_a_validator_that_breaks_is_a_decode_failure() -> None:
    class Broken(BaseModel):
        a: int

        @field_validator("a")
        @classmethod
        def fail(cls, value: int) -> int:
            raise LookupError(value)

    with pytest.raises(EnvelopeError, match="LookupError"):
        JSON.bind(Broken).decode(b'{"a":5}', "")


@pytest.mark.parametrize(
    "content_type",
    [
        "",
        "application/json",
        "application/json; charset=utf-8",
        "Application/JSON",
        "text/json",
        "application/vnd.api+json",
        "application/cloudevents+json; charset=UTF-8",
    ],
)
def test_every_kind_of_json_is_read(content_type: str) -> None:
    assert JSON.bind(int).decode(b"1", content_type) == 1


@pytest.mark.parametrize("content_type", ["text/plain", "application/octet-stream", "json", "x"])
def test_another_content_type_is_refused_naming_both(content_type: str) -> None:
    with pytest.raises(EnvelopeError, match=rf"{content_type}.*application/json"):
        JSON.bind(int).decode(b"1", content_type)


def test_bytes_are_the_body() -> None:
    bound = BYTES.bind(bytes)

    assert bound.encode(b"\xff\x00") == b"\xff\x00"
    assert bound.decode(b"\xff\x00", "text/plain") == b"\xff\x00"
    assert bound.encode(b"") == b""


@pytest.mark.parametrize("payload", ["text", bytearray(b"a"), None, 3])
def test_only_bytes_are_bytes(payload: Any) -> None:
    with pytest.raises(PayloadError, match="must be bytes"):
        BYTES.bind(bytes).encode(payload)


def test_bytes_inside_json_must_be_text() -> None:
    bound = JSON.bind(list[bytes])

    assert bound.encode([b"abc"]) == b'["abc"]'
    with pytest.raises(PayloadError):
        bound.encode([b"\xff"])


def test_a_type_without_a_schema_is_refused_at_decoration() -> None:
    class Plain: ...

    with pytest.raises(ConfigError, match="Plain cannot be carried as JSON"):
        JSON.bind(Plain)


def test_a_model_that_is_not_fully_defined_is_refused_at_decoration() -> None:
    class Waiting(BaseModel):
        later: Undefined  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(ConfigError, match="not fully defined"):
        JSON.bind(Waiting)


class Reversed:
    content_type = "text/x-reversed"

    def bind(self, kind: Any, /) -> BoundCodec:
        return BYTES.bind(kind)


def test_a_codec_is_chosen_by_the_annotation_unless_it_is_named() -> None:
    own = Reversed()

    assert codec_for(None, bytes) is BYTES
    assert codec_for(None, Image) is JSON
    assert codec_for("json", bytes) is JSON
    assert codec_for("bytes", bytes) is BYTES
    assert codec_for(own, Image) is own


@pytest.mark.parametrize("choice", ["yaml", "", 3, object()])
def test_a_codec_that_does_not_exist_is_refused(choice: Any) -> None:
    with pytest.raises(ConfigError, match="codec"):
        codec_for(choice, Image)


def test_the_bytes_codec_takes_bytes_alone() -> None:
    with pytest.raises(ConfigError, match="annotated bytes, not Image"):
        BYTES.bind(Image)


def test_a_secret_is_refused_unless_its_owner_writes_it_out() -> None:
    class Masked(BaseModel):
        password: SecretStr

    class Shown(BaseModel):
        password: Annotated[SecretStr, PlainSerializer(lambda each: each.get_secret_value())]

    with pytest.raises(PayloadError, match="is a secret"):
        JSON.bind(Masked).encode(Masked(password=SecretStr("x")))
    assert round_trip(Shown, Shown(password=SecretStr("x"))) == Shown(password=SecretStr("x"))
    assert round_trip(str, "**********") == "**********"


def test_threads_may_share_a_codec() -> None:
    bound = JSON.bind(Image)
    image = Image(key="a")
    failures: list[object] = []

    def work() -> None:
        for _ in range(500):
            failures.extend({bound.encode(image)} - {b'{"key":"a","width":256}'})

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not failures


@pytest.mark.slow
def test_importing_the_codecs_does_not_import_pydantic() -> None:
    code = "import sys, brokerwq.workers.worker; sys.exit('pydantic' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], check=False)

    assert done.returncode == 0
