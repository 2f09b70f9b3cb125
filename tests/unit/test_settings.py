from __future__ import annotations

import os
from typing import Any

import pytest

from brokerwq.errors import ConfigError
from brokerwq.settings import DEFAULT_URL, Setting, Settings, misspelt

SECRET = "amqp://user:s3cret@host/vhost?password=s3cret"  # noqa: S105


@pytest.fixture(autouse=True)
def empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.upper().startswith("BROKERWQ_"):
            monkeypatch.delenv(name)


def described(settings: Settings) -> dict[str, Setting]:
    return {each.name: each for each in settings.describe()}


def test_the_defaults_are_the_documented_ones() -> None:
    settings = Settings.load()

    assert settings.url.get_secret_value() == DEFAULT_URL == "sqlite:///brokerwq.db"
    assert (settings.lease, settings.max_attempts, settings.timeout) == (60.0, 5, None)
    assert (settings.backoff_base, settings.backoff_cap) == (1.0, 600.0)
    assert settings.backoff_jitter == "full"
    assert (settings.slots, settings.processes, settings.grace) == (10, 1, 15.0)
    assert (settings.unknown_after, settings.reconnect_cap) == (3600.0, 5.0)
    assert (settings.connect_timeout, settings.heartbeat) == (10.0, True)
    assert (settings.app, settings.health, settings.log_level) == (None, None, "INFO")


def test_code_wins_over_the_environment_and_that_over_the_defaults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BROKERWQ_LEASE", "30")
    monkeypatch.setenv("BROKERWQ_GRACE", "20")

    settings = Settings.load(lease=90.0)

    assert (settings.lease, settings.grace, settings.slots) == (90.0, 20.0, 10)
    origins = {name: each.origin for name, each in described(settings).items()}
    assert (origins["lease"], origins["grace"], origins["slots"]) == (
        "code",
        "environment",
        "default",
    )


def test_none_in_code_is_the_same_as_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKERWQ_URL", "memory://")

    settings = Settings.load(url=None)

    assert settings.url.get_secret_value() == "memory://"
    assert described(settings)["url"].origin == "environment"


def test_none_and_nothing_can_be_said_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKERWQ_TIMEOUT", "none")
    monkeypatch.setenv("BROKERWQ_LEASE", "")

    settings = Settings.load()

    assert (settings.timeout, settings.lease) == (None, 60.0)


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("LEASE", "abc", "BROKERWQ_LEASE is 'abc'; it must be above 0, at most 604800 (seconds)"),
        ("LEASE", "0", "BROKERWQ_LEASE is '0'; it must be above 0, at most 604800 (seconds)"),
        ("LEASE", "nan", "BROKERWQ_LEASE is 'nan'; it must be above 0, at most 604800 (seconds)"),
        ("LEASE", "inf", "BROKERWQ_LEASE is 'inf'; it must be above 0, at most 604800 (seconds)"),
        (
            "MAX_ATTEMPTS",
            "0",
            (
                "BROKERWQ_MAX_ATTEMPTS is '0'; it must be a whole number, 1 or more, "
                "at most 1000000 (attempts)"
            ),
        ),
        (
            "SLOTS",
            "1.5",
            "BROKERWQ_SLOTS is '1.5'; it must be a whole number, 1 or more, at most 100000 (jobs)",
        ),
        (
            "TIMEOUT",
            "-1",
            "BROKERWQ_TIMEOUT is '-1'; it must be above 0, at most 31536000, or none (seconds)",
        ),
        ("BACKOFF_JITTER", "x", "BROKERWQ_BACKOFF_JITTER is 'x'; it must be full, equal or none"),
        ("HEARTBEAT", "maybe", "BROKERWQ_HEARTBEAT is 'maybe'; it must be true or false"),
        ("HEALTH", "x:99999", "BROKERWQ_HEALTH is 'x:99999'; it must be HOST:PORT, or none"),
        ("HEALTH", "8080", "BROKERWQ_HEALTH is '8080'; it must be HOST:PORT, or none"),
        ("APP", "my app", "BROKERWQ_APP is 'my app'; it must be MODULE:ATTR, or none"),
        (
            "LOG_LEVEL",
            "LOUD",
            "BROKERWQ_LOG_LEVEL is 'LOUD'; it must be DEBUG, INFO, WARNING, ERROR or CRITICAL",
        ),
    ],
)
def test_a_bad_value_is_named_with_its_variable_and_its_range(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, error: str
) -> None:
    monkeypatch.setenv(f"BROKERWQ_{name}", text)

    with pytest.raises(ConfigError) as caught:
        Settings.load()

    assert str(caught.value) == error
    assert caught.value.__cause__ is None


def test_every_bad_value_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKERWQ_LEASE", "-1")

    with pytest.raises(ConfigError, match=r"BROKERWQ_LEASE is '-1'.*; slots is 0; it must be"):
        Settings.load(slots=0)


@pytest.mark.parametrize("value", [True, "many", 1.5, float("nan")])
def test_code_is_checked_like_the_environment(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^slots is "):
        Settings.load(slots=value)


def test_a_setting_that_does_not_exist_is_refused_in_code_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BROKERWQ_TEST_RABBITMQ", "1")

    Settings.load()
    known = "there is no setting 'leese'; known: url, send_to, app, lease"
    with pytest.raises(ConfigError, match=known):
        Settings.load(leese=3)


@pytest.mark.parametrize("value", ["localhost:0", "0.0.0.0:8080", "[::1]:80", ":x"])
def test_an_address_is_a_host_and_a_port(value: str) -> None:
    if value == ":x":
        with pytest.raises(ConfigError):
            Settings.load(health=value)
    else:
        assert Settings.load(health=value).health == value


def test_the_log_level_may_be_written_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKERWQ_LOG_LEVEL", "debug")

    assert Settings.load().log_level == "DEBUG"


def test_a_password_is_shown_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKERWQ_URL", SECRET)

    settings = Settings.load()

    assert settings.url.get_secret_value() == SECRET
    for shown in (
        repr(settings),
        str(settings),
        settings.model_dump_json(),
        repr(settings.describe()),
    ):
        assert "s3cret" not in shown
    assert described(settings)["url"].value == "amqp://user:***@host/vhost?password=***"


def test_a_bad_url_is_not_shown_either() -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.load(url=["s3cret"])

    words = "url is ***; it must be a broker's URL, or several with blanks between"
    assert str(caught.value) == words


def test_every_setting_describes_itself() -> None:
    for each in Settings.load().describe():
        assert each.variable == f"BROKERWQ_{each.name.upper()}"
        assert each.description
        assert each.range
        assert each.value


def test_settings_do_not_change() -> None:
    settings = Settings.load()

    with pytest.raises(ValueError, match="frozen"):
        settings.lease = 3


def test_a_variable_that_is_almost_a_setting_is_noticed() -> None:
    assert misspelt(["BROKERWQ_SLOT", "brokerwq_maxattempts", "BROKERWQ_SLOTS", "SLOT"]) == {
        "BROKERWQ_SLOT": "BROKERWQ_SLOTS",
        "brokerwq_maxattempts": "BROKERWQ_MAX_ATTEMPTS",
    }


def test_the_variables_of_others_are_left_alone() -> None:
    others = ["TELEMETRY", "TRACEBACK", "SQLITE_BUSY_TIMEOUT", "SQLITE_POLL", "TEST_AMQP_URL"]

    assert misspelt(f"BROKERWQ_{name}" for name in others) == {}
