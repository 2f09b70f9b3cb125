"""Queues as brokerwq makes them, and queues that are there already."""

from __future__ import annotations

import asyncio
import json
import shlex
from dataclasses import replace
from typing import Any

import pytest
from brokerwq_rabbitmq import topology
from pamqp.commands import Basic

from brokerwq.cli import main
from brokerwq.cli.failure import ExitCode
from brokerwq.driver import Certainty, Mark, QueueSpec
from brokerwq.driver.doctor import Doctor
from brokerwq.errors import (
    ConfigError,
    PermissionDeniedError,
    QueueMismatchError,
    QueueNotFoundError,
    UnsupportedError,
)
from brokerwq.message import DeadLetterNote
from tests.adapters.rabbit import RELEASES, Lab, claim, eventually, opened, server_or_skip, some

pytestmark = pytest.mark.slow

QUORUM: dict[str, Any] = {"x-queue-type": "quorum"}


@pytest.fixture(params=RELEASES)
def lab(request: pytest.FixtureRequest) -> Lab:
    return Lab(server_or_skip(request.param))


async def make(lab: Lab, name: str, **arguments: Any) -> None:
    async with lab.channel() as channel:
        durable = arguments.pop("durable", True)
        await channel.queue_declare(
            name,
            durable=durable,
            arguments={name.replace("_", "-"): value for name, value in arguments.items()},
        )


async def exists(lab: Lab, name: str) -> bool:
    async with opened(lab.url) as driver:
        try:
            await driver.inspect(name)
        except QueueNotFoundError:
            return False
    return True


async def test_a_declared_queue_has_a_limit_a_dead_letter_queue_and_delay_queues(lab: Lab) -> None:
    spec = lab.spec()
    async with opened(lab.url) as driver:
        assert list(await driver.declare(spec)) == []
        assert list(await driver.declare(spec)) == []
        assert list(await driver.declare(spec, check_only=True)) == []

    assert await exists(lab, spec.dead_letter_queue)
    for seconds in topology.LEVELS:
        assert await exists(lab, topology.level_name(spec.name, seconds))


async def test_every_difference_is_listed_and_nothing_is_made_half_way(lab: Lab) -> None:
    spec = lab.spec(broker_limit=100)
    await make(lab, spec.name, x_queue_type="quorum", x_delivery_limit=5, x_max_length=9)

    async with opened(lab.url) as driver:
        differences = await driver.declare(spec)

    found = {each.property: (each.wanted, each.found) for each in differences}
    assert found["x-delivery-limit"] == (100, 5)
    assert found["x-max-length"] == (None, 9)
    assert found["x-dead-letter-exchange"] == ("", None)
    assert found["x-dead-letter-routing-key"] == (spec.dead_letter_queue, None)
    assert found["x-dead-letter-strategy"] == ("at-least-once", None)
    assert found["x-overflow"] == ("reject-publish", None)
    assert {each.queue for each in differences} == {spec.name}
    assert not await exists(lab, spec.dead_letter_queue)
    assert not await exists(lab, topology.level_name(spec.name, 1))


@pytest.mark.parametrize("arguments", [{}, {"x_queue_type": "classic"}, {"durable": False}])
async def test_a_classic_queue_is_told_from_a_quorum_queue(
    lab: Lab, arguments: dict[str, Any]
) -> None:
    if arguments == {"durable": False} and lab.server.version.startswith("4.3"):
        pytest.skip("4.3 has no transient queues")
    spec = lab.spec()
    await make(lab, spec.name, **arguments)

    async with opened(lab.url) as driver:
        differences = await driver.declare(spec)

    assert "x-queue-type" in {each.property for each in differences}
    assert ("durable" in {each.property for each in differences}) == ("durable" in arguments)


