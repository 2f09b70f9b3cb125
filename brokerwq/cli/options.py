"""How options are put on a verb, and the one that most of them have."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TypeAlias

import click

Verb: TypeAlias = Callable[..., None]

json_option = click.option("--json", "json_", is_flag=True, help="Print JSON.")


def with_options(options: Sequence[Callable[[Verb], Verb]], verb: Verb) -> Verb:
    """``verb`` with ``options``, which its help lists in this order."""
    return functools.reduce(lambda inner, option: option(inner), reversed(options), verb)
