"""The strict client refuses what SQS refuses, and passes on everything else."""

from __future__ import annotations

import json
from collections.abc import Awaitable
from typing import Any

import pytest

from brokerwq.driver.rules import sqs
from brokerwq.testing import FakeClock
from brokerwq.testing.sqs_strict import StrictSqs
from tests.kit.emulator import URL, Emulator

pytest.importorskip("botocore")

PLAIN = URL + "orders"
FIFO = URL + "orders.fifo"


class Lab:
    def __init__(self, **limits: int) -> None:
        self.clock = FakeClock()
        self.emulator = Emulator()
        self.strict = StrictSqs(self.emulator.clients, clock=self.clock, **limits)
        self.client = self.strict.around(self.emulator)

    async def refused(self, call: Awaitable[Any]) -> str:
        """The code of the error that ``call`` is answered."""
        from botocore.exceptions import ClientError

        with pytest.raises(ClientError) as told:
            await call
        answer: Any = told.value.response
        assert answer["Error"]["Code"] == answer["Error"]["QueryErrorCode"]
        return str(answer["Error"]["Code"])

    async def send(self, url: str = PLAIN, **entry: Any) -> Any:
        return await self.client.send_message(QueueUrl=url, **{"MessageBody": "x", **entry})

    async def receive(self, url: str = PLAIN, message: str = "1", **arguments: Any) -> str:
        """The handle of one receive of ``message``."""
        self.emulator.messages = [{"MessageId": message, "Body": "x"}]
        answer = await self.client.receive_message(QueueUrl=url, **arguments)
        return str(answer["Messages"][0]["ReceiptHandle"])

    async def delete(self, handle: str, url: str = PLAIN) -> Any:
        return await self.client.delete_message(QueueUrl=url, ReceiptHandle=handle)

    async def change(self, handle: str, seconds: int, url: str = PLAIN) -> Any:
        return await self.client.change_message_visibility(
            QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=seconds
        )


def text(value: str, kind: str = "String") -> dict[str, str]:
    return {"DataType": kind, "StringValue": value}


SENDS: dict[str, tuple[str, dict[str, Any], str]] = {
    "no body": (PLAIN, {"MessageBody": ""}, "MissingParameter"),
    "NUL in the body": (PLAIN, {"MessageBody": "a\0b"}, "InvalidMessageContents"),
    "U+FFFE in the body": (PLAIN, {"MessageBody": "\ufffe"}, "InvalidMessageContents"),
    "a lone surrogate": (PLAIN, {"MessageBody": "\ud800"}, "InvalidMessageContents"),
    "one byte too many": (
        PLAIN,
        {"MessageBody": "x" * (sqs.MAX_BYTES + 1)},
        "InvalidParameterValue",
    ),
    "too many bytes with attributes": (
        PLAIN,
        {"MessageBody": "x" * (sqs.MAX_BYTES - 5), "MessageAttributes": {"a": text("b")}},
        "InvalidParameterValue",
    ),
    "eleven attributes": (
        PLAIN,
        {"MessageAttributes": {f"a{nth}": text("x") for nth in range(11)}},
        "InvalidParameterValue",
    ),
    "an empty attribute": (PLAIN, {"MessageAttributes": {"a": text("")}}, "InvalidParameterValue"),
    "a reserved name": (
        PLAIN,
        {"MessageAttributes": {"AWS.x": text("x")}},
        "InvalidParameterValue",
    ),
    "two dots in a name": (
        PLAIN,
        {"MessageAttributes": {"a..b": text("x")}},
        "InvalidParameterValue",
    ),
    "an illegal attribute": (
        PLAIN,
        {"MessageAttributes": {"a": text("\x0b")}},
        "InvalidParameterValue",
    ),
    "an unknown type": (
        PLAIN,
        {"MessageAttributes": {"a": text("x", "Text")}},
        "InvalidParameterValue",
    ),
    "a delay of 901 s": (PLAIN, {"DelaySeconds": 901}, "InvalidParameterValue"),
    "a delay of -1 s": (PLAIN, {"DelaySeconds": -1}, "InvalidParameterValue"),
    "a deduplication id": (PLAIN, {"MessageDeduplicationId": "1"}, "InvalidParameterValue"),
    "a blank in a group": (PLAIN, {"MessageGroupId": "a b"}, "InvalidParameterValue"),
    "no group": (FIFO, {"MessageDeduplicationId": "1"}, "MissingParameter"),
    "no deduplication id": (FIFO, {"MessageGroupId": "g"}, "InvalidParameterValue"),
    "a delay on FIFO": (
        FIFO,
        {"MessageGroupId": "g", "MessageDeduplicationId": "1", "DelaySeconds": 5},
        "InvalidParameterValue",
    ),
}