async def test_the_fix_is_a_command_that_works(lab: Lab) -> None:
    spec = lab.spec(broker_limit=1)
    await make(lab, spec.name, x_queue_type="quorum")
    async with opened(lab.url) as driver:
        [fix] = {each.fix for each in await driver.declare(spec)}
        assert fix.startswith("rabbitmqctl ")
        await driver.declare(QueueSpec(name=spec.dead_letter_queue))

        await lab.ctl(*shlex.split(fix)[1:])

        await driver.send(spec.name, some(1), [0.0])
        async with lab.channel() as channel:
            for _ in range(2):
                message = await channel.basic_get(spec.name)
                await channel.basic_reject(message.delivery_tag or 0)
                await asyncio.sleep(0.1)

        async def dead() -> int:
            return (await driver.inspect(spec.dead_letter_queue)).ready.value

        await eventually(dead, 1)


@pytest.mark.parametrize("name", ["", "amq.mine", "q" * 250, "tab\there", "q\0"])
async def test_an_impossible_name_is_refused_before_anything_is_asked(lab: Lab, name: str) -> None:
    async with opened(lab.url) as driver:
        with pytest.raises(ConfigError):
            await driver.declare(QueueSpec(name=name))


async def test_a_queue_is_not_its_own_dead_letter_queue(lab: Lab) -> None:
    async with opened(lab.url) as driver:
        with pytest.raises(ConfigError, match="its own"):
            await driver.declare(QueueSpec(name="q", dead_letter="q"))


@pytest.mark.parametrize("declare", ["check", "create"])
async def test_a_check_makes_nothing(lab: Lab, declare: Any) -> None:
    spec = lab.spec(declare=declare)
    async with opened(lab.url) as driver:
        with pytest.raises(QueueNotFoundError, match=spec.name):
            await driver.declare(spec, check_only=True)

    assert not await exists(lab, spec.name)
    assert not await exists(lab, spec.dead_letter_queue)


async def test_an_adopted_queue_is_left_as_it_is(lab: Lab) -> None:
    spec = lab.spec(declare="never")
    await make(lab, spec.name)

    async with opened(lab.url) as driver:
        assert list(await driver.declare(spec)) == []
        await driver.send(spec.name, some(1), [0.0])
        consumer = await driver.consume(spec.name, lease=60, prefetch=1)
        assert await consumer.ack(await claim(consumer)) == [None]

    assert not await exists(lab, spec.dead_letter_queue)
    assert not await exists(lab, topology.level_name(spec.name, 1))


async def test_a_missing_adopted_queue_is_said_so(lab: Lab) -> None:
    async with opened(lab.url) as driver:
        with pytest.raises(QueueNotFoundError):
            await driver.declare(lab.spec(declare="never"))


async def test_lost_deliveries_are_counted_on_a_classic_queue_too(lab: Lab) -> None:
    spec = lab.spec(declare="never")
    await make(lab, spec.name)
    async with opened(lab.url) as driver:
        await driver.declare(spec)
        await driver.send(spec.name, some(1), [0.0])
        seen: list[tuple[int, bool]] = []
        for _ in range(3):
            consumer = await driver.consume(spec.name, lease=60, prefetch=1)
            [delivery] = await claim(consumer)
            seen.append((delivery.message.attempts + delivery.receives, delivery.message.suspect))
            await consumer.aclose()  # as a crash would

    assert seen == [(1, False), (2, True), (3, True)]


async def test_a_failed_attempt_on_a_classic_queue_makes_no_suspect(lab: Lab) -> None:
    spec = lab.spec(declare="never")
    await make(lab, spec.name)
    async with opened(lab.url) as driver:
        await driver.declare(spec)
        await driver.send(spec.name, some(1), [0.0])
        consumer = await driver.consume(spec.name, lease=60, prefetch=1)
        [first] = await claim(consumer)
        assert await consumer.release([first], [0.0]) == [None]
        [second] = await claim(consumer)

    assert second.message.attempts + second.receives == 2
    assert not second.message.suspect


