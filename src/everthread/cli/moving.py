"""Commands that move a store: export, import, copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from everthread.cli.asked import Asked, not_there
from everthread.cli.asking import example, pass_asked, shared_options
from everthread.cli.progress import progress
from everthread.cli.telling import note
from everthread.cli.words import clean

if TYPE_CHECKING:
    from everthread.moving.reports import ExportReport, ImportReport

_RULES = ("error", "skip", "rename")
_on_conflict = click.option(
    "--on-conflict",
    type=click.Choice(_RULES),
    default="error",
    show_default=True,
    help="What to do about names that are taken by something else.",
)


@click.command(epilog=example("export agents.archive", "export tenant.archive --namespace tenant-a --json"))
@click.argument("file", type=click.Path(dir_okay=False))
@shared_options
@pass_asked
def export(asked: Asked, file: str) -> None:
    """Write the store into an archive, FILE, that any other store can import.

    Threads with their past and forks, journals, events, data of persons: of all namespaces, or of one with
    --namespace. Sealed values stay sealed, keys stay in the keyring.
    """
    with asked.store() as store, progress("exporting") as step:
        report = store.export(file, every_namespace=asked.namespace is None, progress=step)
    _tell(asked, "export", report)
    for name in report.skipped:
        note(f"{name!r} was deleted meanwhile and isn't in it")


@click.command("import", epilog=example("import agents.archive --store sqlite:///new.db"))
@click.argument("file", type=click.Path(dir_okay=False))
@_on_conflict
@shared_options
@pass_asked
def import_(asked: Asked, file: str, on_conflict: str) -> None:
    """Bring in what an archive, FILE, holds. The store is made if it isn't there.

    The archive is checked first; a damaged one changes nothing. An import that was stopped is finished by
    running it again: what is there already is skipped.
    """
    with asked.opened(asked.where) as store, progress("importing") as step:
        report = store.import_from(
            file, on_conflict=on_conflict, every_namespace=asked.namespace is None, progress=step
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
@shared_options
@pass_asked
def copy(asked: Asked, src: str, dst: str, on_conflict: str) -> None:
    """Bring everything in the store SRC into the store DST, which is made if it isn't there.

    Doing it again brings what is new since. Both stay usable meanwhile; use what is being copied only where
    it comes from until the copy is done.
    """
    from everthread.errors import NotFoundError

    missing = not_there(src)
    if missing:
        raise NotFoundError(missing)
    with asked.opened(src) as source, asked.opened(dst) as target, progress("copying") as step:
        report = source.copy_to(
            target, on_conflict=on_conflict, every_namespace=asked.namespace is None, progress=step
        )
    _tell(asked, "copy", report)


def _tell(asked: Asked, command: str, report: ExportReport | ImportReport) -> None:
    data = {"report": msgspec.to_builtins(report), "summary": str(report)}
    asked.tell.answer(command, data, lambda: click.echo(clean(str(report))))
