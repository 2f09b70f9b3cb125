"""What other programs have sent to a real RabbitMQ, on its way to SQS: planned and run alike."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import aiormq
import pytest
from pamqp.commands import Basic

from tests.migrate.lab import QUEUE, Lab
from tests.migrate.places import rabbit, strict_moto

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]

Properties = Basic.Properties
FITTING: list[tuple[bytes, Properties]] = [
    (b"no id, no header", Properties()),
    (b"", Properties(content_type="text/plain")),
    (b"\xff\x00", Properties(message_id="bytes")),
    (b"one", Properties(message_id="the same")),
    (b"two", Properties(message_id="the same")),
    (b"twelve", Properties(headers={f"h{n}": "x" for n in range(12)})),
    (b"odd", Properties(headers={"a..b": "\x07", "AWS.x": "", "ü": "🙂"}, message_id="a b")),
    (b"key and group of ours", Properties(headers={"bwq-key": "k", "bwq-group": "g"})),
]
UNFIT: list[tuple[bytes, Properties]] = [
    (b"number", Properties(headers={"n": 1})),
    (b"table", Properties(headers={"t": {"a": "b"}}, message_id="unfit")),
    (b"reply", Properties(reply_to="elsewhere")),
    (b"correlated", Properties(correlation_id="1")),
    (b"x" * 1_048_577, Properties()),
    (b"\xff" * 800_000, Properties(message_id="base64")),
]


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
async def test_what_others_sent_goes_or_stays_as_the_plan_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with strict_moto(monkeypatch, "foreign") as target:
        lab = Lab(tmp_path, source=rabbit("3.10"), target=target)
        await lab.declare()
        connection = await aiormq.connect(lab.source)
        channel = await connection.channel()
        for body, properties in [*FITTING, *UNFIT]:
            await channel.basic_publish(body, routing_key=QUEUE, properties=properties)
        await connection.close()

        async with lab.migration() as migration:
            plan = await migration.plan()
        report = await lab.run(waits=False)

        refused = report.lanes[0].refused
        assert plan.queues[0].foreign == len(FITTING) + len(UNFIT)
        assert Counter(refused.values()) == Counter(misfit.reason for misfit in plan.misfits)
        assert {misfit.id for misfit in plan.misfits if misfit.id} <= refused.keys()
        assert (report.moved, report.refused) == (len(FITTING), len(UNFIT))
        arrived = Counter(found.message.body for found in await lab.take(lab.target))
        assert arrived == Counter(body for body, _ in FITTING)
