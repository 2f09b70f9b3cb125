"""What ``brokerwq doctor`` says about a queue at RabbitMQ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta

from brokerwq.driver import QueueSpec
from brokerwq.driver.doctor import Finding
from brokerwq.driver.support import declare_command
from brokerwq.errors import PermissionDeniedError, QueueNotFoundError
from brokerwq_rabbitmq import topology
from brokerwq_rabbitmq.control import Comparison, Control
from brokerwq_rabbitmq.settings import RabbitSettings

_OLDEST = (3, 10)
_LIMIT = "x-delivery-limit"
_WAY = "x-dead-letter-exchange"
_CAVEATS = (
    (
        "attempts are a lower bound: a lost delivery is counted in a copy, sent before it "
        "runs; without permission to publish it is not counted, and nothing stops what kills "
        "its runner"
    ),
    (
        "the broker's own delivery limit is not known; RabbitMQ 4 gives up after 21 deliveries "
        "where none is set, and drops the message where there is no dead-letter exchange"
    ),
)
"""What is not guaranteed on any queue that belongs to somebody else."""
_STREAM = (
    "is a stream, of which a runner would see only what comes while it runs, and delete nothing; "
    "let its owner bind a queue beside it"
)
_UNCOMPARED = "its arguments cannot be compared without permission to configure it"


async def examine(
    spec: QueueSpec, control: Control, *, settings: RabbitSettings, version: tuple[int, int]
) -> list[Finding]:
    """Look at the server and at every queue of ``spec``."""
    findings = [_server(version), _timeout(settings, version), *_lease(spec, settings)]
    if spec.declare == "never":
        return findings + await _adopted(spec, control)
    levels: list[Finding] = []
    for plan in topology.plan(spec):
        is_level = plan.name not in (spec.name, spec.dead_letter_queue)
        found = levels if is_level else findings
        found += await _queue(plan, control, fix=declare_command(spec))
    return findings + _as_one(levels, f"queues {spec.name}.delay.*")


def _as_one(findings: Sequence[Finding], subject: str) -> list[Finding]:
    """What is found of many queues alike, said once."""
    alike: dict[Finding, list[Finding]] = {}
    for finding in findings:
        alike.setdefault(replace(finding, subject=subject), []).append(finding)
    return [
        each[0] if len(each) == 1 else replace(told, subject=f"{subject} ({len(each)})")
        for told, each in alike.items()
    ]


async def _adopted(spec: QueueSpec, control: Control) -> list[Finding]:
    """What keeps a runner from somebody else's queue, and what it lacks: none of it is ours."""
    subject = f"queue {spec.name}"
    try:
        await control.depth(spec.name)
    except QueueNotFoundError:
        return [_missing(subject, f"its owner makes it; if it is yours: {declare_command(spec)}")]
    except PermissionDeniedError as exc:
        return [Finding(subject=subject, level="error", text=str(exc), fix=_grant(spec.name))]
    if await control.is_stream(spec.name):
        return [Finding(subject=subject, level="error", text=_STREAM)]
    findings = await _dead_letters(spec, control)
    has_levels = await control.exists(topology.level_name(spec.name, topology.LEVELS[-1]))
    own = [f"adopted: {text}" for text in _own_caveats(spec, has_levels=has_levels)]
    told = [(subject, text) for text in [*await _theirs(spec, control), *own]]
    told += [("adopted queues", text) for text in _CAVEATS]
    return findings + [Finding(subject=each, level="warning", text=text) for each, text in told]


async def _dead_letters(spec: QueueSpec, control: Control) -> list[Finding]:
    via, dead = spec.dead_letter_via, spec.dead_letter_queue
    if via is not None:
        if not via or await control.has_exchange(via):
            return []
        return [_missing(f"exchange {via}", "the owner of the queue makes it")]
    if spec.on_dead == "hold":
        return []
    subject = f"queue {dead}"
    if not await control.exists(dead):
        return [_missing(subject, declare_command(spec, dead_letters_only=True))]
    found = (await control.compare(topology.dead_letter_plan(dead))).found
    ttl = found.get("x-message-ttl")
    if isinstance(ttl, int):
        text = f"forgets what it holds after {timedelta(milliseconds=ttl)}, dead letters too"
        return [Finding(subject=subject, level="warning", text=text)]
    return [Finding(subject=subject, level="ok", text="is there for dead letters")]


async def _theirs(spec: QueueSpec, control: Control) -> list[str]:
    """Properties of somebody else's queue that a worker should know of."""
    plan = topology.plan(spec)[-1]
    if spec.dead_letter_via is not None:
        plan = _with_way(plan, spec.dead_letter_via)
    comparison = await control.compare(plan)
    found = comparison.found
    texts: list[str] = []
    limit = found.get(_LIMIT)
    if isinstance(limit, int) and limit < spec.broker_limit:
        texts.append(_words(_LIMIT, spec.broker_limit, limit))
    if spec.dead_letter_via is not None and _WAY in found:
        texts.append(_words(_WAY, spec.dead_letter_via, found[_WAY]))
    if not comparison.durable:
        texts.append("is not durable: it is gone when the broker restarts")
    if not comparison.is_complete and not found:
        texts.append(_UNCOMPARED)
    return texts


