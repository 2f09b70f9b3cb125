"""A ledger is about two brokers, by what they are and not by how one gets there."""

from __future__ import annotations

from pathlib import Path

import pytest
from brokerwq_rabbitmq.settings import parse_url
from brokerwq_sqs.driver import SqsDriver
from brokerwq_sqs.settings import parse_url as parse_sqs

from brokerwq.clock import SYSTEM_CLOCK
from brokerwq.errors import ConfigError, QueueNotFoundError
from brokerwq.testing.servers.moto import moto
from tests.migrate.lab import QUEUE, Lab, made


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("amqp://ann:old@host/shop", "amqp://ann:new@host/shop"),
        ("amqp://ann:pw@host/shop", "amqp://bob:pw@host:5672/shop?heartbeat=30"),
        ("amqp://host", "amqp://guest:guest@HOST:5672/%2F"),
        ("amqp://a:1,b:2/v", "amqp://b:2,a:1/v"),
    ],
)
def test_credentials_options_and_spelling_lead_to_the_same_rabbitmq(one: str, other: str) -> None:
    assert parse_url(one).place == parse_url(other).place
    assert "pw" not in parse_url(other).place


@pytest.mark.parametrize(
    "other",
    ["amqp://host/tests", "amqp://host:5673/shop", "amqp://host2/shop", "amqp://host/SHOP"],
)
def test_another_virtual_host_port_or_host_is_another_rabbitmq(other: str) -> None:
    assert parse_url("amqp://host/shop").place != parse_url(other).place


async def _moved(folder: Path, source: str) -> None:
    lab = Lab(folder, source=source)
    await lab.declare()
    await lab.send([made(1)])
    await lab.run()


@pytest.mark.slow
async def test_a_file_is_the_same_by_whatever_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    monkeypatch.chdir(real)

    for url in (
        f"sqlite:///{real}/source.db",
        f"sqlite:///{link}/source.db?busy_timeout=9",
        "sqlite:///source.db",
        "sqlite:///../link/source.db",
    ):
        await _moved(tmp_path, url)


@pytest.mark.slow
async def test_one_relative_path_in_two_folders_is_two_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "one")
    await _moved(tmp_path, "sqlite:///source.db")
    monkeypatch.chdir(tmp_path / "two")

    with pytest.raises(ConfigError, match=r"belongs to another migration: .*/one/source\.db"):
        await _moved(tmp_path, "sqlite:///source.db")


async def _place(url: str, queue: str = QUEUE) -> str:
    driver = SqsDriver(parse_sqs(url), SYSTEM_CLOCK)
    await driver.open()
    try:
        return await driver.place(queue)
    finally:
        await driver.aclose()


@pytest.mark.slow
async def test_regions_prefixes_accounts_and_emulators_are_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with moto() as one, moto() as other:
        for name, value in one.environment.items():
            monkeypatch.setenv(name, value)
        urls = [
            f"sqs://us-east-1/shop?endpoint_url={one.endpoint}",
            f"sqs://us-east-1/shop?endpoint_url={one.endpoint}&fifo=1",
            f"sqs://us-east-1/tests?endpoint_url={one.endpoint}",
            f"sqs://eu-west-1/shop?endpoint_url={one.endpoint}",
            f"sqs://us-east-1/shop?endpoint_url={other.endpoint}",
        ]
        for url in urls:
            await Lab(tmp_path, source=url).declare()
        places = [await _place(url) for url in urls]
        same = await _place(f"{urls[0]}&max_wait=3")
        monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", one.endpoint)
        by_environment = await _place("sqs://us-east-1/shop")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
        rotated = await _place(urls[0])

        assert len(set(places)) == len(places)
        assert {same, by_environment, rotated} == {places[0]}


@pytest.mark.slow
async def test_what_is_not_there_yet_is_no_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An account shows by its queues, and a ledger must not be begun without knowing it."""
    with moto() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        url = f"sqs://us-east-1/none?endpoint_url={server.endpoint}&max_wait=1"
        lab = Lab(tmp_path, source=f"sqlite:///{tmp_path}/source.db", target=url)
        await lab.declare()
        await lab.send([made(1)])

        assert not await _place(url)
        with pytest.raises(QueueNotFoundError, match="there is no queue orders at sqs"):
            await lab.run(declare=False)
        assert "ledger.db" not in _names(tmp_path)
        assert (await lab.run()).moved == 1
        assert (await lab.run()).moved == 0


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}
