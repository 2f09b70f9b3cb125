"""What the adapter makes of a service that throttles, forgets, repeats itself and hangs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest
from brokerwq_sqs.polls import Receipt

from brokerwq.driver import Delivery, Mark, Results
from brokerwq.errors import (
    AuthenticationError,
    ConnectionLostError,
    LeaseLostError,
    PermissionDeniedError,
    QueueNotFoundError,
    ThrottledError,
    TransientError,
)
from brokerwq.message import DeadLetterNote, Message, new_message_id
from brokerwq.testing import FakeClock
from brokerwq.testing import sqs_faults as fault

if TYPE_CHECKING:
    from brokerwq_sqs.consumer import SqsConsumer

    from tests.adapters.sqs.conftest import Lab

pytestmark = pytest.mark.slow

SEND = "send_message_batch"
DELETE = "delete_message_batch"
CHANGE = "change_message_visibility_batch"
RECEIVE = "receive_message"
NOTE = DeadLetterNote(reason="failed")

SETTLES: dict[str, Callable[[SqsConsumer, list[Delivery]], Awaitable[Results]]] = {
    "ack": lambda consumer, held: consumer.ack(held),
    "extend": lambda consumer, held: consumer.extend(held, 60),
    "release": lambda consumer, held: consumer.release(held, [0.0] * len(held)),
    "put_back": lambda consumer, held: consumer.put_back(
        held, [0.0] * len(held), [Mark()] * len(held)
    ),
    "dead_letter": lambda consumer, held: consumer.dead_letter(held, [NOTE] * len(held)),
}


def _message(nth: int) -> Message:
    return Message(id=new_message_id(), body=str(nth).encode(), type="t")


async def test_a_throttled_send_is_retryable_and_stores_nothing(lab: Lab) -> None:
    driver = await lab.driver()
    await lab.queue(driver)
    lab.faults.then(SEND, fault.throttled())

    with pytest.raises(ThrottledError) as raised:
        await lab.send(driver, b"1")
    assert raised.value.retryable

    await lab.send(driver, b"2")
    consumer = await lab.consumer(driver)
    assert [item.message.body for item in await consumer.claim(10, 1)] == [b"2"]


async def test_a_failed_entry_of_a_send_fails_alone(lab: Lab) -> None:
    driver = await lab.driver()
    await lab.queue(driver)
    lab.faults.then(SEND, fault.partly_failed(1))
    messages = [_message(nth) for nth in range(3)]

    results = await driver.send("q", messages, [0.0] * 3)

    assert [type(result) for result in results] == [type(None), TransientError, type(None)]
    claimed = await lab.claim(await lab.consumer(driver), 2)
    assert {item.message.id for item in claimed} == {messages[0].id, messages[2].id}


async def test_an_entry_that_the_answer_leaves_out_is_not_taken_for_done(lab: Lab) -> None:
    driver = await lab.driver()
    await lab.queue(driver)
    lab.faults.then(SEND, fault.left_out(0))

    results = await driver.send("q", [_message(1), _message(2)], [0.0, 0.0])

    assert isinstance(results[0], TransientError)
    assert results[1] is None


async def test_a_failed_entry_of_an_ack_can_be_acked_again(lab: Lab) -> None:
    driver = await lab.driver()
    await lab.queue(driver)
    await lab.send(driver, b"1", b"2", b"3")
    consumer = await lab.consumer(driver)
    held = await lab.claim(consumer, 3)
    lab.faults.then(DELETE, fault.partly_failed(0, 2))

    first = await consumer.ack(held)
    second = await consumer.ack(held)

    assert [type(result) for result in first] == [TransientError, type(None), TransientError]
    assert second == [None, None, None]
    assert (await driver.inspect("q")).leased.value == 0


async def test_a_refused_handle_is_a_lost_lease_of_that_message_alone(lab: Lab) -> None:
    consumer, held = await lab.holding(b"1", b"2")
    stale = fault.partly_failed(0, code="ReceiptHandleIsInvalid")
    lab.faults.then(DELETE, stale)
    lab.faults.then(CHANGE, stale)

    for results in (await consumer.extend(held, 60), await consumer.ack(held)):
        assert [type(result) for result in results] == [LeaseLostError, type(None)]


async def test_an_ack_whose_answer_was_lost_may_be_repeated(lab: Lab) -> None:
    consumer, held = await lab.holding(b"1")
    lab.faults.then(DELETE, fault.answer_lost())

    with pytest.raises(ConnectionLostError):
        await consumer.ack(held)

    assert await consumer.ack(held) == [None]


async def test_a_copy_is_made_once_though_the_delete_failed(lab: Lab) -> None:
    consumer, held = await lab.holding(b"1")
    lab.faults.then(DELETE, fault.throttled())
    with pytest.raises(ThrottledError):
        await consumer.put_back(held, [0.0], [Mark(attempts=1)])

    assert await consumer.put_back(held, [0.0], [Mark(attempts=1)]) == [None]

    again = await lab.claim(consumer, 1)
    assert (again[0].message.attempts, again[0].receives) == (1, 1)
    assert await consumer.claim(1, 1) == []


@pytest.mark.parametrize("way", ["release", "dead_letter", "ack"])
async def test_once_a_copy_is_confirmed_any_settle_only_deletes(lab: Lab, way: str) -> None:
    driver = await lab.driver()
    await lab.queue(driver)
    await lab.send(driver, b"1")
    consumer = await lab.consumer(driver)
    held = await lab.claim(consumer, 1)
    lab.faults.then(DELETE, fault.unavailable())
    with pytest.raises(TransientError):
        await consumer.put_back(held, [0.0], [Mark()])

    if way == "release":
        assert await consumer.release(held, [0.0]) == [None]
    elif way == "ack":
        assert await consumer.ack(held) == [None]
    else:
        assert await consumer.dead_letter(held, [NOTE]) == [None]

    await lab.claim(consumer, 1)
    assert await consumer.claim(1, 1) == []
    assert (await driver.inspect("q")).dead.value == 0


async def test_a_batch_is_copied_and_deleted_item_by_item(lab: Lab) -> None:
    driver = await lab.driver()
    await lab.queue(driver)
    await lab.send(driver, b"1", b"2", b"3")
    consumer = await lab.consumer(driver)
    held = await lab.claim(consumer, 3)
    lab.faults.then(SEND, fault.partly_failed(0))
    lab.faults.then(DELETE, fault.partly_failed(0))

    first = await consumer.dead_letter(held, [NOTE] * 3)
    second = await consumer.dead_letter(held, [NOTE] * 3)

    assert [type(result) for result in first] == [TransientError, TransientError, type(None)]
    # The third was done before: its lease is over.
    assert [type(result) for result in second] == [type(None), type(None), LeaseLostError]
    dead = await lab.claim(await lab.consumer(driver, "q-dead"), 3)
    assert {item.message.body for item in dead} == {b"1", b"2", b"3"}
    assert (await driver.inspect("q")).leased.value == 0


async def test_without_permission_to_send_a_put_back_is_counted(lab: Lab) -> None:
    driver = await lab.driver()
    await lab.queue(driver)
    await lab.send(driver, b"1")
    consumer = await lab.consumer(driver)
    lab.faults.calls.clear()
    lab.faults.then(SEND, fault.denied())

    for receives in (1, 2, 3):
        held = await lab.claim(consumer, 1)
        assert held[0].receives == receives
        assert await consumer.put_back(held, [0.0], [Mark()]) == [None]

    assert lab.faults.calls[SEND] == 1


async def test_a_missing_dead_letter_queue_keeps_the_message(lab: Lab) -> None:
    driver = await lab.driver()
    await lab.queue(driver)
    await lab.send(driver, b"1")
    consumer = await lab.consumer(await lab.driver())
    held = await lab.claim(consumer, 1)
    lab.faults.then("get_queue_url", fault.refused("QueueDoesNotExist"))

    with pytest.raises(QueueNotFoundError):
        await consumer.dead_letter(held, [NOTE])

    assert await consumer.release(held, [0.0]) == [None]
    await lab.claim(consumer, 1)


async def test_a_service_error_while_receiving_is_no_empty_queue(lab: Lab) -> None:
    driver = await lab.driver()
    await lab.queue(driver)
    consumer = await lab.consumer(driver)
    lab.faults.then(RECEIVE, fault.unavailable(), fault.refused("OverLimit"))

    with pytest.raises(TransientError):
        await consumer.claim(1, 1)
    with pytest.raises(ThrottledError):
        await consumer.claim(1, 1)

    await lab.send(driver, b"1")
    await lab.claim(consumer, 1)


async def test_an_empty_receive_does_not_hide_messages(lab: Lab) -> None:
    driver = await lab.driver()
    await lab.queue(driver)
    await lab.send(driver, b"1")
    consumer = await lab.consumer(driver)
    lab.faults.then(RECEIVE, fault.nothing_there())

    assert await consumer.claim(1, 0) == []
    await lab.claim(consumer, 1)


async def test_a_message_delivered_twice_in_one_answer_is_one_delivery(lab: Lab) -> None:
    driver = await lab.driver()
    await lab.queue(driver)
    await lab.send(driver, b"1", b"2")
    consumer = await lab.consumer(driver)
    lab.faults.then(RECEIVE, fault.twice())

    held = await consumer.claim(10, 1)

    assert sorted(item.message.body for item in held) == [b"1", b"2"]
    assert await consumer.ack(held) == [None] * 2


async def test_the_order_of_an_answer_is_of_no_matter(lab: Lab) -> None:
    driver = await lab.driver()
    await lab.queue(driver)
    await lab.send(driver, b"1", b"2", b"3")
    consumer = await lab.consumer(driver)
    lab.faults.then(RECEIVE, fault.reordered())

    held = await consumer.claim(10, 1)

    assert [item.message.body for item in held] == [b"3", b"2", b"1"]
    assert await consumer.ack(held) == [None] * 3


async def test_a_claim_brings_no_more_than_asked_even_if_the_answer_does(lab: Lab) -> None:
    async def generous(call: fault.Call) -> dict[str, Any]:
        return await call.proceed({**call.arguments, "MaxNumberOfMessages": 10})

    driver = await lab.driver()
    await lab.queue(driver)
    await lab.send(driver, b"1", b"2")
    consumer = await lab.consumer(driver)
    lab.faults.then(RECEIVE, generous)

    assert len(await consumer.claim(1, 1)) == 1
    await consumer.quiesce()


def let_stale_handles_fail(lab: Lab) -> None:
    handles = fault.Handles()
    lab.faults.often(RECEIVE, 1.0, handles.noting())
    for operation in (DELETE, CHANGE):
        lab.faults.often(operation, 1.0, handles.newest_only())


async def expose(lab: Lab, *held: Delivery) -> None:
    """Make messages that are held claimable behind the adapter's back."""
    async with lab.client() as client:
        url = await lab.url(client, "q")
        for item in held:
            handle = item.handle
            assert isinstance(handle, Receipt)
            await client.change_message_visibility(
                QueueUrl=url, ReceiptHandle=handle.handle, VisibilityTimeout=0
            )


