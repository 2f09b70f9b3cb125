"""brokerwq on a folder of files: ``folder:///var/spool/jobs``. An adapter to learn from."""

from __future__ import annotations

from pathlib import Path

from brokerwq.clock import Clock
from brokerwq.driver import Adapter, Driver
from brokerwq.driver.support import url_options, url_path


def _parse_url(url: str) -> Path:
    url_options(url, dict[str, type[str]]())  # there are none, and others are refused
    return Path(url_path(url)).absolute()


def _build(folder: Path, clock: Clock) -> Driver:
    from brokerwq_folder.driver import FolderDriver

    return FolderDriver(folder, clock)


adapter: Adapter[Path] = Adapter(
    schemes=("folder",), summary="a folder of files", extra="", parse_url=_parse_url, build=_build
)