@pytest.mark.parametrize("case", SENDS)
async def test_a_message_is_refused_alone_or_in_its_batch(case: str) -> None:
    url, entry, code = SENDS[case]
    lab = Lab()

    assert await lab.refused(lab.send(url, **entry)) == code
    good = {"Id": "good", "MessageBody": "x"}
    if url == FIFO:
        good |= {"MessageGroupId": "g", "MessageDeduplicationId": "2"}
    bad = {"Id": "bad", "MessageBody": "x", **entry}
    if len(str(entry)) < 1000:  # a batch of that size is refused as a whole
        answer = await lab.client.send_message_batch(QueueUrl=url, Entries=[good, bad])
        assert [each["Id"] for each in answer["Successful"]] == ["good"]
        assert [(each["Id"], each["Code"]) for each in answer["Failed"]] == [("bad", code)]
        assert lab.emulator.reached("send_message_batch")[0]["Entries"] == [good]
    assert lab.emulator.reached("send_message") == []


async def test_what_is_right_at_the_limit_goes_through() -> None:
    lab = Lab()
    attributes = {f"a{nth}": text("x") for nth in range(10)}
    size = sum(len(name) + len("String") + 1 for name in attributes)

    await lab.send(
        MessageBody="\t\n\r\ud7ff\U0001f600" + "x" * 100,
        MessageAttributes=attributes,
        DelaySeconds=900,
        MessageGroupId="fair",
    )
    await lab.send(MessageBody="x" * (sqs.MAX_BYTES - size), MessageAttributes=attributes)

    assert len(lab.emulator.reached("send_message")) == 2


BATCHES: dict[str, tuple[list[dict[str, Any]], str]] = {
    "empty": ([], "EmptyBatchRequest"),
    "eleven": ([{"Id": str(nth)} for nth in range(11)], "TooManyEntriesInBatchRequest"),
    "one id twice": ([{"Id": "1"}, {"Id": "1"}], "BatchEntryIdsNotDistinct"),
    "an id with a dot": ([{"Id": "1.2"}], "InvalidBatchEntryId"),
    "a long id": ([{"Id": "x" * 81}], "InvalidBatchEntryId"),
    "no id": ([{}], "InvalidBatchEntryId"),
}


@pytest.mark.parametrize("case", BATCHES)
@pytest.mark.parametrize(
    "operation",
    ["send_message_batch", "delete_message_batch", "change_message_visibility_batch"],
)
async def test_a_batch_is_refused_as_a_whole(operation: str, case: str) -> None:
    entries, code = BATCHES[case]
    lab = Lab()

    call = getattr(lab.client, operation)(QueueUrl=PLAIN, Entries=entries)

    assert await lab.refused(call) == code
    assert lab.emulator.calls == []


async def test_a_batch_of_too_many_bytes_is_refused() -> None:
    lab = Lab()
    entries = [{"Id": str(nth), "MessageBody": "x" * 600_000} for nth in range(2)]

    call = lab.client.send_message_batch(QueueUrl=PLAIN, Entries=entries)

    assert await lab.refused(call) == "BatchRequestTooLong"


