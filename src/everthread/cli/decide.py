"""``everthread decide``: a decision, recorded before it is acted upon."""

from __future__ import annotations

import click

from everthread.cli.context import Invocation
from everthread.cli.options import example, pass_invocation, shared_options
from everthread.cli.output import clean
from everthread.cli.writing import chosen_thread, thread_option, writable


@click.command(
    epilog=example(
        "decide 'refund T030' --why 'it was paid twice'",
        "decide 'use SQLite' --why 'one machine' --rejected PostgreSQL --rejected files",
    )
)
@click.argument("text")
@click.option("--why", required=True, metavar="TEXT", help="Why it was decided so.")
@click.option("--rejected", multiple=True, metavar="TEXT", help="An option that was not taken; repeatable.")
@thread_option
@shared_options
@pass_invocation
def decide(call: Invocation, text: str, why: str, rejected: tuple[str, ...], thread: str | None) -> None:
    """Record the decision TEXT before you act on it. Every briefing lists it until it has an outcome."""
    from everthread.sessions.sync.decisions import record_decision

    name = chosen_thread(thread)
    with writable(call) as store:
        made = record_decision(store.thread(name), text, why, rejected)
    data = {
        "thread": name,
        "id": made.id,
        "text": made.decision,
        "why": made.rationale,
        "rejected": list(made.rejected),
    }
    call.output.answer("decide", data, lambda: click.echo(f"decided {made.id}: {clean(text)}"))
