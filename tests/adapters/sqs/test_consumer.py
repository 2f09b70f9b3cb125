"""How the adapter receives and settles, beyond what every broker has to do."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from brokerwq.clock import SYSTEM_CLOCK
from brokerwq.driver import Mark
from brokerwq.errors import (
    CannotExtendError,
    ConfigError,
    ConnectionLostError,
    LeaseLostError,
    UnsupportedError,
)
from brokerwq.message import DeadLetterNote, Message, new_message_id
from brokerwq.testing import FakeClock
from brokerwq.testing import sqs_faults as fault

if TYPE_CHECKING:
    from tests.adapters.sqs.conftest import Lab

pytestmark = pytest.mark.slow

RECEIVE = "receive_message"
CHANGE = "change_message_visibility_batch"
SEND = "send_message_batch"
TWELVE_HOURS = 43_200


async def test_a_cancelled_claim_leaves_its_poll_to_the_next_one(lab: Lab) -> None:
    driver = await lab.driver(max_wait=5)
    await lab.queue(driver)
    consumer = await lab.consumer(driver)
    claiming = asyncio.ensure_future(consumer.claim(10, 5))
    while lab.faults.calls[RECEIVE] == 0:
        await asyncio.sleep(0.01)
    claiming.cancel()
    await asyncio.wait({claiming})
    await lab.send(driver, b"1")

    held = await consumer.claim(10, 5)

    assert [item.message.body for item in held] == [b"1"]
    assert held[0].receives == 1
    assert lab.faults.calls[RECEIVE] == 1


async def test_quiesce_returns_what_its_poll_brings_uncounted(lab: Lab) -> None:
    driver = await lab.driver(max_wait=5)
    await lab.queue(driver)
    consumer = await lab.consumer(driver)
    claiming = asyncio.ensure_future(consumer.claim(10, 5))
    while lab.faults.calls[RECEIVE] == 0:
        await asyncio.sleep(0.01)
    quiescing = asyncio.ensure_future(consumer.quiesce())
    await lab.send(driver, b"1", b"2")

    await quiescing

    assert await claiming == []
    other = await lab.consumer(driver)
    held = await lab.claim(other, 2)
    assert [item.attempt for item in held] == [1, 1]
    assert await other.claim(1, 1) == []


async def test_a_second_signal_gives_the_poll_up_at_once(lab: Lab) -> None:
    driver = await lab.driver(max_wait=20)
    await lab.queue(driver)
    consumer = await lab.consumer(driver, lease=3600)
    claiming = asyncio.ensure_future(consumer.claim(10, 20))
    while lab.faults.calls[RECEIVE] == 0:
        await asyncio.sleep(0.01)
    closing = asyncio.ensure_future(consumer.aclose())
    await asyncio.sleep(0.05)
    started = SYSTEM_CLOCK.now()

    closing.cancel()
    await asyncio.wait({closing, claiming})

    assert SYSTEM_CLOCK.now() - started < 2
    await consumer.aclose()


async def test_polls_are_short_beside_a_short_lease(lab: Lab) -> None:
    driver = await lab.driver(max_wait=20)
    await lab.queue(driver)
    consumer = await lab.consumer(driver, lease=5)
    started = SYSTEM_CLOCK.now()

    assert await consumer.claim(1, 20) == []

    # Else the lease, which is counted from before the poll, could be over at its end.
    assert SYSTEM_CLOCK.now() - started < 5


@pytest.mark.parametrize(("asked", "given"), [(1, 3.0), (2.5, 3.0), (3.2, 4.0), (43_140, 43_140)])
async def test_leases_are_whole_seconds_and_at_least_three(
    lab: Lab, asked: float, given: float
) -> None:
    driver = await lab.driver()
    await lab.queue(driver)

    assert (await driver.consume("q", lease=asked, prefetch=1)).lease == given


@pytest.mark.parametrize(
    ("lease", "error"),
    [
        (0, ConfigError),
        (-1, ConfigError),
        (float("nan"), ConfigError),
        (float("inf"), ConfigError),
        (True, ConfigError),
        (43_141, UnsupportedError),
        (43_200, UnsupportedError),
    ],
)
async def test_a_lease_that_sqs_cannot_give_is_refused_before_any_request(
    lab: Lab, lease: float, error: type[Exception]
) -> None:
    driver = await lab.driver()
    lab.faults.calls.clear()

    with pytest.raises(error):
        await driver.consume("q", lease=lease, prefetch=1)

    assert not lab.faults.calls


async def test_without_a_lease_the_queues_own_is_taken(lab: Lab) -> None:
    driver = await lab.driver()
    await lab.queue(driver, lease=77)

    assert (await driver.consume("q", lease=None, prefetch=1)).lease == 77


async def test_a_queue_that_hides_nothing_is_refused_without_a_lease(lab: Lab) -> None:
    driver = await lab.driver()
    await lab.queue(driver)
    await _set(lab, VisibilityTimeout="0")

    with pytest.raises(ConfigError, match="for 0 seconds"):
        await driver.consume("q", lease=None, prefetch=1)


async def test_the_end_of_the_twelve_hours_is_told_before_aws_refuses(lab: Lab) -> None:
    clock = FakeClock()
    consumer, held = await lab.holding(b"1", lease=40_000, clock=clock)
    clock.advance(39_000)
    calls = lab.faults.calls[CHANGE]

    refused = await consumer.extend(held, 5_000)
    granted = await consumer.extend(held, 4_000)

    assert isinstance(refused[0], CannotExtendError)
    assert refused[0].limit < TWELVE_HOURS
    assert granted == [None]
    assert lab.faults.calls[CHANGE] == calls + 1


async def test_after_the_lease_only_an_ack_is_sent(lab: Lab) -> None:
    clock = FakeClock()
    consumer, held = await lab.holding(b"1", lease=60, clock=clock)
    clock.advance(60)
    lab.faults.calls.clear()

    for results in (
        await consumer.extend(held, 60),
        await consumer.release(held, [0.0]),
        await consumer.put_back(held, [0.0], [Mark()]),
        await consumer.dead_letter(held, [DeadLetterNote(reason="failed")]),
    ):
        assert isinstance(results[0], LeaseLostError)
        assert not results[0].sent
    assert not lab.faults.calls

    late = await consumer.ack(held)

    assert isinstance(late[0], LeaseLostError)
    assert late[0].sent
    assert lab.faults.calls == {"delete_message_batch": 1}


async def test_a_release_beyond_the_twelve_hours_comes_back_by_copy_and_not_early(
    lab: Lab,
) -> None:
    clock = FakeClock(utcnow=SYSTEM_CLOCK.utcnow())
    consumer, held = await lab.holding(b"1", lease=43_000, clock=clock)
    clock.advance(42_500)
    sent = _sent(lab)

    assert await consumer.release(held, [1_000.0]) == [None]

    entry = (await sent)["Entries"][0]
    assert entry["DelaySeconds"] == 900
    headers = entry["MessageAttributes"]["bwq-headers"]["StringValue"]
    assert '"bwq-attempts":"1"' in headers
    assert "bwq-not-before" in headers


@pytest.mark.parametrize(
    ("delay", "seconds"), [(0.4, 1), (1, 1), (899.9, 900), (900, 900), (-1, 0)]
)
async def test_delays_are_rounded_up_to_whole_seconds(lab: Lab, delay: float, seconds: int) -> None:
    driver = await lab.driver()
    await lab.queue(driver)
    sent = _sent(lab)

    assert await driver.send("q", [_message()], [delay]) == [None]

    assert (await sent)["Entries"][0]["DelaySeconds"] == seconds


async def test_a_put_back_beyond_the_longest_delay_remembers_when(lab: Lab) -> None:
    consumer, held = await lab.holding(b"1")
    sent = _sent(lab)

    assert await consumer.put_back(held, [3_600.0], [Mark(attempts=2)]) == [None]

    entry = (await sent)["Entries"][0]
    assert entry["DelaySeconds"] == 900
    assert "bwq-not-before" in entry["MessageAttributes"]["bwq-headers"]["StringValue"]


async def test_a_group_is_passed_on_for_fair_queues(lab: Lab) -> None:
    driver = await lab.driver()
    await lab.queue(driver)
    sent = _sent(lab)

    await driver.send("q", [_message(group="tenant 17"), _message(group="t-18")], [0.0, 0.0])

    ids = [entry["MessageGroupId"] for entry in (await sent)["Entries"]]
    assert ids[1] == "t-18"
    assert len(ids[0]) == 64  # a space is not allowed: its digest
    held = await lab.claim(await lab.consumer(driver), 2)
    assert {item.message.group for item in held} == {"tenant 17", "t-18"}


async def test_a_message_above_the_queues_own_limit_is_refused_before_it_is_sent(
    lab: Lab,
) -> None:
    driver = await lab.driver()
    await lab.queue(driver)
    await _set(lab, MaximumMessageSize="2048")
    lab.faults.calls.clear()

    results = await driver.send("q", [_message(b"x" * 2000)], [0.0])

    assert type(results[0]).__name__ == "MessageTooLargeError"
    assert not lab.faults.calls[SEND]


async def test_a_batch_is_split_where_its_bytes_do_not_fit_one_call(lab: Lab) -> None:
    driver = await lab.driver()
    await lab.queue(driver)
    messages = [_message(b"\xff" * 300_000) for _ in range(4)]  # base64 makes it 400,000
    lab.faults.calls.clear()

    assert await driver.send("q", messages, [0.0] * 4) == [None] * 4

    assert lab.faults.calls[SEND] == 2
    held = await lab.claim(await lab.consumer(driver), 4)
    assert {item.message.id for item in held} == {message.id for message in messages}


async def test_small_messages_cost_no_look_at_the_queues_limit(lab: Lab) -> None:
    driver = await lab.driver()
    await lab.queue(driver)
    lab.faults.calls.clear()

    await lab.send(driver, b"1")
    await lab.send(driver, b"2")

    assert lab.faults.calls == {SEND: 2}


async def test_a_strangers_ten_attributes_come_back_counted(lab: Lab) -> None:
    driver = await lab.driver()
    await lab.queue(driver)
    attributes = {f"a{nth}": {"DataType": "Number", "StringValue": "1"} for nth in range(10)}
    await _send_raw(lab, attributes)
    consumer = await lab.consumer(driver)
    first = await lab.claim(consumer, 1)

    assert await consumer.put_back(first, [0.0], [Mark(attempts=0)]) == [None]

    second = await lab.claim(consumer, 1)
    assert second[0].receives == 2
    assert second[0].message.id == first[0].message.id
    assert second[0].raw["MessageAttributes"] == attributes


async def test_a_strangers_ten_attributes_reach_the_dead_letter_queue_and_come_back(
    lab: Lab,
) -> None:
    driver = await lab.driver()
    await lab.queue(driver)
    attributes = {f"a{nth}": {"DataType": "Number", "StringValue": "1"} for nth in range(10)}
    await _send_raw(lab, attributes)
    consumer = await lab.consumer(driver)
    held = await lab.claim(consumer, 1)

    assert await consumer.dead_letter(held, [DeadLetterNote(reason="failed")]) == [None]

    graves = await lab.consumer(driver, "q-dead")
    dead = await lab.claim(graves, 1)
    assert dead[0].message.dead is not None
    assert dead[0].raw["MessageAttributes"] == attributes
    assert await driver.send("q", [dead[0].message], [0.0]) == [None]
    again = await lab.claim(consumer, 1)
    assert again[0].raw["MessageAttributes"] == attributes
    assert again[0].raw["Body"] == held[0].raw["Body"]


# -- FIFO -------------------------------------------------------------------------------------


async def test_an_idle_fifo_queue_is_polled_by_one(lab: Lab) -> None:
    driver = await lab.driver(fifo=True)
    await lab.queue(driver)
    consumer = await lab.consumer(driver)
    await consumer.claim(8, 1)
    lab.faults.calls.clear()

    for _ in range(2):
        assert await consumer.claim(8, 1) == []

    assert lab.faults.calls[RECEIVE] == 2


async def test_a_busy_fifo_queue_is_polled_by_as_many_as_there_are_slots(lab: Lab) -> None:
    driver = await lab.driver(fifo=True)
    await lab.queue(driver)
    await lab.send(driver, *(str(nth).encode() for nth in range(10)))
    await lab.send(driver, *(str(nth).encode() for nth in range(10, 20)))
    consumer = await lab.consumer(driver)
    polling = most = 0

    async def counted(call: fault.Call) -> dict[str, Any]:
        nonlocal polling, most
        polling += 1
        most = max(most, polling)
        await asyncio.sleep(0.05)  # those that begin together meet here
        try:
            return await call.proceed(call.arguments)
        finally:
            polling -= 1

    lab.faults.often(RECEIVE, 1.0, counted)
    for _ in range(8):
        assert len(await consumer.claim(4, 1)) <= 4

    assert 1 < most <= 4


async def test_groups_stay_in_order_though_jobs_fail_and_run_side_by_side(lab: Lab) -> None:
    driver = await lab.driver(fifo=True)
    await lab.queue(driver)
    count = 5
    sent = [_message(str(nth).encode(), group=f"g{g}") for nth in range(count) for g in range(6)]
    for start in range(0, len(sent), 10):
        batch = sent[start : start + 10]
        assert await driver.send("q", batch, [0.0] * len(batch)) == [None] * len(batch)
    consumer = await lab.consumer(driver)
    done: dict[str | None, list[int]] = {}
    failed: set[str] = set()
    while sum(map(len, done.values())) < len(sent):
        held = await lab.claim(consumer, 1)
        held += await consumer.claim(7, 0)
        assert len({item.message.group for item in held}) == len(held)
        for item in reversed(held):
            if item.message.body == b"1" and item.message.id not in failed:
                failed.add(item.message.id)
                assert await consumer.release([item], [0.0]) == [None]
            else:
                done.setdefault(item.message.group, []).append(int(item.message.body))
                assert await consumer.ack([item]) == [None]

    assert done == {f"g{g}": list(range(count)) for g in range(6)}
    assert len(failed) == 6


async def test_a_fifo_dead_letter_can_be_sent_back_within_five_minutes_and_die_again(
    lab: Lab,
) -> None:
    driver = await lab.driver(fifo=True)
    await lab.queue(driver)
    consumer = await lab.consumer(driver)
    graves = await lab.consumer(driver, "q-dead")
    message = _message(group="g")
    for redrives in range(3):
        from_sender = Message(id=message.id, body=b"x", type="t", group="g", redrives=redrives)
        assert await driver.send("q", [from_sender], [0.0]) == [None]
        held = await lab.claim(consumer, 1)
        assert await consumer.dead_letter(held, [DeadLetterNote(reason="failed")]) == [None]

        dead = await lab.claim(graves, 1)

        assert dead[0].message.redrives == redrives
        assert await graves.ack(dead) == [None]


async def test_a_fifo_queue_delays_no_single_message(lab: Lab) -> None:
    driver = await lab.driver()
    await lab.queue(driver, "q.fifo")

    results = await driver.send("q.fifo", [_message()], [1.0])

    assert isinstance(results[0], UnsupportedError)


async def test_a_lost_fifo_answer_is_asked_for_under_the_same_attempt_id(lab: Lab) -> None:
    driver = await lab.driver(fifo=True)
    await lab.queue(driver)
    consumer = await lab.consumer(driver)
    ids: list[str] = []

    async def note(call: fault.Call) -> dict[str, Any]:
        ids.append(call.arguments["ReceiveRequestAttemptId"])
        return await call.proceed(call.arguments)

    async def lose(call: fault.Call) -> dict[str, Any]:
        ids.append(call.arguments["ReceiveRequestAttemptId"])
        return await fault.answer_lost()(call)

    lab.faults.then(RECEIVE, lose, note, note)
    with pytest.raises(ConnectionLostError):
        await consumer.claim(1, 0)
    await consumer.claim(1, 0)
    await consumer.claim(1, 0)

    assert ids[0] == ids[1] != ids[2]


# -- pieces -----------------------------------------------------------------------------------


def _message(body: bytes = b"x", **fields: Any) -> Message:
    return Message(id=new_message_id(), body=body, type="t", **fields)


def _sent(lab: Lab) -> asyncio.Future[dict[str, Any]]:
    """The arguments of the next send, which is made as usual."""
    seen: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    async def note(call: Any) -> dict[str, Any]:
        seen.set_result(call.arguments)
        answer: dict[str, Any] = await call.proceed(call.arguments)
        return answer

    lab.faults.then(SEND, note)
    return seen


async def _set(lab: Lab, **attributes: str) -> None:
    async with lab.client() as client:
        url = await lab.url(client, "q")
        await client.set_queue_attributes(QueueUrl=url, Attributes=attributes)


async def _send_raw(lab: Lab, attributes: dict[str, Any]) -> None:
    async with lab.client() as client:
        url = await lab.url(client, "q")
        await client.send_message(QueueUrl=url, MessageBody="{}", MessageAttributes=attributes)
