"""Declaring: compared first, dead-letter queue first, nothing half-made, nothing touched."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from brokerwq.driver import Difference, QueueSpec
from brokerwq.errors import (
    ConfigError,
    PermissionDeniedError,
    QueueNotFoundError,
    ThrottledError,
)
from brokerwq.message import DeadLetterNote
from brokerwq.testing import sqs_faults as fault

if TYPE_CHECKING:
    from tests.adapters.sqs.conftest import Lab

pytestmark = pytest.mark.slow

FORTNIGHT = "1209600"


async def attributes(lab: Lab, queue: str) -> dict[str, str]:
    async with lab.client() as client:
        url = await lab.url(client, queue)
        answer = await client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])
        found: dict[str, str] = answer["Attributes"]
        return found


async def make(lab: Lab, queue: str, **wanted: str) -> None:
    async with lab.client() as client:
        await client.create_queue(QueueName=f"{lab.prefix}-{queue}", Attributes=wanted)


async def test_a_new_queue_has_its_dead_letter_queue_and_a_constant_backstop(lab: Lab) -> None:
    driver = await lab.driver()

    await lab.queue(driver, lease=45.5)

    work, dead = await attributes(lab, "q"), await attributes(lab, "q-dead")
    policy = json.loads(work["RedrivePolicy"])
    assert policy["deadLetterTargetArn"] == dead["QueueArn"]
    assert int(policy["maxReceiveCount"]) == 100
    assert work["VisibilityTimeout"] == "46"
    assert work["MessageRetentionPeriod"] == dead["MessageRetentionPeriod"] == FORTNIGHT
    allowed = json.loads(dead["RedriveAllowPolicy"])
    assert allowed == {"redrivePermission": "byQueue", "sourceQueueArns": [work["QueueArn"]]}


async def test_a_fifo_queue_has_a_fifo_dead_letter_queue(lab: Lab) -> None:
    driver = await lab.driver()

    await lab.queue(driver, "q.fifo", ordered=True)

    assert (await attributes(lab, "q.fifo"))["FifoQueue"] == "true"
    assert (await attributes(lab, "q-dead.fifo"))["FifoQueue"] == "true"


async def test_every_difference_is_listed_and_nothing_is_made(lab: Lab) -> None:
    driver = await lab.driver()
    await make(lab, "other")
    arn = (await attributes(lab, "other"))["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": "5"})
    await make(lab, "q", VisibilityTimeout="10", MessageRetentionPeriod="600", RedrivePolicy=policy)

    differences = await driver.declare(QueueSpec(name="q", lease=60))

    prefix = lab.prefix
    assert list(differences) == [
        Difference(queue="q", property="retention", wanted=int(FORTNIGHT), found=600),
        Difference(
            queue="q", property="dead_letter", wanted=f"{prefix}-q-dead", found=f"{prefix}-other"
        ),
        Difference(queue="q", property="broker_limit", wanted=100, found=5),
    ]
    with pytest.raises(QueueNotFoundError):
        await attributes_of_missing(lab, "q-dead")


async def attributes_of_missing(lab: Lab, queue: str) -> None:
    await (await lab.driver()).inspect(queue)


async def test_a_queue_without_redrive_policy_is_told(lab: Lab) -> None:
    driver = await lab.driver()
    await make(lab, "q", MessageRetentionPeriod=FORTNIGHT)

    differences = await driver.declare(QueueSpec(name="q"))

    assert [(item.property, item.found) for item in differences] == [("dead_letter", None)]


async def test_a_dead_letter_queue_that_forgets_sooner_is_told(lab: Lab) -> None:
    driver = await lab.driver()
    await make(lab, "q-dead", MessageRetentionPeriod="345600")

    differences = await driver.declare(QueueSpec(name="q"))

    assert [(item.queue, item.property, item.found) for item in differences] == [
        ("q-dead", "retention", 345600)
    ]


@pytest.mark.parametrize(
    ("policy", "is_allowed"),
    [
        ({"redrivePermission": "denyAll"}, False),
        ({"redrivePermission": "allowAll"}, True),
        ({"redrivePermission": "byQueue", "sourceQueueArns": ["arn:x:other"]}, False),
    ],
)
async def test_a_dead_letter_queue_that_refuses_the_queue_is_told(
    lab: Lab, policy: dict[str, Any], *, is_allowed: bool
) -> None:
    driver = await lab.driver()
    await make(
        lab,
        "q-dead",
        MessageRetentionPeriod=FORTNIGHT,
        RedriveAllowPolicy=json.dumps(policy),
    )

    differences = await driver.declare(QueueSpec(name="q"))

    assert [item.property for item in differences] == ([] if is_allowed else ["redrive allowed"])


async def test_encryption_and_tags_of_an_existing_queue_are_left_alone(lab: Lab) -> None:
    driver = await lab.driver()
    await lab.queue(driver)
    async with lab.client() as client:
        url = await lab.url(client, "q")
        await client.tag_queue(QueueUrl=url, Tags={"team": "a"})
        await client.set_queue_attributes(
            QueueUrl=url, Attributes={"SqsManagedSseEnabled": "false"}
        )

        await lab.queue(await lab.driver())

        assert (await client.list_queue_tags(QueueUrl=url))["Tags"] == {"team": "a"}
    assert (await attributes(lab, "q"))["SqsManagedSseEnabled"] == "false"


async def test_a_queue_of_somebody_else_is_taken_as_it_is_and_without_looking(lab: Lab) -> None:
    driver = await lab.driver()
    await make(lab, "q", MessageRetentionPeriod="600")
    lab.faults.calls.clear()

    assert await driver.declare(QueueSpec(name="q", declare="never")) == []

    assert lab.faults.calls == {"get_queue_url": 1}


async def findings_of(lab: Lab, **spec: Any) -> dict[str, list[str]]:
    driver = await lab.driver()
    found: dict[str, list[str]] = {}
    for finding in await driver.examine(QueueSpec(name="q", **spec)):
        found.setdefault(f"{finding.level} {finding.subject}", []).append(finding.text)
    return found


async def test_the_doctor_finds_no_fault_with_what_we_made(lab: Lab) -> None:
    await lab.queue(await lab.driver())

    found = await findings_of(lab)

    assert found["ok queue q"] == found["ok queue q-dead"] == ["as it should be"]
    assert [key for key in found if not key.startswith("ok")] == []


async def test_the_doctor_names_what_is_weak_and_how_to_mend_it(lab: Lab) -> None:
    await make(lab, "q-dead", MessageRetentionPeriod="345600")
    arn = (await attributes(lab, "q-dead"))["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": "3"})
    await make(lab, "q", MessageRetentionPeriod=FORTNIGHT, RedrivePolicy=policy)

    found = await findings_of(lab)

    assert found["warning queue q"] == [
        "SQS gives up by itself after 3 receives, without a note; wanted 100"
    ]
    assert "forgets messages after 4 days, also those in work" in found["warning queue q-dead"]


async def test_the_doctor_tells_a_missing_queue_and_one_it_may_not_see(lab: Lab) -> None:
    lab.faults.then("get_queue_attributes", fault.denied())
    await make(lab, "q")

    found = await findings_of(lab, declare="check")

    assert "need sqs:GetQueueAttributes" in found["warning queue q"][0]
    assert found["error queue q-dead"] == ["does not exist"]


@pytest.mark.parametrize("mode", ["create", "check", "never"])
async def test_the_doctor_calls_a_missing_queue_an_error_with_a_fix(lab: Lab, mode: Any) -> None:
    driver = await lab.driver()

    findings = await driver.examine(QueueSpec(name="q", declare=mode))

    missing = [each for each in findings if each.text == "does not exist"]
    assert {each.level for each in missing} == {"error"}
    assert all("brokerwq queues declare q" in each.fix for each in missing)


async def test_the_dead_letter_queue_of_others_is_made_alone(lab: Lab) -> None:
    driver = await lab.driver()
    await make(lab, "q", MessageRetentionPeriod="600")
    spec = QueueSpec(name="q", declare="never")
    with pytest.raises(QueueNotFoundError, match="q --dead-letters-only"):
        await driver.declare(spec, check_only=True)

    assert await driver.declare_dead_letter(spec) == []

    assert await driver.declare(spec, check_only=True) == []
    found = await findings_of(lab, declare="never")
    assert not [key for key in found if key.startswith("error")]
    assert (await attributes(lab, "q-dead"))["MessageRetentionPeriod"] == FORTNIGHT
    assert "RedrivePolicy" not in await attributes(lab, "q")
    assert "q-dead-dead" not in await driver.queues()


@pytest.mark.parametrize(
    ("mode", "more", "fewer"),
    [
        ("never", "sqs:SendMessage", "sqs:GetQueueAttributes"),
        ("check", "sqs:GetQueueAttributes", "sqs:CreateQueue"),
        ("create", "sqs:CreateQueue", "sqs:DeleteQueue"),
    ],
)
async def test_the_doctor_asks_for_no_more_permissions_than_a_mode_needs(
    lab: Lab, mode: Any, more: str, fewer: str
) -> None:
    found = await findings_of(lab, declare=mode, lease=60)

    (text,) = found[f"ok permissions on {lab.prefix}-q"]
    assert more in text
    assert fewer not in text


@pytest.mark.parametrize("mode", ["check", "never"])
async def test_a_queue_that_may_not_be_made_must_be_there(lab: Lab, mode: Any) -> None:
    driver = await lab.driver()

    with pytest.raises(QueueNotFoundError):
        await driver.declare(QueueSpec(name="q", declare=mode))


@pytest.mark.parametrize(
    "spec",
    [
        QueueSpec(name="q.FIFO"),
        QueueSpec(name="q.fifo.x"),
        QueueSpec(name="a.b"),
        QueueSpec(name="x" * 81),
        QueueSpec(name="q", dead_letter="q"),
        QueueSpec(name="q", dead_letter="d.fifo"),
        QueueSpec(name="q.fifo", dead_letter="d"),
        QueueSpec(name="q", broker_limit=1001),
        QueueSpec(name="q", broker_limit=0),
        QueueSpec(name="q", retention=59),
        QueueSpec(name="q", retention=1_209_601),
        QueueSpec(name="q", lease=43_200),
        QueueSpec(name=""),
    ],
    ids=str,
)
async def test_what_sqs_never_takes_is_refused_before_any_request(
    lab: Lab, spec: QueueSpec
) -> None:
    driver = await lab.driver()
    lab.faults.calls.clear()

    with pytest.raises(ConfigError):
        await driver.declare(spec)

    assert not lab.faults.calls


async def test_a_name_that_was_just_deleted_asks_for_patience(lab: Lab) -> None:
    driver = await lab.driver()
    await lab.queue(driver)
    async with lab.client() as client:
        await client.delete_queue(QueueUrl=await lab.url(client, "q"))

    with pytest.raises(ThrottledError) as raised:
        await (await lab.driver()).declare(QueueSpec(name="q"))

    assert raised.value.retry_after == 60


async def test_a_second_purge_within_a_minute_asks_for_patience(lab: Lab) -> None:
    driver = await lab.driver()
    await lab.queue(driver)
    await driver.purge("q")

    with pytest.raises(ThrottledError) as raised:
        await driver.purge("q")

    assert raised.value.retry_after == 60


async def test_a_denied_creation_names_the_permission(lab: Lab) -> None:
    driver = await lab.driver()
    lab.faults.then("create_queue", fault.denied())

    with pytest.raises(PermissionDeniedError, match="need sqs:CreateQueue"):
        await driver.declare(QueueSpec(name="q"))


@pytest.mark.parametrize(
    ("theirs", "differs"), [({"lease": 99}, []), ({"broker_limit": 7}, ["broker_limit"])]
)
async def test_a_queue_that_somebody_else_makes_meanwhile_is_compared(
    lab: Lab, theirs: dict[str, Any], differs: list[str]
) -> None:
    driver, quicker = await lab.driver(), await lab.driver()

    async def be_quicker(call: fault.Call) -> dict[str, Any]:
        await lab.queue(quicker, **theirs)
        return await call.proceed(call.arguments)

    async def pass_on(call: fault.Call) -> dict[str, Any]:
        return await call.proceed(call.arguments)

    lab.faults.then("create_queue", pass_on, be_quicker)  # the dead-letter queue, the queue

    differences = await driver.declare(QueueSpec(name="q", lease=60))

    assert [item.property for item in differences] == differs


async def test_dead_letters_go_where_the_redrive_policy_of_an_adopted_queue_says(
    lab: Lab,
) -> None:
    maker = await lab.driver()
    await lab.queue(maker, dead_letter="graveyard")
    adopter = await lab.driver()
    await lab.send(adopter, b"1")
    consumer = await lab.consumer(adopter)

    held = await lab.claim(consumer, 1)
    assert await consumer.dead_letter(held, [DeadLetterNote(reason="failed")]) == [None]

    assert (await adopter.inspect("q")).dead.value == 1
    await lab.claim(await lab.consumer(adopter, "graveyard"), 1)


async def test_queue_urls_and_arns_stand_for_the_queue(lab: Lab) -> None:
    driver = await lab.driver()
    await lab.queue(driver)
    found = await attributes(lab, "q")
    async with lab.client() as client:
        url = await lab.url(client, "q")

    for name in (url, found["QueueArn"]):
        await lab.send(driver, b"1", queue=name)
        consumer = await lab.consumer(driver, name)
        held = await lab.claim(consumer, 1)
        assert held[0].queue == name
        assert await consumer.dead_letter(held, [DeadLetterNote(reason="failed")]) == [None]

    assert (await driver.inspect("q")).dead.value == 2


async def test_only_the_queues_of_the_prefix_are_listed(lab: Lab) -> None:
    driver = await lab.driver()
    await lab.queue(driver)
    await lab.queue(driver, "r.fifo")

    assert await driver.queues() == ["q", "q-dead", "r-dead.fifo", "r.fifo"]
    assert await (await lab.driver(fifo=True)).queues() == ["r", "r-dead"]
