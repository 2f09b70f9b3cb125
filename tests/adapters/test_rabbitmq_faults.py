"""What goes wrong between us and RabbitMQ, and how it is said and mended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator
from pathlib import Path

import pytest

from brokerwq.clock import SYSTEM_CLOCK
from brokerwq.driver import Driver
from brokerwq.errors import (
    AuthenticationError,
    BrokerwqError,
    CannotExtendError,
    ConnectionLostError,
    LeaseLostError,
    MessageTooLargeError,
    PermissionDeniedError,
    ProtocolError,
    QueueNotFoundError,
    StorageFullError,
    TransientError,
)
from brokerwq.message import Message
from brokerwq.testing.servers.node import RabbitNode
from brokerwq.testing.servers.probe import free_port
from brokerwq.testing.servers.proxy import TcpProxy
from tests.adapters.rabbit import (
    RELEASES,
    Lab,
    claim,
    opened,
    place_of,
    server_or_skip,
    some,
    until_it_works,
    url_through,
)

pytestmark = pytest.mark.slow

IMPATIENT = {"rpc_timeout": 1.0, "connect_timeout": 0.5}


@pytest.fixture(params=RELEASES)
def lab(request: pytest.FixtureRequest) -> Lab:
    return Lab(server_or_skip(request.param))


@pytest.fixture
def proxy(lab: Lab) -> Generator[TcpProxy]:
    with TcpProxy(*place_of(lab.server)) as proxy:
        yield proxy


@pytest.fixture(autouse=True)
def silence(caplog: pytest.LogCaptureFixture) -> Generator[None]:
    """Nothing of ours, nor of the client's on our behalf, is logged above DEBUG."""
    with caplog.at_level(logging.INFO):
        yield
    loud = [
        f"{record.name}: {record.getMessage()}"
        for record in caplog.get_records("call")
        if record.name.startswith(("brokerwq", "aiormq", "aio_pika", "asyncio"))
    ]
    assert not loud


async def refusal(url: str, **options: object) -> BrokerwqError:
    started = SYSTEM_CLOCK.now()
    with pytest.raises(BrokerwqError) as caught:
        async with opened(url, **options):
            pytest.fail("it opened")
    assert SYSTEM_CLOCK.now() - started < 5
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)
    return caught.value


async def test_a_wrong_password_is_said_at_once(lab: Lab) -> None:
    error = await refusal(lab.url.replace("guest:guest", "guest:secret"))

    assert isinstance(error, AuthenticationError)


async def test_a_missing_virtual_host_is_named(lab: Lab) -> None:
    error = await refusal(lab.url + "nowhere")

    assert isinstance(error, PermissionDeniedError)
    assert "nowhere" in str(error)


async def test_a_refused_port_may_get_better() -> None:
    error = await refusal(f"amqp://guest:secret@127.0.0.1:{free_port()}/")

    assert isinstance(error, ConnectionLostError)


async def test_an_unknown_host_may_get_better() -> None:
    error = await refusal("amqp://guest:secret@no-such-host.invalid/")

    assert isinstance(error, ConnectionLostError)


async def test_a_port_that_hangs_up_may_get_better(lab: Lab, proxy: TcpProxy) -> None:
    proxy.hang_up()

    error = await refusal(url_through(proxy, lab.server))

    assert isinstance(error, ConnectionLostError)


async def test_a_port_that_is_silent_may_get_better(lab: Lab, proxy: TcpProxy) -> None:
    proxy.swallow()

    error = await refusal(url_through(proxy, lab.server), connect_timeout=0.5)

    assert isinstance(error, ConnectionLostError)