@pytest.mark.parametrize(
    "arguments",
    [
        {"MaxNumberOfMessages": 0},
        {"MaxNumberOfMessages": 11},
        {"WaitTimeSeconds": 21},
        {"VisibilityTimeout": 43_201},
        {"VisibilityTimeout": -1},
        {"ReceiveRequestAttemptId": "on a standard queue"},
    ],
)
async def test_a_receive_out_of_range_is_refused(arguments: dict[str, Any]) -> None:
    lab = Lab()

    assert await lab.refused(lab.receive(**arguments)) == "InvalidParameterValue"


async def test_a_handle_that_was_never_given_out_or_is_another_queues_is_refused() -> None:
    lab = Lab()
    handle = await lab.receive()

    assert await lab.refused(lab.delete("made up")) == "ReceiptHandleIsInvalid"
    assert await lab.refused(lab.delete(handle, URL + "other")) == "ReceiptHandleIsInvalid"
    await lab.delete(handle)
    await lab.delete(handle)  # twice is fine
    assert len(lab.emulator.reached("delete_message")) == 1
    assert await lab.refused(lab.change(handle, 10)) == "InvalidParameterValue"


async def test_an_outdated_handle_of_a_standard_queue_is_answered_and_does_nothing() -> None:
    lab = Lab()
    old = await lab.receive(VisibilityTimeout=30)
    lab.clock.advance(31)
    await lab.change(old, 60)
    await lab.receive(VisibilityTimeout=30)

    await lab.change(old, 0)
    await lab.delete(old)

    assert lab.emulator.reached("change_message_visibility") == []
    assert lab.emulator.reached("delete_message") == []
    assert [(use.operation, use.is_reclaimed) for use in lab.strict.stale] == [
        ("change_message_visibility", False),
        ("change_message_visibility", True),
        ("delete_message", True),
    ]


async def test_a_late_delete_works_as_long_as_nobody_else_has_the_message() -> None:
    lab = Lab()
    handle = await lab.receive(VisibilityTimeout=30)
    lab.clock.advance(31)

    await lab.delete(handle)

    assert len(lab.emulator.reached("delete_message")) == 1


async def test_an_outdated_handle_of_a_fifo_queue_is_refused() -> None:
    lab = Lab()
    handle = await lab.receive(FIFO, VisibilityTimeout=30)
    lab.clock.advance(31)

    assert await lab.refused(lab.delete(handle, FIFO)) == "InvalidParameterValue"
    assert await lab.refused(lab.change(handle, 0, FIFO)) == "InvalidParameterValue"


async def test_one_receive_lasts_twelve_hours_and_no_longer() -> None:
    lab = Lab()
    handle = await lab.receive(VisibilityTimeout=43_200)
    lab.clock.advance(3600)

    await lab.change(handle, 39_600)

    assert await lab.refused(lab.change(handle, 39_601)) == "InvalidParameterValue"


async def test_a_visibility_batch_answers_for_each() -> None:
    lab = Lab()
    handles = [await lab.receive(message="1"), await lab.receive(message="2"), "made up"]
    entries = [
        {"Id": str(nth), "ReceiptHandle": handle, "VisibilityTimeout": 10}
        for nth, handle in enumerate(handles)
    ]

    answer = await lab.client.change_message_visibility_batch(QueueUrl=PLAIN, Entries=entries)

    assert [each["Id"] for each in answer["Successful"]] == ["0", "1"]
    assert [each["Code"] for each in answer["Failed"]] == ["ReceiptHandleIsInvalid"]
    assert lab.strict.refused == [("ReceiptHandleIsInvalid", "change_message_visibility_batch")]


async def test_above_the_cap_a_short_poll_is_refused_and_a_long_one_finds_nothing() -> None:
    lab = Lab(in_flight=2)
    handles = [await lab.receive(message="1"), await lab.receive(message="2")]

    assert await lab.refused(lab.receive(message="3")) == "OverLimit"
    poll = lab.client.receive_message(QueueUrl=PLAIN, WaitTimeSeconds=1)
    assert "Messages" not in await lab.clock.drive(poll)

    await lab.delete(handles[0])
    assert await lab.receive(message="3")


