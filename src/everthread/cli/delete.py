"""``everthread delete``: a thread goes for good."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from everthread.arguments import counted
from everthread.cli.context import Invocation
from everthread.cli.family import family
from everthread.cli.log import thread_argument
from everthread.cli.options import (
    confirm,
    example,
    existing,
    pass_invocation,
    refuse_while_running,
    shared_options,
)
from everthread.cli.output import clean, note

if TYPE_CHECKING:
    from everthread.store import Store
    from everthread.threads.sync.thread import Thread

_NAMED_MAX = 5


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED_MAX:,} more" if len(names) > _NAMED_MAX else ""
    return clean(", ".join(names[:_NAMED_MAX])) + more


def _below(store: Store, thread: Thread) -> list[str]:
    """The threads of its subagents, and of theirs."""
    from everthread.subagents.sync.calls import children_begun

    found: list[str] = []
    for name in children_begun(store, thread.uid or ""):
        found += [name, *_below(store, store.thread(name))]
    return found


@click.command(
    epilog=example(
        "delete invoice-bot --dry-run", "delete invoice-bot --children", "delete what-if --yes --json"
    )
)
@thread_argument
@click.option("--yes", is_flag=True, help="Don't ask.")
@click.option("--dry-run", is_flag=True, help="Only show what would go.")
@click.option("--children", is_flag=True, help="Delete the threads of its subagents, too, and of theirs.")
@shared_options
@pass_invocation
def delete(call: Invocation, thread: str, yes: bool, dry_run: bool, children: bool) -> None:
    """Delete THREAD for good, with its history and what its sessions have recorded. There is no way back.

    Shows first what would go, and asks. Forks of it live on, with all that they share. What it sealed for
    persons stays until they are erased. The name is free afterwards. Refused (5) while a run is at work on
    it.
    """
    with call.store(settle=False) as store:
        handle = existing(store, thread)
        head = handle.head
        assert head is not None, "an existing thread has a head"
        below = _below(store, handle) if children else []
        forks = [fork.thread for fork in family(handle).forks if fork.thread not in below]
        data: dict[str, Any] = {
            "thread": thread,
            "dry_run": dry_run,
            "versions": head.seq,
            "forks": forks,
        }
        words = f"{clean(thread)} with {counted(head.seq, 'version')}"
        if children:
            data["children"] = below
            words += f" and {counted(len(below), 'thread')} of subagents"
            words += f": {_named(below)}" if below else ""
        if forks:
            words += f"; its forks live on: {_named(forks)}"
        if dry_run:
            call.output.answer("delete", data, lambda: click.echo(f"this would go: {words}"))
            note("nothing was deleted (--dry-run)")
            return
        for name in (thread, *below):
            refuse_while_running(store, name, "leave it")
        if call.output.for_people and not yes:
            click.echo(f"this would go: {words}")
        confirm(call, f"Delete {thread!r} for good?", yes)
        if children:
            from everthread.subagents import delete_with_children

            delete_with_children(store, thread)
        else:
            handle.delete()
        call.output.answer("delete", data, lambda: click.echo(f"deleted: {words}"))