async def until_received(lab: Lab, consumer: SqsConsumer, times: int) -> list[Delivery]:
    """Claim until so many more receives were answered with a message; what came."""
    found: list[Delivery] = []
    for _ in range(20):
        before = lab.faults.received
        found += await consumer.claim(10, 1)
        times -= lab.faults.received - before
        if times <= 0:
            return found
    pytest.fail("the message never came again")


@pytest.mark.parametrize("way", ["ack", "extend", "release", "put_back", "dead_letter"])
async def test_a_message_that_comes_again_while_it_is_held_is_settled_by_its_newest_handle(
    lab: Lab, way: str
) -> None:
    driver = await lab.driver()
    await lab.queue(driver)
    await lab.send(driver, b"1")
    consumer = await lab.consumer(driver)
    let_stale_handles_fail(lab)
    held = await lab.claim(consumer, 1)
    await expose(lab, *held)

    assert await until_received(lab, consumer, 1) == []

    assert await SETTLES[way](consumer, held) == [None]
    if way == "extend":
        assert await consumer.ack(held) == [None]
    if way in ("release", "put_back"):
        again = await lab.claim(consumer, 1)
        assert await consumer.ack(again) == [None]
    stats = await driver.inspect("q")
    assert (stats.ready.value, stats.leased.value) == (0, 0)
    assert stats.dead.value == (1 if way == "dead_letter" else 0)


