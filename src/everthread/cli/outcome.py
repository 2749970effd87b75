"""``everthread outcome``: what came of a decision."""

from __future__ import annotations

import click

from everthread.agents.project import find_item
from everthread.cli.context import Invocation
from everthread.cli.options import example, pass_invocation, shared_options
from everthread.cli.output import clean
from everthread.cli.writing import chosen_thread, thread_option


@click.command(
    epilog=example("outcome 3f9a 'refunded, receipt 17'", "outcome 'refund T030' 'the bank refused' --failed")
)
@click.argument("id")
@click.argument("text")
@click.option("--failed", is_flag=True, help="What was decided could not be done.")
@thread_option
@shared_options
@pass_invocation
def outcome(call: Invocation, id: str, text: str, failed: bool, thread: str | None) -> None:
    """Record TEXT as the outcome of the decision ID: its id, the start of its id, or words of its text.

    The same outcome again changes nothing; another one is refused.
    """
    from everthread.errors import NotFoundError
    from everthread.sessions.sync.decisions import record_outcome

    name = chosen_thread(thread)
    with call.store() as store:
        decisions = store.session_records(name).decisions()
        pending = [each for each in decisions if not each.complete]
        try:
            found = find_item(pending, id, "decision", lambda each: each.decision)
        except NotFoundError:
            found = find_item(decisions, id, "decision", lambda each: each.decision)
        made = record_outcome(store.thread(name), found.id, text, failed)
    data = {
        "thread": name,
        "id": made.id,
        "text": made.decision,
        "outcome": made.outcome,
        "failed": made.failed,
    }
    sign = "✗" if made.failed else "✓"
    call.output.answer("outcome", data, lambda: click.echo(f"{sign} {made.id}: {clean(text)}"))
