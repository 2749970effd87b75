"""erase: forget a person, and prove it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from everthread.cli.asked import Asked
from everthread.cli.asking import Span, confirm, example, pass_asked, shared_options
from everthread.cli.failing import BUSY, FAILURE, NOTHING, OK, goes_on
from everthread.cli.progress import progress
from everthread.cli.telling import Table, note
from everthread.cli.words import clean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from everthread.people.reports import ErasureReport

_STEPS = 1_000
_STOPPED = (
    "stopped in the middle: an erasure that has begun goes on when the store is next opened, by whatever "
    "command; store.erasure_reports() has its report then"
)


@click.command(
    epilog=example(
        "erase --subject user_17 --dry-run", "erase --subject user_17", "erase --subject user_17 --yes --json"
    )
)
@click.option("--subject", required=True, help="The person, as named in Personal(subject, …).")
@click.option("--keyring", metavar="PLACE", help="The keyring, if it isn't the one in your home.")
@click.option(
    "--timeout",
    type=Span(),
    default=30.0,
    help="Seconds to wait for readers.  [default: 30]",
)
@click.option("--yes", is_flag=True, help="Don't ask.")
@click.option("--dry-run", is_flag=True, help="Only show what would go.")
@shared_options
@pass_asked
def erase(asked: Asked, subject: str, keyring: str | None, timeout: float, yes: bool, dry_run: bool) -> None:
    """Erase a person: destroy their keys, delete what is sealed under them and their user data, get the bytes
    out of the store's files, and look for them.

    Shows first what would go, and asks. There is no way back. The answer is a signed report, a receipt that
    names no one: keep it with --json. Ends with 5 if readers kept it from being complete: run it again. Ends
    with 1 if whether anything is the person's can't be told: the keyring lacks the keys of what is sealed.
    """
    asked.keyring = keyring
    with asked.store(settle=not dry_run) as store:
        preview = store.erase(subject, dry_run=True)
        report = preview
        if not dry_run:
            if asked.tell.for_people and not yes and preview.key_ids:
                click.echo(clean(preview.summary()))
            if preview.key_ids:
                confirm(asked, "Erase this person for good?", yes)
            with progress("erasing") as step, goes_on(lambda: _STOPPED):
                report = store.erase(
                    subject, timeout_s=timeout, progress=lambda _, part: step(int(part * _STEPS), _STEPS)
                )
        data = {"dry_run": dry_run, "report": report.plain(), "summary": report.summary()}
        asked.tell.answer("erase", data, lambda: _show(report), _table)
        if dry_run:
            note("nothing was erased (--dry-run)")
    raise click.exceptions.Exit(_code(report, preview))


def _code(report: ErasureReport, preview: ErasureReport) -> int:
    if report.residues or report.unopened:
        return FAILURE
    if report.waiting:
        return BUSY
    return OK if preview.key_ids or report.key_ids or report.elsewhere else NOTHING


def _show(report: ErasureReport) -> None:
    click.echo(clean(report.summary()))
    for place in report.places:
        what = place.what.removesuffix("s") if place.count == 1 else place.what
        click.echo(clean(f"  {place.outcome}: {place.count:,} {what} in {place.where}"))
    if report.key_ids:
        click.echo("not reached:")
        for words in report.unreached:
            click.echo(clean(f"  {words}"))
    if report.signature:
        click.echo(f"report {report.digest()}, signed with {report.public_key}")


def _table(data: Mapping[str, Any]) -> Table:
    columns = ("where", "what", "count", "outcome")
    return Table(columns, [[place[name] for name in columns] for place in data["report"]["places"]])
