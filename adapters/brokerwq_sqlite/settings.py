"""Everything that can be set about SQLite, once: it reads URLs, the environment and code alike."""

from __future__ import annotations

import os
from typing import Literal

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from brokerwq.driver.support import split_url, url_options, url_path
from brokerwq.errors import ConfigError

_ENV_PREFIX = "BROKERWQ_SQLITE_"


class SqliteSettings(BaseSettings):
    """A URL's options go before the environment (``BROKERWQ_SQLITE_…``), that before defaults."""

    model_config = SettingsConfigDict(env_prefix=_ENV_PREFIX, frozen=True, extra="forbid")

    path: str = Field(description="The database file, absolute; comes from the URL.")
    create: bool = Field(
        default=True,
        description="Make the file if it does not exist. Its folder must exist in any case.",
    )
    synchronous: Literal["FULL", "NORMAL"] = Field(
        default="FULL",
        description=(
            "FULL: what was confirmed survives a power failure. NORMAL: it survives the end of "
            "any process, but a power failure may undo the last seconds; the file stays sound."
        ),
    )
    busy_timeout: float = Field(
        default=5.0,
        gt=0,
        le=3600,
        description="Seconds to wait for another process that is writing, then TransientError.",
    )
    poll: float = Field(
        default=0.025,
        ge=0.001,
        le=1,
        description="Seconds between two looks at the file while a claim waits.",
    )


def parse_url(url: str) -> SqliteSettings:
    """Settings from ``sqlite:///relative.db`` or ``sqlite:////absolute.db``.

    A relative path starts at the working directory of this moment.

    Raises:
        ConfigError: there is no such form or option, or a value is out of range.
    """
    options: dict[str, object] = dict(
        url_options(
            url,
            {"create": bool, "synchronous": str, "busy_timeout": float, "poll": float},
        )
    )
    if "synchronous" in options:
        options["synchronous"] = str(options["synchronous"]).upper()
    try:
        return SqliteSettings.model_validate({"path": _path_of(url), **options})
    except ValidationError as exc:
        raise ConfigError(_explain(exc)) from exc


def _path_of(url: str) -> str:
    path = url_path(url)
    if ":memory:" in path:
        msg = "sqlite:// keeps messages in a file; for a queue in memory use memory://"
        raise ConfigError(msg)
    if split_url(url).fragment:
        msg = "write a # in a file name as %23"
        raise ConfigError(msg)
    name = path.removeprefix("/")
    if not path.startswith("/") or not name or name.endswith("/") or "\0" in name:
        msg = (
            "the URL names no file: three slashes start a relative path (sqlite:///jobs.db), "
            "four an absolute one (sqlite:////var/lib/jobs.db)"
        )
        raise ConfigError(msg)
    return os.path.abspath(name)  # noqa: PTH100  -- resolving links is SQLite's own business


def _explain(exc: ValidationError) -> str:
    return "; ".join(
        f"{name} (option, or {_ENV_PREFIX}{name.upper()}) is {error['input']!r:.100}: "
        f"{error['msg']}"
        for error in exc.errors()
        for name in [".".join(map(str, error["loc"]))]
    )
