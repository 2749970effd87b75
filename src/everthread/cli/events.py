"""``everthread events``: the streams of a store, or what happened, as one of them has it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from everthread.briefing.facts import shown
from everthread.cli.context import Invocation
from everthread.cli.errors import NOTHING
from everthread.cli.options import example, pass_invocation, shared_options
from everthread.cli.output import ago, cells, clean, colours, note, pad, records

if TYPE_CHECKING:
    from everthread.events.event import Event, StreamRetention
    from everthread.store import Store

STREAMS = ("name", "events", "newest", "retention")
COLUMNS = ("seq", "at", "type", "agent", "data")
_WIDTH = 200
_NAME_WIDTH = 40
_PAGE = 200
_FORMATS = ("%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%SZ")


@click.command(
    epilog=example(
        "events",
        "events tasks",
        "events tasks --type task_created --limit 20",
        "events tasks --after 40 --json",
    )
)
@click.argument("stream", required=False)
@click.option("--type", "type_", metavar="TYPE", help="Only events of this type.")
@click.option("--agent", metavar="NAME", help="Only events of this agent.")
@click.option("--since", type=click.DateTime(_FORMATS), help="Only events from this time (UTC) on.")
@click.option("--until", type=click.DateTime(_FORMATS), help="Only events up to this time (UTC).")
@click.option("--after", default=0, type=click.IntRange(0), metavar="SEQ", help="Only events after this one.")
@click.option(
    "--limit", default=100, show_default=True, type=click.IntRange(1, 10**9), help="How many at most."
)
@shared_options
@pass_invocation
def events(
    call: Invocation,
    stream: str | None,
    type_: str | None,
    agent: str | None,
    since: datetime | None,
    until: datetime | None,
    after: int,
    limit: int,
) -> None:
    """The events of STREAM, the oldest first. Without STREAM: all streams, with how many events each has,
    when the newest came, and how long it keeps them.

    Personal values are masked. Ends with 3 if there are none.
    """
    if stream is None:
        if after or any((type_, agent, since, until)):
            raise click.UsageError("say of which STREAM: everthread events, without more, lists them")
        _list_streams(call, limit)
        return
    with call.store() as store:
        one = store.events(stream)
        found = one.replay(
            type=type_, agent=agent, since=_utc(since), until=_utc(until), after=after, limit=limit + 1
        )
        listed = list(islice(found, limit))
        more = next(found, None) is not None
        retention = one.retention
    data = {
        "stream": stream,
        "events": [_data(event) for event in listed],
        "more": more,
        "retention": _bounds(retention),
    }
    call.output.answer("events", data, lambda: _print(listed, more, retention), records("events", COLUMNS))
    if not listed:
        raise click.exceptions.Exit(NOTHING)


def _list_streams(call: Invocation, limit: int) -> None:
    with call.store() as store:
        names = list(islice(_names(store), limit + 1))
        more = len(names) > limit
        listed = []
        for name in names[:limit]:
            stream = store.events(name)
            # Somebody may have deleted it meanwhile.
            if (newest := stream.last) is not None:
                listed.append((name, len(stream), newest, stream.retention))
        now_us = store.core.runtime.now_us()

    def show() -> None:
        width = min(_NAME_WIDTH, max((cells(clean(name)) for name, *_ in listed), default=0))
        for name, count, newest, retention in listed:
            newest_ago = ago(newest.at_us, now_us)
            click.echo(f"{pad(clean(name), width)}  {count:>9,}  {newest_ago:<12} kept {retention}")
        if not listed:
            note("no streams")
        elif more:
            note("… there are more: a larger --limit")

    streams = [
        dict(zip(STREAMS, (name, count, newest.at, _bounds(retention)), strict=True))
        for name, count, newest, retention in listed
    ]
    call.output.answer("events", {"streams": streams, "more": more}, show, records("streams", STREAMS))
    if not listed:
        raise click.exceptions.Exit(NOTHING)


def _names(store: Store) -> Iterator[str]:
    core, after = store.core, None
    while page := core.backend.streams(core.space, "", after, _PAGE):
        yield from (name for name, _ in page)
        after = page[-1][0]


def _bounds(retention: StreamRetention) -> dict[str, float | int | None] | None:
    """A retention as programs get it; nothing if events stay for ever."""
    if retention.ttl is None and retention.keep is None:
        return None
    return {"ttl_s": None if retention.ttl is None else retention.ttl.total_seconds(), "keep": retention.keep}


def _data(event: Event) -> dict[str, Any]:
    return {name: getattr(event, name) for name in COLUMNS}


def _print(listed: list[Event], more: bool, retention: StreamRetention) -> None:
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
    if _bounds(retention) is not None:
        note(f"events of this stream are kept: {retention}")


def _utc(moment: datetime | None) -> datetime | None:
    return None if moment is None else moment.replace(tzinfo=UTC)