@pytest.mark.parametrize("way", ["ack", "dead_letter"])
async def test_an_entry_that_failed_while_its_message_came_again_is_tried_with_that_handle(
    lab: Lab, way: str
) -> None:
    driver = await lab.driver()
    await lab.queue(driver)
    await lab.send(driver, b"1", b"2")
    consumer = await lab.consumer(driver)
    held = await lab.claim(consumer, 2)
    deleting, may_go_on = asyncio.Event(), asyncio.Event()

    async def late(call: fault.Call) -> dict[str, Any]:
        deleting.set()
        await may_go_on.wait()
        return await fault.partly_failed(0, code="ReceiptHandleIsInvalid")(call)

    lab.faults.then(DELETE, late)
    settling = asyncio.ensure_future(SETTLES[way](consumer, held))
    await deleting.wait()
    await expose(lab, held[0])
    (again,) = await until_received(lab, consumer, 1)
    may_go_on.set()

    assert await settling == [None, None]
    # That it came again is of no matter any more: no copy of it may be made.
    assert isinstance((await consumer.put_back([again], [0.0], [Mark()]))[0], LeaseLostError)
    assert await consumer.ack([again]) == [None]
    assert await consumer.claim(1, 1) == []
    stats = await driver.inspect("q")
    assert (stats.ready.value, stats.leased.value) == (0, 0)
    assert stats.dead.value == (2 if way == "dead_letter" else 0)