async def test_without_delay_queues_a_delay_is_kept_by_holding_the_message(lab: Lab) -> None:
    spec = lab.spec(declare="never")
    await make(lab, spec.name)
    async with opened(lab.url) as driver:
        await driver.declare(spec)
        await driver.send(spec.name, some(2), [0.0, 0.0])
        consumer = await driver.consume(spec.name, lease=60, prefetch=1)
        [first] = await claim(consumer)
        loop = asyncio.get_running_loop()
        before = loop.time()

        assert await consumer.release([first], [1.0]) == [None]

        [other] = await claim(consumer)  # it keeps no place that another message needs
        assert loop.time() - before < 0.9
        await consumer.ack([other])
        [again] = await claim(consumer)
        assert loop.time() - before >= 1.0
        assert again.message.id == first.message.id
        assert again.message.attempts + again.receives == 2
        [error] = await driver.send(spec.name, some(1), [5.0])
        assert isinstance(error, UnsupportedError)


async def test_a_dead_letter_without_a_queue_for_it_stays_where_it_is(lab: Lab) -> None:
    spec = lab.spec()
    async with opened(lab.url) as driver:
        await driver.declare(spec)
        await driver.send(spec.name, some(1), [0.0])
        consumer = await driver.consume(spec.name, lease=60, prefetch=1)
        [delivery] = await claim(consumer)
        await lab.delete(spec.dead_letter_queue)

        [error] = await consumer.dead_letter([delivery], [DeadLetterNote(reason="failed")])

        assert isinstance(error, QueueNotFoundError)
        assert spec.dead_letter_queue in str(error)
        mark = Mark(attempts=0)
        assert await consumer.put_back([delivery], [0.0], [mark]) == [None]
        [again] = await claim(consumer)
        assert again.message == delivery.message


async def test_reading_a_dead_letter_queue_never_empties_it(lab: Lab) -> None:
    spec = lab.spec()
    async with opened(lab.url) as driver:
        await driver.declare(spec)
        await driver.send(spec.dead_letter_queue, some(1), [0.0])
        async with lab.channel() as channel:
            for _ in range(25):  # beyond the 20 that RabbitMQ 4 allows by default
                message = await channel.basic_get(spec.dead_letter_queue)
                assert isinstance(message.delivery, Basic.GetOk)
                await channel.basic_reject(message.delivery_tag or 0)

        async def ready() -> int:
            return (await driver.inspect(spec.dead_letter_queue)).ready.value

        await eventually(ready, 1)


async def test_the_brokers_own_limit_is_a_backstop_that_loses_nothing(lab: Lab) -> None:
    spec = lab.spec(broker_limit=2)
    async with opened(lab.url) as driver:
        await driver.declare(spec)
        await driver.send(spec.name, some(1), [0.0])
        for _ in range(3):
            consumer = await driver.consume(spec.name, lease=60, prefetch=1)
            await claim(consumer)
            await consumer.aclose()

        reader = await driver.consume(spec.dead_letter_queue, lease=60, prefetch=1)
        [dead] = await claim(reader)

    assert dead.message.body == b"0"
    assert dead.message.dead is None


async def test_nothing_held_and_nothing_ready_is_known_for_sure(lab: Lab) -> None:
    spec = lab.spec()
    async with opened(lab.url) as driver:
        await driver.declare(spec)
        await driver.send(spec.name, some(1), [0.0])
        consumer = await driver.consume(spec.name, lease=60, prefetch=1)
        held = await claim(consumer)
        await consumer.quiesce()

        holding = await driver.inspect(spec.name)
        assert holding.ready.value == 0
        assert holding.leased.certainty is Certainty.UNKNOWN

        await consumer.ack(held)

        async def leased() -> tuple[int, Certainty]:
            count = (await driver.inspect(spec.name)).leased
            return count.value, count.certainty

        await eventually(leased, (0, Certainty.EXACT))


async def test_permissions_that_are_missing_are_named(lab: Lab) -> None:
    spec = lab.spec()
    user = lab.name()
    await lab.add_users(user, {"limited": ("^$", ".*", ".*")})
    url = lab.url.replace("guest:guest", f"{user}-limited:pw")
    async with opened(lab.url) as driver:
        await driver.declare(spec)
    async with opened(url) as limited:
        with pytest.raises(PermissionDeniedError):
            await limited.declare(lab.spec())

        adopted = replace(spec, declare="never")
        assert list(await limited.declare(adopted)) == []
        await limited.send(spec.name, some(1), [0.0])
        consumer = await limited.consume(spec.name, lease=60, prefetch=1)
        assert await consumer.ack(await claim(consumer)) == [None]

        findings = await limited.examine(adopted)
        assert any("permission" in each.text for each in findings)


