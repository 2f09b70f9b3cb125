"""A driver of one virtual host of RabbitMQ."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from weakref import WeakSet

from brokerwq.clock import Clock
from brokerwq.driver import (
    UNKNOWN_COUNT,
    Capabilities,
    Consumer,
    Count,
    Difference,
    QueueSpec,
    QueueStats,
    Results,
    dead_letter_name,
)
from brokerwq.driver.doctor import Finding
from brokerwq.driver.rules import rabbitmq as rules
from brokerwq.driver.support import listed, no_dead_letter_queue
from brokerwq.durations import positive_seconds, seconds_of
from brokerwq.errors import (
    PermissionDeniedError,
    QueueMismatchError,
    QueueNotFoundError,
    UnsupportedError,
)
from brokerwq.message import Message
from brokerwq_rabbitmq import examination, topology
from brokerwq_rabbitmq.abilities import abilities
from brokerwq_rabbitmq.consumer import RabbitConsumer
from brokerwq_rabbitmq.control import Control
from brokerwq_rabbitmq.copies import Copier
from brokerwq_rabbitmq.errors import closed
from brokerwq_rabbitmq.intake import Intake, Source
from brokerwq_rabbitmq.link import Link
from brokerwq_rabbitmq.publisher import Publisher
from brokerwq_rabbitmq.settings import RabbitSettings

DEFAULT_LEASE = 60.0
"""Seconds; RabbitMQ's queues have no lease of their own."""


