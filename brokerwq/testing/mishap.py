"""What can befall a worker: the words in which a schedule of faults is written.

Each stands for one run of the worker, in order: ``[crash_at(2), duplicate()]`` lets the first run
die at its point 2, and delivers the message once more after the second. Points are numbered from
1 in the order in which a run meets them; the report of ``assert_idempotent`` names them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from brokerwq.errors import ConfigError

Kind: TypeAlias = Literal[
    "crash_at",
    "error_at",
    "lose_lease",
    "overlap",
    "duplicate",
    "disconnect",
    "throttle",
    "partial_failure",
]
Moment: TypeAlias = Literal["ack", "send"]
"""Right before the ack; right after what the job enqueued was sent."""


@dataclass(frozen=True, slots=True)
class Mishap:
    """One fault; made by the functions of this module.

    Attributes:
        kind: Which.
        at: A point, from 1; or 0 for none.
        call: The call to the broker that it strikes; empty for none.
        done: The broker did what it was asked, but its answer was lost.
        places: Places in a batch, from 0.
    """

    kind: Kind
    at: int = 0
    call: str = ""
    done: bool = False
    places: tuple[int, ...] = ()

    def __str__(self) -> str:
        """As it is written in a program."""
        words = [str(self.at)] if self.at else []
        words += [repr(self.call)] if self.call else []
        words += ["done=True"] if self.done else []
        return f"{self.kind}({', '.join([*words, *map(str, self.places)])})"

    @property
    def holds(self) -> bool:
        """Whether the run stands still at its point while another one goes by."""
        return self.kind in ("lose_lease", "overlap")


def crash_at(point: int | Moment, /) -> Mishap:
    """The process dies at ``point``: what it held comes back when its lease ends.

    Where the worker waits for something the run just never goes on, as after SIGKILL. Before a
    line nothing but an exception can end it, so that ``finally`` blocks run; no ``except
    Exception`` catches it.

    ``"ack"`` is right before the ack; ``"send"`` right after its children were sent.
    """
    if isinstance(point, str):
        return Mishap("crash_at", call=_checked_call(point))
    return Mishap("crash_at", at=_checked_point(point))


def error_at(point: int, /) -> Mishap:
    """The worker meets a ``ConnectionError`` at ``point``: its attempt fails and is repeated.

    Where it waits for something, that has been done, and only its answer is lost.
    """
    return Mishap("error_at", at=_checked_point(point))


def lose_lease(point: int, /) -> Mishap:
    """The process freezes at ``point`` until its lease is over and another one has done the work.

    Then it goes on from there, up to the next thing that it waits for.
    """
    return Mishap("lose_lease", at=_checked_point(point))


def overlap(point: int, /) -> Mishap:
    """A second copy runs in another process while this run stands still at ``point``."""
    return Mishap("overlap", at=_checked_point(point))


def duplicate() -> Mishap:
    """The message is delivered once more after the run."""
    return Mishap("duplicate")


def disconnect(call: Moment = "ack", /, *, done: bool = False) -> Mishap:
    """The connection breaks in ``call``: what is held comes back at once.

    With ``done`` the broker has done it, and only its answer is lost.
    """
    return Mishap("disconnect", call=_checked_call(call), done=done)


def throttle(call: Moment = "ack", /) -> Mishap:
    """The broker asks for a pause instead of doing ``call``."""
    return Mishap("throttle", call=_checked_call(call))


def partial_failure(*places: int) -> Mishap:
    """In the ack of a batch the messages at ``places`` fail, and come back."""
    if not places or any(place < 0 for place in places):
        msg = f"partial_failure takes places in a batch, from 0, not {places!r:.100}"
        raise ConfigError(msg)
    return Mishap("partial_failure", places=places)


def _checked_point(point: object) -> int:
    if isinstance(point, int) and not isinstance(point, bool) and point >= 1:
        return point
    msg = f"a point is a whole number from 1, not {point!r:.100}"
    raise ConfigError(msg)


def _checked_call(call: str) -> str:
    if call not in ("ack", "send"):
        msg = f"a fault strikes 'ack' or 'send', not {call!r:.100}"
        raise ConfigError(msg)
    return call
