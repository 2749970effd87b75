"""Commands that look at the state of a thread: show and diff."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from everthread.cli.asked import Asked
from everthread.cli.asking import complete_thread, example, existing, pass_asked, shared_options
from everthread.cli.failing import CORRUPT, NOTHING
from everthread.cli.past import end_if_damaged, recovered_data, thread_argument, version_data
from everthread.cli.pointing import HOW, find_version
from everthread.cli.telling import Table, note

if TYPE_CHECKING:
    from everthread.history.diff import Diff
    from everthread.store import Store
    from everthread.threads.sync.past import Past
    from everthread.threads.sync.thread import Thread


@click.command(
    epilog=example(
        "show invoice-bot", "show invoice-bot 7", "show invoice-bot head~1 --log tools --messages 50"
    ),
    help=f"""The document of THREAD, and the end of one of its logs: now, or at VERSION.

    {HOW} Personal values stay masked.
    """,
)
@thread_argument
@click.argument("version", required=False)
@click.option(
    "--messages", default=10, show_default=True, type=click.IntRange(0), help="How many of the last."
)
@click.option("--log", "log_name", default="messages", show_default=True, help="The log to show the end of.")
@shared_options
@pass_asked
def show(asked: Asked, thread: str, version: str | None, messages: int, log_name: str) -> None:
    with asked.store() as store:
        handle = existing(store, thread)
        head = handle.head
        assert head is not None, "an existing thread has a head"
        stands = head if version is None else find_version(handle, version)
        view = handle.at(stands)
        items = view.log(log_name)[-messages:] if messages else []
        document = view.state.plain()
        logs = {name: len(view.log(name)) for name in view.logs}
        session = _session(store, thread) if stands.id == head.id else None
        data = {
            "thread": thread,
            "version": version_data(stands),
            "state": document,
            "logs": logs,
            "log": {"name": log_name, "items": items},
            "session": session,
            "recovered": recovered_data(handle),
        }

        def text() -> None:
            from everthread.cli.drawing import draw_items, draw_state, draw_title
            from everthread.cli.formats import plain

            told = session["text"] if session else ""
            draw_state(draw_title(thread, stands, told, time.time_ns() // 1000), plain(document), logs)
            if items:
                note(f"the last {f'{len(items)} ' if len(items) > 1 else ''}of {log_name}:")
                draw_items(items)

        asked.tell.answer("show", data, text, _state_table)
        end_if_damaged(handle)
        if log_name not in logs and log_name != "messages":
            note(f"there is no log {log_name!r}; there are: {', '.join(logs) or 'none'}")
            raise click.exceptions.Exit(NOTHING)
        if session is not None and session["status"] == "unknown":
            raise click.exceptions.Exit(CORRUPT)


def _session(store: Store, thread: str) -> dict[str, Any] | None:
    """How the session of a thread stands, in a few fields."""
    from everthread.cli.family import has_session

    if not has_session(store, thread):
        return None
    found = store.session_records(thread)
    run = found.last_run
    return {
        "status": found.status,
        "text": "" if run is None else run.text + (f" by {run.agent}" if run.agent else ""),
        "turns": found.turns,
        "usage": dict(found.usage),
        "in_doubt": [effect.key for effect in found.open_effects() if effect.state == "in_doubt"],
    }


def _state_table(data: Mapping[str, Any]) -> Table:
    from everthread.arguments import format_path

    rows: list[tuple[str, Any]] = []
    pending: list[tuple[tuple[Any, ...], Any]] = [((), data["state"])]
    while pending:
        path, value = pending.pop()
        if isinstance(value, dict) and value:
            pending.extend(((*path, key), item) for key, item in reversed(value.items()))
        elif isinstance(value, list) and value:
            pending.extend(((*path, index), value[index]) for index in reversed(range(len(value))))
        else:
            rows.append((format_path(path), value))
    return Table(("path", "value"), rows)


@click.command(
    epilog=example(
        "diff invoice-bot", "diff invoice-bot 3", "diff invoice-bot 3 7", "diff invoice-bot --with what-if"
    ),
    help=f"""What changed in THREAD from version OLD to NEW: by default from the last but one to the last.

    {HOW}
    """,
)
@thread_argument
@click.argument("old", required=False)
@click.argument("new", required=False)
@click.option(
    "--with",
    "other",
    metavar="THREAD",
    shell_complete=complete_thread,
    help="Compare with the head of this thread.",
)
@shared_options
@pass_asked
def diff(asked: Asked, thread: str, old: str | None, new: str | None, other: str | None) -> None:
    if other is not None and new is not None:
        raise click.UsageError("--with stands for NEW: give at most OLD with it")
    with asked.store() as store:
        handle = existing(store, thread)
        before = _old(handle, old, whole=other is not None)
        second = handle if other is None else existing(store, other)
        after = _past(second, new or "head")
        found = handle.diff(before, after)
        data = {
            "thread": thread,
            "with": other,
            "old": before and version_data(before.version),
            "new": version_data(after.version),
            **diff_data(found),
        }
        target = f"{after.version.seq}" if other is None else f"{other} {after.version.seq}"
        title = f"{thread} {before.version.seq if before else 'nothing'} → {target}"

        def text() -> None:
            show_diff(title, found, before, after)

        asked.tell.answer("diff", data, text, _diff_table)
        for each in (handle, second):
            end_if_damaged(each)


def _past(thread: Thread, text: str) -> Past:
    return thread.at(find_version(thread, text))


def _old(thread: Thread, text: str | None, *, whole: bool) -> Past | None:
    """Where a comparison begins: at ``text``, else at the head or the version before it."""
    if text is not None:
        return _past(thread, text)
    versions = list(thread.history(limit=2))
    if whole:
        return thread.at(versions[0])
    return thread.at(versions[1]) if len(versions) > 1 else None


def diff_data(found: Diff) -> dict[str, Any]:
    """A diff as programs get it."""
    return {
        "summary": found.summary(),
        "added": found.added,
        "removed": found.removed,
        "changed": {path: {"old": old, "new": new} for path, (old, new) in found.changed.items()},
        "logs": {
            name: {
                "added": change.added,
                "removed": change.removed,
                "added_items": change.added_items,
                "removed_items": change.removed_items,
            }
            for name, change in found.logs.items()
        },
    }


def show_diff(title: str, found: Diff, before: Past | None, after: Past, *, indent: int = 0) -> None:
    """A diff for people."""
    from everthread.cli.drawing import draw_diff
    from everthread.cli.formats import plain

    old = {} if before is None else before.state.plain()
    draw_diff(title, found, plain(old), plain(after.state.plain()), indent=indent)


def _diff_table(data: Mapping[str, Any]) -> Table:
    rows: list[tuple[str, str, Any, Any]] = []
    rows += [("added", path, None, value) for path, value in data["added"].items()]
    rows += [("removed", path, value, None) for path, value in data["removed"].items()]
    rows += [("changed", path, change["old"], change["new"]) for path, change in data["changed"].items()]
    for name, change in data["logs"].items():
        rows += [("removed", name, item, None) for item in change["removed_items"]]
        rows += [("added", name, None, item) for item in change["added_items"]]
    return Table(("change", "path", "old", "new"), rows)
