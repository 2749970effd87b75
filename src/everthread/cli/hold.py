"""``everthread hold``: legal holds on the data of persons."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from everthread.cli.context import Invocation
from everthread.cli.options import example, pass_invocation, shared_options
from everthread.cli.output import clean, note, records

if TYPE_CHECKING:
    from everthread.people.holds import LegalHold

COLUMNS = ("key_id", "reason", "since", "refused", "elsewhere", "threads", "keys")


@click.group(
    epilog=example("hold add bob --reason 'case 17'", "hold list", "hold release bob --reason 'case closed'"),
    invoke_without_command=True,
)
@shared_options
@click.pass_context
def hold(context: click.Context) -> None:
    """Put the data of persons under a legal hold (add), list the holds in force (list), end one (release).

    While a hold is in force erase refuses, and records each attempt.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@hold.command(
    epilog=example(
        "hold add bob --reason 'case 17'", "hold add carol --reason 'case 17' --in case/ --key mail"
    )
)
@click.argument("subject")
@click.option("--reason", required=True, metavar="TEXT", help="Stored in clear: don't name the person in it.")
@click.option("--in", "threads", multiple=True, metavar="PREFIX", help="Only threads whose names begin so.")
@click.option("--key", "keys", multiple=True, metavar="KEY", help="Only this user value of the person.")
@shared_options
@pass_invocation
def add(call: Invocation, subject: str, reason: str, threads: tuple[str, ...], keys: tuple[str, ...]) -> None:
    """Hold the data of the person SUBJECT, all of it or what --in and --key name. Again adds to it."""
    with call.store() as store:
        store.hold(subject, reason, threads=threads or None, keys=keys or None)
        found = [_data(each) for each in store.holds(subject)]
    _answer(call, subject, found, f"held {clean(subject)}: {clean(reason)}")


@hold.command("list", epilog=example("hold list", "hold list bob --json"))
@click.argument("subject", required=False)
@shared_options
@pass_invocation
def list_(call: Invocation, subject: str | None) -> None:
    """List the holds in force, those of SUBJECT or all. They name nobody: a person is shown by a key's id."""
    with call.store() as store:
        found = [_data(each) for each in store.holds(subject)]

    def show() -> None:
        for each in found:
            click.echo(_line(each))
        if not found:
            note("no legal holds")

    data = {"subject": subject, "holds": found}
    call.output.answer("hold", data, show, records("holds", COLUMNS))


@hold.command(epilog=example("hold release bob --reason 'case closed'", "hold release bob --everywhere"))
@click.argument("subject")
@click.option("--reason", default="", metavar="TEXT", help="Stored in clear with the record of it.")
@click.option("--everywhere", is_flag=True, help="Also the holds of other stores on the same keyring.")
@shared_options
@pass_invocation
def release(call: Invocation, subject: str, reason: str, everywhere: bool) -> None:
    """End the hold on the person SUBJECT that was placed through this store. Ends with 2 if there is none."""
    with call.store() as store:
        store.release_hold(subject, reason, everywhere=everywhere)
        found = [_data(each) for each in store.holds(subject)]
    left = ", still held by another store (--everywhere)" if found else ""
    _answer(call, subject, found, f"released {clean(subject)}{left}")


def _answer(call: Invocation, subject: str, found: list[dict[str, Any]], line: str) -> None:
    call.output.answer("hold", {"subject": subject, "holds": found}, lambda: click.echo(line))


def _line(each: dict[str, Any]) -> str:
    if each["elsewhere"]:
        return f"{each['key_id']}  held by another store on the same keyring"
    only = [*(f"threads {name}…" for name in each["threads"]), *(f"value {name}" for name in each["keys"])]
    parts = [f"{each['since']:%Y-%m-%d}", each["reason"], *only]
    if each["refused"]:
        parts.append(f"{each['refused']} refused")
    return f"{each['key_id']}  {clean(', '.join(parts))}"


def _data(held: LegalHold) -> dict[str, Any]:
    found = {name: getattr(held, name) for name in COLUMNS}
    return found | {"threads": list(held.threads), "keys": list(held.keys)}
