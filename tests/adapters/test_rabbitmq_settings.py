"""What a URL says."""

from __future__ import annotations

import pytest
from brokerwq_rabbitmq.settings import parse_url

from brokerwq.driver.registry import find_adapter
from brokerwq.errors import ConfigError


def test_a_url_names_everything() -> None:
    settings = parse_url(
        "amqps://me:p%40ss@one:5,[::1]:6,three/a%2Fb?heartbeat=30&consumer_timeout=600&verify=no"
    )

    assert settings.hosts == (("one", 5), ("::1", 6), ("three", 5671))
    assert (settings.user, settings.password, settings.vhost) == ("me", "p@ss", "a/b")
    assert settings.tls
    assert not settings.verify
    assert (settings.heartbeat, settings.consumer_timeout) == (30, 600.0)


@pytest.mark.parametrize("url", ["amqp://host", "amqp://host/", "amqp://host/%2F"])
def test_no_path_is_the_default_virtual_host(url: str) -> None:
    settings = parse_url(url)

    assert settings.vhost == "/"
    assert settings.hosts == (("host", 5672),)
    assert settings.user == "guest"


@pytest.mark.parametrize(
    "url",
    [
        "amqp://",
        "amqp://:5672/",
        "amqp://host:port/",
        "amqp://host:70000/",
        "amqp://host/?hartbeat=3",
        "amqp://host/?heartbeat=0",
        "amqp://host/?heartbeat=soon",
        "amqp://host/?consumer_timeout=-1",
        "amqp://host/?consumer_timeout=nan",
        "amqp://host/?cafile=x",
        "amqp://host/?verify=no",
        "amqp://host/?auth=kerberos",
        "amqp://host/?max_message_bytes=0",
    ],
)
def test_a_wrong_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        parse_url(url)


@pytest.mark.parametrize("bare", ["/", "#"])
def test_a_password_with_a_bare_delimiter_is_not_shown_either(bare: str) -> None:
    with pytest.raises(ConfigError, match="%2F") as caught:
        parse_url(f"amqp://me:se{bare}cret@host/")

    assert "me:se" not in str(caught.value)
    assert "cret" not in str(caught.value)


def test_the_password_is_not_shown() -> None:
    assert "secret" not in repr(parse_url("amqp://me:secret@host/"))


@pytest.mark.parametrize(("timeout", "lease"), [(1800, 1680), (600, 480), (6, 4.5)])
def test_the_longest_lease_keeps_clear_of_the_consumer_timeout(
    timeout: float, lease: float
) -> None:
    assert parse_url(f"amqp://host/?consumer_timeout={timeout}").max_lease == lease


def test_a_missing_tls_file_is_a_config_error() -> None:
    settings = parse_url("amqps://host/?cafile=/nowhere/ca.pem")

    with pytest.raises(ConfigError, match="nowhere"):
        settings.tls_context()


def test_both_schemes_find_the_adapter() -> None:
    assert find_adapter("amqp://host/") is find_adapter("amqps://host/")
