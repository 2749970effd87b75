"""``everthread import``: what an archive holds, brought in."""

from __future__ import annotations

import click

from everthread.cli.context import Invocation
from everthread.cli.errors import goes_on
from everthread.cli.options import (
    conflict_option,
    durability_option,
    example,
    keys_option,
    pass_invocation,
    passphrase,
    passphrase_option,
    shared_options,
    tell_transfer,
    transfer_stopped,
)
from everthread.cli.output import progress


@click.command("import", epilog=example("import agents.archive --store sqlite:///new.db"))
@click.argument("file", type=click.Path(dir_okay=False))
@conflict_option
@durability_option
@keys_option
@passphrase_option
@shared_options
@pass_invocation
def import_(
    call: Invocation,
    file: str,
    on_conflict: str,
    durability: str,
    with_keys: bool,
    passphrase_file: str | None,
) -> None:
    """Bring in what an archive, FILE, holds. The store is made if it isn't there.

    The archive is checked first; a damaged one changes nothing. An import that was stopped is finished by
    running it again: what is there already is skipped. Keys in it come along with --with-keys, but for those
    of anybody who was erased here.
    """
    keys = passphrase(with_keys, passphrase_file)
    # Before a store is made for it.
    _check_archive(file)
    with (
        call.written_to(call.where, durability) as store,
        progress("importing") as step,
        goes_on(lambda: transfer_stopped(step)),
    ):
        report = store.import_from(
            file, on_conflict=on_conflict, every_namespace=call.namespace is None, keys=keys, progress=step
        )
    tell_transfer(call, "import", report)


def _check_archive(file: str) -> None:
    """Read it through. Raises what is wrong with it."""
    from everthread.transfer.archive_file import ArchiveReader

    archive = ArchiveReader(file)
    try:
        while archive.next() is not None:
            pass
    finally:
        archive.close()
