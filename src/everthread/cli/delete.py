"""``everthread delete``: a thread goes for good."""

from __future__ import annotations

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

_NAMED_MAX = 5


@click.command(
    epilog=example("delete invoice-bot --dry-run", "delete invoice-bot", "delete what-if --yes --json")
)
@thread_argument
@click.option("--yes", is_flag=True, help="Don't ask.")
@click.option("--dry-run", is_flag=True, help="Only show what would go.")
@shared_options
@pass_invocation
def delete(call: Invocation, thread: str, yes: bool, dry_run: bool) -> None:
    """Delete THREAD for good, with its history and what its sessions have recorded. There is no way back.

    Shows first what would go, and asks. Forks of it live on, with all that they share. What it sealed for
    persons stays until they are erased. The name is free afterwards. Refused (5) while a run is at work on
    it.
    """
    with call.store(settle=False) as store:
        handle = existing(store, thread)
        head = handle.head
        assert head is not None, "an existing thread has a head"
        forks = [fork.thread for fork in family(handle).forks]
        data = {"thread": thread, "dry_run": dry_run, "versions": head.seq, "forks": forks}
        words = f"{clean(thread)} with {counted(head.seq, 'version')}"
        if forks:
            more = f" and {len(forks) - _NAMED_MAX:,} more" if len(forks) > _NAMED_MAX else ""
            words += f"; its forks live on: {clean(', '.join(forks[:_NAMED_MAX]))}{more}"
        if dry_run:
            call.output.answer("delete", data, lambda: click.echo(f"this would go: {words}"))
            note("nothing was deleted (--dry-run)")
            return
        refuse_while_running(store, thread, "leave it")
        if call.output.for_people and not yes:
            click.echo(f"this would go: {words}")
        confirm(call, f"Delete {thread!r} for good?", yes)
        handle.delete()
        call.output.answer("delete", data, lambda: click.echo(f"deleted: {words}"))
