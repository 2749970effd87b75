"""Commands that move a store: export, import, copy."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click
import msgspec

from everthread.cli.asked import Asked
from everthread.cli.asking import example, pass_asked, shared_options
from everthread.cli.backups import is_itself
from everthread.cli.failing import goes_on
from everthread.cli.progress import Step, progress
from everthread.cli.telling import note
from everthread.cli.words import clean

if TYPE_CHECKING:
    from everthread.transfer.report import ExportReport, ImportReport

#: Where the passphrase may stand for keys in an archive.
PASSPHRASE_VARIABLE = "EVERTHREAD_ARCHIVE_PASSPHRASE"  # noqa: S105 - a name, not a secret
_PASSPHRASE_CHARS_MAX = 4_096

_RULES = ("error", "skip", "rename")
_on_conflict = click.option(
    "--on-conflict",
    type=click.Choice(_RULES),
    default="error",
    show_default=True,
    help="What to do about names that are taken by something else.",
)
durability_option = click.option(
    "--durability",
    type=click.Choice(("full", "process")),
    default="full",
    show_default=True,
    help="process: accept a server that may lose it when its machine fails.",
)
_with_keys = click.option(
    "--with-keys",
    is_flag=True,
    help=f"Keys of persons too, under a passphrase: ${PASSPHRASE_VARIABLE}, or the one in --passphrase-file.",
)
_passphrase_file = click.option(
    "--passphrase-file",
    type=click.Path(dir_okay=False),
    help="A file whose first line is the passphrase for --with-keys.",
)


def _secret(with_keys: bool, file: str | None) -> str | None:
    """The passphrase, from a place that no list of processes shows."""
    if not with_keys:
        if file is not None:
            raise click.UsageError("--passphrase-file is for --with-keys")
        return None
    if file is not None:
        try:
            with open(file, encoding="utf-8") as lines:
                return lines.readline(_PASSPHRASE_CHARS_MAX).rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise click.UsageError(f"can't read the passphrase from {file}: {error}") from None
    found = os.environ.get(PASSPHRASE_VARIABLE)
    if found is None:
        raise click.UsageError(f"--with-keys needs a passphrase: ${PASSPHRASE_VARIABLE} or --passphrase-file")
    return found


@click.command(
    epilog=example("export agents.archive", "export move.archive --with-keys --passphrase-file secret.txt")
)
@click.argument("file", type=click.Path(dir_okay=False))
@_with_keys
@_passphrase_file
@shared_options
@pass_asked
def export(asked: Asked, file: str, with_keys: bool, passphrase_file: str | None) -> None:
    """Write the store into an archive, FILE, that any other store can import.

    Threads with their past and forks, journals, events, data of persons: of all namespaces, or of one with
    --namespace. Sealed values stay sealed. Keys stay in the keyring, unless --with-keys says otherwise.
    """
    keys = _secret(with_keys, passphrase_file)
    with asked.store() as store, progress("exporting") as step:
        report = store.export(file, every_namespace=asked.namespace is None, keys=keys, progress=step)
    _tell(asked, "export", report)
    for name in report.skipped:
        note(f"{name!r} was deleted meanwhile and isn't in it")


@click.command("import", epilog=example("import agents.archive --store sqlite:///new.db"))
@click.argument("file", type=click.Path(dir_okay=False))
@_on_conflict
@durability_option
@_with_keys
@_passphrase_file
@shared_options
@pass_asked
def import_(
    asked: Asked,
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
    keys = _secret(with_keys, passphrase_file)
    # Before a store is made for it.
    _check_archive(file)
    with (
        asked.written_to(asked.where, durability) as store,
        progress("importing") as step,
        goes_on(lambda: _stopped(step)),
    ):
        report = store.import_from(
            file, on_conflict=on_conflict, every_namespace=asked.namespace is None, keys=keys, progress=step
        )
    _tell(asked, "import", report)


@click.command(
    epilog=example(
        "copy sqlite:///agent.db file:///srv/agents", "copy sqlite:///a.db sqlite:///b.db --on-conflict skip"
    )
)
@click.argument("src")
@click.argument("dst")
@_on_conflict
@durability_option
@shared_options
@pass_asked
def copy(asked: Asked, src: str, dst: str, on_conflict: str, durability: str) -> None:
    """Bring everything in the store SRC into the store DST, which is made if it isn't there.

    Doing it again brings what is new since. Both stay usable meanwhile; use what is being copied only where
    it comes from until the copy is done.
    """
    if is_itself(src, dst):
        raise click.UsageError(f"{src} and {dst} are the same store: name another one to copy to")
    # A file store has no archive beside it: then that of the other one is meant.
    mixed = src.startswith("file:") is not dst.startswith("file:")
    with (
        asked.looked_at(src, cold=not (mixed and src.startswith("file:"))) as source,
        asked.written_to(dst, durability, cold=not (mixed and dst.startswith("file:"))) as target,
        progress("copying") as step,
        goes_on(lambda: _stopped(step)),
    ):
        report = source.copy_to(
            target, on_conflict=on_conflict, every_namespace=asked.namespace is None, progress=step
        )
    _tell(asked, "copy", report)


def _stopped(step: Step) -> str:
    reached = step.reached("versions and events")
    return f"stopped{reached}: what was brought over stays; run it again to go on"


def _check_archive(file: str) -> None:
    """Read it through. Raises what is wrong with it."""
    from everthread.transfer.archive_file import ArchiveReader

    archive = ArchiveReader(file)
    try:
        while archive.next() is not None:
            pass
    finally:
        archive.close()


def _tell(asked: Asked, command: str, report: ExportReport | ImportReport) -> None:
    data = {"report": msgspec.to_builtins(report), "summary": str(report)}
    asked.tell.answer(command, data, lambda: click.echo(clean(str(report))))
