"""What a sqlite:// URL and the environment may say."""

from __future__ import annotations

from pathlib import Path

import pytest
from brokerwq_sqlite import adapter
from brokerwq_sqlite.settings import SqliteSettings

from brokerwq.driver.registry import find_adapter
from brokerwq.errors import ConfigError


def test_the_entry_point_names_the_adapter() -> None:
    assert find_adapter("sqlite:///jobs.db") is adapter


def test_three_slashes_start_at_the_working_directory_of_the_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    settings = adapter.parse_url("sqlite:///data/jobs.db")

    assert settings.path == str(tmp_path / "data" / "jobs.db")


def test_four_slashes_start_at_the_root() -> None:
    assert adapter.parse_url("sqlite:////var/lib/jobs.db").path == "/var/lib/jobs.db"


def test_a_path_is_percent_decoded() -> None:
    assert adapter.parse_url("sqlite:////a%20b/%23c%3Fd.db").path == "/a b/#c?d.db"


@pytest.mark.parametrize("url", ["sqlite://:memory:", "sqlite:///:memory:"])
def test_memory_is_refused_with_the_way_out(url: str) -> None:
    with pytest.raises(ConfigError, match="memory://"):
        adapter.parse_url(url)


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:///", "sqlite://jobs.db", "sqlite:////data/", "sqlite:///a%00b"]
)
def test_a_url_that_names_no_file_is_refused_with_the_rule(url: str) -> None:
    with pytest.raises(ConfigError, match="three slashes"):
        adapter.parse_url(url)


def test_a_bare_hash_would_cut_the_name_and_is_refused() -> None:
    with pytest.raises(ConfigError, match="%23"):
        adapter.parse_url("sqlite:///jobs#1.db")


@pytest.mark.parametrize(
    ("option", "named"),
    [
        ("journal=off", "journal"),
        ("synchronous=OFF", "synchronous"),
        ("busy_timeout=0", "busy_timeout"),
        ("busy_timeout=nan", "busy_timeout"),
        ("busy_timeout=soon", "busy_timeout"),
        ("poll=0", "poll"),
        ("create=perhaps", "create"),
        ("path=/elsewhere", "path"),
        ("create=true&create=false", "create"),
    ],
)
def test_a_bad_option_is_refused_by_name(option: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        adapter.parse_url(f"sqlite:///jobs.db?{option}")


def test_the_url_goes_before_the_environment_and_that_before_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BROKERWQ_SQLITE_SYNCHRONOUS", "NORMAL")
    monkeypatch.setenv("BROKERWQ_SQLITE_BUSY_TIMEOUT", "7")

    settings = adapter.parse_url("sqlite:///jobs.db?busy_timeout=9&create=no")

    assert (settings.synchronous, settings.busy_timeout, settings.create, settings.poll) == (
        "NORMAL",
        9.0,
        False,
        0.025,
    )


def test_a_bad_value_in_the_environment_is_refused_by_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BROKERWQ_SQLITE_POLL", "often")

    with pytest.raises(ConfigError, match="BROKERWQ_SQLITE_POLL"):
        adapter.parse_url("sqlite:///jobs.db")


def test_every_setting_is_described() -> None:
    assert all(field.description for field in SqliteSettings.model_fields.values())
