"""One of the two brokers of a migration: which one it is, and what is allowed there."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from brokerwq.driver.moving import Identified, Located, Rights
from brokerwq.driver.protocol import Driver
from brokerwq.errors import DriverError, PermissionDeniedError

Role: TypeAlias = Literal["source", "target"]
"""As whoever migrates named them; a rollback moves from the target to the source."""

_NAMED: Final = ("source ", "target ")
_WAY_OUT: Final = "; docs/migration.md has what a move needs there, under Permissions"


def name_side(error: DriverError, role: Role, url: str) -> None:
    """Let ``error`` say at which side it arose, unless it does already; see ``Side``."""
    text = str(error)
    if not text.startswith(_NAMED):
        hint = _WAY_OUT if isinstance(error, PermissionDeniedError) else ""
        error.args = (f"{role} {url}: {text}{hint}",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """See the module.

    Attributes:
        role: Which of the two.
        url: Its URL without the password, for people.
        driver: Open.
    """

    role: Role
    url: str
    driver: Driver

    def __str__(self) -> str:
        """For texts."""
        return f"{self.role} {self.url}"

    def name(self, error: DriverError) -> None:
        """Let ``error`` say that it arose here, unless it says already where it did."""
        name_side(error, self.role, self.url)

    @contextmanager
    def named(self) -> Generator[None]:
        """Errors of the broker that arise inside say that they arose here."""
        try:
            yield
        except DriverError as error:
            self.name(error)
            raise

    async def denials(self, queues: Iterable[str], *, takes: bool) -> list[PermissionDeniedError]:
        """What is known to be missing, before anything is touched.

        Args:
            queues: By their names here.
            takes: To claim, delete and put back; else to send.

        Raises:
            DriverError: nobody could do it, in the state that the broker is in.
        """
        driver = self.driver
        if not isinstance(driver, Rights):
            return []
        found: list[PermissionDeniedError] = []
        for queue in queues:
            with self.named():
                error = await driver.forbidden(queue, takes=takes)
            if error is not None:
                self.name(error)
                found.append(error)
        return found

    async def require(self, queues: Iterable[str], *, takes: bool) -> None:
        """Refuse to begin where the credentials are known not to suffice, see ``denials``.

        Raises:
            DriverError: they do not, or see ``denials``.
        """
        for error in await self.denials(queues, takes=takes):
            raise error

    async def identity(self, queue: str) -> str:
        """What tells ``queue`` from all others; empty where that cannot be told."""
        if not isinstance(self.driver, Identified):
            return ""
        try:
            return await self.driver.identity(queue)
        except DriverError:
            return ""  # whoever may not ask learns more when he moves

    async def place(self, queue: str) -> str:
        """Which broker this is, whatever credentials and options its URL has.

        Empty where that cannot be told as long as there is no such ``queue``.

        Raises:
            DriverError: the broker cannot be asked.
        """
        if not isinstance(self.driver, Located):
            return self.url
        with self.named():
            return await self.driver.place(queue)
