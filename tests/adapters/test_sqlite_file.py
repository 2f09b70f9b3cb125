"""Whose file it is, what state it is in, and what happens when it cannot be used."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Generator
from contextlib import closing
from pathlib import Path

import pytest
from brokerwq_sqlite import schema
from brokerwq_sqlite.connection import WAL_LIMIT_BYTES, check_sqlite

from brokerwq.driver import Driver, QueueSpec
from brokerwq.errors import (
    ClosedError,
    ConfigError,
    ConnectionLostError,
    PermissionDeniedError,
    ProtocolError,
    QueueNotFoundError,
    StorageFullError,
    TransientError,
)
from brokerwq.message import Message
from tests.adapters.sqlite_lab import QUEUE, Lab, ids, messages, send, until_parked

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")


async def test_messages_survive_everybody_leaving(lab: Lab) -> None:
    async with lab.consumer() as (driver, _):
        await send(driver, "1", "2")

    async with lab.consumer() as (_, consumer):
        assert ids(await consumer.claim(10, 0)) == ["1", "2"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a b.db", "50%.db", "who?.db", "#1&mode=ro.db", "ü😀.db"])
async def test_any_file_name_will_do(tmp_path: Path, name: str) -> None:
    lab = Lab(tmp_path / name)
    async with lab.driver():
        assert lab.path.exists()

    assert list(lab.path.parent.iterdir()) == [lab.path]


async def test_a_link_to_the_file_is_the_file(lab: Lab) -> None:
    async with lab.consumer() as (driver, consumer):
        link = lab.path.with_name("link.db")
        link.symlink_to(lab.path)
        waiting = asyncio.ensure_future(consumer.claim(1, 10))
        await until_parked(driver)
        async with Lab(link).driver() as other:
            await send(other, "1")

        assert ids(await waiting) == ["1"]


async def test_an_empty_file_becomes_a_database(lab: Lab) -> None:
    lab.path.touch()

    async with lab.driver() as driver:
        assert await driver.queues() == []


async def test_a_missing_file_is_made_unless_forbidden(lab: Lab) -> None:
    with pytest.raises(ConfigError, match="create=false"):
        await lab.build("?create=false").open()

    assert not lab.path.exists()


async def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no folder .*/nowhere"):
        await Lab(tmp_path / "nowhere" / "jobs.db").build().open()


async def test_a_folder_is_no_database(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder"):
        await Lab(tmp_path).build().open()


async def test_a_driver_that_could_not_be_opened_is_closed(lab: Lab) -> None:
    driver = lab.build("?create=false")
    with pytest.raises(ConfigError):
        await driver.open()

    with pytest.raises(ClosedError):
        await driver.queues()


async def test_another_applications_database_is_refused_and_left_alone(lab: Lab) -> None:
    lab.sql("CREATE TABLE film (title)")
    before = lab.path.read_bytes()

    with pytest.raises(ProtocolError, match="another application"):
        await lab.build().open()

    assert lab.path.read_bytes() == before
    assert list(lab.path.parent.iterdir()) == [lab.path]


async def test_another_applications_id_is_enough_to_refuse(lab: Lab) -> None:
    lab.sql("PRAGMA application_id = 42")

    with pytest.raises(ProtocolError, match="another application"):
        await lab.build().open()


async def test_a_file_that_is_no_database_is_refused_and_left_alone(lab: Lab) -> None:
    lab.path.write_bytes(b"Dear diary, " * 1000)
    before = lab.path.read_bytes()

    with pytest.raises(ProtocolError, match="not an SQLite database"):
        await lab.build().open()

    assert lab.path.read_bytes() == before


async def test_a_newer_schema_is_refused_naming_both_versions(lab: Lab) -> None:
    async with lab.driver():
        pass
    newer = len(schema.STEPS) + 1
    lab.sql(f"PRAGMA user_version = {newer}")

    with pytest.raises(ProtocolError, match=rf"version {newer}, .* up to {newer - 1}"):
        await lab.build().open()

    assert lab.sql("PRAGMA user_version") == [(newer,)]


async def test_an_older_schema_is_brought_up_to_date_with_its_messages(lab: Lab) -> None:
    async with lab.consumer() as (driver, _):
        await send(driver, "1")
    newer = [*schema.STEPS, ["ALTER TABLE queue ADD COLUMN note TEXT NOT NULL DEFAULT 'kept'"]]

    with closing(sqlite3.connect(lab.path, isolation_level=None)) as connection:
        schema.upgrade(connection, str(lab.path), newer)

    assert lab.sql("PRAGMA user_version") == [(len(newer),)]
    assert lab.sql("SELECT name, note FROM queue ORDER BY name")[0] == (QUEUE, "kept")
    assert lab.sql("SELECT id FROM message") == [("1",)]


async def test_a_failing_migration_leaves_the_older_schema_whole(lab: Lab) -> None:
    async with lab.driver():
        pass
    broken = [*schema.STEPS, ["ALTER TABLE queue ADD COLUMN note TEXT", "SELECT nonsense()"]]

    with (
        closing(sqlite3.connect(lab.path, isolation_level=None)) as connection,
        pytest.raises(sqlite3.OperationalError),
    ):
        schema.upgrade(connection, str(lab.path), broken)

    assert lab.sql("PRAGMA user_version") == [(len(schema.STEPS),)]
    assert lab.sql("SELECT count(*) FROM pragma_table_info('queue') WHERE name = 'note'") == [(0,)]


async def test_a_database_that_lost_a_table_is_reported_by_every_call(lab: Lab) -> None:
    async with lab.consumer() as (driver, _):
        lab.sql("DROP TABLE message")

        with pytest.raises(ProtocolError, match="not as brokerwq made it"):
            await driver.send(QUEUE, messages("1"), [0.0])
        with pytest.raises(ProtocolError):
            await driver.inspect(QUEUE)


async def test_a_damaged_file_is_reported(lab: Lab) -> None:
    async with lab.consumer() as (driver, _):
        await send(driver, *map(str, range(400)))
    with lab.path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(lab.path.stat().st_size - 4096))

    with pytest.raises(ProtocolError, match="damaged"):
        async with lab.driver() as driver:
            await driver.inspect(QUEUE)


async def test_a_deleted_file_is_an_outage_and_never_made_anew(lab: Lab) -> None:
    async with lab.consumer() as (driver, consumer):
        for path in lab.path.parent.iterdir():
            path.unlink()

        with pytest.raises(ConnectionLostError, match="deleted or replaced"):
            await send(driver, "1")
        with pytest.raises(ConnectionLostError, match="is gone"):
            await consumer.claim(1, 0)

        assert not lab.path.exists()


async def test_a_claim_that_waits_is_told_of_the_outage(lab: Lab) -> None:
    async with lab.consumer() as (_, consumer):
        lab.path.rename(lab.path.with_suffix(".away"))

        with pytest.raises(ConnectionLostError):
            await consumer.claim(1, 30)


@pytest.mark.slow
async def test_a_claim_that_waits_is_told_when_its_table_is_gone(lab: Lab) -> None:
    async with lab.consumer() as (driver, consumer):
        claim = asyncio.ensure_future(consumer.claim(1, 30))
        await until_parked(driver)
        lab.sql("DROP TABLE message")

        with pytest.raises(ProtocolError):
            await claim


async def test_a_file_that_is_back_is_used_again(lab: Lab) -> None:
    async with lab.consumer() as (driver, consumer):
        await send(driver, "1")
        away = lab.path.with_suffix(".away")
        lab.path.rename(away)
        with pytest.raises(ConnectionLostError):
            await consumer.claim(1, 0)
        away.rename(lab.path)

        assert ids(await consumer.claim(1, 0)) == ["1"]


def restore(backup: Path, path: Path) -> None:
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink()
    backup.replace(path)


async def test_a_restored_backup_is_seen_as_another_file(lab: Lab) -> None:
    async with lab.driver() as driver:
        await driver.declare(QueueSpec(name=QUEUE))
    backup = lab.path.with_suffix(".backup")
    shutil.copy(lab.path, backup)
    async with lab.driver() as driver:
        await driver.declare(QueueSpec(name="later"))
        restore(backup, lab.path)
        with pytest.raises(ConnectionLostError):
            await driver.queues()

        with pytest.raises(QueueNotFoundError):
            await driver.inspect("later")


@pytest.mark.slow
async def test_a_writer_in_the_way_is_waited_for(lab: Lab) -> None:
    async with lab.consumer() as (driver, _):
        with lab.start(
            """
            import sqlite3
            path = sys.argv[1].removeprefix("sqlite:///")
            connection = sqlite3.connect(path, isolation_level=None)
            connection.execute("BEGIN IMMEDIATE")
            print("locked", flush=True)
            time.sleep(0.3)
            connection.execute("COMMIT")
            """
        ) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()

            await send(driver, "1")


@pytest.mark.slow
async def test_a_writer_that_stays_is_a_transient_error_after_the_busy_timeout(lab: Lab) -> None:
    async with lab.driver("?busy_timeout=0.1") as driver:
        await driver.declare(QueueSpec(name=QUEUE))
        with closing(sqlite3.connect(lab.path, isolation_level=None)) as writer:
            writer.execute("BEGIN IMMEDIATE")

            with pytest.raises(TransientError, match="by another process"):
                await send(driver, "1")

            assert (await driver.inspect(QUEUE)).ready.value == 0
        await send(driver, "2")


@pytest.mark.slow
async def test_a_long_reader_does_not_stop_the_work(lab: Lab) -> None:
    async with lab.consumer() as (driver, consumer):
        await send(driver, "1")
        with closing(sqlite3.connect(lab.path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM message").fetchone()

            assert await consumer.ack(await consumer.claim(1, 0)) == [None]

            assert reader.execute("SELECT count(*) FROM message").fetchone() == (1,)


@pytest.mark.slow
async def test_a_log_that_a_reader_let_grow_is_cut_afterwards(lab: Lab) -> None:
    big = [Message(id=str(nth), body=b"x" * 1_000_000) for nth in range(80)]

    def size_of_log() -> int:
        return Path(f"{lab.path}-wal").stat().st_size

    async with lab.consumer() as (driver, consumer):
        with closing(sqlite3.connect(lab.path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM message").fetchone()
            await driver.send(QUEUE, big, [0.0] * len(big))
            assert size_of_log() > WAL_LIMIT_BYTES
        for _ in range(3):
            await consumer.claim(1, 0)

        assert size_of_log() <= WAL_LIMIT_BYTES


def test_an_old_sqlite_is_refused_naming_both_versions() -> None:
    with pytest.raises(ProtocolError, match=r"3\.35\.0 or newer; this Python brings 3\.31\.1"):
        check_sqlite((3, 31, 1))


@pytest.fixture
def small_disk(tmp_path: Path) -> Generator[Path]:
    """A file system of one megabyte, remounted read-only by some."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(place)], check=False
    )
    if mounted.returncode:
        pytest.skip("may not mount here")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


