"""Commands that look after a store's place and size: init, gc, completion."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click
import msgspec

from everthread.arguments import counted
from everthread.cli.asked import Asked, missing
from everthread.cli.asking import Span, confirm, example, pass_asked, shared_options
from everthread.cli.failing import FAILURE, OK, as_typed, goes_on
from everthread.cli.progress import Step, progress
from everthread.cli.telling import note
from everthread.cli.words import clean

if TYPE_CHECKING:
    from everthread.people.erase import Elsewhere
    from everthread.store import Store
    from everthread.threads.cleanup import GcReport

#: Expired threads that are named one by one before they go.
_NAMED_MAX = 20


@click.command(epilog=example("init", "init ~/work/bot", "init --store sqlite:///agent.db"))
@click.argument("folder", required=False, type=click.Path(file_okay=False))
@shared_options
@pass_asked
def init(asked: Asked, folder: str | None) -> None:
    """Make a place for a store in FOLDER (here): a private .everthread, which programs started in or below it
    find by themselves. The store itself is made by the first commit.

    With --store an empty store is made there instead. Doing it again changes nothing.
    """
    if asked.url is not None:
        if folder is not None:
            raise click.UsageError("either a FOLDER or a --store, not both")
        local = asked.url.startswith(("sqlite:", "file:"))
        made = missing(asked.url) is not None if local else None
        with asked.made(asked.url) as store:
            url = store.url
        words = f"there is a store at {url}"
        asked.tell.answer("init", {"place": url, "made": made}, lambda: click.echo(clean(words)))
        return
    above = _place_above(folder or ".")
    place, made = _make_place(folder or ".")
    words = f"{place} is the place for your agents' state" if made else f"{place} is there already"
    asked.tell.answer("init", {"place": place, "made": made}, lambda: click.echo(clean(words)))
    if made and above is not None:
        note(f"programs started here find this one now, no longer {above}")


def _make_place(folder: str) -> tuple[str, bool]:
    from everthread.errors import StoreUnavailableError
    from everthread.stores.urls import FOLDER

    place = os.path.join(os.path.abspath(folder), FOLDER)
    try:
        made = not os.path.isdir(place)
        os.makedirs(place, mode=0o700, exist_ok=True)
        ignore = os.path.join(place, ".gitignore")
        if made and not os.path.exists(ignore):
            with open(ignore, "x", encoding="utf-8") as file:
                file.write("*\n")
    except OSError as error:
        raise StoreUnavailableError(f"can't make {place}: {error.strerror}") from error
    return place, made


def _place_above(folder: str) -> str | None:
    """The place that programs started in ``folder`` find so far, if it isn't in ``folder`` itself."""
    from everthread.stores.urls import FOLDER

    here = os.path.abspath(folder)
    while (above := os.path.dirname(here)) != here:
        here = above
        place = os.path.join(here, FOLDER)
        if os.path.isdir(place):
            return place
    return None


