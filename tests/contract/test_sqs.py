"""SQS keeps the contract, on two servers that are not AWS; what each gets wrong is listed here."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack
from dataclasses import replace
from typing import ClassVar

import pytest

from brokerwq.driver import Driver
from brokerwq.testing import Harness, Verdict, select
from brokerwq.testing.pytest_suite import ConformanceSuite
from brokerwq.testing.servers.kinds import Service
from brokerwq.testing.servers.localstack import SqsServer
from brokerwq.testing.servers.moto import moto
from brokerwq.testing.side_by_side import side_by_side
from brokerwq.testing.sqs_proxy import SqsProxy, sqs_proxy
from tests.required import needs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

AT_ONCE = 12

# LocalStack ends leases and delays once a second, and its counts lag as much.
LEASE = 3.0
DELAY = 2.0
MAX_WAIT = 6
"""Longer than a lease, so that a claim can wait for the end of one."""

LOCALSTACK_BLOCKS_GROUPS = (
    "LocalStack gives no FIFO message back whose lease ended while one that was received "
    "earlier is leased, of whatever group"
)


def sdk_environment(stack: ExitStack) -> None:
    """Credentials of nobody, so that the SDK does not look for any on this machine."""
    needs("aiobotocore", "sqs")
    patch = stack.enter_context(pytest.MonkeyPatch.context())
    for name, value in SqsServer(endpoint="").environment.items():
        patch.setenv(name, value)


@pytest.fixture(scope="module")
def localstack_proxy(bwq_sqs_server: Service) -> Generator[SqsProxy]:
    with ExitStack() as stack:
        sdk_environment(stack)
        yield stack.enter_context(sqs_proxy(bwq_sqs_server.address))


@pytest.fixture(scope="module")
def moto_proxy() -> Generator[SqsProxy]:
    with ExitStack() as stack:
        sdk_environment(stack)
        needs("moto.server", "sqs")
        server = stack.enter_context(moto())
        yield stack.enter_context(sqs_proxy(server.endpoint))


def harness_of(proxy: SqsProxy, **options: object) -> Harness:
    url = SqsServer(endpoint=proxy.endpoint).url("conform", max_wait=MAX_WAIT, timeout=5, **options)

    async def cut(_: Driver) -> None:
        proxy.cut()

    return replace(
        Harness.from_url(url),
        shortest_lease=LEASE,
        shortest_delay=DELAY,
        cut_connection=cut,
        outage=proxy.outage,
    )


class TestStandardQueuesOnLocalStack(ConformanceSuite):
    at_once: ClassVar = AT_ONCE

    @pytest.fixture
    def harness(self, localstack_proxy: SqsProxy) -> Harness:
        return harness_of(localstack_proxy)


class TestFifoQueuesOnLocalStack(ConformanceSuite):
    at_once: ClassVar = AT_ONCE

    known_failures: ClassVar = {
        "lost_leases.an_ack_answers_for_each": LOCALSTACK_BLOCKS_GROUPS,
        "lost_leases.an_extend_answers_for_each": LOCALSTACK_BLOCKS_GROUPS,
        "lost_leases.a_release_answers_for_each": LOCALSTACK_BLOCKS_GROUPS,
        "lost_leases.a_put_back_answers_for_each": LOCALSTACK_BLOCKS_GROUPS,
        "lost_leases.a_dead_letter_answers_for_each": LOCALSTACK_BLOCKS_GROUPS,
    }

    @pytest.fixture
    def harness(self, localstack_proxy: SqsProxy) -> Harness:
        return harness_of(localstack_proxy, fifo="true")


class TestStandardQueuesOnMoto(ConformanceSuite):
    at_once: ClassVar = AT_ONCE

    @pytest.fixture
    def harness(self, moto_proxy: SqsProxy) -> Harness:
        # By a client as strict as AWS, which lets nothing through that moto would take by mistake.
        return harness_of(moto_proxy, clients="brokerwq.testing.sqs_strict:clients")


def test_what_localstack_cannot_show_of_fifo_queues_moto_does(moto_proxy: SqsProxy) -> None:
    # The last one because AWS refuses a late delete there, as the strict client does.
    checks = select((*TestFifoQueuesOnLocalStack.known_failures, "a_late_ack_is_owned_up_to"))
    strict = "brokerwq.testing.sqs_strict:clients"
    harness = harness_of(moto_proxy, fifo="true", clients=strict)

    with side_by_side(harness, checks, at_once=AT_ONCE) as running:
        results = [running.result(check) for check in checks]

    assert len(results) == 6
    assert {result.check.name: result.reason for result in results if result.error} == {}
    assert {result.verdict for result in results} == {Verdict.PASSED}
