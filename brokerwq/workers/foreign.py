"""How a worker with ``foreign=True`` takes the messages of another program."""

from __future__ import annotations

from brokerwq._runtime.route import Foreign
from brokerwq.codecs import BoundCodec, Codec, foreign_codec_for
from brokerwq.codecs.call import Shape, payload_of
from brokerwq.codecs.choosing import names_types
from brokerwq.codecs.coding import as_utf8
from brokerwq.codecs.plain import JsonCodec
from brokerwq.foreign import Reading
from brokerwq.workers.keys import KeyReader
from brokerwq.workers.options import WorkerOptions
from brokerwq.workers.signature import Signature


def foreign_of(
    options: WorkerOptions,
    signature: Signature,
    body_codec: Codec,
    bound: BoundCodec,
    key: KeyReader | None,
) -> Foreign | None:
    """What a runner needs to know of a foreign worker; None if it is none.

    Args:
        options: The worker's.
        signature: Its function's.
        body_codec: The codec of its bodies.
        bound: The same, for its payload.
        key: Reads the key of a payload.
    """
    if not options.foreign:
        return None
    codec = foreign_codec_for(options.codec, body_codec)
    fields = signature.fields
    shape = (
        Shape(signature.kind, (signature.payload,), bound)
        if fields is None
        else Shape(None, tuple(fields), bound)
    )
    is_json = isinstance(body_codec, JsonCodec)

    def decode(reading: Reading) -> object:
        if reading.arguments is not None:
            return payload_of(reading.arguments, shape)
        if not is_json:
            # Bytes are as they are, and a codec of the user's own knows what its types mean.
            return bound.decode(reading.body or b"", reading.content_type)
        if reading.body is None:
            return bound.decode(b"null", "")
        return bound.decode(
            as_utf8(reading.body, reading.content_type, reading.content_encoding), ""
        )

    return Foreign(
        codec=codec,
        read=codec.read,
        decode=decode,
        key=key,
        names_types=names_types(codec),
        leaves_unknown=options.on_unknown == "leave",
    )
