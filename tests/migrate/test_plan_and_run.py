"""What a plan says of a message, a run does: at the edges of what a target takes, too."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from brokerwq.driver.rules import sqs, sqs_wire
from brokerwq.message import DeadLetterNote, Message
from brokerwq.migrate import MigrationPlan, MoveReport
from tests.migrate.lab import DEAD, QUEUE, Lab, made
from tests.migrate.places import strict_moto

PHASES = [Phase.reuse, Phase.generate]
"""To shrink an example takes minutes, since each is a move."""
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
"""Control characters and what is beyond the basic plane included."""
ODD_TEXT = st.sampled_from(["", " ", "\x00", "\x07", "\ufffe", "ä" * 40, "🙂", "a b", "a" * 300])
BODY = st.one_of(
    st.sampled_from([b"", b"{}", b"\xff\xfe", b"a\x07b", b"\x00" * 9, "ü".encode()]),
    st.binary(max_size=30),
)
NAME = st.one_of(
    st.sampled_from(["AWS.x", "amazon.y", "a..b", "x-death", "CC", "traceparent", "ü", "n" * 256]),
    TEXT.filter(lambda name: bool(name) and not name.startswith("bwq")),
)
HEADERS = st.dictionaries(NAME, st.one_of(TEXT, ODD_TEXT), max_size=14)
IDS = st.one_of(st.uuids().map(str), st.sampled_from(["x", "a b", "ü", "1" * 200, "\x07"]))
DELAYS = st.sampled_from(
    [0.0, 0.0, 0.0, 5.0, 898.0, 899.0, 900.0, 901.0, 902.0, 86_399.0, 90_000.0]
)


@dataclass(frozen=True)
class Draft:
    """A message before it gets its body, of which a megabyte is no use in a report.

    Attributes:
        message: Without it, if ``beyond`` says how large it shall be.
        beyond: Bytes more than SQS takes; None leaves the body as it is.
        text: Whether the body is text.
    """

    message: Message
    beyond: int | None
    text: bool

    def made(self) -> Message:
        if self.beyond is None:
            return self.message
        return sized(self.message, self.beyond, text=self.text)


@st.composite
def drafts(draw: st.DrawFn, *, dead: DeadLetterNote | None = None) -> Draft:
    delay = draw(DELAYS)
    message = made(
        0,
        id=draw(IDS),
        body=draw(BODY),
        type=draw(st.sampled_from(["", "work", "ä", "t" * 300])),
        headers=draw(HEADERS),
        group=draw(st.sampled_from([None, "g", "a b", "ü" * 200])),
        key=draw(st.sampled_from([None, "k", "\x07"])),
        not_before=datetime.now(UTC) + timedelta(seconds=delay) if delay else None,
        dead=dead,
    )
    beyond = draw(st.sampled_from([None, None, None, -1, 0, 1]))
    return Draft(message, beyond, draw(st.booleans()))


NOTE = DeadLetterNote(
    reason="failed", error_type="ValueError", error="no" * 500, attempts=5, queue=QUEUE
)


def sized(message: Message, beyond: int, *, text: bool) -> Message:
    """``message`` with a body that makes it as large as SQS takes, or so much more."""
    bare = sqs_wire.encode(replace(message, body=b"x" if text else b"\xff"))
    room = sqs.MAX_BYTES + beyond - bare.size + len(bare.body)
    # Four characters of base64 for three bytes: a hair beyond the limit is a whole group.
    body = b"x" * room if text else b"\xff" * (room // 4 * 3 + 3 * (beyond > 0))
    return replace(message, body=body)


async def planned_and_run(
    lab: Lab, sent: Sequence[Message], dead: Sequence[Message]
) -> tuple[MigrationPlan, MoveReport]:
    await lab.declare()
    await lab.send(sent)
    await lab.send(dead, queue=DEAD)
    async with lab.migration() as migration:
        plan = await migration.plan(sample=1000)
    return plan, await lab.run(waits=False)


def foretold(plan: MigrationPlan, queue: str) -> set[tuple[str, str]]:
    return {(each.id, each.reason) for each in plan.misfits if each.queue == queue}


@pytest.mark.slow
@pytest.mark.parametrize("like", ["sqs", "sqs-fifo", "rabbitmq"])
@settings(max_examples=8, phases=PHASES, suppress_health_check=SLOW, deadline=None)
@given(drawn=st.lists(drafts(), max_size=8), letters=st.lists(drafts(dead=NOTE), max_size=2))
async def test_a_run_leaves_what_the_plan_names_and_moves_the_rest(
    like: str, drawn: list[Draft], letters: list[Draft]
) -> None:
    sent, dead = [each.made() for each in drawn], [each.made() for each in letters]
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(Path(folder), target=f"memory://{uuid.uuid4().hex}?like={like}")

        plan, report = await planned_and_run(lab, sent, dead)

        for lane, queue, all_ in zip(report.lanes, (QUEUE, DEAD), (sent, dead), strict=True):
            # By id: of two misfits of one id a run tells one reason.
            told = foretold(plan, queue)
            assert lane.refused.keys() == {id_ for id_, _ in told}
            assert lane.refused.items() <= told
            assert lane.moved + sum(each.queue == queue for each in plan.misfits) == len(all_)
        await _arrived(lab, sent, report.lanes[0].refused)


async def _arrived(lab: Lab, sent: Sequence[Message], refused: dict[str, str]) -> None:
    """Those that are due, each as it was; the others are delayed there."""
    found = {delivery.message.id: delivery.message for delivery in await lab.take(lab.target)}
    by_id = {message.id: message for message in sent if message.id not in refused}
    for id_, message in found.items():
        if sum(each.id == id_ for each in sent) == 1:
            assert (message.body, message.headers) == (by_id[id_].body, by_id[id_].headers)
    due = {id_ for id_, message in by_id.items() if message.not_before is None}
    if not any(message.group for message in sent):
        assert due <= found.keys()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
async def test_a_real_adapter_and_a_strict_service_agree_with_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """moto behind a client that refuses what Amazon's own service does."""
    with strict_moto(monkeypatch, tmp_path.name) as target:
        lab = Lab(tmp_path, target=target)
        now = datetime.now(UTC)
        sent = [
            *(
                sized(made(n, type=type_), n, text=text)
                for n in (-1, 0, 1)
                for text in (True, False)
                for type_ in ("work", "")
            ),
            made(0, body=b""),
            made(0, body=b"\x07"),
            *(made(0, not_before=now + timedelta(seconds=900 + n)) for n in (-1, 0, 1)),
            *(made(0, headers={name: "x"}) for name in ("AWS.x", "a..b", "ü", "n" * 256)),
            *(made(0, headers={"x": text}) for text in ("", "\x00", "\ufffe", "🙂")),
            *(
                made(0, type=type_, headers={f"h{n}": "x" for n in range(14)})
                for type_ in ("work", "")
            ),
            *(made(0, id=id_) for id_ in ("a b", "ü", "1" * 200)),
            *(made(0, group=group) for group in ("g", "a b", "ü" * 200)),
            made(1, id="the same"),
            made(2, id="the same"),
        ]

        plan, report = await planned_and_run(lab, sent, [])

        assert set(report.lanes[0].refused.items()) == foretold(plan, QUEUE)
        assert report.moved + len(plan.misfits) == len(sent)
        assert len(plan.misfits) == 4  # those that are a hair too large