async def send_for_ever(driver: Driver) -> None:
    for nth in itertools.count():
        await send(driver, *(f"{nth}-{each}" for each in range(20)))


@needs_root
async def test_a_full_disk_refuses_what_does_not_fit_and_keeps_the_rest(small_disk: Path) -> None:
    lab = Lab(small_disk / "jobs.db")
    async with lab.consumer() as (driver, consumer):
        await send(driver, "1", "2")
        held = await consumer.claim(1, 0)
        (small_disk / "filler").write_bytes(b"x" * 700_000)
        with pytest.raises(StorageFullError) as caught:
            await send_for_ever(driver)
        count = (await driver.inspect(QUEUE)).ready.value

        assert caught.value.retryable
        assert count % 20 == 1
        (small_disk / "filler").unlink()
        assert await consumer.ack(held) == [None]
        await send(driver, "last")
        assert (await driver.inspect(QUEUE)).ready.value == count + 1
    assert lab.is_sound()


@needs_root
async def test_no_room_for_a_new_database_is_said_so(small_disk: Path) -> None:
    (small_disk / "filler").write_bytes(b"x" * (1024 * 1024 - 4096))

    with pytest.raises(StorageFullError):
        await Lab(small_disk / "jobs.db").build().open()


def remount_read_only(place: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)


