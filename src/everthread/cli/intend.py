"""``everthread intend``: what the agent is about to do."""

from __future__ import annotations

import click

from everthread.cli.context import Invocation
from everthread.cli.options import example, pass_invocation, shared_options
from everthread.cli.output import clean
from everthread.cli.writing import thread_option, working_state


@click.command(epilog=example("intend 'recompute the March totals, then mail them'"))
@click.argument("text")
@thread_option
@shared_options
@pass_invocation
def intend(call: Invocation, text: str, thread: str | None) -> None:
    """Record TEXT as the current intention. The next run's briefing starts from it."""
    with working_state(call, thread) as (name, state):
        state.set_intention(text)
    call.output.answer(
        "intend", {"thread": name, "intention": text}, lambda: click.echo(clean(f"intending: {text}", 200))
    )
