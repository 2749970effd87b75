"""Commands that look at one thread: log, show, diff."""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from everthread.cli.asking import Asked, complete_thread, example, existing, pass_asked, shared_options
from everthread.cli.failing import CORRUPT
from everthread.cli.pointing import HOW, find_version
from everthread.cli.telling import Table, note, records

if TYPE_CHECKING:
    from everthread.history.diff import Diff
    from everthread.model.versions import Version
    from everthread.opening import Store
    from everthread.threads.sync.past import Past
    from everthread.threads.sync.thread import Thread

VERSION_COLUMNS = ("seq", "id", "parent", "at", "kind", "label", "key", "source", "metadata", "forks")
thread_argument = click.argument("thread", shell_complete=complete_thread)


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
        "metadata": version.metadata,
    }


def recovered_data(thread: Thread) -> dict[str, Any] | None:
    """What of the newest versions can't be read, as programs get it."""
    found = thread.recovered
    return found and {
        "version": found.version.seq,
        "lost": [found.first, found.last],
        "reasons": found.reasons,
    }


def warn_of_damage(thread: Thread) -> None:
    """Say so, and end with 6, if what was shown isn't the newest: that is damaged."""
    if thread.recovered is not None:
        note(f"damaged: {thread.name!r} {thread.recovered}; everthread doctor says more")
        raise click.exceptions.Exit(CORRUPT)


@click.command(
    epilog=example("log invoice-bot", "log invoice-bot --limit 100", "log invoice-bot --before 40")
)
@thread_argument
@click.option(
    "--limit", default=20, show_default=True, type=click.IntRange(1), help="How many versions at most."
)
@click.option("--before", metavar="VERSION", help="Only versions before this one.")
@click.option("--forks", is_flag=True, help="Look for forks among all threads, however many there are.")
@shared_options
@pass_asked
def log(asked: Asked, thread: str, limit: int, before: str | None, forks: bool) -> None:
    """The versions of THREAD as a graph, newest first.

    What a rewind left behind stands on a branch of its own; ⑂ shows where the thread was forked, and from what.
    """
    from everthread.cli.family import family

    with asked.store() as store:
        handle = existing(store, thread)
        below = find_version(handle, before) if before is not None else None
        versions = list(islice(handle.history(limit=None, before=below), limit + 1))
        more, versions = len(versions) > limit, versions[:limit]
        relatives = family(handle, everything=forks)
        data = {
            "thread": thread,
            "versions": [
                {
                    **version_data(version),
                    "forks": [f.thread for f in relatives.forks if f.seq == version.seq],
                }
                for version in versions
            ],
            "more": more,
            "forked_from": relatives.source and relatives.source._asdict(),
            "forks": [fork._asdict() for fork in relatives.forks],
            "forks_complete": relatives.complete,
            "recovered": recovered_data(handle),
        }

        def text() -> None:
            from everthread.cli.drawing import draw_log

            draw_log(versions, relatives, time.time_ns() // 1000)
            if more:
                note(f"… there are older ones: --before {versions[-1].seq}, or a larger --limit")
            if not relatives.complete:
                note("there are so many threads that not all were looked through for forks: --forks does")

        asked.tell.answer("log", data, text, records("versions", VERSION_COLUMNS))
        warn_of_damage(handle)


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
                note(f"the last {len(items)} of {log_name}:")
                draw_items(items)

        asked.tell.answer("show", data, text, _state_table)
        warn_of_damage(handle)


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
    from everthread.model.paths import format_path

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
        title = f"{thread} {before.version.seq if before else 'nothing'} → {other or ''} {after.version.seq}"

        def text() -> None:
            show_diff(" ".join(title.split(" ")), found, before, after)

        asked.tell.answer("diff", data, text, _diff_table)
        for each in (handle, second):
            warn_of_damage(each)


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


def show_diff(title: str, found: Diff, before: Past | None, after: Past) -> None:
    """A diff for people."""
    from everthread.cli.drawing import draw_diff
    from everthread.cli.formats import plain

    old = {} if before is None else before.state.plain()
    draw_diff(title, found, plain(old), plain(after.state.plain()))


def _diff_table(data: Mapping[str, Any]) -> Table:
    rows: list[tuple[str, str, Any, Any]] = []
    rows += [("added", path, None, value) for path, value in data["added"].items()]
    rows += [("removed", path, value, None) for path, value in data["removed"].items()]
    rows += [("changed", path, change["old"], change["new"]) for path, change in data["changed"].items()]
    for name, change in data["logs"].items():
        rows += [("removed", name, item, None) for item in change["removed_items"]]
        rows += [("added", name, None, item) for item in change["added_items"]]
    return Table(("change", "path", "old", "new"), rows)
