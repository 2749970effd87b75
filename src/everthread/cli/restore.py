"""``everthread restore``: everything in the store replaced by a backup."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

import click
import msgspec

from everthread.arguments import counted
from everthread.cli.context import Invocation, look_at, missing, redactions_in
from everthread.cli.errors import goes_on
from everthread.cli.options import (
    confirm,
    durability_option,
    example,
    namespaces_in_words,
    other_namespaces,
    pass_invocation,
    shared_options,
    unopened_code,
)
from everthread.cli.output import SHOWN_MAX, clean, moment, note
from everthread.errors import (
    DamageError,
    NotFoundError,
    SessionBusyError,
    UnavailableError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from everthread.maintenance.reports import RestoreReport
    from everthread.redaction.report import Redaction
    from everthread.store import Store


_STOPPED = "stopped: the store holds all that it held, or all of the backup; restore again to be sure"


@click.command(epilog=example("restore agent.backup", "restore agent.backup --store sqlite:///new.db --yes"))
@click.argument("path", type=click.Path())
@durability_option
@click.option("--yes", is_flag=True, help="Don't ask.")
@shared_options
@pass_invocation
def restore(call: Invocation, path: str, durability: str, yes: bool) -> None:
    """Replace everything in the store, in all namespaces, by the backup at PATH: all or nothing.

    Looks at PATH and asks before it replaces anything. The store is made if it isn't there. Nobody comes back
    who was erased since; effects that were called since are in doubt; texts that were redacted since come
    back, which is said. Refused while a run is at work on a thread. Stop the programs that use the store
    first: what they hold conflicts afterwards. Ends with 3 if there is nothing at PATH, with 2 if that is no
    backup for this store, or is the store itself; with 7, once it is restored, if sealed values can't be
    opened with the keyring here.
    """
    url = call.where
    look_at(url, path)
    why = missing(url)
    if isinstance(why, UnavailableError):
        raise why
    if isinstance(why, NotFoundError):
        # Before a store is made for it.
        _check_backup(url, path)
    if isinstance(why, DamageError):
        # Opening it would begin a new store already.
        _ask(call, str(why), url, yes)
    with call.written_to(url, durability, settle=False) as store:
        there = "" if why is not None else _what_is_there(store)
        if there:
            _refuse_while_running(store)
            _ask(call, there, store.url, yes)
        before = redactions_in(store)
        with goes_on(lambda: _STOPPED):
            report = store.restore(path)
        after = redactions_in(store)
        undone = [each for key, each in before.items() if key not in after]
        data = {
            "store": store.url,
            "path": os.path.abspath(path),
            "report": msgspec.to_builtins(report),
            "unredacted": msgspec.to_builtins(undone),
        }
    words = f"{data['store']} is as it was in {data['path']}"
    call.output.answer("restore", data, lambda: _show_restored(call, words, report, undone))
    raise click.exceptions.Exit(unopened_code(report.needs))


def _show_restored(call: Invocation, words: str, report: RestoreReport, undone: Sequence[Redaction]) -> None:
    if report.erased:
        words += f", but for {counted(report.erased, 'erasure')} since then: that stays erased"
    click.echo(clean(words))
    if undone:
        _show_undone(call, undone)
    if not report.doubtful:
        return
    which = "this thread" if len(report.doubtful) == 1 else f"these {len(report.doubtful):,} threads"
    click.echo(f"the backup doesn't know all effects of {which}:")
    for thread in report.doubtful[:SHOWN_MAX]:
        click.echo(clean(f"  {thread}"))
    if len(report.doubtful) > SHOWN_MAX:
        note("… and more (--json has all)")
    note(
        "what was called since then is not called again: a key that isn't known is verified, or in doubt. "
        f"To go on without that: {call.command('resume', report.doubtful[0], options='--accept-losses')}"
    )


def _show_undone(call: Invocation, undone: Sequence[Redaction]) -> None:
    """Redactions that the backup knows nothing of. Their record went with them: this is the last word."""
    click.echo(f"what {counted(len(undone), 'redaction')} took out since then is back:")
    for each in undone[:SHOWN_MAX]:
        why = f": {each.reason}" if each.reason else ""
        click.echo(clean(f"  {moment(each.at_us)}  {each}{why}"))
    if len(undone) > SHOWN_MAX:
        note("… and more (--json has all)")
    note(f"to take it out again: {call.command('scan TEXT --redact')}")


def _refuse_while_running(store: Store) -> None:
    """A run would go on from a past that isn't there any more."""
    from everthread.sessions.sync.lease import active_leases

    with suppress(DamageError):
        for thread, lease in active_leases(store.core):
            raise SessionBusyError(
                f"a run is at work on {thread!r}: {lease.holder}; let it end first (if it doesn't go on, it "
                f"holds the thread until {lease.expires:%Y-%m-%d %H:%M:%S} UTC). Nothing was changed",
                holder=lease.holder,
                expires=lease.expires,
            )


def _ask(call: Invocation, there: str, place: str, yes: bool) -> None:
    if call.output.for_people and not yes:
        click.echo(clean(f"this would be replaced: {there}"))
    confirm(call, f"Replace everything in {place}?", yes)


def _check_backup(url: str, path: str) -> None:
    """Raises what is wrong with it, for the stores that a look could have made."""
    if url.startswith("sqlite:"):
        from everthread.stores.sqlite.backup import open_backup

        with open_backup(path):
            return
    if url.startswith("file:"):
        from everthread.stores.files import backup

        backup.open_backup(path)


def _what_is_there(store: Store) -> str:
    """What a store holds, in words; empty if it holds nothing."""
    try:
        if next(iter(store.core.backend.every_line()), None) is None:
            return ""
        others = namespaces_in_words(other_namespaces(store))
        return str(store.stats(limit=1)) + (f"; {others}" if others else "")
    except DamageError as error:
        return f"a damaged store ({error})"
