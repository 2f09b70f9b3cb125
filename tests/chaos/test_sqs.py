"""Runner processes on SQS at length: every mix of failing and dying, fifty stops, poison, a
minute of throttling. The suite has short forms of it in ``tests/adapters/sqs``.
"""

from __future__ import annotations

import asyncio
import itertools
import os

import pytest

from brokerwq.testing.servers.localstack import SqsServer
from tests.migrate.places import sqs_server
from tests.required import needs

needs("aiobotocore", "sqs")

from tests.adapters.sqs import campaign  # noqa: E402  -- after the skip

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROUNDS = int(os.environ.get("BROKERWQ_CHAOS_ROUNDS", "50"))
LANES = 5


server = pytest.fixture(scope="module")(sqs_server)


@pytest.mark.parametrize("base", [0.01, 1.2], ids=["at once", "with delay"])
async def test_three_runs_and_one_dead_letter_in_every_mix_of_failing_and_dying(
    server: SqsServer, base: float
) -> None:
    mixes = list(itertools.product(["fail", "kill"], repeat=3))
    for at in range(0, len(mixes), 4):
        await asyncio.gather(
            *(
                campaign.three_runs_and_one_dead_letter(server, ways, base=base)
                for ways in mixes[at : at + 4]
            )
        )


@pytest.mark.parametrize("max_attempts", [2, 3])
async def test_one_message_that_kills_its_process_dies_alone(
    server: SqsServer, max_attempts: int
) -> None:
    await campaign.the_culprit_dies_alone(server, max_attempts)


async def test_a_stop_at_any_moment_strands_nothing_and_kills_nothing(server: SqsServer) -> None:
    stops = await asyncio.gather(
        *(campaign.stops_strand_nothing(server, ROUNDS // LANES, seed) for seed in range(LANES))
    )

    print(f"longest of {ROUNDS} stops: {max(stops):.1f} s")


async def test_a_minute_of_throttling_loses_no_message_and_no_lease(server: SqsServer) -> None:
    await campaign.throttling_is_sat_out(server, 60)


async def test_twenty_groups_keep_their_order_with_eight_slots_and_failures(
    server: SqsServer,
) -> None:
    await campaign.groups_keep_their_order(server, groups=20, messages=20)
