"""``everthread constraint``: standing orders for all agents of a namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from everthread.cli.context import Invocation
from everthread.cli.options import example, pass_invocation, shared_options
from everthread.cli.output import clean, note, records

if TYPE_CHECKING:
    from everthread.sessions.orders import StandingOrder

COLUMNS = ("id", "text", "author", "at")


@click.group(
    epilog=example(
        "constraint list",
        "constraint add 'Never pay more than 500 EUR without asking' --author Eve",
        "constraint remove 26754516af19",
    ),
    invoke_without_command=True,
)
@shared_options
@click.pass_context
def constraint(context: click.Context) -> None:
    """Standing orders for all agents of a namespace, which every briefing shows first, word for word: what
    they are (list), one more (add), one less (remove).

    Only you and your Python code set them, nothing that a model is given.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@constraint.command("list", epilog=example("constraint list", "constraint list --json"))
@shared_options
@pass_invocation
def list_(call: Invocation) -> None:
    """List the constraints of the namespace, the first given first."""
    with call.store() as store:
        found = [_data(order) for order in store.constraints.all()]

    def show() -> None:
        for each in found:
            click.echo(f"{each['id']}  {clean(each['text'])}")
            note(f"{'':12}  {clean(each['author'])}, {each['at']:%Y-%m-%d %H:%M}")
        if not found:
            note("no constraints")

    call.output.answer("constraint", {"constraints": found}, show, records("constraints", COLUMNS))


@constraint.command(epilog=example("constraint add 'Never pay more than 500 EUR without asking'"))
@click.argument("text")
@click.option("--author", metavar="NAME", help="Who orders it; without it, whom you are logged in as.")
@shared_options
@pass_invocation
def add(call: Invocation, text: str, author: str | None) -> None:
    """Order TEXT to all agents of the namespace."""
    with call.store() as store:
        made = store.constraints.add(text, author=author or _login())
    call.output.answer("constraint", {"added": _data(made)}, lambda: click.echo(made.id))


@constraint.command(epilog=example("constraint remove 26754516af19"))
@click.argument("id")
@shared_options
@pass_invocation
def remove(call: Invocation, id: str) -> None:
    """Take back the constraint ID. Ends with 3 if there is none."""
    with call.store() as store:
        gone = store.constraints.remove(id)
    call.output.answer("constraint", {"removed": _data(gone)}, lambda: click.echo(clean(gone.text)))


def _data(order: StandingOrder) -> dict[str, Any]:
    return {name: getattr(order, name) for name in COLUMNS}


def _login() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        raise click.UsageError("nobody is logged in here: say who orders it, with --author") from None