@needs_root
async def test_a_read_only_file_system_is_refused_naming_the_file(small_disk: Path) -> None:
    lab = Lab(small_disk / "jobs.db")
    async with lab.driver():
        pass
    remount_read_only(small_disk)

    with pytest.raises(PermissionDeniedError, match=str(lab.path)):
        await lab.build().open()


async def test_a_read_only_file_is_refused_naming_it(lab: Lab) -> None:
    async with lab.driver():
        pass
    lab.path.chmod(0o444)
    skip_where_everything_is_allowed(lab.path)

    with pytest.raises(PermissionDeniedError, match=f"{lab.path}.*may only be read"):
        await lab.build().open()


async def test_a_read_only_folder_is_refused_naming_it(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "folder" / "jobs.db")
    lab.path.parent.mkdir(mode=0o555)
    skip_where_everything_is_allowed(lab.path.parent)

    with pytest.raises(PermissionDeniedError, match=r"the folder .*/folder may only be read"):
        await lab.build().open()


async def test_a_file_that_may_not_be_read_is_refused_naming_it(lab: Lab) -> None:
    async with lab.driver():
        pass
    lab.path.chmod(0o000)
    skip_where_everything_is_allowed(lab.path)

    with pytest.raises(PermissionDeniedError, match=f"{lab.path}.*may not be read"):
        await lab.build().open()


def skip_where_everything_is_allowed(path: Path) -> None:
    if os.access(path, os.W_OK):
        pytest.skip("root may write to everything")


def test_a_database_that_another_process_makes_meanwhile_is_no_strangers(tmp_path: Path) -> None:
    path = str(tmp_path / "queue.db")
    with (
        closing(sqlite3.connect(path, isolation_level=None)) as reader,
        closing(sqlite3.connect(path, isolation_level=None)) as maker,
    ):
        reader.execute("PRAGMA journal_mode = WAL")
        looks: list[str] = []

        def make_after_the_first(look: str) -> None:
            if looks:
                schema.upgrade(maker, path)
            looks.append(look)

        reader.set_trace_callback(make_after_the_first)
        assert schema.version_of(reader, path) in (0, len(schema.STEPS))
        assert schema.version_of(reader, path) == len(schema.STEPS)
