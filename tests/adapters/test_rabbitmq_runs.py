"""Apps and runners on RabbitMQ: attempts, outages, delays, and queues that are not ours."""

from __future__ import annotations

import asyncio
import json
import math
import socket
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pamqp.commands import Basic

from brokerwq import App, Broker, DeadLetter, Job, QueueSpec, RetryPolicy, connect
from brokerwq.clock import SYSTEM_CLOCK
from brokerwq.errors import ConfigError, DriverError, UnsupportedError
from brokerwq.events import LeaseLost, QueueAdopted
from brokerwq.health import serve_health
from brokerwq.testing.servers.proxy import TcpProxy
from tests.adapters.rabbit import (
    PATIENCE,
    RELEASES,
    Lab,
    claim,
    eventually,
    opened,
    place_of,
    server_or_skip,
    some,
    url_through,
)
from tests.adapters.rabbit_runs import Lines, counts, is_free, running, until
from tests.adapters.test_rabbitmq_topology import make
from tests.cases.lab import Events, Gauge

pytestmark = pytest.mark.slow

AT_ONCE = RetryPolicy(max_attempts=3, base=0, jitter="none")


@pytest.fixture(params=RELEASES)
def lab(request: pytest.FixtureRequest) -> Lab:
    return Lab(server_or_skip(request.param))


@pytest.fixture
def proxy(lab: Lab) -> Generator[TcpProxy]:
    with TcpProxy(*place_of(lab.server)) as proxy:
        yield proxy


# -- attempts ---------------------------------------------------------------------------------


@pytest.mark.parametrize("delays", [(0.0, 0.0), (0.5, 0.5)])
async def test_three_attempts_are_three_calls_and_then_a_dead_letter(
    lab: Lab, delays: tuple[float, ...]
) -> None:
    queue = lab.name()
    seen: list[int] = []
    retry = RetryPolicy(max_attempts=3, base=delays[0], factor=1.0, jitter="none")
    async with App(lab.url) as app:

        @app.worker(queue, retry=retry)
        async def work(job: Job) -> None:
            seen.append(job.attempt)
            raise ValueError(job.id)

        async with running(app, log=False):
            await work.enqueue()
            await until(lambda: len(seen) == 3)
            await eventually(lambda: counts(lab.url, queue), (0, 0, 1))

    assert seen == [1, 2, 3]


async def test_forged_counts_change_nothing(lab: Lab) -> None:
    queue = lab.name()
    seen: dict[str, list[int]] = {}
    async with App(lab.url) as app:

        @app.worker(queue, retry=AT_ONCE)
        async def work(job: Job) -> None:
            seen.setdefault(job.id, []).append(job.attempt)
            raise ValueError(job.id)

        await app.broker().declare(QueueSpec(name=queue))
        for forged in (2, 99, "2"):
            headers: Any = {"bwq-v": "1", "x-delivery-count": forged, "x-acquired-count": forged}
            properties = Basic.Properties(
                message_id=f"forged-{forged!r}",
                message_type="work",
                content_type="application/json",
                delivery_mode=2,
                headers=headers,
            )
            await lab.publish(queue, b"{}", properties)
        async with running(app, log=False):
            await until(lambda: sum(map(len, seen.values())) == 9)
            await eventually(lambda: counts(lab.url, queue), (0, 0, 3))

    assert list(seen.values()) == [[1, 2, 3]] * 3


async def test_what_was_only_buffered_is_returned_uncounted(lab: Lab) -> None:
    spec = lab.spec()
    async with opened(lab.url) as driver:
        await driver.declare(spec)
        await driver.send(spec.name, some(20), [0.0] * 20)
        for _ in range(10):
            consumer = await driver.consume(spec.name, lease=60, prefetch=20)
            await until(lambda consumer=consumer: consumer.buffered == 20)  # type: ignore[misc]
            await consumer.quiesce()
            await consumer.aclose()
        last = await driver.consume(spec.name, lease=60, prefetch=20)
        found = await claim(last, 20)

        assert {delivery.attempt for delivery in found} == {1}
        assert not any(delivery.message.suspect for delivery in found)


async def test_a_lease_that_ends_is_the_end_of_its_job(lab: Lab) -> None:
    queue = lab.name()
    events = Events()
    attempts: list[int] = []
    gauge = Gauge(SYSTEM_CLOCK)
    async with App(lab.url, telemetry=events) as app:

        @app.worker(queue, lease=1.0, retry=AT_ONCE)
        async def work(job: Job) -> None:
            attempts.append(job.attempt)
            await gauge.hold(10.0 if job.attempt == 1 else 0.0)

        async with running(app, heartbeat=False, log=False, slots=2):
            await work.enqueue()
            await until(lambda: len(attempts) == 2)
            await eventually(lambda: counts(lab.url, queue), (0, 0, 0))

    assert attempts == [1, 2]
    assert gauge.most == 1
    assert len(events.of(LeaseLost)) == 1


