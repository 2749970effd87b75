"""``everthread doctor``: is everything as it should be, and what to do if not."""

from __future__ import annotations

import os
import stat
import sys
from typing import TYPE_CHECKING, NamedTuple

import click
import msgspec

from everthread.arguments import counted
from everthread.cli.context import Invocation, leftovers, missing
from everthread.cli.errors import CORRUPT, FAILURE, NOTHING, OK, UNOPENED, as_typed, code_of
from everthread.cli.options import (
    SEALED_MAX,
    example,
    namespaces_in_words,
    other_namespaces,
    pass_invocation,
    shared_options,
)
from everthread.cli.output import clean, note, progress, records, typed
from everthread.errors import EverthreadError
from everthread.maintenance.key_needs import KeyNeeds, count_keys
from everthread.stores.urls import chosen_keyring, unquoted

if TYPE_CHECKING:
    from everthread.maintenance.reports import VerifyReport
    from everthread.store import Store

#: Before that release a write-ahead log could be corrupted.
_SQLITE_MIN = (3, 51, 3)
_FREE_MIN = 200 * 1024 * 1024
_DAMAGE_MAX = _NAMED_MAX = 20
#: Not an error: one may be being made right now.
_PART = "part of a backup; if none is being made there right now, remove it: nobody needs it"


class Check(NamedTuple):
    """One thing that was looked at: what was found, and what to do about it if it isn't fine."""

    check: str
    ok: bool
    found: str
    advice: str = ""


@click.command(epilog=example("doctor", "doctor --quick", "doctor --store sqlite:///agent.db --json"))
@click.option("--quick", is_flag=True, help="Don't read every record.")
@shared_options
@pass_invocation
def doctor(call: Invocation, quick: bool) -> None:
    """Check the installation, the store's files and every record. Changes nothing.

    Ends with 6 if anything is damaged, with 7 if sealed values can't be opened with the keyring here, with 3
    if there is no store, with 1 if something else needs you. With --quick only the first thousand sealed
    values are looked at.
    """
    checks = [*_installation()]
    url = call.where
    code = OK
    try:
        with call.looked_at(url, settle=False) as store:
            checks.append(Check("store", True, store.url))
            checks += _files(store, call.keyring)
            checks += _keeping(store)
            checks += _unfinished(store)
            if not quick:
                checks.append(_size(store))
                with progress("reading every record") as step:
                    report = store.verify(step)
                checks += _damage(report, store.url)
                code = OK if report.ok else CORRUPT
                needs = report.needs
            else:
                needs = count_keys(store.core, SEALED_MAX)
            checks += _keys(needs)
            code = code or (UNOPENED if needs.unopened else OK)
    except EverthreadError as error:
        code = code_of(error)
        checks.append(Check("store", False, str(error), _store_advice(code, url)))
    fine = all(each.ok for each in checks)
    data = {"ok": fine, "checks": [each._asdict() for each in checks]}
    call.output.answer("doctor", data, lambda: _print(checks), records("checks", Check._fields))
    raise click.exceptions.Exit(code or (OK if fine else FAILURE))


def _installation() -> list[Check]:
    import apsw

    from everthread import __version__

    version = apsw.sqlite_lib_version()
    current = tuple(map(int, version.split("."))) >= _SQLITE_MIN
    return [
        Check("everthread", True, f"{__version__} on Python {sys.version.split()[0]}"),
        Check(
            "SQLite", current, version, "" if current else "too old to be safe: pip install --upgrade apsw"
        ),
    ]


