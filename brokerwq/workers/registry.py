"""The workers of one app, and what they say of their queues."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import cast

from brokerwq._runtime.route import Route
from brokerwq.driver.protocol import QueueSpec, dead_letter_name
from brokerwq.driver.spec import check_spec
from brokerwq.errors import ConfigError
from brokerwq.workers.decorating import AnyWorker


class Registry:
    """Workers by queue.

    Args:
        queues: Properties that were set in so many words.
    """

    def __init__(self, queues: Sequence[QueueSpec] = ()) -> None:
        self.workers: list[AnyWorker] = []
        self._routes: dict[str, list[Route]] = {}
        self._given = {spec.name: spec for spec in _checked(queues)}

    def add(self, worker: AnyWorker) -> None:
        """Take ``worker`` in.

        Raises:
            ConfigError: its queue has a worker already for one of its types.
        """
        route = worker.route()
        beside = self._routes.get(route.queue, [])
        taken = {name for other in beside for name in (other.name, *other.aliases)}
        for name in (route.name, *route.aliases):
            if name in taken:
                msg = f"queue {route.queue!r} has a worker {name!r} already: give name=…"
                raise ConfigError(msg)
        _check_foreign(route, beside)
        if beside and (route.batch or any(other.batch for other in beside)):
            msg = f"a worker with batch=… must have its queue to itself; {route.queue!r} has two"
            raise ConfigError(msg)
        self._routes.setdefault(route.queue, []).append(route)
        self.workers.append(worker)

    def routes(self, queue: str) -> list[Route]:
        """The workers of ``queue``, as the runtime knows them."""
        return list(self._routes.get(queue, ()))

    def specs(self) -> list[QueueSpec]:
        """Every queue that has a worker, or whose properties were given."""
        return [self._spec(name) for name in dict.fromkeys([*self._routes, *self._given])]

    def by_name(self) -> Mapping[str, QueueSpec]:
        """The same by name; follows workers that are added later."""
        return _Specs(self)

    def spec(self, queue: str) -> QueueSpec | None:
        """The properties of ``queue``; None if the app does not know it."""
        known = queue in self._routes or queue in self._given
        return self._spec(queue) if known else None

    def _spec(self, queue: str) -> QueueSpec:
        routes = self._routes.get(queue, [])
        given = self._given.get(queue)
        holds = any(worker.holds_dead for worker in self.workers if worker.queue == queue)
        if given is not None and holds:
            given = check_spec(replace(given, on_dead="hold"))
        if given is not None and given.lease is not None:
            return given
        leases = [route.lease for route in routes if route.lease is not None]
        lease = max(leases, default=None)
        if given is not None:
            return replace(given, lease=lease)
        foreign = any(route.foreign for route in routes)
        return QueueSpec(
            name=queue,
            lease=lease,
            on_dead="hold" if holds else "dead-letter",
            declare="never" if foreign else "create",
        )

    def check_dead_letter_queues(self) -> None:
        """Refuse a queue with workers that is another one's dead-letter queue.

        Raises:
            ConfigError: there is one.
        """
        for queue in self._routes:
            for spec in self.specs():
                if spec.name != queue and spec.dead_letter_queue == queue:
                    hint = " by default" if queue == dead_letter_name(spec.name) else ""
                    msg = (
                        f"queue {queue!r} has workers, and is the dead-letter queue of "
                        f"{spec.name!r}{hint}: rename it, or say QueueSpec(dead_letter=…)"
                    )
                    raise ConfigError(msg)


def _check_foreign(route: Route, beside: Sequence[Route]) -> None:
    other = next((each.foreign for each in beside if each.foreign), None)
    if route.foreign is None or other is None:
        return
    if not (route.foreign.names_types and other.names_types):
        msg = f"queue {route.queue!r} has a worker for foreign messages already"
        raise ConfigError(msg)
    if route.foreign.codec != other.codec:
        msg = (
            f"queue {route.queue!r} has a worker for foreign messages with another codec, "
            f"{other.codec!r:.100}: a message is read once, so give both the same object"
        )
        raise ConfigError(msg)


def _checked(queues: object) -> list[QueueSpec]:
    if isinstance(queues, str | bytes) or not isinstance(queues, Sequence):
        msg = f"queues must be a list of QueueSpec, not {queues!r:.200}"
        raise ConfigError(msg)
    specs = [check_spec(spec) for spec in cast("Sequence[object]", queues)]
    names = [spec.name for spec in specs]
    for name in names:
        if names.count(name) > 1:
            msg = f"queues has {name!r} twice: say all of a queue in one QueueSpec"
            raise ConfigError(msg)
    return specs


class _Specs(Mapping[str, QueueSpec]):
    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def __getitem__(self, queue: str) -> QueueSpec:
        spec = self._registry.spec(queue)
        if spec is None:
            raise KeyError(queue)
        return spec

    def __iter__(self) -> Iterator[str]:
        return iter([spec.name for spec in self._registry.specs()])

    def __len__(self) -> int:
        return len(self._registry.specs())
