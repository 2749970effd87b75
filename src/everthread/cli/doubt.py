"""``everthread doubt``: mark all ledgers after a server was brought back as it was at an earlier time."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

import click

from everthread.arguments import counted
from everthread.cli.context import Invocation
from everthread.cli.errors import DRIFT
from everthread.cli.options import confirm, example, pass_invocation, shared_options
from everthread.cli.output import clean, note

if TYPE_CHECKING:
    from everthread.threads.doubts import Doubt


class Moment(click.ParamType):  # type: ignore[type-arg]
    """A time as ISO 8601 writes it; without a zone it is UTC."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            found = datetime.datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is no time such as 2026-03-01T04:00:00Z", param, ctx)
        return found if found.tzinfo is not None else found.replace(tzinfo=datetime.UTC)


@click.command(
    epilog=example(
        "doubt", "doubt --since 2026-03-01T04:00:00Z --why 'pg_restore of the nightly dump'", "doubt --end"
    )
)
@click.option("--since", type=Moment(), help="What was written after this time is lost. UTC without a zone.")
@click.option("--why", default="", help="The reason, which InDoubtError, resume and briefings show.")
@click.option("--end", is_flag=True, help="No thread created from now on was used in that time.")
@click.option("--yes", is_flag=True, help="Don't ask.")
@shared_options
@pass_invocation
def doubt(call: Invocation, since: datetime.datetime | None, why: str, end: bool, yes: bool) -> None:
    """Say that the store, in all namespaces, lost what was written to it after a time: after a point-in-time
    recovery, pg_restore, a failover that lost writes, or a copy of its files that was put back. Without
    options, show what is in doubt. A restore of Everthread's own backups does this by itself.

    From then on an effect that a ledger doesn't know isn't called: it is verified, or in doubt, until you
    settle it or accept the loss for its thread (settle). That holds for threads that are created later, too,
    because their names may have been used in that time, until you say --end; threads that exist by then stay
    in doubt. Stop the programs that use the store first: runs at work are fenced off. Without options it ends
    with 4 if anything is in doubt.
    """
    if since is not None and end:
        raise click.UsageError("say --since or --end, not both")
    if why and since is None:
        raise click.UsageError("--why goes with --since")
    if since is not None and since > datetime.datetime.now(datetime.UTC):
        raise click.UsageError("--since must not be in the future")
    with call.store() as store:
        if since is not None:
            confirm(
                call, f"Put every ledger of {store.url} in doubt since {since:%Y-%m-%d %H:%M:%S %Z}?", yes
            )
            store.doubt(since, why)
        elif end and store.doubts():
            confirm(call, f"Was no thread that is created in {store.url} from now on used before?", yes)
            store.end_doubt()
        found = store.doubts()
        data = {"store": store.url, "doubts": [doubt_data(each) for each in found]}
        call.output.answer("doubt", data, lambda: _print(found))
        if since is not None:
            note(f"to see how a thread stands: {call.command('resume THREAD')}")
    if since is None and found:
        raise click.exceptions.Exit(DRIFT)


def doubt_data(doubt: Doubt) -> dict[str, Any]:
    """Return a doubt as programs get it."""
    return {"since": doubt.since, "why": doubt.why}


def _print(found: list[Doubt]) -> None:
    for each in found:
        click.echo(clean(str(each)))
    if found:
        note(f"{counted(len(found), 'doubt')}: for every thread, and for those that are created later")
    else:
        note("no doubt holds for the whole store; effects and resume tell of single threads")