async def test_the_doctor_finds_what_is_weak_and_how_to_mend_it(lab: Lab) -> None:
    sound, classic, strict = lab.spec(), lab.spec(), lab.spec()
    await make(lab, classic.name)
    await make(lab, strict.name, x_queue_type="quorum", x_delivery_limit=2)
    async with opened(lab.url) as driver:
        assert isinstance(driver, Doctor)
        await driver.declare(sound)

        assert {each.level for each in await driver.examine(sound)} == {"ok"}
        texts = " ".join(each.text for each in await driver.examine(classic))
        assert "classic" in texts
        assert "does not exist" in texts
        found = [each for each in await driver.examine(strict) if "deliveries" in each.text]

    assert found[0].level == "warning"
    assert "3 deliveries" in found[0].text
    assert "set_policy" in found[0].fix


async def test_the_doctor_says_what_is_true_of_the_broker_once(
    lab: Lab, capfd: pytest.CaptureFixture[str]
) -> None:
    first, second, missing = lab.spec(), lab.spec(), lab.spec()
    async with opened(lab.url) as driver:
        await driver.declare(first)
        await driver.declare(second)
    names = [spec.name for spec in (first, second, missing)]

    code = await asyncio.to_thread(main, ("doctor", *names, "--url", lab.url, "--json"))

    assert code == ExitCode.DIFFERS  # one is missing
    findings = json.loads(capfd.readouterr().out)["findings"]
    assert [each["subject"] for each in findings] == [
        "server",
        "consumer timeout",
        *(
            subject.format(name)
            for name in names
            for subject in ("queue {}-dead", "queue {}", "queues {}.delay.* (9)")
        ),
    ]


async def test_the_doctor_says_what_holds_of_all_queues_of_others_once(lab: Lab) -> None:
    specs = [QueueSpec(name=lab.name(), declare="never", on_dead="hold") for _ in range(2)]
    async with opened(lab.url) as driver:
        for spec in specs:
            await make(lab, spec.name)
        first, second = [await driver.examine(spec) for spec in specs]

    assert {each.subject for each in {*first} & {*second}} == {
        "server",
        "consumer timeout",
        "adopted queues",
    }


async def test_the_doctor_names_a_lease_that_the_broker_would_cut_off(lab: Lab) -> None:
    async with opened(lab.url) as driver:
        too_long = lab.spec(lease=driver.capabilities.max_lease + 1)
        found = await driver.examine(too_long)

    (lease,) = [each for each in found if "its lease" in each.text]
    assert (lease.level, lease.subject) == ("error", f"queue {too_long.name}")


async def test_the_doctor_asks_of_a_queue_of_others_what_a_run_asks_of_it(lab: Lab) -> None:
    spec = replace(lab.spec(), declare="never")
    async with opened(lab.url) as driver:
        (missing,) = [each for each in await driver.examine(spec) if each.level == "error"]
        assert "its owner makes it" in missing.fix

        await make(lab, spec.name)  # a classic queue
        found = await driver.examine(spec)
        (missing,) = [each for each in found if each.level == "error"]
        assert missing.subject == f"queue {spec.dead_letter_queue}"
        assert missing.fix == f"brokerwq queues declare {spec.name} --dead-letters-only"
        with pytest.raises(QueueNotFoundError, match="--dead-letters-only"):
            await driver.declare(spec, check_only=True)
        assert [each.fix for each in found if each.level == "warning" and each.fix] == []
        assert not [each for each in found if ".delay." in each.subject]

        assert await driver.declare_dead_letter(spec) == []

        assert not [each for each in await driver.examine(spec) if each.level == "error"]
        assert await driver.declare_dead_letter(spec, check_only=True) == []
        assert await driver.declare(spec, check_only=True) == []
        dead = QueueSpec(name=spec.dead_letter_queue)
        with pytest.raises(QueueNotFoundError) as error:
            await driver.declare(dead, check_only=True)
        assert f"{dead.name}-dead" in str(error.value)  # of its own it has none
        assert f"{dead.name}.delay.1," in str(error.value)


