"""The options that every command has, and what several commands ask."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from everthread.cli.asked import Asked
from everthread.cli.telling import FORMATS, colours

if TYPE_CHECKING:
    from everthread.store import Store
    from everthread.threads.sync.thread import Thread

F = TypeVar("F", bound=Callable[..., Any])

#: Threads that are looked through for a name like the one that isn't there.
_LOOKED_THROUGH_MAX = 1_000


def _note(field: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def callback(ctx: click.Context, option: click.Parameter, value: Any) -> None:
        asked = ctx.ensure_object(Asked)
        if value is None or value is False:
            return
        if value == "" and field == "url":
            raise click.BadParameter("needs a URL, such as sqlite:///agent.db", ctx, option)
        value = "json" if value is True else value
        if field == "format" and asked.format not in (None, value):
            raise click.BadParameter(f"is {value}, but {asked.format} was asked for too", ctx, option)
        setattr(asked, field, value)

    return callback


def shared_options(command: F) -> F:
    """Options that may stand before or after the command's name."""
    options = [
        click.option(
            "--store",
            metavar="URL",
            expose_value=False,
            callback=_note("url"),
            help="The store, such as sqlite:///agent.db or file:///folder.",
        ),
        click.option(
            "--namespace",
            metavar="NAME",
            expose_value=False,
            callback=_note("namespace"),
            help="The tenant, where the store has several.",
        ),
        click.option(
            "--cold",
            metavar="FOLDER",
            expose_value=False,
            callback=_note("cold"),
            help="The archive that idle threads were moved to.",
        ),
        click.option(
            "--format",
            type=click.Choice(FORMATS),
            expose_value=False,
            callback=_note("format"),
            help="How to print the answer.  [default: text]",
        ),
        click.option(
            "--json",
            is_flag=True,
            expose_value=False,
            callback=_note("format"),
            help="The same as --format json.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


pass_asked = click.make_pass_decorator(Asked, ensure=True)


class Span(click.FloatRange):
    """A length of time, in whatever unit: a number from 0 on."""

    def __init__(self) -> None:
        super().__init__(0, 10**7)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if number != number:
            # Not a number (NaN): it is in no range, and click lets it pass.
            self.fail(f"{value} is not a number", param, ctx)
        return number


def example(*lines: str) -> str:
    """The end of a command's help: how it is called."""
    return "\b\nExamples:\n" + "\n".join(f"  everthread {line}" for line in lines)


def begin(context: click.Context) -> None:
    """What holds for every command."""
    context.ensure_object(Asked)
    context.color = colours()


def complete_thread(context: click.Context, _: click.Parameter, begun: str) -> list[str]:
    """Names of threads for the shell; those that a shell would take apart are left out."""
    from itertools import islice

    asked = context.find_object(Asked) or Asked()
    try:
        with asked.store(settle=False) as store:
            names = [info.name for info in islice(store.threads(begun), 100)]
    except Exception:
        # Completing must never be in the way of typing.
        return []
    return [
        name for name in names if name.isprintable() and not set(name) & set(" '\"\\$`!*?[]{}()<>|&;#~:=")
    ]


def existing(store: Store, name: str) -> Thread:
    """The thread of this name, or an error that names some that are there."""
    from everthread.errors import ThreadNotFoundError

    thread = store.thread(name)
    if thread.head is None:
        raise ThreadNotFoundError(f"there is no thread {name!r}{_like(store, name)}")
    return thread


def _like(store: Store, name: str) -> str:
    from difflib import get_close_matches
    from itertools import islice

    from everthread.errors import DamageError

    try:
        names = [info.name for info in islice(store.threads(), _LOOKED_THROUGH_MAX)]
    except DamageError:
        return "; see everthread doctor"
    near = get_close_matches(name, names, n=3, cutoff=0.5)
    near += [other for other in names if other.startswith(name[:3]) and other not in near]
    if near:
        return f"; there is {' and '.join(map(repr, near[:3]))}"
    if names:
        return "; see everthread status"
    from everthread.cli import tenants

    others = tenants.told(tenants.elsewhere(store))
    return f"; there is none here, but {others} (--namespace)" if others else "; there is none at all yet"


def confirm(asked: Asked, question: str, yes: bool) -> None:
    """Go on only if whoever asked says so. Where nobody can answer ``--yes`` must have."""
    from everthread.cli.failing import FAILURE
    from everthread.cli.telling import note
    from everthread.cli.words import clean

    if yes:
        return
    if not asked.tell.for_people:
        command = click.get_current_context().command
        shown = any(each.name == "dry_run" for each in command.params)
        raise click.UsageError(
            "this asks before it acts; say --yes" + ", or --dry-run to see what it would do" * shown
        )
    if sys.stdin is None:
        # Closed: nobody answers, as from /dev/null.
        raise click.Abort
    try:
        agreed = click.confirm(clean(question), err=True)
    except click.Abort:
        # What is said now doesn't belong on the line of the question.
        note("")
        raise
    if not agreed:
        note("nothing was changed")
        raise click.exceptions.Exit(FAILURE)