async def test_another_service_is_not_taken_for_rabbitmq() -> None:
    async def http(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(http, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        error = await refusal(f"amqp://guest:secret@127.0.0.1:{port}/")

    assert isinstance(error, ProtocolError)


async def test_tls_to_a_plain_port_says_so(lab: Lab) -> None:
    error = await refusal(lab.url.replace("amqp:", "amqps:"))

    assert isinstance(error, ProtocolError)
    assert "amqp://" in str(error)


async def test_the_next_host_is_tried_when_one_does_not_answer(lab: Lab) -> None:
    host, port = place_of(lab.server)
    url = f"amqp://guest:guest@127.0.0.1:{free_port()},{host}:{port}/"
    spec = lab.spec()

    async with opened(url) as driver:
        await driver.declare(spec)
        assert list(await driver.send(spec.name, some(1), [0.0])) == [None]


async def test_tls_with_the_right_authority_works(tls_node: tuple[RabbitNode, int, Path]) -> None:
    _, port, authority = tls_node

    async with opened(f"amqps://guest:guest@localhost:{port}/", cafile=authority) as driver:
        with pytest.raises(QueueNotFoundError):
            await driver.inspect("nothing")


async def test_a_certificate_can_be_the_whole_identity(
    tls_node: tuple[RabbitNode, int, Path],
) -> None:
    node, port, authority = tls_node
    url = f"amqps://localhost:{port}/"
    options = {
        "cafile": authority,
        "certfile": authority.with_name("cert.pem"),
        "keyfile": authority.with_name("key.pem"),
        "auth": "external",
    }

    error = await refusal(url, **options)
    assert isinstance(error, AuthenticationError)
    await Lab(node).add_users("local", {"host": (".*", ".*", ".*")})  # the name in it
    async with opened(url, **options):
        pass


async def test_a_certificate_for_another_name_is_refused(
    tls_node: tuple[RabbitNode, int, Path],
) -> None:
    _, port, authority = tls_node

    error = await refusal(f"amqps://guest:secret@127.0.0.1:{port}/", cafile=authority)

    assert isinstance(error, AuthenticationError)
    assert "127.0.0.1" in str(error)


async def test_an_unknown_authority_is_refused_unless_told_otherwise(
    tls_node: tuple[RabbitNode, int, Path],
) -> None:
    _, port, _ = tls_node

    error = await refusal(f"amqps://guest:secret@localhost:{port}/")
    assert isinstance(error, AuthenticationError)
    async with opened(f"amqps://guest:guest@localhost:{port}/", verify="no"):
        pass


async def test_plain_to_a_tls_port_says_so(tls_node: tuple[RabbitNode, int, Path]) -> None:
    _, port, _ = tls_node

    error = await refusal(f"amqp://guest:secret@127.0.0.1:{port}/")

    assert isinstance(error, ProtocolError)
    assert "amqps://" in str(error)


async def test_a_body_beyond_our_limit_is_never_sent(lab: Lab) -> None:
    spec = lab.spec()
    async with opened(lab.url, max_message_bytes=1000) as driver:
        await driver.declare(spec)
        messages = [*some(1), Message(id="big", body=bytes(1001)), *some(1)]

        results = await driver.send(spec.name, messages, [0.0] * 3)

        assert results[0] is results[2] is None
        assert isinstance(results[1], MessageTooLargeError)


async def test_a_body_beyond_the_servers_limit_fails_alone(lab: Lab) -> None:
    spec = lab.spec()
    limit = 16 * 1024 * 1024 if lab.server.version.startswith("4") else 128 * 1024 * 1024
    big = Message(id="big", body=bytes(limit + 1))
    async with opened(lab.url, max_message_bytes=limit * 2) as driver:
        await driver.declare(spec)

        first = await driver.send(spec.name, [big], [0.0])
        again = await driver.send(spec.name, [big, *some(1)], [0.0, 0.0])

    assert isinstance(first[0], MessageTooLargeError)
    assert isinstance(again[0], MessageTooLargeError)  # learned: no channel is lost for it
    assert again[1] is None


async def test_headers_beyond_a_frame_are_refused_before_they_are_sent(lab: Lab) -> None:
    spec = lab.spec()
    async with opened(lab.url) as driver:
        await driver.declare(spec)
        big = Message(id="big", body=b"", headers={"h": "x" * 200_000})

        results = await driver.send(spec.name, [big, *some(1)], [0.0, 0.0])

    assert isinstance(results[0], MessageTooLargeError)
    assert results[1] is None


async def test_a_full_queue_is_an_error_for_each_that_found_no_room(lab: Lab) -> None:
    spec = lab.spec()
    async with opened(lab.url) as driver:
        await driver.declare(spec)
        await lab.ctl(
            *("set_policy", "--apply-to", "queues", spec.name, f"^{spec.name}$"),
            '{"max-length":2,"overflow":"reject-publish"}',
        )
        results = [(await driver.send(spec.name, some(1), [0.0]))[0] for _ in range(6)]

        stored = (await driver.inspect(spec.name)).ready.value
        await lab.ctl("clear_policy", spec.name)

    assert results.count(None) == stored
    assert any(isinstance(error, StorageFullError) for error in results)


async def test_one_id_twice_in_a_batch_to_nowhere_is_twice_refused(lab: Lab) -> None:
    async with opened(lab.url) as driver:
        twin = Message(id="twin", body=b"")

        with pytest.raises(QueueNotFoundError):
            await driver.send(lab.name(), [twin, twin], [0.0, 0.0])


async def test_each_of_several_messages_with_one_id_is_stored(lab: Lab) -> None:
    spec = lab.spec()
    async with opened(lab.url) as driver:
        await driver.declare(spec)
        twins = [Message(id="twin", body=b""), *some(1), Message(id="twin", body=b"")]

        answers = await asyncio.gather(
            *(driver.send(spec.name, twins, [0.0] * 3) for _ in range(3))
        )

        assert answers == [[None] * 3] * 3
        assert (await driver.inspect(spec.name)).ready.value == 9


async def test_a_memory_alarm_stops_sending_and_not_consuming(lab: Lab) -> None:
    spec = lab.spec()
    async with opened(lab.url, publish_timeout=0.5) as driver:
        await driver.declare(spec)
        await driver.send(spec.name, some(3), [0.0] * 3)
        consumer = await driver.consume(spec.name, lease=60, prefetch=1)
        await lab.ctl("set_vm_memory_high_watermark", "absolute", "1MB")
        try:
            await refused(driver, spec.name)
            for _ in range(3):  # each within its time, and none sent in vain
                with pytest.raises(StorageFullError):
                    await sent(driver, spec.name)
            for _ in range(3):
                assert await consumer.ack(await claim(consumer)) == [None]
        finally:
            await lab.ctl("set_vm_memory_high_watermark", "0.6")
        await until_it_works(lambda: sent(driver, spec.name), 10)


async def refused(driver: Driver, queue: str) -> None:
    """Send until the alarm has reached the connection."""
    give_up_at = SYSTEM_CLOCK.now() + 10
    while SYSTEM_CLOCK.now() < give_up_at:
        try:
            await sent(driver, queue)
        except TransientError:
            return
        await asyncio.sleep(0.05)
    pytest.fail("the alarm was never heard of")


async def sent(driver: Driver, queue: str) -> None:
    for error in await driver.send(queue, some(1), [0.0]):
        if error is not None:
            raise error


async def test_a_deleted_queue_is_missed_and_taken_up_again(lab: Lab) -> None:
    spec = lab.spec()
    async with opened(lab.url) as driver:
        await driver.declare(spec)
        consumer = await driver.consume(spec.name, lease=60, prefetch=1)
        waiting = asyncio.ensure_future(consumer.claim(1, 30.0))
        await asyncio.sleep(0.2)

        await lab.delete(spec.name)

        with pytest.raises(TransientError):
            await asyncio.wait_for(waiting, 5)
        with pytest.raises(QueueNotFoundError):
            await consumer.claim(1, 5.0)
        # A quorum queue that is made again may keep a busy node waiting for longer than a call may.
        await until_it_works(lambda: driver.declare(spec), 30)
        await driver.send(spec.name, some(1), [0.0])
        assert await consumer.ack(await claim(consumer)) == [None]


async def test_a_cut_connection_costs_its_leases_and_nothing_else(
    lab: Lab, proxy: TcpProxy
) -> None:
    spec = lab.spec()
    async with opened(url_through(proxy, lab.server)) as driver:
        await driver.declare(spec)
        await driver.send(spec.name, some(2), [0.0, 0.0])
        consumer = await driver.consume(spec.name, lease=60, prefetch=2)
        held = await claim(consumer, 2)

        proxy.cut()

        await until_it_works(lambda: sent(driver, spec.name))
        results = await consumer.ack(held)
        assert [type(error) for error in results] == [LeaseLostError, LeaseLostError]
        again = await until_it_works(lambda: claim(consumer, 3))
        assert {d.message.id for d in held} < {d.message.id for d in again}
        assert sorted(d.receives for d in again) == [1, 2, 2]
        assert await consumer.ack(again) == [None, None, None]


async def test_a_link_that_only_swallows_is_given_up(lab: Lab, proxy: TcpProxy) -> None:
    spec = lab.spec()
    async with opened(url_through(proxy, lab.server), **IMPATIENT) as driver:
        await driver.declare(spec)
        consumer = await driver.consume(spec.name, lease=60, prefetch=1)
        await driver.send(spec.name, some(1), [0.0])
        held = await claim(consumer)

        proxy.swallow()

        results = await consumer.extend(held, 30.0)  # never a false yes
        assert isinstance(results[0], LeaseLostError)
        with pytest.raises(TransientError):
            await consumer.claim(1, 3.0)
        proxy.flow()
        [again] = await until_it_works(lambda: claim(consumer), 10)
        assert again.message.id == held[0].message.id


async def test_an_idle_claim_notices_a_link_that_only_swallows(lab: Lab, proxy: TcpProxy) -> None:
    spec = lab.spec()
    async with opened(url_through(proxy, lab.server), **IMPATIENT) as driver:
        await driver.declare(spec)
        consumer = await driver.consume(spec.name, lease=60, prefetch=1)
        assert list(await consumer.claim(1, 0.1)) == []

        proxy.swallow()

        with pytest.raises(TransientError):
            await consumer.claim(1, 3.0)
        proxy.cut()
        proxy.flow()
        assert list(await until_it_works(lambda: consumer.claim(1, 0.1))) == []


async def test_a_publish_that_nobody_answers_ends_in_time(lab: Lab, proxy: TcpProxy) -> None:
    spec = lab.spec()
    async with opened(url_through(proxy, lab.server), publish_timeout=1.0) as driver:
        await driver.declare(spec)
        await driver.send(spec.name, some(1), [0.0])
        proxy.swallow()

        started = SYSTEM_CLOCK.now()
        [error] = await driver.send(spec.name, some(1), [0.0])

        assert SYSTEM_CLOCK.now() - started < 3
        assert isinstance(error, TransientError)
        proxy.flow()
        await until_it_works(lambda: sent(driver, spec.name), 10)


async def test_a_consumer_timeout_costs_only_what_it_struck() -> None:
    lab = Lab(server_or_skip("4.3"))
    spec = lab.spec()
    async with opened(lab.url, consumer_timeout=2) as driver:
        await driver.declare(spec)
        await driver.send(spec.name, some(2), [0.0, 0.6])
        consumer = await driver.consume(spec.name, lease=1, prefetch=2)
        [struck] = await claim(consumer)
        [spared] = await claim(consumer)
        assert isinstance((await consumer.extend([struck], 1.5))[0], CannotExtendError)

        [again] = await until_it_works(lambda: claim(consumer))

        assert again.message.id == struck.message.id
        assert isinstance((await consumer.ack([struck]))[0], LeaseLostError)
        assert list(await consumer.ack([spared, again])) == [None, None]