def not_a_queue(name: str) -> str:
    """Why a stream cannot be worked on."""
    return f"queue {name} {_STREAM}"


def caveats(spec: QueueSpec, *, has_levels: bool) -> list[str]:
    """What is not guaranteed on a queue that belongs to somebody else, and is not declared."""
    return [*_CAVEATS, *_own_caveats(spec, has_levels=has_levels)]


def _own_caveats(spec: QueueSpec, *, has_levels: bool) -> list[str]:
    found: list[str] = []
    if not has_levels:
        found.append(
            "a delay holds its message unacked: it takes a place of the prefetch, and comes early "
            "after a lost connection"
        )
    via = spec.dead_letter_via
    if via is not None:
        found.append(
            f"dead letters are rejected to exchange {via!r}, without a note; RabbitMQ drops them "
            "if the queue has no such dead-letter exchange, or nothing is bound to it"
        )
    elif spec.on_dead == "hold":
        found.append("what would be a dead letter is held here")
    return found


def _with_way(plan: topology.QueuePlan, exchange: str) -> topology.QueuePlan:
    """``plan`` with its owner's dead-letter exchange, whatever routing key goes with it."""
    arguments = {**plan.arguments, _WAY: exchange}
    del arguments["x-dead-letter-routing-key"]
    return topology.QueuePlan(name=plan.name, arguments=arguments)


def _server(version: tuple[int, int]) -> Finding:
    text = f"RabbitMQ {version[0]}.{version[1]}"
    if version < _OLDEST:
        return Finding(
            subject="server",
            level="error",
            text=f"{text} has no at-least-once dead-lettering",
            fix="upgrade to 3.10 or newer",
        )
    return Finding(subject="server", level="ok", text=text)


def _lease(spec: QueueSpec, settings: RabbitSettings) -> list[Finding]:
    if spec.lease is None or spec.lease <= settings.max_lease:
        return []
    text = f"its lease of {spec.lease:g} s is longer than the consumer timeout allows"
    fix = "a shorter lease; or raise consumer_timeout at the broker and in the URL"
    return [Finding(subject=f"queue {spec.name}", level="error", text=text, fix=fix)]


def _timeout(settings: RabbitSettings, version: tuple[int, int]) -> Finding:
    timeout = settings.consumer_timeout
    if version >= (4, 3):
        return Finding(
            subject="consumer timeout",
            level="ok",
            text=f"{timeout:g} s, set by our consumers; leases up to {settings.max_lease:g} s",
        )
    return Finding(
        subject="consumer timeout",
        level="ok",
        text=(
            f"{timeout:g} s is assumed, for it cannot be asked for; leases up to "
            f"{settings.max_lease:g} s"
        ),
        fix=f"rabbitmqctl eval 'application:get_env(rabbit, consumer_timeout).' "
        f"must say {{ok,{int(timeout * 1000)}}}; else add consumer_timeout=SECONDS to the URL",
    )


async def _queue(plan: topology.QueuePlan, control: Control, *, fix: str) -> Iterable[Finding]:
    subject = f"queue {plan.name}"
    try:
        await control.depth(plan.name)
    except QueueNotFoundError:
        return [_missing(subject, fix)]
    except PermissionDeniedError as exc:
        return [Finding(subject=subject, level="error", text=str(exc), fix=_grant(plan.name))]
    comparison = await control.compare(plan)
    findings = [
        Finding(
            subject=subject,
            level="error" if difference.property in ("durable", "exclusive") else "warning",
            text=_words(difference.property, difference.wanted, difference.found),
            fix=difference.fix,
        )
        for difference in topology.differences_of(
            plan, comparison.found, durable=comparison.durable
        )
    ]
    if not comparison.is_complete:
        findings.append(_incomplete(subject, plan.name, comparison))
    return findings or [Finding(subject=subject, level="ok", text="as it should be")]


def _missing(subject: str, fix: str) -> Finding:
    return Finding(subject=subject, level="error", text="does not exist", fix=fix)


def _incomplete(subject: str, queue: str, comparison: Comparison) -> Finding:
    if comparison.found:
        return Finding(subject=subject, level="warning", text="more may differ than was named")
    return Finding(
        subject=subject,
        level="warning",
        text=_UNCOMPARED,
        fix=_grant(queue),
    )


def _grant(queue: str) -> str:
    return f"rabbitmqctl set_permissions -p VHOST USER '^{queue}' '.*' '.*'"


def _words(name: str, wanted: object, found: object) -> str:
    if name == "x-queue-type":
        return (
            "is a classic queue: the broker does not count receives, so a lost delivery is "
            "counted in a copy; delays take a slot"
        )
    if name == _LIMIT and isinstance(found, int) and isinstance(wanted, int) and found < wanted:
        return f"gives up after {found + 1} deliveries by itself; workers with more attempts lose"
    if name == _LIMIT and found is None:
        return "has no delivery limit of its own (20 on RabbitMQ 4), and drops what exceeds it"
    return f"{name} is {found!r}, wanted {wanted!r}"
