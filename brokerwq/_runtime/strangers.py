"""Messages of other programs: who reads them, and which worker they are for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from brokerwq._runtime.leases import Held
from brokerwq._runtime.route import Foreign, Route
from brokerwq.driver.protocol import Delivery
from brokerwq.errors import EnvelopeError
from brokerwq.foreign import EVERY_TYPE, Reading
from brokerwq.message import DeadLetterNote, new_message_id

_NOBODY = "the message names no worker, and its queue has several"


class Strangers:
    """The workers of one queue that take messages without a type.

    Args:
        routes: All workers of the queue.
    """

    def __init__(self, routes: Sequence[Route]) -> None:
        self.routes: Sequence[Route] = [route for route in routes if route.foreign is not None]
        self._foreign = next((route.foreign for route in self.routes if route.foreign), None)
        self._by_type = {
            name: route for route in self.routes for name in (route.name, *route.aliases)
        }
        self.leaves_unknown = any(
            route.foreign.leaves_unknown for route in self.routes if route.foreign
        )

    def route_of(self, held: Held) -> Route | None:
        """The worker for ``held``, which is read first; None if there is none.

        Where it cannot be read, ``held.view`` says so as a defect of it.
        """
        foreign = self._foreign
        if foreign is None or held.delivery.defect:
            return None
        if held.reading is None and not held.view.defect:
            held.reading, held.view = _read(foreign, held.delivery)
        reading = held.reading
        if reading is None:
            return None
        if foreign.names_types and reading.type:
            route = self._by_type.get(reading.type) or self._by_type.get(EVERY_TYPE)
            defect = reading.defect if route else ""
        else:
            route = self.routes[0]
            is_clear = len(self.routes) == 1 or not foreign.names_types
            defect = reading.defect or ("" if is_clear else _NOBODY)
        if defect:
            held.view = replace(held.view, defect=defect)
            return None
        return route


def seen_by(routes: Sequence[Route], delivery: Delivery) -> Delivery:
    """``delivery`` as a runner with the workers ``routes`` of its queue sees it."""
    foreign = next((route.foreign for route in routes if route.foreign), None)
    if foreign is None or delivery.message.type or delivery.defect:
        return delivery
    reading, view = _read(foreign, delivery)
    return view if reading is None else replace(view, defect=reading.defect)


def named(held: Held, note: DeadLetterNote) -> DeadLetterNote:
    """``note`` with what the log calls ``held``, where its message itself does not say that.

    A message without any id gets one, for the log and its dead letter alike.
    """
    message = held.delivery.message
    if held.view.message is message and message.id:
        return note
    if not message.id:
        id_ = held.view.message.id or new_message_id()
        held.delivery = _with_id(held.delivery, id_)
        held.view = _with_id(held.view, id_)
    seen = held.view.message
    return replace(
        note,
        id="" if seen.id == message.id else seen.id,
        type="" if seen.type == message.type else seen.type,
    )


def _with_id(delivery: Delivery, id_: str) -> Delivery:
    return replace(delivery, message=replace(delivery.message, id=id_))


def _read(foreign: Foreign, delivery: Delivery) -> tuple[Reading | None, Delivery]:
    try:
        reading = foreign.read(delivery.message)
        if isinstance(reading, Reading):
            return reading, _seen(delivery, reading)
        defect = f"the codec gave no Reading but {type(reading).__name__}"
    except EnvelopeError as error:
        defect = str(error) or "it cannot be read"
    except BaseException as error:  # noqa: BLE001 -- a codec is user code: a bad message, no bug
        defect = f"{type(error).__qualname__} while reading the message"
    return None, replace(delivery, defect=defect)


def _seen(delivery: Delivery, reading: Reading) -> Delivery:
    message = delivery.message
    seen = replace(
        message,
        id=reading.id or message.id,
        type=reading.type,
        body=reading.body or b"",
        content_type=reading.content_type or message.content_type,
        headers={**message.headers, **reading.headers} if reading.headers else message.headers,
        created_at=reading.created_at or message.created_at,
        key=message.key if reading.key is None else reading.key,
        raw={**message.raw, **reading.raw} if reading.raw else message.raw,
    )
    return replace(delivery, message=seen)
