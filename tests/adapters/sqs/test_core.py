"""The whole library on SQS: attempts, delays, strangers, outages, and what stays quiet."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import secrets
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from brokerwq_sqs.client import SdkClients
from brokerwq_sqs.consumer import SqsConsumer
from brokerwq_sqs.driver import SqsDriver
from brokerwq_sqs.settings import SqsSettings

from brokerwq import App, DeadLetter, Job, Message, QueueSpec, RetryPolicy, Runner
from brokerwq.clock import SYSTEM_CLOCK
from brokerwq.dead_letters import DeadLetters
from brokerwq.driver import UncountedReturn
from brokerwq.errors import ConfigError, UnsupportedError
from brokerwq.events import LeaseLost, LeasesExtended
from brokerwq.message import new_message_id
from brokerwq.testing.servers.localstack import SqsServer
from brokerwq.testing.servers.moto import moto
from tests.adapters.sqs import campaign
from tests.adapters.sqs.places import SqsPlace, place_on
from tests.cases.lab import Place, counts, dead_letters, declare, reasons, send_raw
from tests.cases.test_bad_bodies import NOT_THIS_MODEL

pytestmark = [pytest.mark.slow, pytest.mark.beside, pytest.mark.timeout(300)]

SAMPLES = Path(__file__).with_name("samples")
QUICK = RetryPolicy(max_attempts=3, base=0.01, jitter="none")


async def test_a_failing_message_has_three_attempts_and_is_dead_within_two_seconds(
    server: SqsServer,
) -> None:
    async with place_on(server) as place:
        app = place.app()
        attempts: list[int] = []
        failed_at: list[float] = []

        @app.worker("q", retry=QUICK)
        async def work(job: Job, *, n: int) -> None:
            attempts.append(job.attempt)
            failed_at.append(SYSTEM_CLOCK.now())
            raise ValueError(n)

        message_id = await work.enqueue(n=1)
        async with place.running(app):
            await place.until(lambda: len(attempts) == 3)
            while (await counts(app, "q"))[3] == 0:
                assert SYSTEM_CLOCK.now() - failed_at[-1] < 2

        assert attempts == [1, 2, 3]
        (letter,) = await dead_letters(app, "q")
        assert letter.id == message_id
        assert letter.dead is not None
        assert (letter.dead.reason, letter.dead.attempts) == ("failed", 3)


async def test_the_gaps_between_attempts_are_kept_and_others_are_not_held_up(
    server: SqsServer,
) -> None:
    async with place_on(server) as place:
        app = place.app()
        bad: list[float] = []
        good: list[float] = []

        @app.worker("q", retry=RetryPolicy(max_attempts=4, base=1, jitter="none"))
        async def work(*, n: int) -> None:
            (bad if n == 0 else good).append(SYSTEM_CLOCK.now())
            if n == 0:
                raise ValueError(n)

        await work.enqueue_many([work.call(n=n) for n in range(101)])
        started = SYSTEM_CLOCK.now()
        async with place.running(app):
            await place.until(lambda: len(bad) == 4)

        gaps = [later - earlier for earlier, later in itertools.pairwise(bad)]
        assert all(gap >= least for gap, least in zip(gaps, (1, 2, 4), strict=True))
        assert len(good) == 100
        assert max(good) - started < 5


async def test_claimed_messages_that_wait_keep_their_leases(server: SqsServer) -> None:
    async with place_on(server) as place:
        seen: Counter[int] = Counter()

        def app_with_worker() -> tuple[App, Any]:
            app = place.app()

            @app.worker("q", lease=4)
            async def work(*, n: int) -> None:
                seen[n] += 1
                await asyncio.sleep(1.5)

            return app, work

        first, work = app_with_worker()
        second, _ = app_with_worker()
        await work.enqueue_many([work.call(n=n) for n in range(10)])
        async with place.running(first, slots=1), place.running(second, slots=1):
            await place.until(lambda: len(seen) == 10)

        assert set(seen.values()) == {1}


async def test_a_job_longer_than_its_lease_runs_once(server: SqsServer) -> None:
    async with place_on(server) as place:
        app = place.app()
        calls = 0

        @app.worker("q", lease=3)
        async def work(*, seconds: float) -> None:
            nonlocal calls
            calls += 1
            await asyncio.sleep(seconds)

        await work.enqueue(seconds=8)
        async with place.running(app, slots=4):
            await place.until(lambda: calls)
            await asyncio.sleep(8.5)
            assert (await counts(app, "q"))[:2] == (0, 0)

        assert calls == 1
        assert len(place.events.of(LeasesExtended)) >= 2
        assert place.events.of(LeaseLost) == []


BODIES = {name: body for name, body in NOT_THIS_MODEL.items() if len(body) < 1_000_000}


async def test_what_cannot_be_read_is_dead_untouched_and_holds_nobody_up(server: SqsServer) -> None:
    async with place_on(server) as place:
        app = place.app()
        seen: list[int] = []

        @app.worker("q", retry=QUICK)
        async def work(*, n: int) -> None:
            seen.append(n)

        await declare(app, "q")
        poison = [Message(id=new_message_id(), body=body, type="work") for body in BODIES.values()]
        await send_raw(app, "q", *poison)
        await work.enqueue(n=1)
        async with place.running(app):
            await place.until(lambda: seen)
            for _ in range(300):
                if (await counts(app, "q"))[3] == len(poison):
                    break
                await asyncio.sleep(0.1)

        letters = await dead_letters(app, "q")
        assert {letter.id: letter.body for letter in letters} == {
            message.id: message.body for message in poison
        }
        assert {letter.dead.attempts for letter in letters if letter.dead} == {1}
        assert {letter.dead.reason for letter in letters if letter.dead} == {"decode"}


@pytest.mark.parametrize("count", [9, 10, 11, 40])
async def test_headers_survive_failure_dead_letter_and_redrive(
    server: SqsServer, count: int
) -> None:
    async with place_on(server) as place:
        app = place.app()
        headers = {f"x-{n}": str(n) for n in range(count - 4)} | {
            "a:b/c d": "odd name",
            "AWS.name": "",
            "x" * 200: "\x1b",
            "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        }
        seen: list[dict[str, str]] = []

        @app.worker("q", retry=RetryPolicy(max_attempts=2, base=0.01))
        async def work(job: Job, *, n: int) -> None:
            seen.append({name: job.headers[name] for name in headers})
            raise ValueError(n)

        await work.options(headers=headers).enqueue(n=1)
        async with place.running(app):
            await place.until(lambda: len(seen) == 2)
            while (await counts(app, "q"))[3] == 0:
                await asyncio.sleep(0.05)
            report = await DeadLetters(await app.broker().driver(), "q").redrive()
            assert (report.failed, report.is_complete) == (0, True)
            await place.until(lambda: len(seen) == 4)

        assert seen == [headers] * 4


async def test_dead_letters_need_a_queue_that_is_another_one(server: SqsServer) -> None:
    async with place_on(server) as place:
        with pytest.raises(ConfigError, match="own dead-letter queue"):
            place.app(queues=[QueueSpec(name="q", dead_letter="q")])


async def test_a_dead_letter_queue_deleted_meanwhile_loses_nothing(server: SqsServer) -> None:
    async with place_on(server) as place:
        app = place.app()
        calls = 0

        @app.worker("q", lease=5)
        async def work(*, n: int) -> None:
            nonlocal calls
            calls += 1
            raise DeadLetter(f"no use in {n}")

        await declare(app, "q")
        settings = SqsSettings(region="us-east-1", endpoint_url=place.proxy.endpoint)
        async with SdkClients(settings)(settings, "control") as client:
            found = await client.list_queues(QueueNamePrefix=place.prefix)
            (url,) = [url for url in found["QueueUrls"] if url.endswith("-q-dead")]
            async with place.running(app):
                await client.delete_queue(QueueUrl=url)
                await work.enqueue(n=1)
                await place.until(lambda: calls)
                await asyncio.sleep(1)

        ready, leased, delayed, _ = await counts(app, "q")
        assert ready + leased + delayed == 1


@pytest.mark.parametrize("delay", [-1.0, 0.0])
async def test_a_delay_that_is_over_means_now(server: SqsServer, delay: float) -> None:
    async with place_on(server) as place:
        app = place.app()
        seen: list[int] = []

        @app.worker("q")
        async def work(job: Job, *, n: int) -> None:
            seen.append(n * job.attempt)

        await work.options(delay=delay).enqueue(n=1)
        async with place.running(app):
            await place.until(lambda: seen)

        assert seen == [1]


async def test_delays_are_never_early_and_not_counted(server: SqsServer) -> None:
    async with place_on(server) as place:
        app = place.app()
        seen: dict[float, tuple[float, int]] = {}
        started = SYSTEM_CLOCK.now()

        @app.worker("q")
        async def work(job: Job, *, delay: float) -> None:
            seen[delay] = (SYSTEM_CLOCK.now() - started, job.attempt)

        delays = [0.4, 1.0, 2.5]
        for delay in delays:
            await work.options(delay=delay).enqueue(delay=delay)
        async with place.running(app):
            await place.until(lambda: len(seen) == len(delays))

        for delay, (waited, attempt) in seen.items():
            assert waited >= delay
            assert attempt == 1


@pytest.mark.parametrize("delay", [899.9, 900.0, 901.0, 86_400.0])
async def test_a_long_delay_is_one_call_and_stored(server: SqsServer, delay: float) -> None:
    async with place_on(server) as place:
        app = place.app()

        @app.worker("q")
        async def work(*, n: int) -> None: ...

        await work.options(delay=delay).enqueue(n=1)

        assert await counts(app, "q") == (0, 0, 1, 0)


async def test_a_fifo_queue_refuses_a_delayed_enqueue(server: SqsServer) -> None:
    async with place_on(server, fifo="true") as place:
        app = place.app()

        @app.worker("q")
        async def work(*, n: int) -> None: ...

        with pytest.raises(UnsupportedError, match="cannot delay"):
            await work.options(delay=5).enqueue(n=1)


async def test_a_single_fifo_queue_is_planned_with_as_what_it_is(server: SqsServer) -> None:  # noqa: ARG001 -- see the next line
    # LocalStack gives no FIFO message back while one of another group runs.
    async with contextlib.AsyncExitStack() as stack:
        place = await stack.enter_async_context(place_on(stack.enter_context(moto())))
        app = place.app()
        attempts: list[int] = []
        sleeps = 0

        @app.worker("q.fifo", retry=RetryPolicy(max_attempts=2, base=0.01, jitter="none"))
        async def work(job: Job, *, fails: bool) -> None:
            nonlocal sleeps
            if fails:
                attempts.append(job.attempt)
                raise ValueError
            sleeps += 1
            await asyncio.sleep(4)

        await work.options(group="a").enqueue(fails=False)
        async with place.running(app, slots=4):
            await place.until(lambda: sleeps)
            await work.options(group="b").enqueue(fails=True)
            # On a standard queue a suspect would be put back, uncounted, while another job runs.
            await place.until(lambda: len(attempts) == 2)

        assert attempts == [1, 2]
        driver = await app.broker().driver()
        consumer = await driver.consume("q.fifo", lease=60, prefetch=1)
        assert driver.capabilities.uncounted_return is UncountedReturn.COPY
        assert isinstance(consumer, SqsConsumer)
        assert consumer.capabilities.uncounted_return is UncountedReturn.COUNTED
        assert consumer.capabilities.ordered_groups
        assert consumer.capabilities.max_send_delay == 0


async def test_suspects_on_a_fifo_queue_cost_one_another_no_attempt(server: SqsServer) -> None:  # noqa: ARG001 -- as above
    async with contextlib.AsyncExitStack() as stack:
        place = await stack.enter_async_context(place_on(stack.enter_context(moto())))
        app = place.app()
        running, most, ran = 0, 0, Counter[int]()

        @app.worker("q.fifo", retry=RetryPolicy(max_attempts=2, base=0.01, jitter="none"))
        async def work(job: Job, *, n: int) -> None:
            nonlocal running, most
            ran[job.attempt] += 1
            if job.attempt == 1:
                raise ValueError(n)
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.2)
            running -= 1

        for n in range(4):
            await work.options(group=str(n)).enqueue(n=n)
        async with place.running(app, slots=4) as run:
            await place.until(lambda: ran[2] == 4)
            report = await run.stop()

        assert (ran, most) == (Counter({1: 4, 2: 4}), 1)
        assert (report.done, sum(report.dead.values()), report.put_back) == (4, 0, 0)


@pytest.mark.parametrize("sample", sorted(path.name for path in SAMPLES.glob("*.json")))
async def test_what_other_programs_send_reaches_a_worker_as_the_sample_says(
    server: SqsServer, sample: str
) -> None:
    async with place_on(server) as place:
        wanted = json.loads((SAMPLES / sample).read_text())
        message = wanted["sqs"]["message"]
        unwraps = "sns" in sample and "raw" not in sample
        app = Place(place.url + ("&unwrap_sns=true" if unwraps else "")).app()
        seen: list[tuple[Any, dict[str, str]]] = []

        @app.worker("q", codec="json", foreign=True)
        async def work(job: Job, payload: dict[str, Any]) -> None:
            seen.append((payload, dict(job.headers)))

        await declare(app, "q")
        await send_native(place, server, message)
        place.apps.append(app)
        async with place.running(app):
            for _ in range(200):
                if seen or (await counts(app, "q"))[3]:
                    break
                await asyncio.sleep(0.05)

        if wanted["expect"].get("offloaded"):
            assert seen == []
            assert await reasons(app, "q") == ["payload-offloaded"]
        else:
            ((payload, headers),) = seen
            expect = wanted["expect"]
            if "payload" in expect:
                assert payload == expect["payload"]
                assert headers["event_type"] == expect["headers"]["event_type"]
                assert json.loads(headers["tenant"]) == expect["headers"]["tenant"]
                assert expect["trace_id"] in headers["traceparent"]
            else:
                records = len(payload.get("Records", ()))
                assert records == expect.get("records", records)


async def send_native(place: SqsPlace, server: SqsServer, message: dict[str, Any]) -> None:
    settings = SqsSettings(region=server.region, endpoint_url=server.endpoint)
    attributes = {
        name: {
            **value,
            **{key: base64.b64decode(text) for key, text in value.items() if key == "BinaryValue"},
        }
        for name, value in message.get("MessageAttributes", {}).items()
    }
    prefix = place.prefix
    async with SdkClients(settings)(settings, "control") as client:
        url = (await client.get_queue_url(QueueName=f"{prefix}-q"))["QueueUrl"]
        await client.send_message(
            QueueUrl=url, MessageBody=message["Body"], MessageAttributes=attributes
        )


MOODS = ["refuse", "close", "hang", "503"]


@pytest.mark.parametrize("mood", MOODS)
async def test_an_outage_is_waited_out_quietly(server: SqsServer, mood: Any) -> None:
    async with place_on(server, timeout=3) as place:
        app = place.app()
        seen: list[int] = []

        @app.worker("q")
        async def work(*, n: int) -> None:
            seen.append(n)

        await work.enqueue(n=1)
        async with place.running(app) as running:
            await place.until(lambda: seen == [1])
            place.lines.said.clear()
            place.proxy.be(mood)
            started = SYSTEM_CLOCK.now()
            await place.until(lambda: running.runner.state == "degraded")
            await asyncio.sleep(3)
            assert 0 < len(place.lines.said) < 2 * (SYSTEM_CLOCK.now() - started)
            place.proxy.be("pass")
            await work.enqueue(n=2)
            await place.until(lambda: seen == [1, 2])
            await place.until(lambda: running.runner.state == "ready")


@pytest.mark.parametrize("mood", MOODS)
async def test_a_start_without_a_server_is_patient_and_quiet(server: SqsServer, mood: Any) -> None:
    async with place_on(server, timeout=3) as place:
        app = place.app()
        seen: list[int] = []

        @app.worker("q")
        async def work(*, n: int) -> None:
            seen.append(n)

        place.proxy.be(mood)
        runner = Runner(app, log=False)
        task = asyncio.create_task(runner.run(handle_signals=False))
        started = SYSTEM_CLOCK.now()
        await asyncio.sleep(4)
        await place.until(lambda: place.lines.said)
        assert runner.state == "starting"
        assert len(place.lines.said) < 2 * (SYSTEM_CLOCK.now() - started)

        place.proxy.be("pass")
        await work.enqueue(n=1)
        await place.until(lambda: seen)
        runner.stop()
        await task


async def test_half_of_all_calls_throttled_loses_no_message_and_no_lease(
    server: SqsServer,
) -> None:
    await campaign.throttling_is_sat_out(server, 10)


async def test_groups_keep_their_order_with_eight_slots_and_failures(server: SqsServer) -> None:
    await campaign.groups_keep_their_order(server, groups=20, messages=5)


async def test_ten_long_polls_do_not_delay_a_heartbeat(server: SqsServer) -> None:
    settings = SqsSettings(
        region=server.region, prefix=f"c{secrets.token_hex(4)}", endpoint_url=server.endpoint
    )
    driver = SqsDriver(settings, SYSTEM_CLOCK)
    await driver.open()
    await driver.declare(QueueSpec(name="q"))
    await driver.send("q", [Message(id="1", body=b"x", type="t")], [0.0])
    holder = await driver.consume("q", lease=60, prefetch=1)
    held = await holder.claim(1, 1)
    pollers = [await driver.consume("q", lease=60, prefetch=1) for _ in range(10)]
    polls = [asyncio.ensure_future(poller.claim(1, 10)) for poller in pollers]
    await asyncio.sleep(0.5)
    slowest = 0.0
    for _ in range(10):
        started = SYSTEM_CLOCK.now()
        assert await holder.extend(held, 60) == [None]
        slowest = max(slowest, SYSTEM_CLOCK.now() - started)
    closing = asyncio.ensure_future(driver.aclose())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.gather(closing, *polls, return_exceptions=True)

    assert slowest < 1


async def test_a_heartbeat_is_in_time_beside_ten_polled_queues(server: SqsServer) -> None:
    async with place_on(server) as place:
        app = place.app()
        calls = 0

        @app.worker("q", lease=6)
        async def work(*, seconds: float) -> None:
            nonlocal calls
            calls += 1
            await asyncio.sleep(seconds)

        for nth in range(10):

            @app.worker(f"idle-{nth}", name="idle")
            async def idle(*, n: int) -> None: ...

        await work.enqueue(seconds=9)
        async with place.running(app, slots=20):
            await place.until(lambda: calls)
            await asyncio.sleep(9.5)

        assert calls == 1
        assert len(place.events.of(LeasesExtended)) >= 3
        assert place.events.of(LeaseLost) == []
