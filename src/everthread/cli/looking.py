"""Commands that look: status, log, show, diff."""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from everthread.cli.asking import Asked, existing, pass_asked, shared_options, version_of
from everthread.cli.telling import ago, clean, note, plain

if TYPE_CHECKING:
    from everthread.model.versions import ThreadInfo, Version
    from everthread.opening import Store

#: Threads that belong to something else and are shown with it.
_HIDDEN = ("checkpoint:",)


def _now_us() -> int:
    return time.time_ns() // 1000


@click.command()
@click.argument("prefix", default="")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1), help="How many threads at most.")
@click.option("--all", "everything", is_flag=True, help="Also those of object checkpoints.")
@shared_options
@pass_asked
def status(asked: Asked, prefix: str, limit: int, everything: bool) -> None:
    """The threads of the store whose names begin with PREFIX, those saved last first."""
    with asked.store() as store:
        shown = [i for i in store.threads(prefix) if everything or not i.name.startswith(_HIDDEN)]
        shown.sort(key=lambda info: info.updated_at_us, reverse=True)
        rows = [_status_row(store, info) for info in shown[:limit]]
        data = {"store": store.url, "threads": rows, "total": len(shown)}
        asked.tell.answer("status", data, lambda: _print_status(data))


def _status_row(store: Store, info: ThreadInfo) -> dict[str, Any]:
    records = store.session_records(info.name)
    return {
        "name": info.name,
        "version": info.seq,
        "version_id": info.version_id,
        "updated_at": info.updated_at,
        "updated_at_us": info.updated_at_us,
        "label": info.label,
        "session": records.status,
    }


def _print_status(data: dict[str, Any]) -> None:
    rows, now = data["threads"], _now_us()
    if not rows:
        note(f"no threads in {data['store']} yet")
        return
    width = min(48, max(len(row["name"]) for row in rows))
    for row in rows:
        session = row["session"] or "–"
        colour = {"running": "green", "crashed": "red", "failed": "red"}.get(session)
        name = clean(row["name"], width).ljust(width)
        label = f"  {clean(row['label'], 30)}" if row["label"] else ""
        seen = f"v{row['version']}".ljust(7) + ago(row["updated_at_us"], now).ljust(12)
        click.echo(f"{click.style(name, bold=True)}  {seen}{click.style(session, fg=colour)}{label}")
    if data["total"] > len(rows):
        note(f"… and {data['total'] - len(rows)} more (--limit)")


@click.command()
@click.argument("thread")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1), help="How many versions at most.")
@shared_options
@pass_asked
def log(asked: Asked, thread: str, limit: int) -> None:
    """The versions of THREAD, newest first, with where it rewound, merged and was forked from."""
    with asked.store() as store:
        handle = existing(store, thread)
        versions = list(islice(handle.history(limit=None), limit))
        data = {"thread": thread, "versions": [version_data(version) for version in versions]}

        def text() -> None:
            from everthread.cli.drawing import draw_log

            draw_log(versions, _now_us())

        asked.tell.answer("log", data, text)


def version_data(version: Version) -> dict[str, Any]:
    """A version as programs get it."""
    return {
        "seq": version.seq,
        "id": version.id,
        "parent": version.parent,
        "at": version.at,
        "kind": version.kind,
        "label": version.label,
        "key": version.key,
        "source": version.source,
        "metadata": dict(version.metadata),
    }


@click.command()
@click.argument("thread")
@click.argument("version", required=False)
@click.option("--messages", default=10, show_default=True, type=click.IntRange(0), help="How many of the last.")
@click.option("--log", "log_name", default="messages", show_default=True, help="Which log to show the end of.")
@shared_options
@pass_asked
def show(asked: Asked, thread: str, version: str | None, messages: int, log_name: str) -> None:
    """The document of THREAD and the end of a log, now or at VERSION (its number or id).

    Personal values stay masked.
    """
    with asked.store() as store:
        handle = existing(store, thread)
        wanted = version_of(version)
        view = handle if wanted is None else handle.at(wanted)
        stands = handle.head if wanted is None else view.version  # type: ignore[union-attr]
        tail = view.log(log_name)[-messages:] if messages else []
        data = {
            "thread": thread,
            "version": version_data(stands) if stands is not None else None,
            "state": plain(view.state.plain()),
            "logs": {name: len(view.log(name)) for name in view.logs},
            log_name: plain(tail),
        }

        def text() -> None:
            from everthread.cli.drawing import draw_state

            draw_state(data, log_name, _now_us())

        asked.tell.answer("show", data, text)


@click.command()
@click.argument("thread")
@click.argument("old", required=False)
@click.argument("new", required=False)
@click.option("--with", "other", metavar="THREAD", help="Compare with another thread's head instead.")
@shared_options
@pass_asked
def diff(asked: Asked, thread: str, old: str | None, new: str | None, other: str | None) -> None:
    """What changed in THREAD from version OLD (the one before the last) to NEW (the last)."""
    if other is not None and (old or new):
        raise click.UsageError("--with compares the heads of two threads; give no versions then")
    with asked.store() as store:
        handle = existing(store, thread)
        if other is not None:
            second = existing(store, other)
            found = handle.diff(handle.at(handle.head), second.at(second.head))  # type: ignore[arg-type]
            title = f"{thread} → {other}"
        else:
            versions = list(handle.history(limit=2))
            before = version_of(old) if old else (versions[1] if len(versions) > 1 else None)
            found = handle.diff(before, version_of(new))
            title = f"{thread}: {old or (before.seq if before is not None else 'nothing')} → {new or 'head'}"  # type: ignore[union-attr]
        data = {
            "thread": thread,
            "summary": found.summary(),
            "added": plain(found.added),
            "removed": plain(found.removed),
            "changed": plain(found.changed),
        }

        def text() -> None:
            from everthread.cli.drawing import draw_diff

            draw_diff(title, found)

        asked.tell.answer("diff", data, text)
