from __future__ import annotations

import sys
import traceback
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerwq.driver.registry import find_adapter, missing_client, redacted, scheme_of, schemes
from brokerwq.driver.support import bare, split_url, url_options, url_path
from brokerwq.errors import AdapterMissingError, ConfigError

GROUP = "brokerwq.adapters"


def install(folder: Path, name: str, entries: dict[str, str], **modules: str) -> None:
    """A distribution as an installer leaves it."""
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"{scheme} = {value}" for scheme, value in entries.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *lines, ""]))
    for module, source in modules.items():
        (folder / f"{module}.py").write_text(source)


ADAPTER = """
from brokerwq.driver import Adapter
adapter = Adapter(schemes=("toy",), summary="A toy.", extra="toy", parse_url=str, build=None)
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


def test_the_brokers_that_come_with_brokerwq_are_found_by_scheme() -> None:
    assert "memory" in find_adapter("memory://").schemes
    assert "sqlite" in find_adapter("SQLITE:///jobs.db").schemes
    assert {"memory", "sqlite"} <= set(schemes())
    assert schemes() == sorted(schemes())


def test_an_adapter_of_somebody_else_is_found_by_its_entry_point(site: Path) -> None:
    install(site, "bwq-toy", {"toy": "bwq_toy_found:adapter"}, bwq_toy_found=ADAPTER)

    assert find_adapter("toy://here").summary == "A toy."
    assert "toy" in schemes()


def test_a_scheme_that_nothing_serves_tells_what_is_there() -> None:
    with pytest.raises(AdapterMissingError, match=r"no adapter serves nope://; .*memory.*sqlite"):
        find_adapter("nope://x")


def test_two_packages_with_one_scheme_are_both_named(site: Path) -> None:
    install(site, "bwq-one", {"toy": "bwq_toy_one:adapter"})
    install(site, "bwq-two", {"toy": "bwq_toy_two:adapter"})

    with pytest.raises(ConfigError, match=r"bwq-one.*bwq-two.*uninstall"):
        find_adapter("toy://")


def test_one_package_found_twice_is_one(site: Path) -> None:
    install(site, "bwq-toy", {"toy": "bwq_toy_twice:adapter"}, bwq_toy_twice=ADAPTER)
    install(site, "bwq-toy-again", {"toy": "bwq_toy_twice:adapter"})

    assert find_adapter("toy://").schemes == ("toy",)


def test_an_adapter_that_cannot_be_imported_tells_why(site: Path) -> None:
    source = "import a_client_that_nobody_has"
    install(site, "bwq-toy", {"toy": "bwq_toy_broken:adapter"}, bwq_toy_broken=source)

    with pytest.raises(AdapterMissingError, match="a_client_that_nobody_has") as caught:
        find_adapter("toy://")
    assert isinstance(caught.value.__cause__, ImportError)


def test_an_entry_point_that_is_no_adapter_is_refused(site: Path) -> None:
    install(site, "bwq-toy", {"toy": "bwq_toy_odd:adapter"}, bwq_toy_odd="adapter = 'toy'")

    with pytest.raises(ConfigError, match="bwq_toy_odd:adapter"):
        find_adapter("toy://")


def test_a_missing_client_library_names_the_extra() -> None:
    adapter = find_adapter("memory://")
    cause = ImportError("no", name="aio_toy")

    error = missing_client(adapter, cause)

    assert "memory:// needs aio_toy, which is not installed" in str(error)


@pytest.mark.parametrize("url", ["", "jobs.db", "://x", "memory:", "memory:/x"])
def test_what_is_no_url_is_told_so(url: str) -> None:
    with pytest.raises(ConfigError, match="is not a broker URL"):
        scheme_of(url)


def test_a_url_is_shown_without_its_secrets() -> None:
    url = "amqp://guest:secret@host:5672/vhost?password=hidden&poll=1&p%61ss=x&cret"

    shown = "amqp://guest:***@host:5672/vhost?password=***&poll=1&p%61ss=***&***"
    assert redacted(url) == shown


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("memory://", "memory://"),
        ("sqlite:////var/lib/jobs.db", "sqlite:////var/lib/jobs.db"),
        ("sqlite:////home/me@work/jobs.db", "sqlite:////home/me@work/jobs.db"),
        ("amqp://token@host", "amqp://***@host"),
        ("amqp://:secret@host", "amqp://***@host"),
        ("amqp://[::1", "amqp://[::1"),
        ("AMQP://host/v#secret", "amqp://host/v"),
        ("sqs://eu-west-1/q?endpoint_url=http://a:1", "sqs://eu-west-1/q?endpoint_url=http://a:1"),
        ("sqs://eu-west-1/q?endpoint_url=http://me@host", "sqs://eu-west-1/q?endpoint_url=***"),
        ("sqs://eu-west-1/q?endpoint_url=http://a/?token=x", "sqs://eu-west-1/q?endpoint_url=***"),
        ("amqp://guest:se/cret@host/v", "amqp://guest:***@host/v"),
        ("amqp://guest:se?cret@host/v", "amqp://guest:***@host/v"),
        ("amqp://guest:se#cret@host/v", "amqp://guest:***@host/v"),
        ("amqp://guest:se@cret@host/v", "amqp://guest:***@host/v"),
        ("guest:secret@host/v", "guest:***@host/v"),
        ("jobs.db", "jobs.db"),
    ],
)
def test_a_url_in_any_shape_is_shown_without_its_secrets(url: str, shown: str) -> None:
    assert redacted(url) == shown


@pytest.mark.slow
@given(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=8, max_size=20))
def test_no_password_is_ever_shown(password: str) -> None:
    for secret in (password, quote(password, safe="")):
        for url in (f"amqp://me:{secret}@host:5672/v?a=b", f"me:{secret}@host/v"):
            assert secret not in redacted(url)


def test_options_are_converted_to_their_types() -> None:
    kinds: dict[str, type[object]] = {"a": int, "b": float, "c": bool, "d": str, "e": bool}

    options = url_options("x://h/p?a=1&b=2.5&c=YES&d=a%20b&e=off", kinds)

    assert options == {"a": 1, "b": 2.5, "c": True, "d": "a b", "e": False}


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("z=1", "unknown option 'z'.*known: a"),
        ("a=1&a=2", "'a' stands twice"),
        ("a=x", "'a' is 'x', which is no int"),
        ("a", "'a' is ''"),
    ],
)
def test_wrong_options_are_named(query: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        url_options(f"x://h?{query}", {"a": int})


@pytest.mark.parametrize(
    "url",
    [
        "amqp://me:se?cret@host/",
        "amqp://me:se?cr=et@host/",
        "amqp://me:se/x?cret&y=z@host/",
        "amqp://se?cret@host/",
    ],
)
def test_the_tail_of_a_password_is_not_taken_for_an_option_and_shown(url: str) -> None:
    with pytest.raises(ConfigError, match="write %3F") as caught:
        url_options(url, {"a": int})

    assert "cr" not in str(caught.value)


def test_a_bare_cause_says_what_it_says_and_no_more() -> None:
    with pytest.raises(OSError, match="refused") as caught:
        raise OSError("refused") from KeyError("the client's own")
    cause = bare(caught.value)

    assert "".join(traceback.format_exception(cause)) == "OSError: refused\n"


def test_a_truth_that_is_none_is_told_so() -> None:
    with pytest.raises(ConfigError, match="write true or false"):
        url_options("x://h?a=maybe", {"a": bool})


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("memory://name", "name"),
        ("sqlite:///jobs.db?poll=1", "/jobs.db"),
        ("sqlite:////var/a%20b.db", "//var/a b.db"),
        ("memory://", ""),
    ],
)
def test_the_path_is_what_stands_between_scheme_and_options(url: str, path: str) -> None:
    assert url_path(url) == path


def test_a_url_may_name_several_hosts_with_addresses_among_them() -> None:
    url = "amqp://me:p%40ss@one:5,[::1]:6,three/a%2Fb?x=1#y"
    assert scheme_of(url) == "amqp"
    assert split_url(url) == ("amqp", "me:p%40ss@one:5,[::1]:6,three", "/a%2Fb", "x=1", "y")
