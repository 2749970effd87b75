"""``everthread diff``: what changed between two versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from everthread.cli.context import Invocation
from everthread.cli.log import end_if_damaged, thread_argument, version_data
from everthread.cli.options import (
    HOW,
    complete_thread,
    example,
    existing,
    find_version,
    pass_invocation,
    shared_options,
)
from everthread.cli.output import Table, note
from everthread.errors import EverthreadError
from everthread.threads.sync.workspace import recorded_at

if TYPE_CHECKING:
    from everthread.history.diff import Diff
    from everthread.threads.sync.past import Past
    from everthread.threads.sync.thread import Thread


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
@pass_invocation
def diff(call: Invocation, thread: str, old: str | None, new: str | None, other: str | None) -> None:
    if other is not None and new is not None:
        raise click.UsageError("--with stands for NEW: give at most OLD with it")
    with call.store() as store:
        handle = existing(store, thread)
        before = _old(handle, old, whole=other is not None)
        second = handle if other is None else existing(store, other)
        after = _past(second, new or "head")
        found, unreadable = diff_with_files(handle, before, after)
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
            if unreadable is not None:
                note(f"what was recorded of its files can't be compared: {unreadable}")

        call.output.answer("diff", data, text, _diff_table)
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


def diff_with_files(thread: Thread, before: Past | None, after: Past) -> tuple[Diff, EverthreadError | None]:
    """What differs, with the files that were recorded beside it, if any were; without these, if they can't be
    read, and why that is."""
    try:
        has_files = any(each is not None and recorded_at(each) is not None for each in (before, after))
        return thread.diff(before, after, files=has_files), None
    except EverthreadError as error:
        return thread.diff(before, after), error


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
        "files": None if found.files is None else found.files.counts,
    }


def show_diff(title: str, found: Diff, before: Past | None, after: Past, *, indent: int = 0) -> None:
    """A diff for people."""
    from everthread.cli.output import plain
    from everthread.cli.render import draw_diff

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
