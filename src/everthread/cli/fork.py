"""``everthread fork``: a new thread that shares another one's past."""

from __future__ import annotations

from typing import Literal

import click

from everthread.cli.context import Invocation
from everthread.cli.log import thread_argument, version_data
from everthread.cli.options import HOW, example, existing, find_version, pass_invocation, shared_options
from everthread.cli.output import clean


@click.command(
    epilog=example("fork invoice-bot what-if", "fork invoice-bot what-if --at 7 --effects deny"),
    help=f"""Make NAME, a new thread that shares the past of THREAD up to a version. THREAD stays as it is.

    Effects that THREAD has recorded as done are never run again on the fork; with --effects deny none are
    made in it at all. {HOW}
    """,
)
@thread_argument
@click.argument("name")
@click.option("--at", "version", metavar="VERSION", help="Where to branch off.  [default: head]")
@click.option(
    "--effects",
    type=click.Choice(("inherit", "deny")),
    default="inherit",
    show_default=True,
    help="deny: the fork is for trying things out, and no effects are made in it.",
)
@shared_options
@pass_invocation
def fork(
    call: Invocation, thread: str, name: str, version: str | None, effects: Literal["inherit", "deny"]
) -> None:
    with call.store() as store:
        handle = existing(store, thread)
        at = None if version is None else find_version(handle, version)
        made = handle.fork(name, at=at, effects=effects)
        head = made.head
        assert head is not None, "a fork stands on a version"
        data = {"thread": name, "source": thread, "version": version_data(head)}
        words = f"{clean(name)} goes on from version {head.seq} of {clean(thread)}"
        call.output.answer("fork", data, lambda: click.echo(words))
