"""``everthread keyring``: where the keys of persons are, a copy of them, and a copy brought back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import click
import msgspec

from everthread.arguments import counted
from everthread.cli.context import Invocation
from everthread.cli.errors import NOTHING, OK, as_typed
from everthread.cli.options import (
    PASSPHRASE_VARIABLE,
    confirm,
    example,
    key_passphrase,
    pass_invocation,
    shared_options,
    unopened_code,
)
from everthread.cli.output import Table, clean, note
from everthread.errors import EverthreadError, NotFoundError, StoreUnavailableError
from everthread.keyring.keyring import open_keyring

if TYPE_CHECKING:
    from collections.abc import Collection

    from everthread.keyring.keyring import Keyring
    from everthread.maintenance.key_needs import KeyNeeds
    from everthread.store import Store

_PASSPHRASE = (
    f"A file whose first line is the passphrase. Without it ${PASSPHRASE_VARIABLE} is, or you are asked."
)
_passphrase_option = click.option("--passphrase-file", type=click.Path(dir_okay=False), help=_PASSPHRASE)


@click.group(
    epilog=example("keyring status", "keyring backup keys.backup", "keyring restore keys.backup"),
    invoke_without_command=True,
)
@shared_options
@click.pass_context
def keyring(context: click.Context) -> None:
    """The keys of persons: where they are (status), a copy of them in a file (backup), and what such a file
    holds brought back (restore).

    The keyring is the one of --keyring, else $EVERTHREAD_KEYRING, else the one in your home. No backup or
    archive of a store holds it: without it nobody can open what is sealed.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@keyring.command(epilog=example("keyring status", "keyring status --keyring sqlite:////srv/keys.db --json"))
@shared_options
@pass_invocation
def status(call: Invocation) -> None:
    """Say where the keyring is, how many keys it has, how many were destroyed, and whether what is sealed in
    the store opens with it.

    Names the stores that have sealed something under its keys, each where it was then. The one of --store,
    else the one that is found from here, is looked at. Ends with 3 if there is no keyring and nothing that
    needs one, with 7 if sealed values of the store can't be opened with it. Makes no keyring.
    """
    with open_keyring(call.keyring) as found:
        alive, destroyed, exists = found.alive(), len(found.destroyed()), bool(found.epoch)
        data: dict[str, Any] = {
            "keyring": found.place,
            "exists": exists,
            "keys": alive,
            "destroyed": destroyed,
            "stores": found.stores(),
        }
        data |= {"problem": _problem(found), "store": None, "needs": None}
        needs = _needs(call, data)
        call.output.answer("keyring", data, lambda: _show(data, needs), _table)
    code = OK if needs is None else unopened_code(needs)
    raise click.exceptions.Exit(code or (OK if exists else NOTHING))


def _problem(found: Keyring) -> str:
    """Why the keys that are there can't be used; empty if they can."""
    try:
        found.check()
    except EverthreadError as error:
        return as_typed(str(error))
    return ""


def _needs(call: Invocation, data: dict[str, Any]) -> KeyNeeds | None:
    from everthread.maintenance.key_needs import count_keys

    with _store(call) as store:
        if store is None:
            return None
        needs = count_keys(store.core)
        data |= {"store": store.url, "needs": msgspec.to_builtins(needs)}
    return needs


@contextmanager
def _store(call: Invocation) -> Iterator[Store | None]:
    """The store that was named, or is found from here; ``None`` if nobody named one and there is none."""
    with ExitStack() as stack:
        store = None
        try:
            store = stack.enter_context(call.looked_at(call.where, settle=False))
        except (NotFoundError, StoreUnavailableError):
            if call.url is not None:
                raise
        yield store


def _show(data: Mapping[str, Any], needs: KeyNeeds | None) -> None:
    gone = f", {data['destroyed']:,} destroyed" if data["destroyed"] else ""
    keys = f"{counted(data['keys'], 'key')}{gone}" if data["exists"] else "there is none yet"
    click.echo(clean(f"{data['keyring']}: {keys}"))
    if data["problem"]:
        click.echo(clean(data["problem"]))
    for url in data["stores"]:
        click.echo(clean(f"used by {url}"))
    if needs is not None and not needs.unopened:
        click.echo(clean(f"{data['store']}: {needs}"))
    elif needs is not None:
        click.echo(clean(f"{data['store']}: not all of it can be opened"))


def _table(data: Mapping[str, Any]) -> Table:
    columns = ("keyring", "exists", "keys", "destroyed", "store")
    return Table(columns, [[data[name] for name in columns]])


@keyring.command(
    epilog=example("keyring backup keys.backup", "keyring backup keys.backup --passphrase-file s")
)
@click.argument("file", type=click.Path(dir_okay=False))
@_passphrase_option
@shared_options
@pass_invocation
def backup(call: Invocation, file: str, passphrase_file: str | None) -> None:
    """Write all keys into FILE, which must not exist, under a passphrase of 12 characters or more.

    Only you can read the file. Whoever has it and the passphrase can open everything that these keys seal:
    keep it apart from copies of the stores, and replace it after an erasure. Ends with 3 if there is no
    keyring.
    """
    with open_keyring(call.keyring) as found:
        if not found.epoch:
            raise NotFoundError(
                f"there is no keyring at {found.place} yet, and nothing to copy; if it is elsewhere: "
                "--keyring, "
                "$EVERTHREAD_KEYRING"
            )
        report = found.backup(file, key_passphrase(passphrase_file, twice=True))
    call.output.answer(
        "keyring",
        {"report": msgspec.to_builtins(report), "summary": str(report)},
        lambda: click.echo(clean(str(report))),
    )
    note("without the passphrase nobody can use it: keep that, too, and elsewhere")


@keyring.command(
    epilog=example(
        "keyring restore keys.backup", "keyring restore keys.backup --store sqlite:///agent.db --yes"
    )
)
@click.argument("file", type=click.Path(dir_okay=False))
@_passphrase_option
@click.option("--yes", is_flag=True, help="Don't ask.")
@shared_options
@pass_invocation
def restore(call: Invocation, file: str, passphrase_file: str | None, yes: bool) -> None:
    """Bring the keys in FILE into the keyring here, beside those that it has. It is made if it isn't there.

    Nobody comes back who was erased: keys that were destroyed here, or where FILE was made, and those in the
    erasure ledger of the store (--store, else the one that is found from here) stay away. If such a key is
    alive here, it asks before it destroys that. Ends with 7 if sealed values of the store still can't be
    opened, with 3 if there is no FILE.
    """
    from everthread.keyring.backup import keys_in, read_backup

    secret = key_passphrase(passphrase_file)
    content = read_backup(file, secret)
    with open_keyring(call.keyring) as found:
        erased = _erased(call, keys_in(content))
        gone = erased.union(content.destroyed) & (found.held() - found.destroyed())
        if gone:
            keys = counted(len(gone), "key")
            confirm(call, f"{keys} of persons who were erased elsewhere are alive here. Destroy them?", yes)
        report = found.restore(file, secret, erased=erased)
        data: dict[str, Any] = {"report": msgspec.to_builtins(report), "summary": str(report), "store": None}
        data["needs"] = None
        needs = _needs(call, data)
        call.output.answer("keyring", data, lambda: click.echo(clean(str(report))))
    raise click.exceptions.Exit(OK if needs is None else unopened_code(needs))


def _erased(call: Invocation, key_ids: Collection[bytes]) -> frozenset[bytes]:
    """Which of these keys the ledger of the store lists."""
    with _store(call) as store:
        return frozenset() if store is None else frozenset(store.core.backend.erased(key_ids))
