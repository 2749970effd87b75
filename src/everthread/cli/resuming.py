"""``everthread resume``: what a new run would find."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from everthread.cli.asking import Asked, pass_asked, shared_options
from everthread.cli.failing import DRIFT, NOTHING, OK
from everthread.cli.telling import note


@click.command()
@click.argument("thread", required=False)
@click.option("--briefing", is_flag=True, help="Print the text for the new run instead of the report.")
@click.option("--max-tokens", default=1500, show_default=True, type=click.IntRange(50), help="Of the briefing.")
@click.option("--allow-commands", is_flag=True, help="Let stored commands run to check facts.")
@shared_options
@pass_asked
def resume(
    asked: Asked, thread: str | None, briefing: bool, max_tokens: int, allow_commands: bool
) -> None:
    """What a new run on THREAD (the one saved last) would find: how the last one ended, what was in flight, what
    is next, and whether reality still agrees. Starts no run, writes nothing.

    Ends with 3 if there is nothing to resume, with 4 if a fact is stale or contradicted.
    """
    with asked.store() as store:
        if thread is None:
            newest = max(store.threads(), key=lambda info: info.updated_at_us, default=None)
            if newest is None:
                note(f"nothing to resume in {store.url}")
                raise click.exceptions.Exit(NOTHING)
            thread = newest.name
        if briefing:
            text = store.briefing(thread, max_tokens, allow_commands=allow_commands)
            asked.tell.answer("resume", {"thread": thread, "briefing": str(text)}, lambda: click.echo(text))
            return
        report = store.resume(thread, allow_commands=allow_commands)
        data: dict[str, Any] = {"report": msgspec.to_builtins(report, enc_hook=repr), "summary": report.summary()}
        asked.tell.answer("resume", data, lambda: click.echo(report.summary()))
        drifted = bool(report.stale or report.contradicted)
    raise click.exceptions.Exit(DRIFT if drifted else OK)