def _files(store: Store, store_keyring: str | None) -> list[Check]:
    """Who may read the files, and whether there is room for more."""
    scheme, _, rest = store.url.partition("://")
    path = unquoted(rest)
    if scheme == "sqlite":
        path = os.path.abspath(path[1:])
        names = [path + ending for ending in ("", "-wal", "-shm", "-lock")]
    elif scheme == "file":
        names = [path]
    else:
        return []
    keyring = chosen_keyring(store_keyring) or os.path.expanduser("~/.everthread/keyring")
    if isinstance(keyring, str) and "://" not in keyring:
        names.append(os.path.expanduser(keyring))
    parts = [Check("backup", True, f"{name}: {_PART}") for name in leftovers(path)[:_NAMED_MAX]]
    return [*(_private(name) for name in names if os.path.exists(name)), _room(path), *parts]


def _keeping(store: Store) -> list[Check]:
    """What a server says about how it keeps what it has acknowledged; nothing where that isn't in doubt."""
    keeping = getattr(store.core.backend, "keeping", None)
    if keeping is None:
        return []
    return [Check("durability", keeping.ok, f"{keeping.level}: {keeping}", keeping.advice)]


def _size(store: Store) -> Check:
    """What this namespace takes up, and that there are others: records are checked of all."""
    others = namespaces_in_words(other_namespaces(store))
    return Check("size", True, f"{store.stats(limit=1)}" + (f"; {others}" if others else ""))


def _unfinished(store: Store) -> list[Check]:
    """Imports, redactions and erasures that were cut short."""
    return [Check("unfinished", False, *told.split(": ", 1)) for told in store._left_undone()]


def _keys(needs: KeyNeeds) -> list[Check]:
    """Whether what is sealed can be opened here; nothing where nothing is."""
    if not needs.values:
        return []
    return [Check("keys", not needs.unopened, as_typed(str(needs)), as_typed(needs.advice))]


def _private(path: str) -> Check:
    mode = stat.S_IMODE(os.stat(path).st_mode)
    found = f"{path} ({mode:03o})"
    if not mode & 0o077:
        return Check("private", True, found)
    wanted = "700" if os.path.isdir(path) else "600"
    return Check("private", False, found, f"others can get at it: chmod {wanted} {typed(path)}")


def _room(path: str) -> Check:
    import shutil

    free = shutil.disk_usage(os.path.dirname(path) or ".").free
    fine = free >= _FREE_MIN
    return Check("room", fine, f"{free / 2**30:,.1f} GiB free", "" if fine else "make room before it is full")


def _damage(report: VerifyReport, url: str) -> list[Check]:
    # Keys have a check of their own.
    report = msgspec.structs.replace(report, needs=KeyNeeds())
    if report.ok:
        return [Check("records", True, str(report))]
    derived = all(damage.derived for damage in report.damage)
    advice = (
        "nothing is lost: the records say the same, and reading goes by them"
        if derived
        else _salvage_advice(url)
    )
    checks = [Check("records", False, str(report), advice)]
    checks += [Check("damage", False, str(damage)) for damage in report.damage[:_DAMAGE_MAX]]
    if len(report.damage) > _DAMAGE_MAX:
        more = counted(len(report.damage) - _DAMAGE_MAX, "more place")
        checks.append(Check("damage", False, f"… and {more}"))
    return checks


def _store_advice(code: int, url: str) -> str:
    """What to do about a store that couldn't be looked at."""
    if code == NOTHING:
        return "is it the one you mean? See --store; everthread init --store URL makes an empty one"
    return _salvage_advice(url) if code == CORRUPT and missing(url) is None else ""


def _salvage_advice(url: str) -> str:
    return (
        "stop the programs that use it, copy its files aside; threads whose newest version is damaged open "
        f"at the last good one, and everthread salvage sqlite:///salvaged.db --store {typed(url)} brings all "
        "that is sound into a new store and leaves this one as it is"
    )


def _print(checks: list[Check]) -> None:
    for each in checks:
        mark = click.style("✓", fg="green") if each.ok else click.style("✗", fg="red")
        click.echo(f"{mark} {each.check:<10} {clean(each.found)}")
        if each.advice:
            click.echo(f"  {'':<10} {click.style(clean(each.advice), fg='yellow')}")
    if not all(each.ok for each in checks):
        note("something needs you: see above")
