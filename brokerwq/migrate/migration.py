"""A migration from one broker to another: plan, run, status, verify, finish, roll back."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from brokerwq.broker import CONNECT_TIMEOUT
from brokerwq.clock import SYSTEM_CLOCK, Clock
from brokerwq.connecting import connect
from brokerwq.driver.protocol import QueueSpec
from brokerwq.driver.registry import find_adapter, redacted, settings_of
from brokerwq.durations import Seconds, positive_seconds
from brokerwq.errors import ConfigError, DriverError, TransientError
from brokerwq.limits import MAX_LEASE, MIN_LEASE
from brokerwq.migrate.entry import Session
from brokerwq.migrate.ledger import Ledger
from brokerwq.migrate.mover import DEFAULT_LEASE, Mover, MoveReport
from brokerwq.migrate.pair import Direction, Pair, pairs_of
from brokerwq.migrate.plan import DEFAULT_SAMPLE, MigrationPlan, Planner
from brokerwq.migrate.queues import are_same, listed, not_there, refuse_same
from brokerwq.migrate.queues import declare as declare_all
from brokerwq.migrate.queues import require as require_all
from brokerwq.migrate.record import MigrationRecord
from brokerwq.migrate.side import Role, Side, name_side
from brokerwq.migrate.verify import Verification, verify
from brokerwq.migrate.watch import SideState, look_at

DEFAULT_LEDGER = "sqlite:///brokerwq-migration.db"


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """How a migration stands.

    Attributes:
        queues: Queue by queue.
        sessions: All movers there have been.
        is_finished: It was finished.
    """

    queues: list[SideState]
    sessions: list[Session]
    is_finished: bool

    def is_empty(self, settle: float) -> bool:
        """Whether the old side is empty, and has stayed so for ``settle`` seconds."""
        return all(queue.is_empty(settle) for queue in self.queues)


class Migration:
    """Moves queues from ``source`` to ``target``. Use it as an async context manager.

    Args:
        source: URL of the broker that has the messages.
        target: URL of the one that shall have them.
        queues: Names at the source and at the target; empty for those that the ledger knows, or,
            at the start, for all that the source lists.
        ledger: URL of the ledger, see ``Ledger``; all movers of one migration share it.
        specs: How queues shall be at the target, where the defaults are not meant.
        clock: Time; for tests.
        connect_timeout: Seconds for which connecting is tried again.
        creates: Whether a side that is only a file is made if it is not there.

    Raises:
        ConfigError: a URL or a name is wrong.
    """

    def __init__(
        self,
        source: str,
        target: str,
        queues: Mapping[str, str] | None = None,
        *,
        ledger: str = DEFAULT_LEDGER,
        specs: Sequence[QueueSpec] = (),
        clock: Clock = SYSTEM_CLOCK,
        connect_timeout: float = CONNECT_TIMEOUT,
        creates: bool = True,
    ) -> None:
        self._creates = creates
        self._urls = source, target
        self._queues = dict(queues or {})
        self._specs = tuple(specs)
        self._clock = clock
        self._connect_timeout = connect_timeout
        self._ledger_url = ledger
        Ledger(ledger)  # what is wrong with its URL is told before anything is connected
        self._sides: tuple[Side, Side] | None = None
        self._connections = AsyncExitStack()
        self.pairs: list[Pair] = []
        adapters = [find_adapter(url) for url in self._urls]
        settings = [
            settings_of(adapter, url) for adapter, url in zip(adapters, self._urls, strict=True)
        ]
        self._keeps_raw = adapters[0] is adapters[1]
        if self._keeps_raw and settings[0] == settings[1] and not self._renames:
            raise are_same(redacted(source))

    @property
    def _renames(self) -> bool:
        return any(old != new for old, new in self._queues.items())

    async def __aenter__(self) -> Self:
        """Connect to both sides.

        Raises:
            ConfigError: both sides are the same queues, or the source does not list its queues.
            QueueNotFoundError: no queue is named, and the source has none.
            DriverError: a side cannot be reached, or refuses; the text says which.
        """
        try:
            source = await self._open(self._urls[0], "source")
            target = await self._open(self._urls[1], "target")
            self._sides = source, target
            if not self._queues:
                known = await Ledger(self._ledger_url, clock=self._clock).known()
                if known is not None:
                    self._queues = dict(known.queues)
                else:
                    self._queues = {name: name for name in await listed(source, self._specs)}
            self.pairs = pairs_of(self._queues, specs=self._specs)
            await refuse_same(source, target, self.pairs)
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Disconnect."""
        await self.aclose()

    async def aclose(self) -> None:
        """Disconnect."""
        self._sides = None
        await self._connections.aclose()

    # -- verbs ----------------------------------------------------------------------------

    async def plan(self, *, sample: int = DEFAULT_SAMPLE, back: bool = False) -> MigrationPlan:
        """What would be moved, and what cannot be; nothing is changed. See ``Planner.plan``."""
        source, target, pairs, _ = self._turned(back=back)
        planner = Planner(source, target, keeps_raw=self._keeps_raw, clock=self._clock)
        return await planner.plan(pairs, sample=sample)

    async def run(
        self,
        *,
        back: bool = False,
        declare: bool = True,
        rate: float | None = None,
        settle: float = 5.0,
        lease: Seconds = DEFAULT_LEASE,
        patience: float = 60.0,
        waits: bool = True,
        on_progress: Callable[[MoveReport], object] = lambda _: None,
    ) -> MoveReport:
        """Move, until nothing is left at the source; several may move at once.

        Args:
            back: Move from the target to the source: a rollback.
            declare: Whether queues that are missing at the other side are made.
            rate: Messages a second at most.
            settle: Seconds for which nothing may be left before it is over.
            lease: Seconds after which what a mover that was killed held comes back.
            patience: Seconds for which a broker in trouble is asked again.
            waits: Whether what is delayed or held by others is waited for.
            on_progress: Told how things stand, after every batch.

        Raises:
            ConfigError: the ledger belongs to another migration, or this one is finished.
            QueueNotFoundError: there is no such queue.
            DriverError: a side refuses, or has not answered for all of the patience.
        """
        source, target, pairs, direction = self._turned(back=back)
        # What a broker in trouble has can be moved away, and one without room may get some.
        with suppress(TransientError):
            await source.require([pair.source for pair in pairs], takes=True)
        # A new ledger notes which broker each side is, which may show by its queues only.
        is_new = await Ledger(self._ledger_url, clock=self._clock).known() is None
        if declare and is_new:
            await declare_all(target, pairs)
        async with self._ledger(create=True) as ledger:
            if declare and not is_new:
                await declare_all(target, pairs)
            await require_all(source, target, pairs)
            with suppress(TransientError):
                await target.require([pair.target for pair in pairs], takes=False)
            mover = Mover(
                source,
                target,
                pairs,
                ledger,
                direction=direction,
                keeps_raw=self._keeps_raw,
                clock=self._clock,
                rate=rate,
                settle=settle,
                lease=positive_seconds(lease, "lease", limit=MAX_LEASE, least=MIN_LEASE),
                patience=patience,
                waits=waits,
                on_progress=on_progress,
            )
            return await mover.run()

    async def status(self, *, back: bool = False) -> Status:
        """Count both sides, and note whether the old one is empty.

        Raises:
            ConfigError: there is no such ledger, or it belongs to another migration.
            DriverError: a side cannot be asked.
        """
        source, target, pairs, direction = self._turned(back=back)
        async with self._ledger(create=False) as ledger:
            return Status(
                queues=await look_at(source, target, pairs, ledger, direction, clock=self._clock),
                sessions=await ledger.sessions(),
                is_finished=await ledger.closed_at() is not None,
            )

    async def verify(self, *, workers_run: bool = False) -> Verification:
        """Look through both sides and compare them with the ledger; see ``Verification``.

        Args:
            workers_run: Workers take messages at the target: what is gone has been run.

        Raises:
            ConfigError: there is no such ledger, or it belongs to another migration.
            DriverError: a side cannot be asked.
        """
        source, target = self._opened()
        async with self._ledger(create=False) as ledger:
            return await verify(
                source, target, self.pairs, ledger, clock=self._clock, workers_run=workers_run
            )

    async def finish(
        self,
        *,
        settle: float = 60.0,
        leave_refused: bool = False,
        assume_idle: bool = False,
        dry_run: bool = False,
    ) -> list[str]:
        """Close the migration, unless something speaks against it: what that is.

        Args:
            settle: Seconds for which the old side must have been empty, by ``status``.
            leave_refused: Misfits may stay at the source.
            assume_idle: Nobody holds messages at the source, though it cannot say so.
            dry_run: Only look.

        Raises:
            ConfigError: there is no such ledger, or it belongs to another migration.
            DriverError: a side cannot be asked.
        """
        source, target = self._opened()
        async with self._ledger(create=False) as ledger:
            states = await look_at(source, target, self.pairs, ledger, "forth", clock=self._clock)
            objections = [
                text
                for state in states
                for text in state.objections(
                    settle, leave_refused=leave_refused, assume_idle=assume_idle
                )
            ]
            objections += [
                f"mover {session.place} is still at work"
                for session in await ledger.sessions()
                if session.is_alive
            ]
            if not objections and not dry_run:
                for pair in self.pairs:
                    await ledger.settle_pending("forth", pair.source)
                await ledger.close_migration()
            return objections

    # -- the two sides --------------------------------------------------------------------

    def _opened(self) -> tuple[Side, Side]:
        if self._sides is None:
            msg = "a Migration is used inside `async with`"
            raise RuntimeError(msg)
        return self._sides

    def _turned(self, *, back: bool) -> tuple[Side, Side, list[Pair], Direction]:
        source, target = self._opened()
        if back:
            return target, source, [pair.turned() for pair in self.pairs], "back"
        return source, target, self.pairs, "forth"

    async def _open(self, url: str, role: Role) -> Side:
        connection = connect(
            url,
            connect_timeout=self._connect_timeout,
            clock=self._clock,
            creates=self._creates,
        )
        try:
            broker = await self._connections.enter_async_context(connection)
        except DriverError as error:
            name_side(error, role, redacted(url))
            raise
        return Side(role=role, url=redacted(url), driver=await broker.driver())

    @asynccontextmanager
    async def _ledger(self, *, create: bool) -> AsyncGenerator[Ledger]:
        source, target = self._opened()
        ledger = Ledger(self._ledger_url, clock=self._clock)
        known = await ledger.known()
        places: list[str] = []
        first = self.pairs[0]
        for side, queue in ((source, first.source), (target, first.target)):
            place = await side.place(queue)
            if not place and create:
                raise not_there(side, queue)
            if not place and known is not None:
                place = known.source if side is source else known.target
            places.append(place)
        if known is not None and [known.target, known.source] == places:
            msg = (
                f"the ledger {redacted(self._ledger_url)} belongs to another migration, the other "
                f"way round; the way back is: rollback {target.url} {source.url}"
            )
            raise ConfigError(msg)
        record = MigrationRecord(source=places[0], target=places[1], queues=self._queues)
        await ledger.open(record, create=create)
        try:
            yield ledger
        finally:
            await ledger.aclose()
