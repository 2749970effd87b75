"""``everthread effects``: what the runs of a thread did to the world, and what nobody knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from everthread.briefing.facts import shown
from everthread.cli.context import Invocation
from everthread.cli.errors import CORRUPT, DRIFT, NOTHING
from everthread.cli.log import thread_argument
from everthread.cli.options import example, existing, pass_invocation, shared_options
from everthread.cli.output import ago, clean, colours, note, records

if TYPE_CHECKING:
    from everthread.sessions.records import EffectRecord

COLUMNS = ("key", "name", "state", "run", "attempt", "at", "settled_at", "settled_by", "error", "result")
_COLOURS = {"in_doubt": "yellow", "in_flight": "cyan", "not_done": "red"}
_WIDTH = 120


@click.command(epilog=example("effects invoice-bot", "effects invoice-bot --open --json"))
@thread_argument
@click.option("--open", "only_open", is_flag=True, help="Only those without an end: in flight or in doubt.")
@click.option(
    "--limit", default=20, show_default=True, type=click.IntRange(1), help="How many settled ones at most."
)
@shared_options
@pass_invocation
def effects(call: Invocation, thread: str, only_open: bool, limit: int) -> None:
    """The effects that sessions on THREAD have called: those without an end first, then the settled ones, the
    newest first, those of what it was forked from included.

    Personal values are masked. Ends with 3 if there are none, with 4 if one is in doubt, with 6 if records of
    them were lost.
    """
    with call.store() as store:
        existing(store, thread)
        records_ = store.session_records(thread)
        opened = records_.open_effects()
        settled = [] if only_open else records_.effects(limit)
        now_us = store.core.runtime.now_us()
        losses = records_.losses
        data = {
            "thread": thread,
            "effects": [effect_data(effect) for effect in (*opened, *settled)],
            "settled": records_.effect_count,
            "losses": None if losses is None else losses.why,
        }
        call.output.answer("effects", data, lambda: _print(data, now_us), records("effects", COLUMNS))
        if not only_open and len(settled) < records_.effect_count:
            note(f"{len(settled):,} of {records_.effect_count:,} settled effects; --limit shows more")
    doubtful = [effect for effect in opened if effect.state == "in_doubt"]
    if doubtful:
        command = call.command("settle", thread, doubtful[0].key, options="--done or --not-done")
        note(f"find out what happened, then: {command}")
    if losses is not None:
        raise click.exceptions.Exit(CORRUPT)
    if doubtful:
        raise click.exceptions.Exit(DRIFT)
    if not data["effects"]:
        raise click.exceptions.Exit(NOTHING)


def effect_data(effect: EffectRecord) -> dict[str, Any]:
    """An effect as programs get it."""
    return {name: getattr(effect, name) for name in COLUMNS}


def _print(data: Mapping[str, Any], now_us: int) -> None:
    for effect in data["effects"]:
        state = click.style(f"{effect['state'].replace('_', ' '):<9}", fg=_COLOURS.get(effect["state"]))
        at_us = int((effect["settled_at"] or effect["at"]).timestamp() * 1e6)
        words = f"{clean(effect['key'])} ({clean(effect['name'])})"
        if effect["error"]:
            words += f": {clean(effect['error'], _WIDTH)}"
        elif effect["state"] == "done" and effect["result"] is not None:
            words += f" → {clean(shown(effect['result']), _WIDTH)}"
        click.echo(f"{state}  {ago(at_us, now_us):<12} {words}", color=colours())
    if not data["effects"]:
        note("no effects")
    if data["losses"] is not None:
        note(f"records of effects were lost: {clean(data['losses'])}")
