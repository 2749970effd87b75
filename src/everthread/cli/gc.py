"""``everthread gc``: what has expired, or is older than what is kept, goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from everthread.arguments import counted
from everthread.cli.context import Invocation
from everthread.cli.errors import FAILURE, OK, as_typed, goes_on
from everthread.cli.options import Span, confirm, example, pass_invocation, shared_options
from everthread.cli.output import Step, clean, note, progress

if TYPE_CHECKING:
    from everthread.maintenance.reports import GcReport
    from everthread.people.erase import Elsewhere
    from everthread.store import Store


#: Expired threads that are named one by one before they go.
_NAMED_MAX = 20


@click.command(
    epilog=example("gc --dry-run", "gc --keep-last 100 --keep-days 30", "gc --yes --compact --json")
)
@click.option("--keep-last", type=click.IntRange(1), help="Keep the newest so many versions of each thread.")
@click.option("--keep-days", type=Span(), help="Keep versions that are younger than so many days.")
@click.option("--compact", is_flag=True, help="Also give the space back to the file system.")
@click.option("--yes", is_flag=True, help="Don't ask.")
@click.option("--dry-run", is_flag=True, help="Only show what would go.")
@shared_options
@pass_invocation
def gc(
    call: Invocation,
    keep_last: int | None,
    keep_days: float | None,
    compact: bool,
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
    with call.store(settle=False) as store:
        with progress("looking") as step:
            report = store.gc(retention, dry_run=True, progress=step)
        undone = store._left_undone() if dry_run else []
        elsewhere = store._erased_elsewhere()
        idle = not (compact or elsewhere.values or _something_goes(report))
        if not dry_run and not idle:
            if call.output.for_people and not yes:
                _show_what_goes(report, elsewhere)
            confirm(call, "Remove it for good?", yes)
        if not dry_run:
            call.settle(store)
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
        call.output.answer("gc", data, lambda: click.echo("nothing to remove" if idle else clean(words)))
        if call.output.for_people:
            for problem in report.problems:
                note(as_typed(problem))
        for told in undone:
            note(told)
        if dry_run:
            note("nothing was removed (--dry-run)")
    raise click.exceptions.Exit(FAILURE if report.problems else OK)


def _something_goes(report: GcReport) -> bool:
    return bool(
        report.expired_count or report.subjects or report.versions or report.companions or report.events
    )


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
