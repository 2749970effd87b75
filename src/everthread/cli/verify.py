"""``everthread verify``: every record against its checksum and the chain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from everthread.cli.context import Invocation
from everthread.cli.errors import CORRUPT
from everthread.cli.options import example, pass_invocation, shared_options, unopened_code
from everthread.cli.output import clean, note, progress, records

if TYPE_CHECKING:
    from everthread.maintenance.reports import VerifyReport
from everthread.cli.output import SHOWN_MAX


@click.command(epilog=example("verify", "verify --store sqlite:///agent.db --json"))
@shared_options
@pass_invocation
def verify(call: Invocation) -> None:
    """Check every record of every thread against its checksum and the chain of hashes, and every event.

    Reads everything, changes nothing, goes on after damage. Ends with 6 if anything is damaged, with 7 if
    sealed values can't be opened with the keyring here.
    """
    with call.store(settle=False) as store:
        with progress("reading every record") as step:
            report = store.verify(step)
        data = {
            "ok": report.ok,
            "damage": msgspec.to_builtins(report.damage),
            "summary": str(report),
            "needs": msgspec.to_builtins(report.needs),
        }
        columns = ("thread", "first", "last", "what", "problem")
        call.output.answer("verify", data, lambda: _show_damage(report), records("damage", columns))
    code = unopened_code(report.needs, answered=call.output.for_people)
    raise click.exceptions.Exit(code if report.ok else CORRUPT)


def _show_damage(report: VerifyReport) -> None:
    click.echo(clean(str(report)))
    for damage in report.damage[:SHOWN_MAX]:
        click.echo(clean(f"  {damage}"))
    if len(report.damage) > SHOWN_MAX:
        note(f"… and {len(report.damage) - SHOWN_MAX:,} more (--json has all)")
    if not report.ok:
        note("everthread doctor says what to do")
