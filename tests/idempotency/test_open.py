"""From a URL, a pool or an engine to a store."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from brokerwq.cli import main
from brokerwq.errors import AdapterMissingError, ConfigError
from brokerwq.idempotency import SqliteStore, open_store
from brokerwq.idempotency.stores.asyncpg import AsyncpgStore
from brokerwq.idempotency.stores.dynamodb import DynamodbStore
from brokerwq.idempotency.stores.psycopg import PsycopgStore
from brokerwq.idempotency.stores.redis import RedisStore
from brokerwq.idempotency.stores.sqlalchemy import SqlalchemyStore

URLS = {
    "sqlite:///work.db": SqliteStore,
    "postgresql://u:secret@h/d": AsyncpgStore,
    "postgres://u:secret@h/d": AsyncpgStore,
    "postgresql+asyncpg://u:secret@h/d": AsyncpgStore,
    "postgresql+psycopg://u:secret@h/d": PsycopgStore,
    "sqlalchemy+postgresql+asyncpg://u:secret@h/d": SqlalchemyStore,
    "sqlalchemy+postgresql+psycopg://u:secret@h/d": SqlalchemyStore,
    "redis://u:secret@h": RedisStore,
    "rediss://u:secret@h/2": RedisStore,
    "dynamodb://eu-west-1/table": DynamodbStore,
}


@pytest.mark.parametrize("url", URLS)
def test_a_url_says_which_library_is_meant(url: str) -> None:
    store = open_store(url)

    assert type(store) is URLS[url]
    assert "secret" not in repr(store) + store.name


@pytest.mark.parametrize(
    ("url", "match"),
    [
        ("mysql://h/d", "no store is known"),
        ("work.db", "no store is known"),
        ("sqlite://work.db", "sqlite:///"),
        ("sqlite:///work.db?foreign_key=true", "foreign_keys"),
        ("sqlalchemy+sqlite+aiosqlite:///work.db", "SqliteStore"),
        ("sqlalchemy+mysql+aiomysql://h/d", r"postgresql\+asyncpg"),
        ("sqlalchemy+postgresql+psycopg2://h/d", r"postgresql\+asyncpg"),
        ("sqlalchemy+nonsense", "wrong"),
    ],
)
def test_what_is_no_store_says_what_is(url: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        open_store(url)


def test_the_options_of_a_sqlite_url_are_no_part_of_its_name(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/a%20b.db?foreign_keys=true&busy_timeout=2")

    assert store.name.endswith("/a b.db")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "extra"),
    [
        ("asyncpg", "postgres"),
        ("psycopg", "psycopg"),
        ("sqlalchemy", "sqlalchemy"),
        ("redis", "redis"),
        ("aiobotocore.session", "dynamodb"),
    ],
)
def test_a_missing_library_names_the_extra(module: str, extra: str) -> None:
    url = {
        "postgres": "postgresql://h/d",
        "psycopg": "postgresql+psycopg://h/d",
        "sqlalchemy": "sqlalchemy+postgresql+asyncpg://h/d",
        "redis": "redis://h",
        "dynamodb": "dynamodb://eu-west-1/t",
    }[extra]
    code = (
        f"import sys; sys.modules[{module!r}] = None\n"
        "from brokerwq.errors import AdapterMissingError\n"
        "from brokerwq.idempotency import open_store\n"
        f"try: open_store({url!r})\n"
        "except AdapterMissingError as exc: print(exc)"
    )

    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert f"pip install 'brokerwq[{extra}]'" in said.stdout
    assert issubclass(AdapterMissingError, ConfigError)


@pytest.mark.slow
def test_the_libraries_are_imported_only_where_they_are_needed() -> None:
    code = (
        "import sys, brokerwq.idempotency, brokerwq.idempotency.borrowed\n"
        "print({'asyncpg', 'psycopg', 'sqlalchemy', 'redis', 'aiobotocore'} & set(sys.modules))"
    )

    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert said.stdout.strip() == "set()"


@pytest.mark.parametrize("url", [url for url in URLS if "postgres" in url])
def test_init_prints_the_statements_without_a_server(
    url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(("keys", "init", "--dry-run", "--store", url)) == 0

    out, _ = capfd.readouterr()
    assert "CREATE TABLE IF NOT EXISTS brokerwq_key" in out
    assert out.count(";") == len(open_store(url).schema())
