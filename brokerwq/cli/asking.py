"""Asks before something is deleted for good."""

from __future__ import annotations

import sys

import click


def confirm_by_name(queue: str, yes: str | None, what: str) -> None:
    """Return if the user has named ``queue`` once more, by ``--yes`` or when asked.

    Args:
        queue: The name that must be given.
        yes: What stood behind ``--yes``.
        what: What would be done, for the question.

    Raises:
        click.UsageError: the names differ, or nobody is there to be asked.
    """
    context = click.get_current_context()
    if yes is None:
        if not sys.stdin.isatty():
            msg = f"this would {what}; add --yes {queue} to go on"
            raise click.UsageError(msg, context)
        yes = click.prompt(
            f"This will {what}, for good. Type the queue's name to go on", err=True, default=""
        )
    if yes != queue:
        msg = f"{yes!r:.100} is not {queue!r}; nothing was done"
        raise click.UsageError(msg, context)
