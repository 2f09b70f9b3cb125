"""Settings: what the environment says, what code says instead, and the defaults.

Every field is declared once, with its meaning, unit and range; ``config show`` and the table in
the documentation are made from these declarations. This module imports pydantic-settings, and
is itself imported only when an app is built.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from brokerwq import limits
from brokerwq.backoff import MAX_ATTEMPTS_LIMIT
from brokerwq.driver.registry import redacted, split_urls
from brokerwq.errors import ConfigError

PREFIX: Final = "BROKERWQ_"
DEFAULT_URL: Final = "sqlite:///brokerwq.db"

_TARGET = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\[\]:\s]+):([0-9]{1,5})")
_MAX_PORT = 65535
_ALIKE = 0.8


def _number(value: object) -> object:
    if isinstance(value, bool):
        msg = "a number"
        raise ValueError(msg)  # noqa: TRY004  -- pydantic collects ValueError alone
    return value


def _none_by_name(value: object) -> object:
    return None if isinstance(value, str) and value.strip().lower() == "none" else value


def _upper(value: object) -> object:
    return value.upper() if isinstance(value, str) else value


def _target(value: str | None) -> str | None:
    if value is not None and not _TARGET.fullmatch(value):
        raise ValueError(value)
    return value


def _address(value: str | None) -> str | None:
    if value is not None:
        found = _ADDRESS.fullmatch(value)
        if found is None or int(found[1]) > _MAX_PORT:
            raise ValueError(value)
    return value


# A NaN is within no range; pydantic would let one pass a comparison.
_Float = Annotated[float, BeforeValidator(_number), Field(allow_inf_nan=False)]
_Int = Annotated[int, BeforeValidator(_number)]


def _unit(unit: str, *, values: str = "") -> dict[str, Any]:
    return {"unit": unit, "values": values}


class Settings(BaseSettings):
    """All settings. ``Settings.load`` makes one, with errors that people can read."""

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(
        env_prefix=PREFIX, env_ignore_empty=True, frozen=True, extra="forbid"
    )

    url: SecretStr = Field(
        SecretStr(DEFAULT_URL),
        description="The broker, as scheme://…; holds a password, and is never shown whole",
        json_schema_extra=_unit("", values="a broker's URL, or several with blanks between"),
    )
    send_to: SecretStr | None = Field(
        None,
        description="Which of several brokers is sent to; the first if it is not said",
        json_schema_extra=_unit("", values="one of the brokers' URLs, or its scheme"),
    )
    app: Annotated[str | None, BeforeValidator(_none_by_name), AfterValidator(_target)] = Field(
        None,
        description="The app that the command line works on",
        json_schema_extra=_unit("", values="MODULE:ATTR"),
    )
    lease: _Float = Field(
        60.0,
        gt=0,
        le=limits.MAX_LEASE,
        description="How long a claim lasts; heartbeats extend it",
        json_schema_extra=_unit("seconds"),
    )
    max_attempts: _Int = Field(
        5,
        ge=1,
        le=MAX_ATTEMPTS_LIMIT,
        description="Attempts in all before a message is a dead letter",
        json_schema_extra=_unit("attempts"),
    )
    backoff_base: _Float = Field(
        1.0,
        ge=0,
        le=limits.MAX_BACKOFF,
        description="Wait before the second attempt; doubles from one to the next",
        json_schema_extra=_unit("seconds"),
    )
    backoff_cap: _Float = Field(
        600.0,
        gt=0,
        le=limits.MAX_BACKOFF,
        description="Longest wait between two attempts",
        json_schema_extra=_unit("seconds"),
    )
    backoff_jitter: Literal["full", "equal", "none"] = Field(
        "full",
        description="How much of the wait is drawn by chance: all, half or nothing",
        json_schema_extra=_unit("", values="full, equal or none"),
    )
    timeout: Annotated[_Float | None, BeforeValidator(_none_by_name)] = Field(
        None,
        gt=0,
        le=limits.MAX_TIMEOUT,
        description="How long one call of a worker may take",
        json_schema_extra=_unit("seconds"),
    )
    slots: _Int = Field(
        10,
        ge=1,
        le=limits.MAX_SLOTS,
        description="Jobs that one process runs at once",
        json_schema_extra=_unit("jobs"),
    )
    grace: _Float = Field(
        15.0,
        ge=0,
        le=limits.MAX_GRACE,
        description="Time that running jobs have to end when the runner is told to stop",
        json_schema_extra=_unit("seconds"),
    )
    unknown_after: _Float = Field(
        3600.0,
        ge=0,
        le=limits.MAX_UNKNOWN_AFTER,
        description="How long a message of unknown type waits for a runner that knows it",
        json_schema_extra=_unit("seconds"),
    )
    reconnect_cap: _Float = Field(
        5.0,
        gt=0,
        le=limits.MAX_CONNECT,
        description="Longest wait between two tries to reach a lost broker",
        json_schema_extra=_unit("seconds"),
    )
    connect_timeout: _Float = Field(
        10.0,
        gt=0,
        le=limits.MAX_CONNECT,
        description="How long the first connection may take",
        json_schema_extra=_unit("seconds"),
    )
    heartbeat: bool = Field(
        default=True,
        description="Whether leases are extended for as long as their jobs run",
        json_schema_extra=_unit("", values="true or false"),
    )
    health: Annotated[str | None, BeforeValidator(_none_by_name), AfterValidator(_address)] = Field(
        None,
        description="Where the runner answers /live and /ready",
        json_schema_extra=_unit("", values="HOST:PORT"),
    )
    processes: _Int = Field(
        1,
        ge=1,
        le=limits.MAX_PROCESSES,
        description="Processes of one `brokerwq run`",
        json_schema_extra=_unit("processes"),
    )
    log_level: Annotated[
        Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"], BeforeValidator(_upper)
    ] = Field(
        "INFO",
        description="The least level that is logged",
        json_schema_extra=_unit("", values="DEBUG, INFO, WARNING, ERROR or CRITICAL"),
    )

    _in_code: frozenset[str] = PrivateAttr(frozenset())

    @classmethod
    def load(cls, **overrides: Any) -> Settings:
        """The environment's settings, with ``overrides`` on top.

        Args:
            **overrides: What code says; None is the same as not saying it.

        Raises:
            ConfigError: a value is out of its range; the text names it, where it came from
                and the range, for every such value.
        """
        said = {name: value for name, value in overrides.items() if value is not None}
        try:
            settings = cls(**said)
        except ValidationError as exc:
            raise ConfigError("; ".join(_complaints(exc, said))) from None
        settings._in_code = frozenset(said)
        return settings

    def describe(self) -> list[Setting]:
        """Every setting, for people: value, unit, range, and where it came from."""
        return [
            Setting(
                name=name,
                variable=PREFIX + name.upper(),
                value=_shown(getattr(self, name)),
                unit=_extra(name, "unit"),
                range=_range(name),
                origin=self._origin(name),
                description=field.description or "",
            )
            for name, field in type(self).model_fields.items()
        ]

    def _origin(self, name: str) -> Literal["code", "environment", "default"]:
        if name in self._in_code:
            return "code"
        return "environment" if name in self.model_fields_set else "default"


def misspelt(variables: Iterable[str]) -> dict[str, str]:
    """Environment variables that set nothing but look like a setting's, each with that one's.

    Other names with our prefix are left alone: adapters, telemetry and tests have theirs.
    """
    names = {name.upper() for name in Settings.model_fields}
    found: dict[str, str] = {}
    for variable in variables:
        upper = variable.upper()
        name = upper.removeprefix(PREFIX)
        if name == upper or name in names:
            continue
        for meant in difflib.get_close_matches(name, sorted(names), n=1, cutoff=_ALIKE):
            found[variable] = PREFIX + meant
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting, for people.

    Attributes:
        name: Its name in code.
        variable: Its environment variable.
        value: Its value as text, without passwords.
        unit: Of the value; empty where it has none.
        range: What it may be.
        origin: Where the value came from.
        description: What it does.
    """

    name: str
    variable: str
    value: str
    unit: str
    range: str
    origin: Literal["code", "environment", "default"]
    description: str


