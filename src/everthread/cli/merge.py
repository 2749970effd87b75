"""``everthread merge``: what another thread did since both went apart, brought in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from everthread.arguments import counted
from everthread.cli.context import Invocation
from everthread.cli.errors import FAILURE
from everthread.cli.log import thread_argument, version_data
from everthread.cli.options import (
    complete_thread,
    example,
    existing,
    pass_invocation,
    refuse_while_running,
    shared_options,
)
from everthread.cli.output import SHOWN_MAX, Table, clean, note, plain
from everthread.history.merge import ABSENT

_COLUMNS = ("path", "base", "ours", "theirs")


@click.command(
    epilog=example("merge invoice-bot what-if", "merge invoice-bot what-if --prefer theirs --json")
)
@thread_argument
@click.argument("other", shell_complete=complete_thread)
@click.option("--prefer", type=click.Choice(("ours", "theirs")), help="Which side counts where both changed.")
@click.option("--label", help="The label of the version that it makes.")
@shared_options
@pass_invocation
def merge(call: Invocation, thread: str, other: str, prefer: str | None, label: str | None) -> None:
    """Bring into THREAD what OTHER, such as a fork of it, did since both went apart. OTHER stays as it is.

    It is a version of its own, and can be rewound. Where both sides changed the same place nothing is merged:
    the conflicts are shown, and it ends with 1; --prefer settles all of them. If THREAD has every version of
    OTHER already, no version is made; effects of OTHER that its ledger lacks come along. Refused (5) while a
    run is at work on THREAD.
    """
    with call.store() as store:
        ours, theirs = existing(store, thread), existing(store, other)
        if ours.uid == theirs.uid:
            raise click.UsageError(f"{thread} can't be merged with itself: name a fork of it, for one")
        refuse_while_running(store, thread, "merge into a fork of it")
        before = ours.head
        found = ours.merge(theirs, resolve=prefer, label=label)
        assert before is not None, "an existing thread has a head"
        made = None if found.version is None or found.version.id == before.id else found.version
        version = None if made is None else version_data(made)
        conflicts = [
            {
                "path": each.where,
                **{side: _shown(getattr(each, side)) for side in ("base", "ours", "theirs")},
            }
            for each in found.conflicts
        ]
        data = {
            "thread": thread,
            "other": other,
            "version": version,
            "effects": found.effects,
            "conflicts": conflicts,
        }
        call.output.answer("merge", data, lambda: _show(call, data, label), _table)
    if conflicts:
        note(
            "nothing was merged: --prefer ours or --prefer theirs settles all of them, Python each by itself"
        )
        raise click.exceptions.Exit(FAILURE)


def _shown(value: Any) -> Any:
    return None if value is ABSENT else plain(value)


def _show(call: Invocation, data: Mapping[str, Any], label: str | None) -> None:
    thread, other, version = clean(data["thread"]), clean(data["other"]), data["version"]
    if data["conflicts"]:
        click.echo(f"{counted(len(data['conflicts']), 'place')} changed in both {thread} and {other}:")
        for each in data["conflicts"][:SHOWN_MAX]:
            click.echo(clean(f"  {each['path']}: {each['ours']!r} here, {each['theirs']!r} there"))
        if len(data["conflicts"]) > SHOWN_MAX:
            note("… and more (--json has all)")
    elif version is None:
        unused = "" if label is None else f", and none is called {clean(label)!r}"
        if data["effects"]:
            effects = counted(data["effects"], "effect")
            click.echo(f"the ledger of {thread} has {effects} more, of {other}")
            note(f"{thread} has every version of {other} already; no version was made{unused}")
            return
        note(f"nothing to merge: {thread} has every version of {other} already; no version was made{unused}")
    else:
        click.echo(f"{thread} is at version {version['seq']}, with what {other} did")
        note(f"to undo it: {call.command('rewind', data['thread'], str(version['seq'] - 1))}")


def _table(data: Mapping[str, Any]) -> Table:
    return Table(_COLUMNS, [[each[name] for name in _COLUMNS] for each in data["conflicts"]])
