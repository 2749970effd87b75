"""``everthread salvage``: from a damaged store to a new one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from everthread.cli.context import Invocation, missing, place_of
from everthread.cli.errors import CORRUPT, OK, goes_on
from everthread.cli.options import example, named_store, pass_invocation, shared_options
from everthread.cli.output import clean, note, progress
from everthread.errors import (
    UnsupportedError,
    UsageError,
)

if TYPE_CHECKING:
    from everthread.salvager.report import SalvageReport
from everthread.cli.output import SHOWN_MAX


@click.command(epilog=example("salvage sqlite:///saved.db --store sqlite:///agent.db"))
@click.argument("target")
@shared_options
@pass_invocation
def salvage(call: Invocation, target: str) -> None:
    """Bring everything that can be read of a damaged store into a new one, at the URL TARGET.

    The damaged one, a SQLite file or a file store that nobody has open, is only read. TARGET must be empty or
    not exist. Ends with 6 if something is missing, or had to be made anew under other ids.
    """
    from everthread.salvager.salvager import salvage as bring_over
    from everthread.stores.urls import over_network

    source, target = call.where, named_store(target)
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
        call.written_to(target).close()
    stopped = f"stopped in the middle: {target} holds a part; remove that, and salvage again"
    with progress("salvaging") as step, goes_on(lambda: stopped):
        report = bring_over(source, target, step)
    data = {"target": target, "report": msgspec.to_builtins(report), "summary": str(report)}
    call.output.answer("salvage", data, lambda: _show_salvaged(report))
    raise click.exceptions.Exit(OK if report.ok else CORRUPT)


def _show_salvaged(report: SalvageReport) -> None:
    click.echo(clean(str(report)))
    hurt = [thread for thread in report.threads if not thread.whole or thread.open_ended]
    for thread in hurt[:SHOWN_MAX]:
        click.echo(clean(f"  {thread}"))
    for problem in report.problems[:SHOWN_MAX]:
        click.echo(clean(f"  {problem}"))
    if max(len(hurt), len(report.problems)) > SHOWN_MAX:
        note("… and more (--json has all)")