async def test_above_its_cap_a_fifo_queue_just_finds_nothing() -> None:
    lab = Lab(in_flight_fifo=1)
    await lab.receive(FIFO)

    assert "Messages" not in await lab.clock.drive(lab.client.receive_message(QueueUrl=FIFO))


async def test_what_is_older_than_its_retention_never_comes() -> None:
    lab = Lab()
    created = await lab.client.create_queue(
        QueueName="short", Attributes={"MessageRetentionPeriod": "60"}
    )
    sent = int(lab.clock.utcnow().timestamp() * 1000)
    lab.emulator.messages = [
        {"MessageId": "1", "Body": "x", "Attributes": {"SentTimestamp": str(sent)}}
    ]
    lab.clock.advance(61)

    answer = await lab.client.receive_message(QueueUrl=created["QueueUrl"])

    assert "Messages" not in answer
    assert len(lab.emulator.reached("delete_message")) == 1


def redrive(count: object, arn: str = "arn:aws:sqs:eu-west-1:000000000000:dead") -> str:
    return json.dumps({"maxReceiveCount": count, "deadLetterTargetArn": arn})


@pytest.mark.parametrize(
    ("name", "attributes", "code"),
    [
        ("", {}, "InvalidParameterValue"),
        ("a.b", {}, "InvalidParameterValue"),
        ("x" * 81, {}, "InvalidParameterValue"),
        ("orders.fifo", {}, "InvalidParameterValue"),
        ("orders", {"FifoQueue": "true"}, "InvalidParameterValue"),
        ("orders", {"VisibilityTimeout": "43201"}, "InvalidAttributeValue"),
        ("orders", {"MessageRetentionPeriod": "59"}, "InvalidAttributeValue"),
        ("orders", {"MessageRetentionPeriod": "1209601"}, "InvalidAttributeValue"),
        ("orders", {"DelaySeconds": "901"}, "InvalidAttributeValue"),
        ("orders", {"MaximumMessageSize": "1023"}, "InvalidAttributeValue"),
        ("orders", {"ReceiveMessageWaitTimeSeconds": "x"}, "InvalidAttributeValue"),
        ("orders", {"RedrivePolicy": redrive(0)}, "InvalidParameterValue"),
        ("orders", {"RedrivePolicy": redrive(1001)}, "InvalidParameterValue"),
        ("orders", {"RedrivePolicy": redrive("abc")}, "InvalidParameterValue"),
        ("orders", {"RedrivePolicy": redrive(5, "dead")}, "InvalidParameterValue"),
        ("orders", {"RedrivePolicy": "{"}, "InvalidParameterValue"),
        (
            "orders",
            {"RedrivePolicy": redrive(5, "arn:aws:sqs:eu-west-1:000000000000:dead.fifo")},
            "InvalidParameterValue",
        ),
    ],
)
async def test_a_queue_that_cannot_be_is_refused(
    name: str, attributes: dict[str, str], code: str
) -> None:
    lab = Lab()

    call = lab.client.create_queue(QueueName=name, Attributes=attributes)

    assert await lab.refused(call) == code


async def test_a_purge_and_a_deleted_name_are_blocked_for_a_minute() -> None:
    lab = Lab()
    await lab.client.purge_queue(QueueUrl=PLAIN)
    assert await lab.refused(lab.client.purge_queue(QueueUrl=PLAIN)) == "PurgeQueueInProgress"
    await lab.client.delete_queue(QueueUrl=PLAIN)
    again = lab.client.create_queue(QueueName="orders")
    assert await lab.refused(again) == "QueueDeletedRecently"

    lab.clock.advance(60)

    await lab.client.create_queue(QueueName="orders")
    await lab.client.purge_queue(QueueUrl=PLAIN)


async def test_what_it_knows_nothing_of_goes_through() -> None:
    lab = Lab()

    await lab.client.tag_queue(QueueUrl=PLAIN, Tags={})

    assert lab.emulator.calls == [("tag_queue", {"QueueUrl": PLAIN, "Tags": {}})]
