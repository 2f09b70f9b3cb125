"""The bank, as the shop sees it."""

from __future__ import annotations

from typing import Protocol


class DeclinedError(Exception):
    """The card will not do, today or tomorrow."""


class Bank(Protocol):
    """What charges cards and posts letters."""

    async def charge(self, order: int, cents: int) -> None:
        """Charge a card; twice for the same order charges once.

        Raises:
            DeclinedError: the card is no good.
            ConnectionError: the bank does not answer.
        """
        ...

    def post(self, email: str, text: str) -> None:
        """Send a letter."""
        ...
