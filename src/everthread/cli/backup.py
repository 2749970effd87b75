"""``everthread backup``: a complete copy of the store."""

from __future__ import annotations

import click
import msgspec

from everthread.cli.context import Invocation, leftovers
from everthread.cli.options import example, pass_invocation, shared_options
from everthread.cli.output import clean, note

_NAMED_MAX = 3


@click.command(epilog=example("backup agent.backup", "backup /srv/backups/monday --store file:///srv/agents"))
@click.argument("path", type=click.Path())
@shared_options
@pass_invocation
def backup(call: Invocation, path: str) -> None:
    """Write a complete copy of the store, of all namespaces, to PATH, which must not exist.

    Others may go on writing meanwhile. It is there whole, or not at all. Keys of persons stay in the keyring,
    which needs a backup of its own: if anything in it is sealed, it says which keys the copy needs, and how
    to take them along. A store of the same kind takes it back with restore. Records are copied as they are,
    damaged ones, too: verify tells whether there are any. Parts of backups that were killed are
    named if they are still beside it.
    """
    with call.store() as store:
        report = store.backup(path)
        needs = msgspec.to_builtins(report.needs)
        data = {"store": store.url, "path": report.path, "needs": needs}
    words = f"{data['store']} is in {data['path']}"
    call.output.answer("backup", data, lambda: click.echo(clean(words)))
    if along := report.needs.to_take_along:
        note(along)
    if left := leftovers(path):
        which = "a part of a backup that was" if len(left) == 1 else "parts of backups that were"
        more = f" and {len(left) - _NAMED_MAX:,} more" if len(left) > _NAMED_MAX else ""
        note(
            f"beside it: {', '.join(left[:_NAMED_MAX])}{more}, {which} cut short, unless one is being made "
            "there right now; nobody needs them, and nothing else removes them"
        )
