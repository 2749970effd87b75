"""``everthread events``: what happened, as a stream of events has it."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from everthread.briefing.facts import shown
from everthread.cli.context import Invocation
from everthread.cli.errors import NOTHING
from everthread.cli.options import example, pass_invocation, shared_options
from everthread.cli.output import clean, colours, note, records

if TYPE_CHECKING:
    from everthread.events.event import Event

COLUMNS = ("seq", "at", "type", "agent", "data")
_WIDTH = 200
_FORMATS = ("%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%SZ")


@click.command(
    epilog=example(
        "events tasks", "events tasks --type task_created --limit 20", "events tasks --after 40 --json"
    )
)
@click.argument("stream")
@click.option("--type", "type_", metavar="TYPE", help="Only events of this type.")
@click.option("--agent", metavar="NAME", help="Only events of this agent.")
@click.option("--since", type=click.DateTime(_FORMATS), help="Only events from this time (UTC) on.")
@click.option("--until", type=click.DateTime(_FORMATS), help="Only events up to this time (UTC).")
@click.option("--after", default=0, type=click.IntRange(0), metavar="SEQ", help="Only events after this one.")
@click.option(
    "--limit", default=100, show_default=True, type=click.IntRange(1, 10**9), help="How many events at most."
)
@shared_options
@pass_invocation
def events(
    call: Invocation,
    stream: str,
    type_: str | None,
    agent: str | None,
    since: datetime | None,
    until: datetime | None,
    after: int,
    limit: int,
) -> None:
    """The events of STREAM, the oldest first.

    Personal values are masked. Ends with 3 if there are none.
    """
    with call.store() as store:
        found = store.events(stream).replay(
            type=type_, agent=agent, since=_utc(since), until=_utc(until), after=after, limit=limit + 1
        )
        listed = list(islice(found, limit))
        more = next(found, None) is not None
    data = {"stream": stream, "events": [_data(event) for event in listed], "more": more}
    call.output.answer("events", data, lambda: _print(listed, more), records("events", COLUMNS))
    if not listed:
        raise click.exceptions.Exit(NOTHING)


def _data(event: Event) -> dict[str, Any]:
    return {name: getattr(event, name) for name in COLUMNS}


def _print(listed: list[Event], more: bool) -> None:
    for event in listed:
        type_ = click.style(clean(event.type), bold=True)
        agent = f" by {clean(event.agent)}" if event.agent else ""
        at = click.style(f"{event.at:%Y-%m-%d %H:%M:%S}", dim=True)
        click.echo(
            f"{event.seq:>6}  {at}  {type_}{agent}  {clean(shown(event.data), _WIDTH)}", color=colours()
        )
    if not listed:
        note("no such events")
    elif more:
        note(f"… there are more: --after {listed[-1].seq}, or a larger --limit")


def _utc(moment: datetime | None) -> datetime | None:
    return None if moment is None else moment.replace(tzinfo=UTC)
