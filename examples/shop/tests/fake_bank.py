"""The bank of the tests."""

from __future__ import annotations

from shop.bank import DeclinedError


class FakeBank:
    """Remembers; fails as often as it is told to."""

    def __init__(self) -> None:
        self.charged: dict[int, int] = {}
        self.letters: list[str] = []
        self.failures: list[Exception] = []
        self.declined: set[int] = set()

    async def charge(self, order: int, cents: int) -> None:
        if self.failures:
            raise self.failures.pop()
        if order in self.declined:
            raise DeclinedError(f"order {order}")
        self.charged[order] = cents

    def post(self, email: str, text: str) -> None:
        self.letters.append(f"{email}: {text}")