@click.command(
    epilog=example("gc --dry-run", "gc --keep-last 100 --keep-days 30", "gc --yes --compact --json")
)
@click.option("--keep-last", type=click.IntRange(1), help="Keep the newest so many versions of each thread.")
@click.option("--keep-days", type=Span(), help="Keep versions that are younger than so many days.")
@click.option("--compact", is_flag=True, help="Also give the space back to the file system.")
@click.option("--keyring", metavar="PLACE", help="The keyring, if it isn't the one in your home.")
@click.option("--yes", is_flag=True, help="Don't ask.")
@click.option("--dry-run", is_flag=True, help="Only show what would go.")
@shared_options
@pass_asked
def gc(
    asked: Asked,
    keep_last: int | None,
    keep_days: float | None,
    compact: bool,
    keyring: str | None,
    yes: bool,
    dry_run: bool,
) -> None:
    """Remove threads that have expired and, where --keep-last or --keep-days say so, old versions. Persons
    whose time is over are erased, and erasures and redactions that were cut short are finished, as by every
    program that opens the store; what is left here of persons who were erased through another store goes.

    Shows first what would go, and asks; with --dry-run, or if the answer is no, nothing at all is changed.
    What either option keeps stays, and always: versions with a label, what forks share, what rewinds went
    back to, and the present state. What is removed is gone for good, also what a rewind could be undone to.
    """
    from everthread.history.retention import Retention

    retention = None
    if keep_last is not None or keep_days is not None:
        within = None if keep_days is None else keep_days * 86_400
        retention = Retention(keep_last=keep_last, keep_within=within)
    asked.keyring = keyring
    with asked.store(settle=False) as store:
        with progress("looking") as step:
            report = store.gc(retention, dry_run=True, progress=step)
        undone = store._left_undone() if dry_run else []
        elsewhere = store._erased_elsewhere()
        idle = not (compact or elsewhere.values or _something_goes(report))
        if not dry_run and not idle:
            if asked.tell.for_people and not yes:
                _show_what_goes(report, elsewhere)
            confirm(asked, "Remove it for good?", yes)
        if not dry_run:
            asked.settle(store)
        if not dry_run and not idle:
            with progress("removing") as step, goes_on(lambda: _stopped(step)):
                report = store.gc(retention, compact=compact, progress=step)
            elsewhere = elsewhere.without(store._erased_elsewhere())
            if elsewhere.values or report.subjects:
                # What went of persons went after the report had measured.
                report = msgspec.structs.replace(report, size_after=_size(store))
        words = _in_words(report, elsewhere)
        data = {
            "dry_run": dry_run,
            "report": msgspec.to_builtins(report),
            "summary": "; ".join((words, *report.problems)),
            "elsewhere": elsewhere._asdict(),
        }
        asked.tell.answer("gc", data, lambda: click.echo("nothing to remove" if idle else clean(words)))
        if asked.tell.for_people:
            for problem in report.problems:
                note(as_typed(problem))
        for told in undone:
            note(told)
        if dry_run:
            note("nothing was removed (--dry-run)")
    raise click.exceptions.Exit(FAILURE if report.problems else OK)


def _something_goes(report: GcReport) -> bool:
    return bool(report.expired_count or report.subjects or report.versions or report.companions)


def _in_words(report: GcReport, elsewhere: Elsewhere) -> str:
    """What goes or went; what was left alone, and why, is told in lines of its own."""
    return str(msgspec.structs.replace(report, problems=())) + _of_others(elsewhere)


def _size(store: Store) -> int:
    """Of the whole store on disk, as :class:`GcReport` has it."""
    totals = store.core.backend.totals()
    return totals.data or sum(size for _, size in totals.files)


def _stopped(step: Step) -> str:
    reached = step.reached("threads and journals")
    return f"stopped{reached}: what was removed is gone, all else is as it was; run it again to go on"


def _of_others(elsewhere: Elsewhere) -> str:
    if not elsewhere.values:
        return ""
    values = f"{counted(elsewhere.values, 'value')} under {counted(elsewhere.keys, 'key')}"
    return f"; {values} of persons who were erased through another store"


def _show_what_goes(report: GcReport, elsewhere: Elsewhere) -> None:
    click.echo(clean(f"this would go: {_in_words(report, elsewhere)}"))
    for name in report.expired[:_NAMED_MAX]:
        click.echo(f"  expired: {clean(name, 100)}")
    if report.expired_count > _NAMED_MAX:
        click.echo(f"  … and {report.expired_count - _NAMED_MAX:,} more")


_SHELLS = {
    "bash": ('eval "$(_EVERTHREAD_COMPLETE=bash_source everthread)"', "~/.bashrc"),
    "zsh": ('eval "$(_EVERTHREAD_COMPLETE=zsh_source everthread)"', "~/.zshrc"),
    "fish": (
        "_EVERTHREAD_COMPLETE=fish_source everthread | source",
        "~/.config/fish/completions/everthread.fish",
    ),
}


@click.command(epilog=example("completion bash >> ~/.bashrc", "completion fish --json"))
@click.argument("shell", type=click.Choice(list(_SHELLS)), required=False)
@shared_options
@pass_asked
def completion(asked: Asked, shell: str | None) -> None:
    """Print the line that makes SHELL (yours, by $SHELL) complete commands, options and names of threads."""
    shell = shell or os.path.basename(os.environ.get("SHELL", ""))
    if shell not in _SHELLS:
        raise click.UsageError("which shell? everthread completion bash, zsh or fish")
    line, file = _SHELLS[shell]

    def text() -> None:
        note(f"add this line to {file}:")
        click.echo(line)

    asked.tell.answer("completion", {"shell": shell, "line": line, "file": file}, text)