async def test_a_low_limit_of_somebody_elses_queue_is_told_without_a_fix(lab: Lab) -> None:
    spec = QueueSpec(name=lab.name(), declare="never", on_dead="hold")
    await make(lab, spec.name, x_queue_type="quorum", x_delivery_limit=2)
    async with opened(lab.url) as driver:
        found = await driver.examine(spec)

    (told,) = [each for each in found if "gives up after" in each.text and "3" in each.text]
    assert (told.level, told.fix) == ("warning", "")
    assert not [each for each in found if each.level == "error"]


async def test_a_stream_is_told_from_a_queue(lab: Lab) -> None:
    spec = QueueSpec(name=lab.name(), declare="never", on_dead="hold")
    await make(lab, spec.name, x_queue_type="stream", x_max_age="1h")
    async with opened(lab.url) as driver:
        found = await driver.examine(spec)
        with pytest.raises(QueueMismatchError, match="is a stream"):
            await driver.declare(spec)

    (told,) = [each for each in found if "is a stream" in each.text]
    assert told.level == "error"


async def test_a_dead_letter_queue_of_others_that_forgets_is_told(lab: Lab) -> None:
    spec = QueueSpec(name=lab.name(), declare="never")
    await make(lab, spec.name)
    await make(lab, spec.dead_letter_queue, x_message_ttl=7 * 86_400_000)
    async with opened(lab.url) as driver:
        found = await driver.examine(spec)

    (told,) = [each for each in found if each.subject == f"queue {spec.dead_letter_queue}"]
    assert (told.level, told.fix) == ("warning", "")
    assert "after 7 days" in told.text


async def test_a_queue_that_somebody_consumes_alone_is_told_so(lab: Lab) -> None:
    queue = lab.name()
    await make(lab, queue)
    async with lab.channel() as channel, opened(lab.url) as driver:
        await channel.basic_consume(queue, _ignore, exclusive=True)
        with pytest.raises(PermissionDeniedError, match="another consumer has it to itself"):
            await driver.consume(queue, lease=60, prefetch=1)


async def _ignore(message: object) -> None:
    raise AssertionError(message)


async def test_purge_takes_what_is_delayed_and_leaves_the_dead(lab: Lab) -> None:
    spec = lab.spec()
    async with opened(lab.url) as driver:
        await driver.declare(spec)
        await driver.send(spec.name, some(3), [0.0, 60.0, 3600.0])
        await driver.send(spec.dead_letter_queue, some(1), [0.0])

        await driver.purge(spec.name)

        stats = await driver.inspect(spec.name)
        assert (stats.ready.value, stats.delayed.value, stats.dead.value) == (0, 0, 1)


async def test_a_dead_letter_queue_can_be_worked_off_as_a_queue(lab: Lab) -> None:
    spec = lab.spec()
    async with opened(lab.url) as driver:
        await driver.declare(spec)
        again = QueueSpec(name=spec.dead_letter_queue)

        assert list(await driver.declare(again)) == []
        assert list(await driver.declare(again, check_only=True)) == []
        await driver.send(again.name, some(1), [1.0])
        consumer = await driver.consume(again.name, lease=60, prefetch=1)
        assert await consumer.ack(await claim(consumer)) == [None]


async def test_when_the_first_delayed_message_is_due_is_known_at_most(lab: Lab) -> None:
    spec = lab.spec()
    async with opened(lab.url) as driver:
        await driver.declare(spec)
        assert (await driver.inspect(spec.name)).next_due is None
        await driver.send(spec.name, some(2), [3600.0, 70.0])

        assert (await driver.inspect(spec.name)).next_due == 64.0
        await driver.purge(spec.name)
