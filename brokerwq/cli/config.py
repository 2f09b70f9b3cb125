"""``brokerwq config``: what is set, and where that was said."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from brokerwq.cli.options import json_option
from brokerwq.cli.output import as_json, table
from brokerwq.cli.running import warn_of_misspelt_settings
from brokerwq.cli.target import default_spec, load_app

if TYPE_CHECKING:
    from brokerwq.settings import Settings


@click.group()
def config() -> None:
    """Show the settings."""


@config.command("show")
@click.argument("app_spec", required=False, metavar="[MODULE:ATTR]")
@json_option
def show(*, app_spec: str | None, json_: bool) -> None:
    """Show every setting, its value, and where that came from.

    With an app, as the app sees them; else as the environment has them. Passwords are not
    shown.
    """
    settings = _settings(app_spec)
    warn_of_misspelt_settings()
    described = settings.describe()
    if json_:
        as_json([asdict(setting) for setting in described])
        return
    table(
        ["SETTING", "VALUE", "FROM", "VARIABLE", "MEANING"],
        [
            [
                setting.name,
                f"{setting.value} {setting.unit}".strip() if setting.value != "none" else "none",
                setting.origin,
                setting.variable,
                setting.description,
            ]
            for setting in described
        ],
    )


def _settings(app_spec: str | None) -> Settings:
    from brokerwq.settings import Settings

    if app_spec is None and default_spec() is None:
        return Settings.load()
    return load_app(app_spec).settings
