"""``everthread status``: the threads of a store. Loads as little as it can: it is what people type most."""

from __future__ import annotations

import time
from collections.abc import Iterator
from heapq import nlargest
from typing import TYPE_CHECKING, Any

import click

from everthread.cli.asking import Asked, example, pass_asked, shared_options
from everthread.cli.failing import CORRUPT
from everthread.cli.telling import note, records
from everthread.cli.words import ago, cells, clean, counted, pad
from everthread.errors import DamageError, ThreadNotFoundError

if TYPE_CHECKING:
    from everthread.model.versions import ThreadInfo
    from everthread.opening import Store

#: Threads that belong to something else, which shows them.
HIDDEN = ("checkpoint:",)
COLUMNS = ("name", "version", "version_id", "updated_at", "session", "label", "metadata")
_NAME_WIDTH_MAX = 48
_STATUS_COLOURS = {"running": "green", "waiting_for_input": "yellow", "crashed": "red", "failed": "red"}


@click.command(epilog=example("status", "status invoice-", "status --json | jq -r '.threads[].name'"))
@click.argument("prefix", default="")
@click.option(
    "--limit", default=20, show_default=True, type=click.IntRange(1), help="How many threads at most."
)
@click.option("--all", "everything", is_flag=True, help="Also those of object checkpoints.")
@shared_options
@pass_asked
def status(asked: Asked, prefix: str, limit: int, everything: bool) -> None:
    """The threads whose names begin with PREFIX, those saved last first, each with how its session stands."""
    with asked.store() as store:
        total, damage = 0, ""

        def listed() -> Iterator[ThreadInfo]:
            nonlocal total, damage
            try:
                for info in store.threads(prefix):
                    if everything or not info.name.startswith(HIDDEN):
                        total += 1
                        yield info
            except DamageError as error:
                damage = str(error)

        # However many there are, only so many are kept in memory.
        shown = nlargest(limit, listed(), key=lambda info: info.updated_at_us)
        rows = [_row(store, info) for info in shown]
        data = {"store": store.url, "threads": rows, "total": total, "complete": not damage}
        times_us = [info.updated_at_us for info in shown]
        asked.tell.answer("status", data, lambda: _print(data, times_us), records("threads", COLUMNS))
        if damage:
            note(f"damaged: {damage}; there may be more threads, and everthread doctor says more")
            raise click.exceptions.Exit(CORRUPT)


def _row(store: Store, info: ThreadInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "version": info.seq,
        "version_id": info.version_id,
        "updated_at": info.updated_at,
        "session": session_status(store, info.name),
        "label": info.label,
        "metadata": info.metadata,
    }


def session_status(store: Store, name: str) -> str | None:
    """How the last run of a thread stands; ``None`` if there never was one."""
    from everthread.cli.family import has_session

    try:
        return store.session_records(name).status if has_session(store, name) else None
    except DamageError:
        return "damaged"
    except ThreadNotFoundError:
        # Deleted since it was listed.
        return None


def _print(data: dict[str, Any], times_us: list[int]) -> None:
    rows, now_us = data["threads"], time.time_ns() // 1000
    if not rows:
        note(f"no threads in {data['store']}")
        return
    width = min(_NAME_WIDTH_MAX, max(cells(clean(row["name"], _NAME_WIDTH_MAX)) for row in rows))
    numbers = max(len(str(row["version"])) for row in rows)
    for row, time_us in zip(rows, times_us, strict=True):
        session = row["session"] or "–"
        name = click.style(pad(clean(row["name"], width), width), bold=True)
        version = f"v{row['version']}".ljust(numbers + 1)
        state = click.style(session, fg=_STATUS_COLOURS.get(session)) + " " * (9 - len(session))
        label = clean(row["label"], 40) if row["label"] else ""
        click.echo(f"{name}  {version}  {ago(time_us, now_us):<10}  {state}  {label}".rstrip())
    if data["total"] > len(rows):
        note(f"… and {counted(data['total'] - len(rows), 'more thread')} (--limit)")
