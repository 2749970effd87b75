"""``everthread send``: a message for a thread, and so for the run at work on it."""

from __future__ import annotations

import click

from everthread.cli.context import Invocation
from everthread.cli.log import thread_argument
from everthread.cli.options import example, pass_invocation, shared_options
from everthread.cli.output import clean


@click.command(
    epilog=example(
        'send invoice-bot "skip the ones from March"', 'send invoice-bot "approved" --key approval-17'
    )
)
@thread_argument
@click.argument("message")
@click.option("--key", help="Sent again with the same key, it is the same message.")
@click.option("--role", default="user", show_default=True, help="Who says it.")
@shared_options
@pass_invocation
def send(call: Invocation, thread: str, message: str, key: str | None, role: str) -> None:
    """Send MESSAGE to THREAD. A run that is at work there sees it at the start of its next turn, or where it
    waits for input; otherwise the next run does.

    It is durable when this returns, and taken once, whoever is killed.
    """
    with call.store(settle=False) as store:
        made = store.send(thread, {"role": role, "content": message}, key=key)
        call.output.answer(
            "send",
            {"thread": thread, "id": made, "key": key},
            lambda: click.echo(f"sent to {clean(thread)}: message {made}"),
        )
