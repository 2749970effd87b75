"""``everthread export``: the store as an archive."""

from __future__ import annotations

import click

from everthread.cli.context import Invocation
from everthread.cli.options import (
    example,
    keys_option,
    pass_invocation,
    passphrase,
    passphrase_option,
    shared_options,
    tell_transfer,
)
from everthread.cli.output import note, progress


@click.command(
    epilog=example("export agents.archive", "export move.archive --with-keys --passphrase-file secret.txt")
)
@click.argument("file", type=click.Path(dir_okay=False))
@keys_option
@passphrase_option
@shared_options
@pass_invocation
def export(call: Invocation, file: str, with_keys: bool, passphrase_file: str | None) -> None:
    """Write the store into an archive, FILE, that any other store can import.

    Threads with their past and forks, journals, events, data of persons: of all namespaces, or of one with
    --namespace. Sealed values stay sealed. Keys stay in the keyring, unless --with-keys says otherwise: it
    says which keys the archive needs, and how to take them along.
    """
    keys = passphrase(with_keys, passphrase_file)
    with call.store() as store, progress("exporting") as step:
        report = store.export(file, every_namespace=call.namespace is None, keys=keys, progress=step)
    tell_transfer(call, "export", report)
    for name in report.skipped:
        note(f"{name!r} was deleted meanwhile and isn't in it")
