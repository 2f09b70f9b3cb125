"""The options of ``dlq`` that choose among dead letters."""

from __future__ import annotations

import functools
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import click

from brokerwq.cli.options import Verb, with_options
from brokerwq.cli.values import duration

if TYPE_CHECKING:
    from brokerwq.dead_letters.selection import Selection


_OPTIONS = (
    click.option("--id", "ids", multiple=True, metavar="ID", help="These; may be repeated."),
    click.option("--reason", "reasons", multiple=True, help="Given up on for this reason."),
    click.option("--type", "types", multiple=True, help="Of this message type."),
    click.option("--digest", "digests", multiple=True, help="With this traceback digest."),
    click.option(
        "--older-than", callback=duration, metavar="DURATION", help="Dead for so long: 12h, 2d."
    ),
)


def selection_options(command: Verb) -> Verb:
    """Add the options to a verb, which gets one argument ``selection`` for them."""

    @functools.wraps(command)
    def verb(
        *,
        ids: tuple[str, ...],
        reasons: tuple[str, ...],
        types: tuple[str, ...],
        digests: tuple[str, ...],
        older_than: Fraction | None,
        **others: Any,
    ) -> None:
        from brokerwq.dead_letters.selection import Selection

        selection = Selection(
            ids=frozenset(ids),
            reasons=frozenset(reasons),
            types=frozenset(types),
            digests=frozenset(digests),
            older_than=None if older_than is None else float(older_than),
        )
        command(selection=selection, **others)

    return with_options(_OPTIONS, verb)


def require_choice(selection: Selection, *, everything: bool) -> None:
    """Refuse to act on all dead letters unless that was said.

    Raises:
        click.UsageError: there is neither a choice nor ``--all``, or there are both.
    """
    from brokerwq.dead_letters.selection import EVERYTHING

    if (selection == EVERYTHING) == everything:
        return
    msg = (
        "choose by --id, --reason, --type, --digest or --older-than, or say --all"
        if not everything
        else "--all goes with no other choice"
    )
    raise click.UsageError(msg, click.get_current_context())
