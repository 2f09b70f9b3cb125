"""``brokerwq keys``: the store of processed keys: make it, look into it, prune it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from brokerwq.cli.failure import ExitCode, FinishedWithError, say
from brokerwq.cli.loop import run_async
from brokerwq.cli.options import json_option
from brokerwq.cli.output import as_json, fields, shown, span, stamp, stamp_json, table
from brokerwq.errors import ConfigError

if TYPE_CHECKING:
    from brokerwq.app import App
    from brokerwq.idempotency import Record
    from brokerwq.idempotency.store import Store

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_DIGEST_CHARS = 32
_BATCH = 1000
_STATES = {"in-progress": 1, "completed": 2, "failed": 3}


@click.group()
def keys() -> None:
    """Make, look into and prune the store of processed keys."""


def _store_options(command: F) -> F:
    url = click.option("--store", "store_url", metavar="URL", help="The store; else the app's.")
    app = click.option("--app", "app_spec", metavar="MODULE:ATTR", help="The app whose it is.")
    return url(app(command))


def _key_options(command: F) -> F:
    worker = click.option(
        "--worker", metavar="NAME", help="KEY is a value of this worker's key, as JSON or text."
    )
    id_ = click.option("--id", "is_id", is_flag=True, help="With --worker: KEY is a message's id.")
    return click.argument("key")(worker(id_(command)))


@keys.command("init")
@_store_options
@click.option("--dry-run", is_flag=True, help="Print the statements, and change nothing.")
def init(*, store_url: str | None, app_spec: str | None, dry_run: bool) -> None:
    """Make the tables or the mark that are missing."""
    store, _ = _open(store_url, app_spec, create=True)
    if dry_run:
        from brokerwq.idempotency import TransactionalStore

        end = ";" if isinstance(store, TransactionalStore) else ""  # SQL, or commands
        for statement in store.schema():
            click.echo(f"{statement}{end}")
        return

    async def make(store: Store) -> None:
        await store.init()
        await store.check()

    _with(store, make)
    say(f"{store.name} is ready")


@keys.command("ls")
@_store_options
@click.option("--state", type=click.Choice(list(_STATES)), help="Only records in this state.")
@click.option("--worker", metavar="APP/NAME", help="Only this worker's.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=100, show_default=True)
@json_option
def ls(
    *,
    store_url: str | None,
    app_spec: str | None,
    state: str | None,
    worker: str | None,
    limit: int,
    json_: bool,
) -> None:
    """List records, the newest first."""
    from brokerwq.idempotency import State

    store, _ = _open(store_url, app_spec)
    wanted = None if state is None else State(_STATES[state])
    found = _with(store, lambda store: store.list(limit, state=wanted, worker=worker))
    if json_:
        as_json([_as_json(record) for record in found])
        return
    table(
        ["KEY", "WORKER", "STATE", "CLAIMS>", "BEGUN", "EXPIRES", "MESSAGE"],
        [
            [
                record.key.hex(),
                shown(record.worker),
                _state(record),
                str(record.attempt),
                stamp(_moment(record.created_at)),
                stamp(_moment(record.expires_at)),
                shown(record.message_id),
            ]
            for record in found
        ],
    )


@keys.command("show")
@_store_options
@_key_options
@json_option
def show(
    *,
    store_url: str | None,
    app_spec: str | None,
    key: str,
    worker: str | None,
    is_id: bool,
    json_: bool,
) -> None:
    """Show the record of KEY.

    KEY is 32 hex digits, as ls prints them; or see --worker.
    """
    store, app = _open(store_url, app_spec)
    digest = _digest(key, worker, app, is_id=is_id)
    record = _with(store, lambda store: store.get(digest))
    if record is None:
        say(f"there is no record of {digest.hex()}")
        raise FinishedWithError(ExitCode.DEAD_LETTERS)
    if json_:
        as_json(_as_json(record))
        return
    lease = span(record.lease_left) if record.state == 1 and record.lease_left > 0 else ""
    fields(
        [
            ("key", record.key.hex()),
            ("worker", shown(record.worker)),
            ("state", _state(record)),
            ("lease left", lease),
            ("claims", str(record.attempt)),
            ("fence", str(record.fence)),
            ("message", shown(record.message_id)),
            ("redrives", str(record.generation)),
            ("payload digest", record.payload.hex()),
            ("begun", stamp(_moment(record.created_at))),
            ("expires", stamp(_moment(record.expires_at))),
            ("result", "" if record.result is None else shown(record.result, 4096)),
        ]
    )


@keys.command("forget")
@_store_options
@_key_options
@click.option("--dry-run", is_flag=True, help="Only say whether there is such a record.")
def forget(
    *,
    store_url: str | None,
    app_spec: str | None,
    key: str,
    worker: str | None,
    is_id: bool,
    dry_run: bool,
) -> None:
    """Remove the record of KEY, so that its work can be done again."""
    store, app = _open(store_url, app_spec)
    digest = _digest(key, worker, app, is_id=is_id)

    async def remove(store: Store) -> bool:
        if dry_run:
            return await store.get(digest) is not None
        return await store.forget(digest)

    if not _with(store, remove):
        say(f"there is no record of {digest.hex()}")
        raise FinishedWithError(ExitCode.DEAD_LETTERS)
    say(f"{digest.hex()} {'would be' if dry_run else 'is'} forgotten")


@keys.command("prune")
@_store_options
@click.option("--batch", type=click.IntRange(1, 100_000), default=_BATCH, show_default=True)
@click.option("--pause", type=click.FloatRange(0, 60), default=0.0, help="Seconds, in between.")
@click.option("--dry-run", is_flag=True, help="Only look for expired records among the newest.")
def prune(
    *, store_url: str | None, app_spec: str | None, batch: int, pause: float, dry_run: bool
) -> None:
    """Remove records that have expired, in batches."""
    store, _ = _open(store_url, app_spec)

    async def remove(store: Store) -> int:
        from brokerwq.clock import SYSTEM_CLOCK

        if dry_run:
            found = await store.list(100_000, state=None, worker=None)
            return sum(record.is_expired for record in found)
        total = 0
        while pruned := await store.prune(batch):
            total += pruned
            await SYSTEM_CLOCK.sleep(pause)
        return total

    count = _with(store, remove)
    say(f"{count:,} expired records {'would be' if dry_run else 'are'} removed")


def _open(
    store_url: str | None, app_spec: str | None, *, create: bool = False
) -> tuple[Store, App | None]:
    from brokerwq.cli.target import default_spec, load_app
    from brokerwq.idempotency import SqliteStore, open_store

    app = load_app(app_spec) if app_spec or (store_url is None and default_spec()) else None
    if store_url is not None:
        return open_store(store_url, create=create), app
    if app is not None and app.store is not None:
        if isinstance(app.store, SqliteStore):  # makes itself when it is used, but not for a look
            return open_store(app.store.name, create=create), app
        return app.store, app
    msg = "no store is named: give --store URL, or --app with an app that has one"
    raise ConfigError(msg)


def _with(store: Store, work: Callable[[Store], Awaitable[T]]) -> T:
    async def run() -> T:
        try:
            return await work(store)
        finally:
            await store.aclose()

    return run_async(run)


def _digest(key: str, worker: str | None, app: App | None, *, is_id: bool) -> bytes:
    if worker is None:
        try:
            digest = bytes.fromhex(key)
        except ValueError:
            digest = b""
        if len(digest) * 2 != _DIGEST_CHARS:
            msg = f"KEY is {_DIGEST_CHARS} hex digits, not {key!r:.100}; or give --worker NAME"
            raise click.UsageError(msg, click.get_current_context())
        return digest
    from brokerwq.idempotency.guard import StoreGuard

    if app is None:
        msg = "--worker needs the app: give --app"
        raise click.UsageError(msg, click.get_current_context())
    for each in app.workers:
        guard = each.route().guard
        if each.name == worker and isinstance(guard, StoreGuard):
            return guard.digest(("id", key) if is_id else _value(key))
    msg = f"the app has no worker {worker!r:.100} with once=…"
    raise ConfigError(msg)


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _moment(seconds: float) -> Any:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC)


def _state(record: Record) -> str:
    name = record.state.name.lower().replace("_", " ")
    return f"{name}, expired" if record.is_expired else name


def _as_json(record: Record) -> dict[str, object]:
    return {
        "key": record.key.hex(),
        "worker": record.worker,
        "state": record.state.name.lower(),
        "expired": record.is_expired,
        "claims": record.attempt,
        "fence": record.fence,
        "lease_left": max(record.lease_left, 0.0) if record.state == 1 else None,
        "message": record.message_id,
        "redrives": record.generation,
        "payload": record.payload.hex(),
        "begun": stamp_json(_moment(record.created_at)),
        "expires": stamp_json(_moment(record.expires_at)),
        "result": record.result,
    }
