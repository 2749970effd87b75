"""``everthread users``: key/value data of persons, sealed under their own keys."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from everthread.cli.context import Invocation
from everthread.cli.options import example, pass_invocation, shared_options
from everthread.cli.output import clean, note
from everthread.cli.writing import parse_json, writable

_NONE = object()


@click.group(
    epilog=example("users set ann mail -", "users get ann mail", "users list ann", "users remove ann mail"),
    invoke_without_command=True,
)
@shared_options
@click.pass_context
def users(context: click.Context) -> None:
    """Keep (set), read (get), list and remove values of persons, apart from all threads.

    Each value is sealed under its person's own key; the store holds no names of persons.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@users.command("set", epilog=example("users set ann mail -", "users set ann newsletter true --parse"))
@click.argument("user")
@click.argument("key")
@click.argument("value")
@click.option("--parse", is_flag=True, help="Read VALUE as JSON instead of text.")
@shared_options
@pass_invocation
def set_(call: Invocation, user: str, key: str, value: str, parse: bool) -> None:
    """Keep VALUE (- reads it from standard input) under KEY for the person USER.

    Other programs on this machine can read arguments: use - for what they must not see.
    """
    text = sys.stdin.read().removesuffix("\n") if value == "-" else value
    kept: Any = parse_json(text) if parse else text
    with writable(call) as store:
        store.users.set(user, key, kept)
    _answer(call, {"user": user, "key": key}, f"set {clean(key)} of {clean(user)}")


@users.command(epilog=example("users get ann mail", "users get ann mail --json"))
@click.argument("user")
@click.argument("key")
@shared_options
@pass_invocation
def get(call: Invocation, user: str, key: str) -> None:
    """Print the value under KEY of the person USER, in clear. Ends with 3 if there is none."""
    from everthread.people.users import jsonable

    with call.store() as store:
        found = store.users.get(user, key, _NONE)
    if found is _NONE:
        raise _missing(user, key)
    value = jsonable(found)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    _answer(call, {"user": user, "key": key, "value": value}, clean(text))


@users.command("list", epilog=example("users list ann", "users list ann --json"))
@click.argument("user")
@shared_options
@pass_invocation
def list_(call: Invocation, user: str) -> None:
    """List the keys of the values of the person USER, without the values."""
    with call.store() as store:
        keys = store.users.keys(user)

    def show() -> None:
        for key in keys:
            click.echo(clean(key))
        if not keys:
            note("nothing is kept of this person")

    call.output.answer("users", {"user": user, "keys": keys}, show)


@users.command(epilog=example("users remove ann mail"))
@click.argument("user")
@click.argument("key")
@shared_options
@pass_invocation
def remove(call: Invocation, user: str, key: str) -> None:
    """Remove the value under KEY of the person USER. Ends with 3 if there is none.

    Its history stays until everthread erase --subject USER destroys the keys.
    """
    with call.store() as store:
        if not store.users.remove(user, key):
            raise _missing(user, key)
    _answer(call, {"user": user, "key": key}, f"removed {clean(key)} of {clean(user)}")


def _missing(user: str, key: str) -> Exception:
    from everthread.errors import NotFoundError

    return NotFoundError(f"there is no value {key!r} of {user!r}; everthread users list shows what there is")


def _answer(call: Invocation, data: dict[str, Any], line: str) -> None:
    call.output.answer("users", data, lambda: click.echo(line))