async def test_a_job_beyond_the_consumer_timeout_never_runs_beside_itself(lab: Lab) -> None:
    queue = lab.name()
    limits: list[float | None] = []
    gauge = Gauge(SYSTEM_CLOCK)
    async with App(f"{lab.url}?consumer_timeout=2") as app:

        @app.worker(queue, lease=1.0, retry=RetryPolicy(max_attempts=2, base=0))
        async def work(job: Job) -> None:
            limits.append(job.lease.limit)
            await gauge.hold(10.0)

        async with running(app, log=False, slots=2):
            await work.enqueue()
            await eventually(lambda: counts(lab.url, queue), (0, 0, 1))

    assert len(limits) == 2
    assert gauge.most == 1
    assert all(limit is not None for limit in limits)


async def test_held_messages_of_a_lost_connection_are_told_at_once_and_come_back(
    lab: Lab, proxy: TcpProxy
) -> None:
    queue = lab.name()
    events = Events()
    seen: list[tuple[int, int]] = []
    async with App(url_through(proxy, lab.server), telemetry=events) as app:

        @app.worker(queue, lease=300)  # its heartbeat would come too late
        async def work(job: Job, *, n: int) -> None:
            seen.append((n, job.attempt))
            if job.attempt == 1:
                await asyncio.sleep(PATIENCE)

        with Lines() as lines:
            async with running(app, slots=10) as run:
                await work.enqueue_many(work.call(n=n) for n in range(5))
                await until(lambda: len(seen) == 5)
                proxy.cut()
                await until(lambda: len(events.of(LeaseLost)) == 5)
                await until(lambda: len(seen) == 10)
                await eventually(lambda: counts(lab.url, queue), (0, 0, 0))
                await until(lambda: run.runner.state == "ready")

    assert Counter(seen) == Counter((n, attempt) for n in range(5) for attempt in (1, 2))
    assert len(events.of(LeaseLost)) == 5
    assert not [text for text in lines.texts if "Traceback" in text or "aiormq" in text]
    assert await is_free(lab.url, queue)


# -- delays -----------------------------------------------------------------------------------


async def test_what_fails_waits_longer_each_time_and_nobody_waits_with_it(lab: Lab) -> None:
    queue = lab.name()
    at: list[float] = []
    good: list[float] = []
    policy = RetryPolicy(max_attempts=3, base=0.4, factor=2.0, jitter="none")
    async with App(lab.url) as app:

        @app.worker(queue, retry=policy)
        async def work(*, bad: bool) -> None:
            (at if bad else good).append(SYSTEM_CLOCK.now())
            if bad:
                raise ValueError(bad)

        await app.broker().declare(QueueSpec(name=queue))
        await work.enqueue_many(work.call(bad=not n) for n in range(101))
        async with running(app, log=False, slots=1):
            await until(lambda: len(at) == 3)
            await eventually(lambda: counts(lab.url, queue), (0, 0, 1))

    assert at[1] - at[0] >= 0.4
    assert at[2] - at[1] >= 0.8
    assert len(good) == 100
    assert max(good) < at[2]


async def test_every_delay_means_the_same_as_elsewhere(lab: Lab) -> None:
    queue = lab.name()
    past = datetime.now(UTC) - timedelta(days=1)
    async with App(lab.url) as app:

        @app.worker(queue)
        async def work() -> None: ...

        await app.broker().declare(QueueSpec(name=queue))
        for now in (-1, 0, timedelta(-1)):
            await work.options(delay=now).enqueue()
        await work.options(at=past).enqueue()
        for later in (899.9, 900, 901, 86_400, 100_000):
            await work.options(delay=later).enqueue()
        with pytest.raises(ConfigError):
            await work.options(delay=math.nan).enqueue()
        await work.enqueue()

        assert await counts(lab.url, queue) == (5, 5, 0)


# -- troubles ---------------------------------------------------------------------------------


async def send_json(broker: Broker, queue: str, **fields: Any) -> None:
    body = json.dumps(fields).encode()
    await broker.send(queue, body, type="work", content_type="application/json")


