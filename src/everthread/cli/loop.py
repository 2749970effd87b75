"""``everthread loop``: things that wait for somebody or something else."""

from __future__ import annotations

import click

from everthread.agents.project import find_item
from everthread.cli.context import Invocation
from everthread.cli.options import example, pass_invocation, shared_options
from everthread.cli.output import clean
from everthread.cli.writing import thread_option, working_state


@click.group(
    epilog=example("loop open 'waiting for the auditor'", "loop close auditor"), invoke_without_command=True
)
@shared_options
@click.pass_context
def loop(context: click.Context) -> None:
    """Open and close open loops: what a thread waits for. Every briefing lists the open ones."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@loop.command("open", epilog=example("loop open 'waiting for the auditor'"))
@click.argument("text")
@thread_option
@shared_options
@pass_invocation
def open_(call: Invocation, text: str, thread: str | None) -> None:
    """Record that the thread waits for TEXT."""
    with working_state(call, thread) as (name, state):
        item = state.add_open_loop(text)
    data = {"thread": name, "id": item.id, "text": text, "open": True}
    call.output.answer("loop", data, lambda: click.echo(f"opened {item.id}: {clean(text)}"))


@loop.command(epilog=example("loop close auditor"))
@click.argument("which")
@thread_option
@shared_options
@pass_invocation
def close(call: Invocation, which: str, thread: str | None) -> None:
    """Close an open loop, named by its id, the start of its id, or words of its text."""
    with working_state(call, thread) as (name, state):
        found = find_item(state.open_loops, which, "open loop", lambda item: item.description)
        state.resolve_open_loop(found.id)
    text = str(found.description)
    data = {"thread": name, "id": found.id, "text": text, "open": False}
    call.output.answer("loop", data, lambda: click.echo(f"closed {found.id}: {clean(text)}"))
