"""Adapters that are not there, or not what they say: one clear error at every door."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

import pytest

from brokerwq import App, connect
from brokerwq.cli import main
from brokerwq.errors import AdapterMissingError, ConfigError

_LATE = """
from brokerwq.driver import Adapter
def late(*_):
    import a_client_that_nobody_has
def early(url):
    return url
adapter = Adapter(schemes=("bad",), summary="", extra="bad", parse_url={parse}, build=late)
"""


def install(folder: Path, name: str, source: str | None, module: str) -> None:
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[brokerwq.adapters]\nbad = {module}:adapter\n")
    if source is not None:
        (folder / f"{module}.py").write_text(source)


async def is_told(error: type[ConfigError], text: str) -> None:
    """By ``App`` and by ``connect``, without the password."""
    url = "bad://user:secret@host"
    with pytest.raises(error, match=text) as told:
        async with App(url):
            pass
    assert "secret" not in str(told.value)
    with pytest.raises(error, match=text) as told:
        async with connect(url):
            pass
    assert "secret" not in str(told.value)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("import a_client_that_nobody_has", "cannot be imported: No module named"),
        ("1 / 0", "cannot be imported: ZeroDivisionError"),
        ("def x(:", "cannot be imported: SyntaxError"),
        ("import sys; sys.exit(3)", "cannot be imported: SystemExit"),
        ("", "cannot be imported: AttributeError"),
        (None, "cannot be imported: No module named"),
        (_LATE.format(parse="early"), "pip install 'brokerwq\\[bad\\]'"),
        (_LATE.format(parse="late"), "pip install 'brokerwq\\[bad\\]'"),
    ],
)
def test_an_adapter_that_is_not_there_is_one_clear_line(
    source: str | None,
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    module = f"bwq_bad_{abs(hash((source, text)))}"
    install(tmp_path, "bwq_bad", source, module)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    _check(AdapterMissingError, text, capfd)


def test_two_adapters_of_one_scheme_are_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    install(tmp_path, "bwq_one", None, "bwq_one")
    install(tmp_path, "bwq_two", None, "bwq_two")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    _check(ConfigError, "claimed by bwq_one.*bwq_two.*uninstall", capfd)


def test_a_scheme_that_nobody_serves_is_one_clear_line(capfd: pytest.CaptureFixture[str]) -> None:
    _check(AdapterMissingError, "no adapter serves bad://; installed: .*sqlite", capfd)


def _check(error: type[ConfigError], text: str, capfd: pytest.CaptureFixture[str]) -> None:
    asyncio.run(is_told(error, text))
    assert main(["queues", "ls", "--url", "bad://user:secret@host"]) == 2
    said = capfd.readouterr()
    assert said.out == ""
    assert re.search(text, said.err)
    assert said.err.count("\n") == 1
    assert "Traceback" not in said.err
    assert "secret" not in said.err
