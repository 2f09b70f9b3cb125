"""What ``brokerwq migrate`` says, to people and to programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from brokerwq.cli.failure import say
from brokerwq.cli.output import number, number_json, shown, span, table

if TYPE_CHECKING:
    from brokerwq.driver import QueueStats
    from brokerwq.migrate import MigrationPlan, MoveReport, SideState, Verification
    from brokerwq.migrate.line import LaneReport
    from brokerwq.migrate.migration import Status

MAX_SHOWN = 50


# -- plan ---------------------------------------------------------------------------------


def show_plan(plan: MigrationPlan) -> None:
    """The plan for people."""
    click.echo(f"from {plan.source} to {plan.target}")
    for difference in plan.differences:
        mark = "-" if difference.loses else "+"
        click.echo(f"  {mark} {difference.subject}: {difference.text}")
    table(
        ["QUEUE", "TO", "READY>", "LEASED>", "DELAYED>", "LOOKED AT>", "FIT NOT>"],
        [
            [
                shown(queue.source),
                shown(queue.target) + ("" if queue.target_exists else " (to be made)"),
                *_numbers(queue.stats),
                f"{queue.sampled:,}" + ("" if queue.is_complete else " (a sample)"),
                f"{sum(misfit.queue == queue.source for misfit in plan.misfits):,}",
            ]
            for queue in plan.queues
        ],
    )
    for misfit in plan.misfits[:MAX_SHOWN]:
        click.echo(f"  {shown(misfit.queue)} {shown(misfit.id) or '-'}: {shown(misfit.reason)}")
    if len(plan.misfits) > MAX_SHOWN:
        click.echo(f"  and {len(plan.misfits) - MAX_SHOWN:,} more (see --json)")
    for queue in plan.queues:
        if queue.foreign:
            say(f"{queue.source}: {queue.foreign:,} messages were sent by other programs")
        if queue.made_in_future:
            say(
                f"{queue.source}: {queue.made_in_future:,} messages say they were made up to "
                f"{span(queue.skew)} from now: clocks differ, and delays with them"
            )
    for denial in plan.denials:
        say(denial)
    if plan.fits and plan.certainty == "sample":
        say("everything that was looked at fits; --sample all looks at everything")


def plan_json(plan: MigrationPlan) -> dict[str, Any]:
    """The plan for programs."""
    return {
        "source": plan.source,
        "target": plan.target,
        "certainty": plan.certainty,
        "differences": [asdict(difference) for difference in plan.differences],
        "queues": [
            {
                "queue": queue.source,
                "target": queue.target,
                "dead_letters": queue.is_dead,
                "target_exists": queue.target_exists,
                "stats": _stats_json(queue.stats),
                "sampled": queue.sampled,
                "complete": queue.is_complete,
                "foreign": queue.foreign,
                "made_in_future": queue.made_in_future,
                "skew": queue.skew,
            }
            for queue in plan.queues
        ],
        "misfits": [asdict(misfit) for misfit in plan.misfits],
        "denials": plan.denials,
    }


# -- run ----------------------------------------------------------------------------------


def note_of(report: MoveReport) -> str:
    """A few words beside the progress."""
    parts: list[str] = []
    if report.refused:
        parts.append(f"{report.refused:,} do not fit")
    if report.waiting:
        parts.append(f"{report.waiting:,} waited for")
    if report.throttled:
        parts.append(f"{report.throttled:,} times throttled")
    return ", ".join(parts)


def show_report(report: MoveReport) -> None:
    """What a mover did, for people."""
    parts = [f"{report.moved:,} moved"]
    if report.refused:
        parts.append(f"{report.refused:,} do not fit and stay")
    if report.waiting:
        parts.append(f"{report.waiting:,} left at the source")
    rate = f", {report.moved / report.seconds:,.0f}/s" if report.seconds > 0 else ""
    click.echo(f"{', '.join(parts)} in {span(report.seconds)}{rate}")
    for lane in report.lanes:
        _show_lane(lane)


def _show_lane(lane: LaneReport) -> None:
    for id_, reason in list(lane.refused.items())[:MAX_SHOWN]:
        click.echo(f"  {shown(lane.queue)} {shown(id_)}: {shown(reason)}")
    if lane.left_open:
        say(
            f"{lane.queue}: {lane.left_open:,} are on both sides for now; the next mover that "
            "meets them deletes them at the source"
        )


def report_json(report: MoveReport) -> dict[str, Any]:
    """What a mover did, for programs."""
    return {
        "moved": report.moved,
        "refused": report.refused,
        "waiting": report.waiting,
        "throttled": report.throttled,
        "seconds": report.seconds,
        "complete": report.is_complete,
        "queues": [asdict(lane) for lane in report.lanes],
    }


# -- status -------------------------------------------------------------------------------


def show_status(status: Status, settle: float) -> None:
    """How both sides stand, for people."""
    table(
        ["QUEUE", "OLD SIDE>", "LEASED>", "DELAYED>", "NEW SIDE>", "MOVED>", "FIT NOT>", "EMPTY"],
        [
            [
                shown(state.source),
                *_numbers(state.old),
                _numbers(state.new)[0],
                f"{state.counts.moved:,}",
                f"{state.counts.refused:,}",
                _emptiness(state, settle),
            ]
            for state in status.queues
        ],
    )
    working = [session.place for session in status.sessions if session.is_alive]
    if working:
        say(f"movers at work: {', '.join(working)}")
    if status.is_finished:
        say("the migration is finished")


def _emptiness(state: SideState, settle: float) -> str:
    if state.empty_for is None:
        return "no"
    if state.held_by_others:
        return "maybe: it has consumers that may hold messages"
    if state.empty_for < settle:
        return f"for {span(state.empty_for)}, not yet {span(settle)}"
    return f"yes, for {span(state.empty_for)}"


def status_json(status: Status, settle: float) -> dict[str, Any]:
    """How both sides stand, for programs."""
    return {
        "empty": status.is_empty(settle),
        "finished": status.is_finished,
        "queues": [
            {
                "queue": state.source,
                "target": state.target,
                "dead_letters": state.is_dead,
                "old": _stats_json(state.old),
                "new": _stats_json(state.new),
                **asdict(state.counts),
                "empty_for": state.empty_for,
                "held_by_others": state.held_by_others,
                "empty": state.is_empty(settle),
            }
            for state in status.queues
        ],
        "movers": [
            {
                "place": session.place,
                "direction": session.direction,
                "started_at": session.started_at.isoformat(),
                "alive": session.is_alive,
                "ended": session.has_ended,
            }
            for session in status.sessions
        ],
    }


# -- verify -------------------------------------------------------------------------------


def show_verification(found: Verification) -> None:
    """The proof, for people."""
    gone = "RUN>" if found.workers_run else "NOT FOUND>"
    table(
        ["QUEUE", "KNOWN>", "NEW SIDE>", "OLD SIDE>", "FIT NOT>", "HIDDEN>", gone, "BOTH>"],
        [
            [
                shown(proof.queue),
                *(
                    f"{count:,}"
                    for count in (
                        proof.known,
                        proof.at_target,
                        proof.at_source,
                        proof.refused,
                        proof.hidden,
                        proof.run,
                        proof.at_both,
                    )
                ),
            ]
            for proof in found.queues
        ],
    )
    for proof in found.queues:
        if proof.unknown:
            say(f"{proof.queue}: {proof.unknown:,} at the source have not been moved yet")
        _name(proof.queue, "not what was sent", proof.altered)
        if not found.workers_run:
            _name(proof.queue, "not found", proof.missing)
    if not found.is_complete:
        say("a queue holds more than one look can: this is a part of the proof")
    if found.missing:
        say("if workers run them at the new side, say --workers-run")
    click.echo("it adds up" if found.adds_up else "it does not add up")


def _name(queue: str, what: str, ids: Sequence[str]) -> None:
    for id_ in ids[:MAX_SHOWN]:
        click.echo(f"  {shown(queue)} {shown(id_)}: {what}")


def verification_json(found: Verification) -> dict[str, Any]:
    """The proof, for programs."""
    return {
        "adds_up": found.adds_up,
        "complete": found.is_complete,
        "workers_run": found.workers_run,
        "queues": [asdict(proof) for proof in found.queues],
    }


def _numbers(stats: QueueStats | None) -> list[str]:
    if stats is None:
        return ["-", "-", "-"]
    return [number(stats.ready), number(stats.leased), number(stats.delayed)]


def _stats_json(stats: QueueStats | None) -> dict[str, int | None] | None:
    if stats is None:
        return None
    return {
        "ready": number_json(stats.ready),
        "leased": number_json(stats.leased),
        "delayed": number_json(stats.delayed),
    }