def readiness(address: str) -> int:
    try:
        with urllib.request.urlopen(f"http://{address}/ready", timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


async def test_a_broker_that_comes_late_is_waited_for_quietly(
    lab: Lab, proxy: TcpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First its name is not known, then its port refuses, then it hangs up, then it is there."""
    queue = lab.name()
    resolves = False
    real = socket.getaddrinfo

    def getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host == "rabbit.test":
            if not resolves:
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
            host = "127.0.0.1"
        return real(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    proxy.refuse()
    done: list[int] = []
    app = App(f"amqp://guest:guest@rabbit.test:{proxy.port}/?connect_timeout=2")

    @app.worker(queue)
    async def work() -> None:
        done.append(1)

    with Lines() as lines:
        async with running(app) as run:
            for mend in ("resolve", "listen", "answer"):
                await asyncio.sleep(1.0)
                assert run.runner.state == "starting"
                if mend == "resolve":
                    resolves = True
                elif mend == "listen":
                    proxy.hang_up()
                    proxy.listen()
                else:
                    proxy.answer()
            assert await until(lambda: run.runner.state == "ready") < 10
            await work.enqueue()
            await until(lambda: done)
            assert lines.busiest() < 2, lines.texts
    await app.aclose()

    assert not [text for text in lines.texts if not text.startswith("brokerwq")]


async def test_a_link_that_swallows_turns_the_light_red_and_work_goes_on_after_it(
    lab: Lab, proxy: TcpProxy
) -> None:
    queue = lab.name()
    done: list[int] = []
    url = f"{url_through(proxy, lab.server)}?heartbeat=1&connect_timeout=1"
    async with App(url) as app, connect(lab.url) as other:

        @app.worker(queue)
        async def work(*, n: int) -> None:
            done.append(n)

        with Lines() as lines:
            async with running(app) as run:
                with serve_health(run.runner, "127.0.0.1:0") as address:
                    assert await asyncio.to_thread(readiness, address) == 200
                    proxy.swallow()
                    await until(lambda: run.runner.state == "degraded", 12)
                    assert await asyncio.to_thread(readiness, address) == 503
                    proxy.cut()
                    proxy.flow()
                    await send_json(other, queue, n=2)
                    assert await until(lambda: 2 in done) < 10
                    await until(lambda: run.runner.state == "ready")
                    assert await asyncio.to_thread(readiness, address) == 200
                assert lines.busiest() < 2, lines.texts


async def test_a_queue_made_anew_is_worked_on_again(lab: Lab) -> None:
    queue = lab.name()
    done: list[int] = []
    async with App(lab.url) as app:

        @app.worker(queue)
        async def work(*, n: int) -> None:
            done.append(n)

        with Lines() as lines:
            async with running(app) as run:
                await work.enqueue(n=1)
                await until(lambda: done == [1])
                await lab.delete(queue)
                await until(lambda: run.runner.state == "degraded", 5)
                assert not await exists(lab, queue)
                async with connect(lab.url) as other:
                    await other.declare(QueueSpec(name=queue))
                    await send_json(other, queue, n=2)
                assert await until(lambda: done == [1, 2]) < 10
                await until(lambda: run.runner.state == "ready")
                assert lines.busiest() < 2, lines.texts


async def exists(lab: Lab, queue: str) -> bool:
    async with opened(lab.url) as driver:
        try:
            await driver.inspect(queue)
        except DriverError:
            return False
    return True


async def test_a_missing_dead_letter_queue_costs_no_message(lab: Lab) -> None:
    queue = lab.name()
    async with App(lab.url) as app:

        @app.worker(queue)
        async def work() -> None:
            raise DeadLetter("useless")

        async with running(app, log=False) as run:
            await lab.delete(f"{queue}-dead")
            async with connect(lab.url) as other:  # which does not make it anew, as the app would
                await other.send(queue, b"{}", type="work", content_type="application/json")
                await until(lambda: run.runner.state == "degraded")
                assert f"{queue}-dead" in " ".join(run.runner.reasons)
                await other.declare(QueueSpec(name=queue))
            await eventually(lambda: counts(lab.url, queue), (0, 0, 1))
            await until(lambda: run.runner.state == "ready")


# -- somebody else's --------------------------------------------------------------------------


async def test_a_queue_of_somebody_else_is_taken_as_it_is_and_its_limits_are_said_once(
    lab: Lab,
) -> None:
    """Also beyond the 21 deliveries that RabbitMQ 4 gives to a queue without a limit."""
    queue = lab.name()
    events = Events()
    await make(lab, queue, x_queue_type="quorum")
    await make(lab, f"{queue}-dead", x_queue_type="quorum")
    seen: list[int] = []
    retry = RetryPolicy(max_attempts=25, base=0.02, factor=1.0, jitter="none")
    spec = QueueSpec(name=queue, declare="never")
    async with App(lab.url, telemetry=events, queues=[spec]) as app:

        @app.worker(queue, retry=retry)
        async def work(job: Job) -> None:
            seen.append(job.attempt)
            raise ValueError(job.id)

        with Lines() as lines:
            async with running(app):
                await work.enqueue()
                await until(lambda: len(seen) == 25)
                await eventually(lambda: counts(lab.url, queue), (0, 0, 1))

    assert seen == list(range(1, 26))
    assert sum("adopted" in text for text in lines.texts) == 1
    [adopted] = events.of(QueueAdopted)
    assert adopted.queue == queue
    said = " ".join(adopted.caveats)
    for word in ("lower bound", "21 deliveries", "unacked"):
        assert word in said


async def test_dead_letters_take_their_owners_way_where_one_is_stated(lab: Lab) -> None:
    queue, way, end = lab.name(), lab.name(), lab.name()
    async with lab.channel() as channel:
        await channel.exchange_declare(way, exchange_type="fanout")
        await channel.queue_declare(end, durable=True)
        await channel.queue_bind(end, way)
    await make(lab, queue, x_dead_letter_exchange=way)
    spec = QueueSpec(name=queue, declare="never", dead_letter=end, dead_letter_via=way)
    async with App(lab.url, queues=[spec]) as app:

        @app.worker(queue)
        async def work() -> None:
            raise DeadLetter("useless")

        async with running(app, log=False):
            sent = await work.enqueue()
            letter = await lab.get(end)

    assert letter.header.properties.message_id == sent
    headers: Any = letter.header.properties.headers
    assert headers["x-death"][0]["reason"] == "rejected"
    assert not [name for name in headers if name.startswith("bwq-dead")]
    async with opened(lab.url) as driver:
        assert "dropped" not in " ".join(each.text for each in await driver.examine(spec))
        caveats = await driver.caveats(spec)
    assert any(way in text for text in caveats)


async def test_a_way_that_is_not_there_is_found_at_the_start(lab: Lab) -> None:
    queue, way = lab.name(), lab.name()
    await make(lab, queue)
    spec = QueueSpec(name=queue, declare="never", dead_letter_via=way)
    async with App(lab.url, queues=[spec]) as app:

        @app.worker(queue)
        async def work() -> None: ...

        async with running(app, log=False) as run:
            with pytest.raises(DriverError, match=way):
                await run.stop()


async def test_a_way_is_for_queues_and_brokers_that_have_one(lab: Lab) -> None:
    with pytest.raises(ConfigError, match="never"):
        App(lab.url, queues=[QueueSpec(name="q", dead_letter_via="x")])
    async with connect("memory://") as broker:
        with pytest.raises(UnsupportedError, match="dead_letter_via"):
            await broker.declare(QueueSpec(name="q", declare="never", dead_letter_via="x"))


async def test_permissions_of_the_table_are_enough(lab: Lab) -> None:
    """Three users: one that declares, one that enqueues, one that runs."""
    queue = lab.name()
    mine = f"^{queue}([.-].*)?$"
    users = {
        "declares": (mine, "^amq\\.default$", mine),
        "enqueues": ("^$", "^amq\\.default$", "^$"),
        "runs": ("^$", "^amq\\.default$", mine),
        "only-acks": ("^$", "^$", f"^{queue}$"),
    }
    await lab.add_users(queue, users)

    def url(user: str) -> str:
        return lab.url.replace("guest:guest", f"{queue}-{user}:pw")

    async with opened(url("declares")) as driver:
        assert list(await driver.declare(QueueSpec(name=queue))) == []
        assert list(await driver.declare(QueueSpec(name=queue), check_only=True)) == []
    async with opened(url("enqueues")) as driver:
        assert list(await driver.send(queue, some(2), [0.0, 1.0])) == [None, None]
    spec = QueueSpec(name=queue, declare="never")
    seen: list[int] = []
    async with App(url("runs"), queues=[spec]) as app:

        @app.worker(queue, name="test", codec="bytes")
        async def work(job: Job, body: bytes) -> None:
            seen.append(job.attempt)
            if job.attempt == 1:
                raise ValueError(body)
            raise DeadLetter("useless")

        async with running(app, log=False):
            await eventually(lambda: counts(lab.url, queue), (0, 0, 2))
    assert sorted(seen) == [1, 1, 2, 2]
    async with opened(lab.url) as driver:
        await driver.send(queue, some(1), [0.0])
    async with opened(url("only-acks")) as driver:
        await driver.declare(spec)
        consumer = await driver.consume(queue, lease=60, prefetch=1)
        assert await consumer.ack(await claim(consumer)) == [None]
