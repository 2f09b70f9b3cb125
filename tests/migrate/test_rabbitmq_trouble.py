"""A real RabbitMQ that lets one side do less than a move needs, or has no room.

Whatever is missing, the error names side, queue and right, and the source keeps its messages as
they were.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import aiormq
import pytest
from pamqp.common import FieldTable

from brokerwq.cli import main
from brokerwq.driver import QueueSpec
from brokerwq.errors import (
    DriverError,
    PermissionDeniedError,
    QueueMismatchError,
    StorageFullError,
)
from brokerwq.testing.servers.rabbitmq import RabbitServer, shared_rabbitmq
from tests.migrate.lab import DEAD, QUEUE, Lab, made, opened
from tests.migrate.places import rabbit

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]

USERS = {
    "ann": ("^$", ".*", ".*"),
    "bob": (".*", "^$", ".*"),
    "eve": (".*", ".*", "^$"),
}


@dataclass(frozen=True)
class Place:
    """A virtual host, and users who may do less there."""

    url: str

    @property
    def vhost(self) -> str:
        return self.url.rpartition("/")[2]

    def as_user(self, name: str) -> str:
        head, _, rest = self.url.partition("://")
        return f"{head}://{self.vhost}-{name}:pw@{rest.rpartition('@')[2]}"


def server() -> RabbitServer:
    return shared_rabbitmq("3.10")


def add_users(vhost: str, users: Mapping[str, tuple[str, str, str]]) -> None:
    # One call of rabbitmqctl for all, which takes seconds each.
    backend = "rabbit_auth_backend_internal"
    calls: list[str] = []
    for name, permissions in users.items():
        user = f'<<"{vhost}-{name}">>'
        texts = ", ".join(f"<<{json.dumps(each)}>>" for each in permissions)
        calls.append(f'{backend}:add_user({user}, <<"pw">>, <<"test">>)')
        calls.append(f'{backend}:set_permissions({user}, <<"{vhost}">>, {texts}, <<"test">>)')
    server().ctl("eval", f"{', '.join(calls)}.")


@pytest.fixture(scope="module")
def place() -> Place:
    made_here = Place(rabbit("3.10"))
    add_users(made_here.vhost, USERS)
    return made_here


@pytest.fixture
def away(tmp_path: Path, place: Place) -> Generator[Lab]:
    """From the virtual host to a file."""
    lab = Lab(tmp_path, source=place.url)
    yield lab
    asyncio.run(empty(place.url))


@pytest.fixture
def here(tmp_path: Path, place: Place) -> Generator[Lab]:
    """From a file to the virtual host."""
    yield Lab(tmp_path, source=f"sqlite:///{tmp_path}/source.db", target=place.url)
    asyncio.run(empty(place.url))


async def empty(url: str) -> None:
    async with opened(url) as driver:
        for queue in (QUEUE, DEAD):
            try:
                await driver.purge(queue)
            except DriverError:
                continue


async def filled(lab: Lab, count: int = 20) -> None:
    await lab.declare()
    await lab.send([made(n) for n in range(count)])


async def untouched(lab: Lab, count: int = 20) -> bool:
    """Whether the source has all its messages, none of which has spent an attempt."""
    return [delivery.attempt for delivery in await lab.take(lab.source)] == [1] * count


@pytest.mark.parametrize(
    ("user", "right"), [("bob", "write to amq.default"), ("eve", "to read from orders")]
)
async def test_a_source_that_may_not_be_taken_from_is_left_as_it_is(
    away: Lab, place: Place, user: str, right: str
) -> None:
    await filled(away)
    limited = replace(away, source=place.as_user(user))
    verbs = ["plan", "run"]

    for verb in verbs:
        with pytest.raises(PermissionDeniedError) as caught:
            async with limited.migration() as migration:
                await getattr(migration, verb)()

        text = str(caught.value)
        assert text.startswith("source amqp://")
        assert QUEUE in text
        assert right in text
        assert "docs/migration.md" in text
        assert ":pw@" not in text
    assert await untouched(away)


async def test_who_may_not_configure_the_source_moves_all_the_same(away: Lab, place: Place) -> None:
    await filled(away)

    report = await replace(away, source=place.as_user("ann")).run(waits=False)

    assert report.moved == 20


@pytest.mark.parametrize(
    ("user", "right"),
    [
        ("ann", "configure orders"),
        ("bob", "amq.default"),
        ("eve", "to read it"),
    ],
)
async def test_a_target_whose_queues_may_not_be_made_gets_nothing(
    tmp_path: Path, user: str, right: str
) -> None:
    fresh = Place(rabbit("3.10"))
    add_users(fresh.vhost, {user: USERS[user]})
    lab = Lab(tmp_path, source=f"sqlite:///{tmp_path}/source.db", target=fresh.as_user(user))
    await filled(lab)

    with pytest.raises(PermissionDeniedError) as caught:
        await lab.run()

    text = str(caught.value)
    assert text.startswith("target amqp://")
    assert QUEUE in text
    assert right in text
    assert await untouched(lab)


async def test_a_target_that_may_not_be_sent_to_is_told_by_the_plan_and_gets_nothing(
    here: Lab, place: Place
) -> None:
    await filled(here)
    await here.declare(place.url)
    limited = replace(here, target=place.as_user("bob"))

    async with limited.migration() as migration:
        plan = await migration.plan()
    with pytest.raises(
        PermissionDeniedError, match=r"^target amqp://.* write to amq.default, to send to orders"
    ):
        await limited.run(declare=False)

    assert [QUEUE in denial for denial in plan.denials] == [True, True]
    assert not plan.fits
    assert await untouched(here)
    assert await here.counts(place.url) == (0, 0, 0)


async def test_the_command_names_it_and_has_exit_code_3(
    here: Lab, place: Place, capfd: pytest.CaptureFixture[str]
) -> None:
    await filled(here)
    await here.declare(place.url)
    route = [here.source, place.as_user("bob"), "--queue", QUEUE, "--ledger", here.ledger]

    for verb, wanted in (["plan"], 1), (["run", "--no-declare"], 3):
        code = await asyncio.to_thread(main, ["migrate", *verb, *route])

        assert code == wanted
        told = capfd.readouterr().err
        assert "brokerwq: target amqp://" in told
        assert "write to amq.default" in told


async def test_a_target_queue_that_is_full_gets_what_it_takes_and_the_rest_stays(
    here: Lab, place: Place
) -> None:
    """A queue that its owner has limited, adopted as it is."""
    await filled(here, 60)
    connection = await aiormq.connect(place.url)
    channel = await connection.channel()
    limits: FieldTable = {"x-max-length": 25, "x-overflow": "reject-publish"}
    await channel.queue_declare("full", durable=True, arguments=limits)
    await channel.queue_declare("full-dead", durable=True)
    await connection.close()

    with pytest.raises(StorageFullError, match=r"^target amqp://.*queue full .* no more messages"):
        async with here.migration(queues={QUEUE: "full"}) as migration:
            await migration.run(declare=False, patience=2.0)

    arrived = {delivery.message.id for delivery in await here.take(place.url, "full")}
    left = await here.take(here.source)
    assert len(arrived) == 25
    assert len(left) == 35
    assert not arrived & {delivery.message.id for delivery in left}
    assert {delivery.attempt for delivery in left} == {1}


async def test_a_broker_short_of_memory_gets_nothing_but_can_be_left(
    here: Lab, away: Lab, place: Place
) -> None:
    await filled(here)
    await filled(away)
    into = replace(here, target=f"{place.url}?publish_timeout=1")
    out = replace(away, source=into.target, ledger=f"{away.ledger}-2")
    server().ctl("eval", "vm_memory_monitor:set_vm_memory_high_watermark({absolute, 1}).")
    try:
        with pytest.raises(StorageFullError, match=r"^target amqp://.* short of memory or disk"):
            await into.run(patience=1.0)
        with pytest.raises(StorageFullError, match=r"^source amqp://.* short of memory or disk"):
            async with out.migration() as migration:
                await migration.plan()
        assert await untouched(here)
        left = await out.run(waits=False)
    finally:
        server().ctl("eval", "vm_memory_monitor:set_vm_memory_high_watermark(0.4).")

    assert left.moved == 20
    assert [each.attempt for each in await away.take(away.target)] == [1] * 20


async def test_a_queue_of_another_kind_at_the_target_is_refused_before_anything_moves(
    here: Lab, place: Place
) -> None:
    await filled(here)
    async with opened(place.url) as driver:
        await driver.declare(QueueSpec(name=QUEUE))

    other = replace(here, ledger=f"{here.ledger}-2")
    async with other.migration(specs=[QueueSpec(name=QUEUE, broker_limit=3)]) as migration:
        with pytest.raises(QueueMismatchError, match="delivery-limit"):
            await migration.run()

    assert await untouched(here)
