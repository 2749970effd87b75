"""``everthread copy``: one store into another."""

from __future__ import annotations

import click

from everthread.cli.context import Invocation, is_itself
from everthread.cli.errors import goes_on
from everthread.cli.options import (
    conflict_option,
    durability_option,
    example,
    named_store,
    pass_invocation,
    shared_options,
    tell_transfer,
    transfer_stopped,
)
from everthread.cli.output import progress


@click.command(
    epilog=example(
        "copy sqlite:///agent.db file:///srv/agents", "copy sqlite:///a.db sqlite:///b.db --on-conflict skip"
    )
)
@click.argument("src")
@click.argument("dst")
@conflict_option
@durability_option
@shared_options
@pass_invocation
def copy(call: Invocation, src: str, dst: str, on_conflict: str, durability: str) -> None:
    """Bring everything in the store SRC into the store DST, which is made if it isn't there.

    Doing it again brings what is new since. Both stay usable meanwhile; use what is being copied only where
    it comes from until the copy is done.
    """
    src, dst = named_store(src), named_store(dst)
    if is_itself(src, dst):
        raise click.UsageError(f"{src} and {dst} are the same store: name another one to copy to")
    # A file store has no archive beside it: then that of the other one is meant.
    mixed = src.startswith("file:") is not dst.startswith("file:")
    with (
        call.looked_at(src, cold=not (mixed and src.startswith("file:"))) as source,
        call.written_to(dst, durability, cold=not (mixed and dst.startswith("file:"))) as target,
        progress("copying") as step,
        goes_on(lambda: transfer_stopped(step)),
    ):
        report = source.copy_to(
            target, on_conflict=on_conflict, every_namespace=call.namespace is None, progress=step
        )
    tell_transfer(call, "copy", report)
