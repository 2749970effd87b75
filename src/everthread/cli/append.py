"""``everthread append``: a message at the end of a thread's conversation."""

from __future__ import annotations

import sys

import click

from everthread.cli.context import Invocation
from everthread.cli.options import example, pass_invocation, shared_options
from everthread.cli.output import clean
from everthread.cli.writing import chosen_thread, thread_option, writable


@click.command(epilog=example("append user 'please skip March'", "append tool - --id report-1"))
@click.argument("role")
@click.argument("text")
@click.option("--id", "id_", metavar="ID", help="The message's id: appended again, it is the same message.")
@thread_option
@shared_options
@pass_invocation
def append(call: Invocation, role: str, text: str, id_: str | None, thread: str | None) -> None:
    """Append a message with ROLE and TEXT (- reads it from standard input) to the thread's messages.

    Unlike send, nothing is delivered to a run: this records what was said.
    """
    content = sys.stdin.read() if text == "-" else text
    name = chosen_thread(thread)
    message = {"role": role, "content": content} | ({"id": id_} if id_ else {})
    with writable(call) as store:
        version = store.thread(name).update(lambda draft: draft.messages.append(message))
    data = {"thread": name, "version": version.seq, "role": role}
    call.output.answer(
        "append",
        data,
        lambda: click.echo(f"appended to {clean(name)}: version {version.seq}, {len(content)} characters"),
    )