async def test_a_heartbeat_beside_an_ack_under_way_finds_no_lease_lost(lab: Lab) -> None:
    consumer, held = await lab.holding(b"1")
    deleting, may_go_on = asyncio.Event(), asyncio.Event()

    async def slow(call: fault.Call) -> dict[str, Any]:
        deleting.set()
        await may_go_on.wait()
        return await call.proceed(call.arguments)

    lab.faults.then(DELETE, slow)
    acking = asyncio.ensure_future(consumer.ack(held))
    await deleting.wait()

    (beside,) = await consumer.extend(held, 60)
    may_go_on.set()

    assert isinstance(beside, TransientError)
    assert lab.faults.calls[CHANGE] == 0
    assert await acking == [None]
    assert isinstance((await consumer.extend(held, 60))[0], LeaseLostError)


async def test_finished_work_is_deleted_by_the_newest_handle_though_its_lease_has_ended(
    lab: Lab,
) -> None:
    driver = await lab.driver()
    await lab.queue(driver)
    await lab.send(driver, b"1")
    consumer = await lab.consumer(driver, lease=3)
    let_stale_handles_fail(lab)
    held = await lab.claim(consumer, 1)
    again = await lab.claim(consumer, 1)

    (late,) = await consumer.ack(held)

    assert isinstance(late, LeaseLostError)
    assert late.sent
    assert await consumer.ack(again) == [None]
    assert await consumer.claim(1, 1) == []
    assert (await driver.inspect("q")).leased.value == 0


@pytest.mark.parametrize("code", ["ExpiredToken", "InvalidClientTokenId", "SignatureDoesNotMatch"])
async def test_refused_credentials_are_no_transient_failure(lab: Lab, code: str) -> None:
    driver = await lab.driver()
    await lab.queue(driver)
    lab.faults.then(SEND, fault.refused(code, 403))

    with pytest.raises(AuthenticationError) as raised:
        await lab.send(driver, b"1")

    assert not raised.value.retryable
    assert code in str(raised.value)


async def test_a_denied_call_names_the_permission_it_needs(lab: Lab) -> None:
    driver = await lab.driver()
    await lab.queue(driver)
    consumer = await lab.consumer(driver)
    lab.faults.then(SEND, fault.denied())
    lab.faults.then(RECEIVE, fault.denied())

    with pytest.raises(PermissionDeniedError, match="need sqs:SendMessage"):
        await lab.send(driver, b"1")
    with pytest.raises(PermissionDeniedError, match="need sqs:ReceiveMessage"):
        await consumer.claim(1, 1)


async def test_opening_needs_no_permission_to_list(lab: Lab) -> None:
    lab.faults.then("list_queues", fault.denied())

    await lab.driver()


async def test_opening_without_an_answer_is_a_lost_connection(lab: Lab) -> None:
    lab.faults.then("list_queues", fault.unavailable())

    with pytest.raises(TransientError):
        await lab.driver()


async def test_a_hanging_answer_ends_as_a_lost_connection(lab: Lab) -> None:
    clock = FakeClock()
    driver = await lab.driver(clock)
    await lab.queue(driver)
    lab.faults.then(SEND, fault.hanging_for_good())
    sending = asyncio.ensure_future(lab.send(driver, b"1"))
    while lab.faults.calls[SEND] == 0:
        await asyncio.sleep(0.01)

    clock.advance(20)

    with pytest.raises(ConnectionLostError, match="no answer within"):
        await sending


async def test_a_send_repeated_after_a_lost_answer_is_stored_once_on_a_fifo_queue(
    lab: Lab,
) -> None:
    driver = await lab.driver(fifo=True)
    await lab.queue(driver)
    message = _message(1)
    lab.faults.then(SEND, fault.answer_lost())
    with pytest.raises(ConnectionLostError):
        await driver.send("q", [message], [0.0])

    assert await driver.send("q", [message], [0.0]) == [None]

    consumer = await lab.consumer(driver)
    await consumer.ack(await lab.claim(consumer, 1))
    assert await consumer.claim(1, 1) == []


async def test_nothing_is_lost_while_half_of_all_calls_are_throttled(lab: Lab) -> None:
    driver = await lab.driver()
    await lab.queue(driver)
    consumer = await lab.consumer(driver)
    lab.faults.often("*", 0.5, fault.throttled())
    sent = [_message(nth) for nth in range(30)]
    for start in range(0, 30, 10):
        await _until_done(driver.send, "q", sent[start : start + 10], [0.0] * 10)
    done: set[str] = set()
    for _ in range(400):
        try:
            held = await consumer.claim(10, 0)
        except ThrottledError:
            continue
        if held:
            await _until_done(consumer.ack, held)
            done |= {item.message.id for item in held}
        if len(done) == len(sent):
            break

    assert done == {message.id for message in sent}


async def _until_done(call: Callable[..., Awaitable[Results]], *arguments: object) -> None:
    for _ in range(100):
        try:
            results = await call(*arguments)
        except ThrottledError:
            continue
        assert list(results) == [None] * len(results)
        return
    pytest.fail("never done")
