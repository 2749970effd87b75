"""``everthread status``: what it may be told. What it tells is in ``overview``, which needs no click."""

from __future__ import annotations

import click

from everthread.cli.asked import Asked
from everthread.cli.asking import example, pass_asked, shared_options
from everthread.cli.overview import LIMIT, overview


@click.command(epilog=example("status", "status invoice-", "status --json | jq -r '.threads[].name'"))
@click.argument("prefix", default="")
@click.option(
    "--limit", default=LIMIT, show_default=True, type=click.IntRange(1), help="How many threads at most."
)
@click.option("--all", "everything", is_flag=True, help="Also those of object checkpoints.")
@shared_options
@pass_asked
def status(asked: Asked, prefix: str, limit: int, everything: bool) -> None:
    """The threads whose names begin with PREFIX, those saved last first, each with how its session stands.

    Ends with 3 if no name begins so.
    """
    raise click.exceptions.Exit(overview(asked, prefix, limit, everything))