def _shown(value: object) -> str:
    match value:
        case SecretStr():
            return " ".join(map(redacted, split_urls(value.get_secret_value())))
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}"
        case _:
            return str(value)


def _extra(name: str, key: str) -> str:
    extra: Any = Settings.model_fields[name].json_schema_extra
    return str(extra[key])


def _range(name: str) -> str:
    """What the field may be, from its own declaration."""
    field = Settings.model_fields[name]
    parts = [_extra(name, "values")] if _extra(name, "values") else []
    if _extra(name, "unit") in ("attempts", "jobs", "processes"):
        parts.append("a whole number")
    for bound in field.metadata:
        for attribute, text in (
            ("gt", "above {}"),
            ("ge", "{} or more"),
            ("le", "at most {:.10g}"),
        ):
            limit = getattr(bound, attribute, None)
            if limit is not None:
                parts.append(text.format(limit))
    if field.default is None:
        parts.append("or none")
    return ", ".join(parts)


def _complaints(error: ValidationError, said: dict[str, Any]) -> Iterator[str]:
    for fault in error.errors(include_url=False, include_context=False):
        name = str(fault["loc"][0]) if fault["loc"] else "?"
        if name not in Settings.model_fields:
            yield f"there is no setting {name!r:.100}; known: {', '.join(Settings.model_fields)}"
            continue
        variable = name if name in said else PREFIX + name.upper()
        found = "***" if name in ("url", "send_to") else f"{fault['input']!r:.100}"
        unit = _extra(name, "unit")
        yield f"{variable} is {found}; it must be {_range(name)}" + (f" ({unit})" if unit else "")