class RabbitDriver:
    """See ``brokerwq.driver.Driver``; also a ``brokerwq.driver.doctor.Doctor``."""

    def __init__(self, settings: RabbitSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._consuming = Link(settings, clock, role="consumer")
        self._publishing = Link(settings, clock, role="publisher")
        self._control = Control(self._consuming, settings.rpc_timeout)
        self._copier = Copier(
            Publisher(self._publishing, settings), clock, settings.publish_timeout
        )
        self._sources: dict[str, Source] = {}
        self._consumers: WeakSet[RabbitConsumer] = WeakSet()
        self._is_open = False
        self._capabilities = abilities(settings)

    @property
    def capabilities(self) -> Capabilities:
        """See ``Driver.capabilities``."""
        return self._capabilities

    async def open(self) -> None:
        """See ``Driver.open``."""
        await self._consuming.connect()
        self._is_open = True

    async def aclose(self) -> None:
        """See ``Driver.aclose``."""
        if not self._is_open:
            return
        self._is_open = False
        await asyncio.gather(*(consumer.aclose() for consumer in list(self._consumers)))
        await asyncio.gather(self._publishing.aclose(), self._consuming.aclose())

    async def send(
        self, queue: str, messages: Sequence[Message], delays: Sequence[float], /
    ) -> Results:
        """See ``Driver.send``."""
        waits = [seconds_of(delay, "delay", floor=0.0) for delay in delays]
        self._require_open()
        results = await self._copier.send(queue, messages, waits)
        for error in results:
            if isinstance(error, QueueNotFoundError):
                raise error
        return results

    async def foresee(
        self, queue: str, messages: Sequence[Message], delays: Sequence[float], /
    ) -> Results:
        """See ``brokerwq.driver.moving.Foresight``."""
        self._require_open()
        return [
            self._copier.refusal(queue, message, delay, self._consuming.max_frame)
            for message, delay in zip(messages, delays, strict=True)
        ]

    async def identity(self, queue: str, /) -> str:
        """See ``brokerwq.driver.moving.Identified``. A cluster is known by its own name."""
        self._require_open()
        return f"{self._consuming.cluster} vhost {self._settings.vhost} {queue}"

    async def place(self, queue: str, /) -> str:
        """See ``brokerwq.driver.moving.Located``."""
        return self._settings.place

    async def forbidden(self, queue: str, /, *, takes: bool) -> PermissionDeniedError | None:
        """See ``brokerwq.driver.moving.Rights``. What is put back uncounted goes as a copy, too."""
        self._require_open()
        words = f"take from {queue} and put back uncounted" if takes else f"send to {queue}"
        return await self._copier.denial(words)

    async def consume(self, queue: str, /, *, lease: float | None, prefetch: int) -> Consumer:
        """See ``Driver.consume``."""
        self._require_open()
        seconds = DEFAULT_LEASE if lease is None else positive_seconds(lease, "lease")
        limit = self._capabilities.max_lease
        if seconds > limit:
            if lease is not None:
                msg = (
                    f"a lease of {seconds:g} s; RabbitMQ at {self._place} allows "
                    f"{limit:g} (from consumer_timeout={self._settings.consumer_timeout:g})"
                )
                raise UnsupportedError(msg)
            seconds = limit
        source = self._sources.get(queue) or await self._look_at(queue)
        intake = Intake(
            source,
            link=self._consuming,
            copier=self._copier,
            settings=self._settings,
            clock=self._clock,
            prefetch=prefetch,
            verify=self._verify,
        )
        await intake.start()
        consumer = RabbitConsumer(
            source,
            intake,
            self._copier,
            self._clock,
            lease=seconds,
            returns_uncounted=self._consuming.has_consumer_timeout,
        )
        self._consumers.add(consumer)
        return consumer

    async def _verify(self, source: Source) -> None:
        """Make sure that a queue which was lost from sight is still what it was."""
        if source.plan is None:
            return
        await self._control.depth(source.name)
        comparison = await self._control.compare(source.plan)
        differences = topology.differences_of(
            source.plan, comparison.found, durable=comparison.durable
        )
        if differences:
            raise QueueMismatchError(listed(differences))

    async def _look_at(self, queue: str) -> Source:
        """What a queue that was not declared here is: perhaps one of ours all the same."""
        dead_letter = dead_letter_name(queue)
        await self._control.depth(queue)
        plans = topology.plan(QueueSpec(name=queue))
        for plan in (plans[-1], topology.dead_letter_plan(queue)):
            comparison = await self._control.compare(plan)
            if comparison.is_complete and not comparison.found and comparison.durable:
                has_levels = await self._control.exists(topology.level_name(queue, 1))
                return self._remember(
                    Source(
                        name=queue,
                        dead_letter=dead_letter,
                        is_quorum=True,
                        has_levels=has_levels,
                        plan=plan,
                    )
                )
        return Source(name=queue, dead_letter=dead_letter, is_quorum=False, has_levels=False)

    def _remember(self, source: Source) -> Source:
        self._sources[source.name] = source
        return source

    async def declare(
        self, spec: QueueSpec, /, *, check_only: bool = False
    ) -> Sequence[Difference]:
        """See ``Driver.declare``."""
        self._require_open()
        topology.check(spec, self._capabilities.max_lease)
        if spec.declare == "never":
            await self._adopt(spec)
            dead = spec.dead_letter_queue
            is_needed = check_only and spec.on_dead != "hold" and spec.dead_letter_via is None
            if is_needed and not await self._control.exists(dead):
                raise no_dead_letter_queue(spec)
            return []
        differences, missing = await self._survey(spec)
        if check_only or spec.declare == "check":
            if missing:
                names = ", ".join(plan.name for plan in missing)
                msg = f"missing at {self._place}: {names}"
                raise QueueNotFoundError(msg)
        elif not differences:
            for plan in missing:
                await self._control.create(plan)
        return differences

    async def declare_dead_letter(
        self, spec: QueueSpec, /, *, check_only: bool = False
    ) -> Sequence[Difference]:
        """See ``brokerwq.driver.doctor.DeadLetterMaker``."""
        self._require_open()
        topology.check(replace(spec, declare="never"), self._capabilities.max_lease)
        plan = topology.dead_letter_plan(spec.dead_letter_queue)
        if await self._control.exists(plan.name):
            found = await self._control.compare(plan)
            return topology.differences_of(plan, found.found, durable=found.durable)
        if check_only:
            msg = f"missing at {self._place}: {plan.name}"
            raise QueueNotFoundError(msg)
        await self._control.create(plan)
        return []

    async def _survey(self, spec: QueueSpec) -> tuple[list[Difference], list[topology.QueuePlan]]:
        """What differs and what is missing; and remember what the queue is."""
        differences: list[Difference] = []
        if spec.ordered:
            differences.append(
                Difference(queue=spec.name, property="ordered", wanted=True, found=False)
            )
        missing: list[topology.QueuePlan] = []
        is_quorum = True
        plans = topology.plan(spec)
        work = plans[-1]
        for plan in plans:
            if not await self._control.exists(plan.name):
                missing.append(plan)
                continue
            comparison = await self._control.compare(plan)
            if plan.name == spec.name:
                is_quorum = comparison.is_complete and "x-queue-type" not in comparison.found
                if comparison.found and await self._is_dead_letter_queue(plan.name):
                    work = topology.dead_letter_plan(plan.name)
                    continue  # worked off as a queue of its own; what it is cannot be changed
            differences += topology.differences_of(
                plan, comparison.found, durable=comparison.durable
            )
        dead = spec.dead_letter_queue
        has_levels = not any(".delay." in difference.queue for difference in differences)
        self._remember(
            Source(
                name=spec.name,
                dead_letter=dead,
                is_quorum=is_quorum,
                has_levels=has_levels,
                plan=work,
            )
        )
        if not any(difference.queue == dead for difference in differences):
            self._remember(
                Source(
                    name=dead,
                    dead_letter=dead_letter_name(dead),
                    is_quorum=True,
                    has_levels=False,
                    plan=topology.dead_letter_plan(dead),
                )
            )
        return differences, missing

    async def _is_dead_letter_queue(self, name: str) -> bool:
        """Whether it is one that was declared as another's dead-letter queue."""
        comparison = await self._control.compare(topology.dead_letter_plan(name))
        return comparison.is_complete and comparison.durable and not comparison.found

    async def _adopt(self, spec: QueueSpec) -> None:
        """Look, and nothing else."""
        try:
            await self._control.depth(spec.name)
            has_levels = await self._control.exists(
                topology.level_name(spec.name, topology.LEVELS[-1])
            )
            if await self._control.is_stream(spec.name):
                raise QueueMismatchError(examination.not_a_queue(spec.name))
        except PermissionDeniedError:
            has_levels = False
        via = spec.dead_letter_via
        if via and not await self._control.has_exchange(via):
            msg = f"dead-letter exchange {via} of {spec.name} does not exist at {self._place}"
            raise QueueNotFoundError(msg)
        self._remember(
            Source(
                name=spec.name,
                dead_letter=spec.dead_letter_queue,
                is_quorum=False,
                has_levels=has_levels,
                by_reject=via is not None,
            )
        )

    @property
    def has_dead_letter_ways(self) -> bool:
        """See ``brokerwq.driver.doctor.Adopter``."""
        return True

    async def caveats(self, spec: QueueSpec, /) -> Sequence[str]:
        """See ``brokerwq.driver.doctor.Adopter``."""
        self._require_open()
        source = self._sources.get(spec.name)
        has_levels = source is not None and source.has_levels
        return examination.caveats(spec, has_levels=has_levels)

    @property
    def _place(self) -> str:
        return self._consuming.place

    async def examine(self, spec: QueueSpec, /) -> Sequence[Finding]:
        """See ``brokerwq.driver.doctor.Doctor``."""
        self._require_open()
        return await examination.examine(
            spec, self._control, settings=self._settings, version=self._consuming.version
        )

    async def inspect(self, queue: str, /) -> QueueStats:
        """See ``Driver.inspect``.

        ``leased`` is known where it is none: a quorum queue counts whoever holds one of its
        messages as a consumer.
        """
        self._require_open()
        source = self._sources.get(queue)
        depth = await self._control.depth(queue)
        delayed, next_due = 0, None
        if source is None or source.has_levels:
            delayed, next_due = await self._delayed(queue)
        dead = await self._ready(source.dead_letter if source else dead_letter_name(queue))
        # What lies here unclaimed is the broker's, to be claimed by us.
        buffered = sum(each.buffered for each in self._consumers if each.queue == queue)
        is_idle = source is not None and source.is_quorum and depth.consumers == 0
        return QueueStats(
            ready=Count(depth.ready + buffered),
            leased=Count(0) if is_idle else UNKNOWN_COUNT,
            delayed=Count(delayed),
            dead=Count(dead),
            next_due=next_due,
        )

    async def _delayed(self, queue: str) -> tuple[int, float | None]:
        """How many are delayed, and when the first is due at the latest."""
        total, first = 0, None
        for seconds in topology.LEVELS:
            try:
                depth = await self._control.depth(topology.level_name(queue, seconds))
            except QueueNotFoundError:
                break
            total += depth.ready
            if depth.ready and first is None:
                first = float(seconds)
        return total, first

    async def _ready(self, queue: str) -> int:
        try:
            return (await self._control.depth(queue)).ready
        except QueueNotFoundError:
            return 0

    async def purge(self, queue: str, /) -> None:
        """See ``Driver.purge``."""
        self._require_open()
        await self._control.purge(queue)
        for seconds in topology.LEVELS:
            try:
                await self._control.purge(topology.level_name(queue, seconds))
            except QueueNotFoundError:
                break
        # Once more: a delay that ended meanwhile has brought its message here.
        await self._control.purge(queue)

    async def queues(self) -> Sequence[str]:
        """See ``Driver.queues``. Only the management plugin could tell."""
        raise rules.cannot_list()

    def _require_open(self) -> None:
        if not self._is_open:
            raise closed("driver")
