"""Commands against loss: verify, salvage, backup, restore."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

import click
import msgspec

from everthread.arguments import counted
from everthread.cli import tenants
from everthread.cli.asked import Asked, missing
from everthread.cli.asking import confirm, example, pass_asked, shared_options
from everthread.cli.backups import leftovers, look_at, place_of, redactions_in
from everthread.cli.failing import CORRUPT, OK, goes_on
from everthread.cli.moving import durability_option
from everthread.cli.progress import progress
from everthread.cli.telling import note, records
from everthread.cli.words import clean, moment, typed
from everthread.errors import (
    DamageError,
    NotFoundError,
    SessionBusyError,
    UnavailableError,
    UnsupportedError,
    UsageError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from everthread.redaction.report import Redaction
    from everthread.salvage.reports import SalvageReport
    from everthread.store import Store
    from everthread.threads.reports import RestoreReport, VerifyReport

#: Places that are shown one by one.
_SHOWN_MAX = 100
_NAMED_MAX = 3
_STOPPED = "stopped: the store holds all that it held, or all of the backup; restore again to be sure"


@click.command(epilog=example("verify", "verify --store sqlite:///agent.db --json"))
@shared_options
@pass_asked
def verify(asked: Asked) -> None:
    """Check every record of every thread against its checksum and the chain of hashes, and every event.

    Reads everything, changes nothing, goes on after damage. Ends with 6 if anything is damaged.
    """
    with asked.store(settle=False) as store:
        with progress("reading every record") as step:
            report = store.verify(step)
        data = {"ok": report.ok, "damage": msgspec.to_builtins(report.damage), "summary": str(report)}
        columns = ("thread", "first", "last", "what", "problem")
        asked.tell.answer("verify", data, lambda: _show_damage(report), records("damage", columns))
    raise click.exceptions.Exit(OK if report.ok else CORRUPT)


def _show_damage(report: VerifyReport) -> None:
    click.echo(clean(str(report)))
    for damage in report.damage[:_SHOWN_MAX]:
        click.echo(clean(f"  {damage}"))
    if len(report.damage) > _SHOWN_MAX:
        note(f"… and {len(report.damage) - _SHOWN_MAX:,} more (--json has all)")
    if not report.ok:
        note("everthread doctor says what to do")


@click.command(epilog=example("salvage sqlite:///saved.db --store sqlite:///agent.db"))
@click.argument("target")
@shared_options
@pass_asked
def salvage(asked: Asked, target: str) -> None:
    """Bring everything that can be read of a damaged store into a new one, at the URL TARGET.

    The damaged one, a SQLite file or a file store that nobody has open, is only read. TARGET must be empty or
    not exist. Ends with 6 if something is missing, or had to be made anew under other ids.
    """
    from everthread.salvage.running import salvage as bring_over
    from everthread.stores.urls import over_network

    source = asked.where
    if over_network(source):
        raise UnsupportedError(
            "only SQLite files and file stores can be salvaged; a server has its own backups"
        )
    why = missing(source)
    if why is not None:
        raise why
    if place_of(source) == place_of(target):
        raise UsageError("TARGET is the damaged store itself, which stays as it is; name another place")
    if over_network(target) or target.startswith("memory:"):
        # Refused if it wouldn't keep what is saved.
        asked.written_to(target).close()
    stopped = f"stopped in the middle: {target} holds a part; remove that, and salvage again"
    with progress("salvaging") as step, goes_on(lambda: stopped):
        report = bring_over(source, target, step)
    data = {"target": target, "report": msgspec.to_builtins(report), "summary": str(report)}
    asked.tell.answer("salvage", data, lambda: _show_salvaged(report))
    raise click.exceptions.Exit(OK if report.ok else CORRUPT)


def _show_salvaged(report: SalvageReport) -> None:
    click.echo(clean(str(report)))
    hurt = [thread for thread in report.threads if not thread.whole or thread.open_ended]
    for thread in hurt[:_SHOWN_MAX]:
        click.echo(clean(f"  {thread}"))
    for problem in report.problems[:_SHOWN_MAX]:
        click.echo(clean(f"  {problem}"))
    if max(len(hurt), len(report.problems)) > _SHOWN_MAX:
        note("… and more (--json has all)")


@click.command(epilog=example("backup agent.backup", "backup /srv/backups/monday --store file:///srv/agents"))
@click.argument("path", type=click.Path())
@shared_options
@pass_asked
def backup(asked: Asked, path: str) -> None:
    """Write a complete copy of the store, of all namespaces, to PATH, which must not exist.

    Others may go on writing meanwhile. It is there whole, or not at all. Keys of persons stay in the keyring,
    which needs a backup of its own. A store of the same kind takes it back with restore. Records are copied
    as they are, damaged ones, too: verify tells whether there are any. Parts of backups that were killed are
    named if they are still beside it.
    """
    with asked.store() as store:
        store.backup(path)
        data = {"store": store.url, "path": os.path.abspath(path)}
    words = f"{data['store']} is in {data['path']}"
    asked.tell.answer("backup", data, lambda: click.echo(clean(words)))
    if left := leftovers(path):
        which = "a part of a backup that was" if len(left) == 1 else "parts of backups that were"
        more = f" and {len(left) - _NAMED_MAX:,} more" if len(left) > _NAMED_MAX else ""
        note(
            f"beside it: {', '.join(left[:_NAMED_MAX])}{more}, {which} cut short, unless one is being made "
            "there right now; nobody needs them, and nothing else removes them"
        )


@click.command(epilog=example("restore agent.backup", "restore agent.backup --store sqlite:///new.db --yes"))
@click.argument("path", type=click.Path())
@durability_option
@click.option("--yes", is_flag=True, help="Don't ask.")
@shared_options
@pass_asked
def restore(asked: Asked, path: str, durability: str, yes: bool) -> None:
    """Replace everything in the store, in all namespaces, by the backup at PATH: all or nothing.

    Looks at PATH and asks before it replaces anything. The store is made if it isn't there. Nobody comes back
    who was erased since; effects that were called since are in doubt; texts that were redacted since come
    back, which is said. Refused while a run is at work on a thread. Stop the programs that use the store
    first: what they hold conflicts afterwards. Ends with 3 if there is nothing at PATH, with 2 if that is no
    backup for this store, or is the store itself.
    """
    url = asked.where
    look_at(url, path)
    why = missing(url)
    if isinstance(why, UnavailableError):
        raise why
    if isinstance(why, NotFoundError):
        # Before a store is made for it.
        _check_backup(url, path)
    if isinstance(why, DamageError):
        # Opening it would begin a new store already.
        _ask(asked, str(why), url, yes)
    with asked.written_to(url, durability, settle=False) as store:
        there = "" if why is not None else _what_is_there(store)
        if there:
            _refuse_while_running(store)
            _ask(asked, there, store.url, yes)
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
    asked.tell.answer("restore", data, lambda: _show_restored(words, report, undone))


def _show_restored(words: str, report: RestoreReport, undone: Sequence[Redaction]) -> None:
    if report.erased:
        words += f", but for {counted(report.erased, 'erasure')} since then: that stays erased"
    click.echo(clean(words))
    if undone:
        _show_undone(undone)
    if not report.doubtful:
        return
    which = "this thread" if len(report.doubtful) == 1 else f"these {len(report.doubtful):,} threads"
    click.echo(f"the backup doesn't know all effects of {which}:")
    for thread in report.doubtful[:_SHOWN_MAX]:
        click.echo(clean(f"  {thread}"))
    if len(report.doubtful) > _SHOWN_MAX:
        note("… and more (--json has all)")
    note(
        "what was called since then is not called again: a key that isn't known is verified, or in doubt. "
        f"To go on without that: everthread resume {typed(report.doubtful[0])} --accept-losses"
    )


def _show_undone(undone: Sequence[Redaction]) -> None:
    """Redactions that the backup knows nothing of. Their record went with them: this is the last word."""
    click.echo(f"what {counted(len(undone), 'redaction')} took out since then is back:")
    for each in undone[:_SHOWN_MAX]:
        why = f": {each.reason}" if each.reason else ""
        click.echo(clean(f"  {moment(each.at_us)}  {each}{why}"))
    if len(undone) > _SHOWN_MAX:
        note("… and more (--json has all)")
    note("to take it out again: everthread scan TEXT --redact")


def _refuse_while_running(store: Store) -> None:
    """A run would go on from a past that isn't there any more."""
    from everthread.sessions.lease import active_leases

    with suppress(DamageError):
        for thread, lease in active_leases(store.core):
            raise SessionBusyError(
                f"a run is at work on {thread!r}: {lease.holder}; let it end first (if it doesn't go on, it "
                f"holds the thread until {lease.expires:%Y-%m-%d %H:%M:%S} UTC). Nothing was changed",
                holder=lease.holder,
                expires=lease.expires,
            )


def _ask(asked: Asked, there: str, place: str, yes: bool) -> None:
    if asked.tell.for_people and not yes:
        click.echo(clean(f"this would be replaced: {there}"))
    confirm(asked, f"Replace everything in {place}?", yes)


def _check_backup(url: str, path: str) -> None:
    """Raises what is wrong with it, for the stores that a look could have made."""
    if url.startswith("sqlite:"):
        from everthread.stores.sqlite.backup import open_backup

        with open_backup(path):
            return
    if url.startswith("file:"):
        from everthread.stores.files import backup as copies

        copies.open_backup(path)


def _what_is_there(store: Store) -> str:
    """What a store holds, in words; empty if it holds nothing."""
    try:
        if next(iter(store.core.backend.every_line()), None) is None:
            return ""
        others = tenants.told(tenants.elsewhere(store))
        return str(store.stats(limit=1)) + (f"; {others}" if others else "")
    except DamageError as error:
        return f"a damaged store ({error})"
