"""``everthread rewind``: a thread goes back to an earlier version, and can go forward again."""

from __future__ import annotations

import click

from everthread.arguments import counted
from everthread.cli.context import Invocation
from everthread.cli.diff import show_diff
from everthread.cli.errors import CORRUPT
from everthread.cli.log import end_if_damaged, recovered_data, thread_argument, version_data
from everthread.cli.options import (
    HOW,
    confirm,
    example,
    existing,
    find_version,
    pass_invocation,
    refuse_while_running,
    shared_options,
)
from everthread.cli.outline import bookkeeping
from everthread.cli.output import clean, note
from everthread.threads.sync.workspace import recorded_at


@click.command(
    epilog=example(
        "rewind invoice-bot 7 --dry-run", "rewind invoice-bot head~1", "rewind invoice-bot 7 --yes --json"
    ),
    help=f"""Take THREAD back to VERSION: its document, messages, tasks and step results.

    Shows first what would change, and asks. Nothing is lost: going back is itself a version, and can be
    rewound in turn. Effects that happened, usage and turns stay as they are, and so does a working folder:
    everthread files restore brings the files of a version. {HOW}
    """,
)
@thread_argument
@click.argument("version")
@click.option("--yes", is_flag=True, help="Don't ask.")
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@shared_options
@pass_invocation
def rewind(call: Invocation, thread: str, version: str, yes: bool, dry_run: bool) -> None:
    with call.store(settle=False) as store:
        handle = existing(store, thread)
        head = handle.head
        assert head is not None, "an existing thread has a head"
        target = find_version(handle, version)
        before, after = handle.at(head), handle.at(target)
        found = handle.diff(before, after)
        behind = head.seq - target.seq
        if call.output.for_people:
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
            call.output.answer(
                "rewind", data, lambda: note(f"{thread} is there already; nothing was changed")
            )
            return
        if dry_run:
            words = f"{counted(behind, 'version')} would be left behind; nothing was changed (--dry-run)"
            call.output.answer("rewind", data, lambda: note(words))
            end_if_damaged(handle)
            return
        refuse_while_running(store, thread, "fork the thread at that version")
        # Who is asked knows what can't be read.
        call.tell_of_damage()
        confirm(call, f"Take {thread!r} back to version {target.seq}? It can be undone.", yes)
        has_files = recorded_at(before) is not None
        made = handle.rewind(target)
        data["version"] = version_data(made)
        words = f"{clean(thread)} is at version {made.seq}, as it was at {target.seq}"

        def text() -> None:
            click.echo(words)
            note(f"to undo it: {call.command('rewind', thread, str(head.seq))}")
            if has_files:
                note(
                    "its working folder stays as it is: everthread files restore brings the files of a "
                    "version, and thread.rewind(version, files=True) moves both"
                )

        call.output.answer("rewind", data, text)
        if damaged:
            note("what can't be read stays where it is; everthread doctor says what is damaged")
            raise click.exceptions.Exit(CORRUPT)
