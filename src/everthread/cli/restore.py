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
    StoreUnavailableError,
    UnavailableError,
)
from everthread.stores.urls import unquoted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from everthread.maintenance.reports import RestoreReport
    from everthread.redaction.report import Redaction
    from everthread.store import Store


_STOPPED = "stopped: the store holds all that it held, or all of the backup; restore again to be sure"


@click.command(epilog=example("restore agent.backup", "restore agent.backup --store sqlite:///new.db --yes"))
@click.argument("path", type=click.Path())
@durability_option
@click.option(
    "--nothing-since",
    is_flag=True,
    help="You know that no effect was called after the backup was made.",
)
@click.option("--yes", is_flag=True, help="Don't ask.")
@shared_options
@pass_invocation
def restore(call: Invocation, path: str, durability: str, nothing_since: bool, yes: bool) -> None:
    """Replace everything in the store, in all namespaces, by the backup at PATH: all or nothing.

    Looks at PATH and asks before it replaces anything. The store is made if it isn't there. Nobody comes back
    who was erased since; texts that were redacted since come back, which is said. Effects that were called
    after the backup was made are in doubt. If the store is a new or another one than the backup was made of,
    nothing here knows which ones: then every effect that isn't recorded is in doubt, in all threads, unless
    you know that there were none (--nothing-since).

    Refused while a run is at work on a thread. Stop the programs that use the store first: what they hold
    conflicts afterwards. Ends with 3 if there is nothing at PATH, with 2 if that is no backup for this store,
    or is the store itself; with 7, once it is restored, if sealed values can't be opened with the keyring
    here.
    """
    url = call.where
    look_at(url, path)
    why = missing(url)
    if isinstance(why, UnavailableError):
        raise why
    if isinstance(why, NotFoundError):
        # Before a store is made for it.
        _check_backup(url, path)
        _make_folder(url)
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
            report = store.restore(path, nothing_since=nothing_since)
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
    if not report.doubtful and report.since is None:
        return
    which = "this thread" if len(report.doubtful) == 1 else f"these {len(report.doubtful):,} threads"
    if report.since is None:
        click.echo(f"the backup doesn't know all effects of {which}:")
    else:
        since = f"{report.since:%Y-%m-%d %H:%M:%S} UTC"
        click.echo(
            f"effects that were called since {since} are unknown: in threads created from now on, and in"
        )
    for thread in report.doubtful[:SHOWN_MAX]:
        click.echo(clean(f"  {thread}"))
    if len(report.doubtful) > SHOWN_MAX:
        note("… and more (--json has all)")
    accept = call.command("settle", report.doubtful[0] if report.doubtful else "THREAD", options="--lost")
    words = (
        "an effect that isn't known is not called: it is verified, or in doubt, until you settle it or "
        f"accept the loss for its thread: {accept}"
    )
    if report.since is not None:
        words += f". For threads created from now on: {call.command('doubt', options='--end')}"
    note(words)


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


def _make_folder(url: str) -> None:
    """Make the folder that a new store goes into."""
    scheme, _, rest = url.partition(":")
    location = unquoted(rest.partition("?")[0])
    if scheme in ("sqlite", "file"):
        place = os.path.abspath(location[3 if scheme == "sqlite" else 2 :])
        try:
            os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)
        except OSError as error:
            raise StoreUnavailableError(
                f"the folder {error.filename} can't be made: {error.strerror}; choose another place"
            ) from error


def _what_is_there(store: Store) -> str:
    """What a store holds, in words; empty if it holds nothing."""
    try:
        if next(iter(store.core.backend.every_line()), None) is None:
            return ""
        others = namespaces_in_words(other_namespaces(store))
        return str(store.stats(limit=1)) + (f"; {others}" if others else "")
    except DamageError as error:
        return f"a damaged store ({error})"
