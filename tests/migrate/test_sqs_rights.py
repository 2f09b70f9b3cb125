"""Real policies at moto's SQS: what is not allowed is known before any message is touched."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiobotocore.session import get_session
from moto import settings as moto_settings
from moto.core.authorization import ActionAuthenticatorMixin

from brokerwq.errors import PermissionDeniedError
from brokerwq.testing.servers.localstack import SqsServer
from brokerwq.testing.servers.moto import moto
from tests.migrate.lab import DEAD, QUEUE, Lab, made

pytestmark = pytest.mark.slow

TAKING = ("DeleteMessage", "ReceiveMessage", "SendMessage", "ChangeMessageVisibility")
RIGHTS = (*TAKING, "CreateQueue", "SetQueueAttributes")
"""Those that may be missing, beside Get and List."""


@dataclass(frozen=True)
class Account:
    """An account at moto."""

    server: SqsServer
    patch: pytest.MonkeyPatch

    def url(self, prefix: str) -> str:
        return f"sqs://us-east-1/{prefix}?endpoint_url={self.server.endpoint}&max_wait=1"

    @asynccontextmanager
    async def without(self, missing: str) -> AsyncGenerator[None]:
        """Be a user who may do everything but that."""
        name = f"user-{uuid.uuid4().hex}"
        # Amazon counts a batch as the single action; moto goes by its own name.
        rights = [f"sqs:{right}*" for right in RIGHTS if right != missing]
        policy = {"Effect": "Allow", "Action": ["sqs:Get*", "sqs:List*", *rights], "Resource": "*"}
        document = json.dumps({"Version": "2012-10-17", "Statement": [policy]})
        session: Any = get_session()
        iam: Any
        async with session.create_client(
            "iam", endpoint_url=self.server.endpoint, region_name="us-east-1"
        ) as iam:
            await iam.create_user(UserName=name)
            await iam.put_user_policy(UserName=name, PolicyName="p", PolicyDocument=document)
            key = (await iam.create_access_key(UserName=name))["AccessKey"]
        with self.patch.context() as patch:
            patch.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
            patch.setenv("AWS_SECRET_ACCESS_KEY", key["SecretAccessKey"])
            patch.setattr(moto_settings, "INITIAL_NO_AUTH_ACTION_COUNT", 0.0)
            patch.setattr(ActionAuthenticatorMixin, "request_count", 0)
            yield


@pytest.fixture(scope="module")
def account() -> Generator[Account]:
    with pytest.MonkeyPatch.context() as patch, moto() as server:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        yield Account(server, patch)


@pytest.fixture
def away(tmp_path: Path, account: Account) -> Lab:
    return Lab(tmp_path, source=account.url(f"t{uuid.uuid4().hex[:8]}"))


@pytest.fixture
def here(tmp_path: Path, account: Account) -> Lab:
    target = account.url(f"t{uuid.uuid4().hex[:8]}")
    return Lab(tmp_path, source=f"sqlite:///{tmp_path}/source.db", target=target)


async def filled(lab: Lab) -> None:
    await lab.declare()
    await lab.send([made(n) for n in range(12)])


async def refusals(lab: Lab, verbs: Sequence[str]) -> list[str]:
    """What each of these says."""
    texts: list[str] = []
    for verb in verbs:
        with pytest.raises(PermissionDeniedError) as caught:
            async with lab.migration() as migration:
                await asyncio.wait_for(getattr(migration, verb)(), 30)
        texts.append(str(caught.value))
    return texts


@pytest.mark.parametrize("right", TAKING)
async def test_a_source_without_a_right_is_left_as_it_is(
    away: Lab, account: Account, right: str
) -> None:
    await filled(away)

    async with account.without(right):
        texts = await refusals(away, ["plan", "run"])

    for text in texts:
        assert text.startswith("source sqs://")
        assert f"on {QUEUE}" in text
        assert f"sqs:{right})" in text
        assert "docs/migration.md" in text
    assert await away.counts(away.source) == (12, 0, 0)
    assert [found.receives for found in await away.take(away.source)] == [1] * 12


async def test_a_target_that_may_not_be_sent_to_gets_nothing(here: Lab, account: Account) -> None:
    await filled(here)
    await here.declare(here.target)

    async with account.without("SendMessage"):
        async with here.migration() as migration:
            plan = await migration.plan()
        (told,) = await refusals(here, ["run"])

    assert [f"on {queue}" in text for queue, text in zip((QUEUE, DEAD), plan.denials, strict=True)]
    assert not plan.fits
    assert told.startswith("target sqs://")
    assert "sqs:SendMessage)" in told
    assert await here.counts(here.source) == (12, 0, 0)
    assert await here.counts(here.target) == (0, 0, 0)


async def test_a_target_where_no_queue_may_be_made_gets_nothing(
    here: Lab, account: Account
) -> None:
    await filled(here)

    async with account.without("CreateQueue"):
        (told,) = await refusals(here, ["run"])

    assert told.startswith("target sqs://")
    assert "sqs:CreateQueue)" in told
    assert await here.counts(here.source) == (12, 0, 0)


async def test_a_user_with_all_rights_moves_there(here: Lab, account: Account) -> None:
    """So that the refusals above are of the right that is missing."""
    await filled(here)

    async with account.without(""):
        report = await here.run()

    assert report.moved == 12
