"""erase: forget a person, and prove it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from everthread.arguments import counted
from everthread.cli.context import Invocation
from everthread.cli.errors import BUSY, FAILURE, NOTHING, OK, goes_on, tell
from everthread.cli.options import Span, confirm, example, pass_invocation, shared_options
from everthread.cli.output import Table, clean, moment, note, progress

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from everthread.people.report import ErasureReport
    from everthread.store import Store

_STEPS = 1_000
_COLUMNS = ("erasure", "noted_us", "ended_us", "complete", "sealed_values", "user_values", "keys", "residues")


@click.command(
    epilog=example(
        "erase --subject user_17 --dry-run",
        "erase --subject user_17",
        "erase --subject user_17 --yes --json",
        "erase --reports --json",
    )
)
@click.option("--subject", help="The person, as named in Personal(subject, …).")
@click.option("--reports", is_flag=True, help="Only show the reports of erasures that were made here.")
@click.option(
    "--timeout",
    type=Span(),
    default=30.0,
    help="Seconds to wait for readers.  [default: 30]",
)
@click.option("--yes", is_flag=True, help="Don't ask.")
@click.option("--dry-run", is_flag=True, help="Only show what would go.")
@shared_options
@pass_invocation
def erase(
    call: Invocation,
    subject: str | None,
    reports: bool,
    timeout: float,
    yes: bool,
    dry_run: bool,
) -> None:
    """Erase a person: destroy their keys, delete what is sealed under them and their user data, get the bytes
    out of the store's files, and look for them.

    Shows first what would go, and asks; with --dry-run, or if the answer is no, nothing at all is changed.
    What is left here of persons who were erased through another store goes with it, and erasures that were
    cut short are finished: it says so before. There is no way back. The answer is a signed report, a receipt
    that names no one: keep it with --json; --reports shows those of all erasures of the store, whoever
    finished them. Ends with 5 if readers, or another process that is at it, kept it from being complete: run
    it again. Ends with 1 under a legal hold, also with --dry-run, or if whether anything is the person's
    can't be told: the keyring lacks the keys of what is sealed.
    """
    if (subject is None) is not reports:
        raise click.UsageError("either --subject, the person to erase, or --reports, which name no one")
    with call.store(settle=False) as store:
        if subject is None:
            code = _tell_reports(call, store)
        else:
            code = _erase(call, store, subject, timeout, yes, dry_run)
    raise click.exceptions.Exit(code)


def _erase(call: Invocation, store: Store, subject: str, timeout: float, yes: bool, dry_run: bool) -> int:
    report = preview = store.erase(subject, dry_run=True)
    before = {each.erasure for each in store.erasure_reports()}
    cut_short = store._unfinished_keys(but=preview.erasure)
    if preview.held is not None and not dry_run and not yes:
        # Nothing to ask about. With --yes the store itself refuses, and records the attempt.
        return tell(f"{_refused(preview)}. Nothing was changed", FAILURE)
    found = bool(preview.key_ids or preview.elsewhere or cut_short)
    # Nothing to do, and nothing to ask about: even a report of that would make a keyring to sign it.
    if not dry_run and (found or yes):
        if found:
            if call.output.for_people and not yes:
                _show_plan(preview, cut_short)
            everywhere = "In every store that uses this keyring: erase this person for good?"
            question = everywhere if preview.key_ids else "Delete that for good?"
            confirm(call, question, yes)
        with progress("erasing") as step, goes_on(_stopped):
            report = store.erase(
                subject, timeout_s=timeout, progress=lambda _, part: step(int(part * _STEPS), _STEPS)
            )
        if not report.key_ids:
            report = _done_meanwhile(store, preview) or report
    data = {"dry_run": dry_run, "report": report.plain(), "summary": _summary(report)}
    call.output.answer("erase", data, lambda: _show(report, cut_short if dry_run else 0), _table)
    if dry_run:
        note("nothing was erased (--dry-run)")
    else:
        _tell_of_others(store, report, before)
    if not preview.key_ids and not report.elsewhere and before:
        which = "1 erasure" if len(before) == 1 else f"one of {len(before):,} erasures"
        note(f"if it was done before, {which} here may have been this person's: {_reports()}")
    return _code(report, preview)


def _done_meanwhile(store: Store, preview: ErasureReport) -> ErasureReport | None:
    """The report of whoever has erased the person since the preview, and left nothing to do."""
    wanted = set(preview.key_ids)
    return next((each for each in store.erasure_reports() if not wanted.isdisjoint(each.key_ids)), None)


def _reports() -> str:
    """How the reports of the same store are asked for."""
    return click.get_current_context().ensure_object(Invocation).command("erase --reports")


def _stopped() -> str:
    return (
        "stopped in the middle: an erasure that has begun goes on when the store is next opened. Run this "
        f"again for its report; if another program is first, {_reports()} has it"
    )


def _tell_of_others(store: Store, report: ErasureReport, before: set[str]) -> None:
    """Say that others were erased on the way, and where that is told: a report is about one person."""
    went = [each for each in store.erasure_reports() if each.erasure not in before | {report.erasure}]
    if went and report.elsewhere:
        note(f"what went has reports of its own: {_reports()}")
    elif went:
        values = counted(sum(each.sealed_values for each in went), "sealed value")
        keys = counted(sum(len(each.key_ids) for each in went), "key")
        note(
            f"{values} under {keys} went, too, of persons who had been erased through another store, or not "
            f"to the end: {_reports()}"
        )


def _code(report: ErasureReport, preview: ErasureReport) -> int:
    if report.residues or report.unopened or report.held is not None:
        return FAILURE
    if report.waiting:
        return BUSY
    return OK if preview.key_ids or report.key_ids or report.elsewhere else NOTHING


def _refused(preview: ErasureReport) -> str:
    held = f"this person's data is under a legal hold ({preview.held})"
    return f"{held}: erasing it is refused until it is released"


def _summary(report: ErasureReport) -> str:
    """What it came to, or would come to; under a legal hold that is nothing."""
    if report.held is None:
        return report.summary()
    free = msgspec.structs.replace(report, held=None)
    return f"{_refused(report)}. Without the hold: {free.summary()}"


def _show_plan(preview: ErasureReport, cut_short: int) -> None:
    click.echo(clean(_summary(preview)))
    if cut_short and preview.held is None:
        click.echo(f"erasures of {counted(cut_short, 'other key')} that were cut short would be finished")


def _show(report: ErasureReport, cut_short: int) -> None:
    _show_plan(report, cut_short)
    if report.held is not None:
        return
    for place in report.places:
        click.echo(clean(f"  {place}"))
    if report.key_ids:
        click.echo("not reached:")
        for words in report.unreached:
            click.echo(clean(f"  {words}"))
    if report.signature:
        click.echo(f"report {report.digest()}, signed with {report.public_key}")


def _table(data: Mapping[str, Any]) -> Table:
    columns = ("where", "what", "count", "outcome")
    return Table(columns, [[place[name] for name in columns] for place in data["report"]["places"]])


# ── the reports of all erasures ──────────────────────────────────────────────────────────────────


def _tell_reports(call: Invocation, store: Store) -> int:
    found = store.erasure_reports()
    data = {
        "reports": [{**each.plain(), "summary": each.summary(), "digest": each.digest()} for each in found]
    }
    call.output.answer("erase", data, lambda: _show_reports(found), _table_of_reports)
    for words in store._left_undone():
        note(words)
    return OK if found else NOTHING


def _show_reports(found: Sequence[ErasureReport]) -> None:
    for report in found:
        click.secho(f"{moment(report.noted_us)}  {report.erasure}", bold=True)
        unfinished = "" if report.complete or report.waiting else "; it isn't finished"
        click.echo(clean(f"  {report.summary()}{unfinished}"))
        click.echo(
            f"  report {report.digest()} of {moment(report.ended_us)}, signed with {report.public_key}"
        )
    note("--json has the whole reports" if found else "nobody was erased from this store yet")


def _table_of_reports(data: Mapping[str, Any]) -> Table:
    rows = [{**each, "keys": len(each["key_ids"])} for each in data["reports"]]
    return Table(_COLUMNS, [[row[name] for name in _COLUMNS] for row in rows])
