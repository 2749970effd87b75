"""Commands that write a version: fork and rewind. Both keep everything that was there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from everthread.arguments import counted
from everthread.cli.asked import Asked
from everthread.cli.asking import confirm, example, existing, pass_asked, shared_options
from everthread.cli.failing import CORRUPT
from everthread.cli.looking import show_diff
from everthread.cli.outline import bookkeeping
from everthread.cli.past import end_if_damaged, recovered_data, thread_argument, version_data
from everthread.cli.pointing import HOW, find_version
from everthread.cli.telling import note
from everthread.cli.words import clean, typed

if TYPE_CHECKING:
    from everthread.store import Store


@click.command(
    epilog=example("fork invoice-bot what-if", "fork invoice-bot what-if --at 7"),
    help=f"""Make NAME, a new thread that shares the past of THREAD up to a version. THREAD stays as it is.

    Effects that THREAD has recorded as done are never run again on the fork. {HOW}
    """,
)
@thread_argument
@click.argument("name")
@click.option("--at", "version", metavar="VERSION", help="Where to branch off.  [default: head]")
@shared_options
@pass_asked
def fork(asked: Asked, thread: str, name: str, version: str | None) -> None:
    with asked.store() as store:
        handle = existing(store, thread)
        at = None if version is None else find_version(handle, version)
        made = handle.fork(name, at=at)
        head = made.head
        assert head is not None, "a fork stands on a version"
        data = {"thread": name, "source": thread, "version": version_data(head)}
        words = f"{clean(name)} goes on from version {head.seq} of {clean(thread)}"
        asked.tell.answer("fork", data, lambda: click.echo(words))


@click.command(
    epilog=example(
        "rewind invoice-bot 7 --dry-run", "rewind invoice-bot head~1", "rewind invoice-bot 7 --yes --json"
    ),
    help=f"""Take THREAD back to VERSION: its document, messages, tasks and step results.

    Shows first what would change, and asks. Nothing is lost: going back is itself a version, and can be
    rewound in turn. Effects that happened, usage and turns stay as they are. {HOW}
    """,
)
@thread_argument
@click.argument("version")
@click.option("--yes", is_flag=True, help="Don't ask.")
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@shared_options
@pass_asked
def rewind(asked: Asked, thread: str, version: str, yes: bool, dry_run: bool) -> None:
    with asked.store(settle=False) as store:
        handle = existing(store, thread)
        head = handle.head
        assert head is not None, "an existing thread has a head"
        target = find_version(handle, version)
        before, after = handle.at(head), handle.at(target)
        found = handle.diff(before, after)
        behind = head.seq - target.seq
        if asked.tell.for_people:
            show_diff(f"{thread} {head.seq} → {target.seq}", found, before, after)
        data = {
            "thread": thread,
            "dry_run": dry_run,
            "from": head.seq,
            "to": target.seq,
            "left_behind": behind,
            "summary": found.summary(but=bookkeeping),
            "version": None,
            "recovered": recovered_data(handle),
        }
        damaged = handle.recovered is not None
        if target.id == head.id and handle.recovered is None:
            asked.tell.answer("rewind", data, lambda: note(f"{thread} is there already; nothing was changed"))
            return
        if dry_run:
            words = f"{counted(behind, 'version')} would be left behind; nothing was changed (--dry-run)"
            asked.tell.answer("rewind", data, lambda: note(words))
            end_if_damaged(handle)
            return
        _refuse_while_running(store, thread)
        # Who is asked knows what can't be read.
        asked.tell_of_damage()
        confirm(asked, f"Take {thread!r} back to version {target.seq}? It can be undone.", yes)
        made = handle.rewind(target)
        data["version"] = version_data(made)
        words = f"{clean(thread)} is at version {made.seq}, as it was at {target.seq}"

        def text() -> None:
            click.echo(words)
            # As it was called: the same store, whatever is the default elsewhere.
            where = f" --store {typed(asked.url)}" if asked.url is not None else ""
            space = f" --namespace {typed(asked.namespace)}" if asked.namespace else ""
            note(f"to undo it: everthread rewind {typed(thread)} {head.seq}{where}{space}")

        asked.tell.answer("rewind", data, text)
        if damaged:
            note("what can't be read stays where it is; everthread doctor says what is damaged")
            raise click.exceptions.Exit(CORRUPT)


def _refuse_while_running(store: Store, thread: str) -> None:
    """A run that finds its thread moved would go on from a past that isn't its own."""
    from everthread.cli.family import has_session
    from everthread.errors import SessionBusyError

    if not has_session(store, thread):
        return
    records = store.session_records(thread)
    if records.holder_alive:
        holder = records.holder
        raise SessionBusyError(
            f"a run is at work on {thread!r}: {holder}; let it end first, or fork the thread at that version",
            holder=holder,
            expires=None,
        )
