"""``everthread note``: a fact that the next run should know."""

from __future__ import annotations

from typing import Any

import click

from everthread.cli.context import Invocation
from everthread.cli.options import example, pass_invocation, shared_options
from everthread.cli.output import clean
from everthread.cli.writing import parse_json, thread_option, working_state


@click.command(epilog=example("note branch feature/invoices", "note retries 3 --parse"))
@click.argument("key")
@click.argument("value")
@click.option("--parse", is_flag=True, help="Read VALUE as JSON instead of text.")
@thread_option
@shared_options
@pass_invocation
def note(call: Invocation, key: str, value: str, parse: bool, thread: str | None) -> None:
    """Note VALUE under KEY in the thread's context, with the time, in place of what was there."""
    noted: Any = parse_json(value) if parse else value
    with working_state(call, thread) as (name, state):
        state.set_context(key, noted)
    data = {"thread": name, "key": key, "value": noted}
    call.output.answer("note", data, lambda: click.echo(clean(f"noted {key}: {value}", 200)))
