"""``everthread settle``: what became of an effect in doubt."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from everthread.cli.context import Invocation
from everthread.cli.effects import effect_data
from everthread.cli.log import thread_argument
from everthread.cli.options import (
    confirm,
    example,
    existing,
    pass_invocation,
    refuse_while_running,
    shared_options,
)
from everthread.cli.output import clean, note
from everthread.errors import NotFoundError, SessionBusyError

if TYPE_CHECKING:
    from everthread.sessions.sync.status import SessionRecords


@click.command(
    epilog=example(
        "settle invoice-bot pay-817 --done",
        "settle invoice-bot pay-817 --done --result '\"receipt 12\"'",
        "settle invoice-bot pay-817 --not-done",
        "settle invoice-bot --lost",
    )
)
@thread_argument
@click.argument("key", required=False)
@click.option("--done/--not-done", "done", default=None, help="Whether it has happened.")
@click.option("--result", metavar="JSON", help="What it returned; without it, nothing (null).")
@click.option(
    "--lost",
    is_flag=True,
    help="Without KEY: accept that records of effects were lost. Those that aren't known may be called.",
)
@click.option("--yes", is_flag=True, help="Don't ask before accepting a loss.")
@shared_options
@pass_invocation
def settle(
    call: Invocation,
    thread: str,
    key: str | None,
    done: bool | None,
    result: str | None,
    lost: bool,
    yes: bool,
) -> None:
    """Say whether the effect KEY of THREAD, which is in doubt, has happened. One that is done is never called
    again, and returns the result; one that isn't is called when a run comes to it. Where records of effects
    were lost, any KEY that isn't known is in doubt, until you accept that for the thread with --lost. This
    says nothing of its forks, nor of threads that are created later.

    The last run stays the last one. Refused (5) while a process is at work on the thread, or calls the
    effect. Ends with 3 if the effect isn't in doubt, or nothing is known to be lost.
    """
    if lost:
        if key is not None or done is not None or result is not None:
            raise click.UsageError("--lost is about all effects of THREAD: leave out KEY and its outcome")
        _accept_loss(call, thread, yes)
        return
    if key is None:
        raise click.UsageError("name the effect's KEY, or say --lost")
    if done is None:
        raise click.UsageError("say --done or --not-done")
    if result is not None and not done:
        raise click.UsageError("--result is what a done one returned: it goes with --done")
    returned = _read(result)
    with call.store() as store:
        existing(store, thread)
        records = store.session_records(thread)
        holder = records.holder
        # A run that its caller named belongs to no process: whoever presents its name is part of it.
        run = holder.run if holder is not None and holder.shared else None
        if run is None:
            refuse_while_running(store, thread, "settle it there: session.settle()")
        _require_doubt(records, thread, key)
        from everthread.sessions.effects import Done
        from everthread.sessions.sync.session import AgentSession

        session = AgentSession(thread, store=store, agent="settle", run=run, _unlisted=True)
        try:
            session.settle(key, Done(returned) if done else False)
        finally:
            # A named run stays open.
            session.close()
        found = next(each for each in store.session_records(thread).effects(None) if each.key == key)
        data = {"thread": thread, "effect": effect_data(found)}
        call.output.answer("settle", data, lambda: click.echo(clean(f"{key}: {found.text}")))


def _accept_loss(call: Invocation, thread: str, yes: bool) -> None:
    with call.store() as store:
        existing(store, thread)
        losses = store.session_records(thread).losses
        if losses is None:
            raise NotFoundError(f"no records of effects of {thread!r} are known to be lost")
        refuse_while_running(store, thread, "accept it there: session.accept_loss()")
        note(f"records of its effects were lost: {clean(losses.why)}")
        confirm(call, f"From now on, may {thread!r} call every effect that isn't recorded as done?", yes)
        store.accept_loss(thread)
        data = {"thread": thread, "accepted": losses.why}
        words = f"{thread}: effects that aren't recorded as done may be called from now on"
        call.output.answer("settle", data, lambda: click.echo(clean(words)))


def _require_doubt(records: SessionRecords, thread: str, key: str) -> None:
    """Raise :class:`NotFoundError` if there is nothing to settle, and :class:`SessionBusyError` while a
    process of a named run is calling the effect."""
    opened = {effect.key: effect for effect in records.open_effects()}
    if key in opened:
        if opened[key].state == "in_flight":
            raise SessionBusyError(
                f"the effect {key!r} of {thread!r} is being called by {records.holder}; let it end first",
                holder=records.holder,
                expires=None,
            )
        return
    if records.losses is None or records.effect(key) is not None:
        known = ", ".join(sorted(opened)) or "none"
        raise NotFoundError(f"the effect {key!r} of {thread!r} isn't in doubt; those that are: {known}")


def _read(result: str | None) -> Any:
    if result is None:
        return None
    try:
        return json.loads(result)
    except ValueError as error:
        raise click.UsageError(f"--result must be JSON, such as 12 or '\"text\"': {error}") from None
