"""The options that every command has, and what several commands ask."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from everthread.arguments import counted
from everthread.cli.context import Invocation
from everthread.cli.output import FORMATS, Step, clean, colours
from everthread.errors import UnsupportedError
from everthread.versions import HOW_TO_NAME

if TYPE_CHECKING:
    from everthread.maintenance.key_needs import KeyNeeds
    from everthread.store import Store
    from everthread.threads.sync.thread import Thread
    from everthread.transfer.report import ExportReport, ImportReport
    from everthread.versions import Version


F = TypeVar("F", bound=Callable[..., Any])

#: Threads that are looked through for a name like the one that isn't there.
_SIMILAR_NAMES_MAX = 1_000


def _note(field: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def callback(ctx: click.Context, option: click.Parameter, value: Any) -> None:
        call = ctx.ensure_object(Invocation)
        if value is None or value is False:
            return
        if value == "" and field == "url":
            raise click.BadParameter("needs a URL, such as sqlite:///agent.db", ctx, option)
        if value == "" and field == "keyring":
            raise click.BadParameter("needs a folder, or a URL such as sqlite:////keys.db", ctx, option)
        value = "json" if value is True else value
        if field == "url":
            value = named_store(value)
        if field == "format" and call.format not in (None, value):
            raise click.BadParameter(f"is {value}, but {call.format} was asked for too", ctx, option)
        setattr(call, field, value)

    return callback


def named_store(given: str) -> str:
    """The URL of the store that was named, by a URL or a path."""
    from everthread.stores.urls import store_url

    try:
        return store_url(given)
    except UnsupportedError as error:
        raise click.UsageError(str(error)) from None


def shared_options(command: F) -> F:
    """Options that may stand before or after the command's name."""
    options = [
        click.option(
            "--store",
            metavar="URL",
            expose_value=False,
            callback=_note("url"),
            help="The store: a URL such as sqlite:///agent.db, or a path such as agent.db.",
        ),
        click.option(
            "--namespace",
            metavar="NAME",
            expose_value=False,
            callback=_note("namespace"),
            help="The tenant, where the store has several.",
        ),
        click.option(
            "--keyring",
            metavar="PLACE",
            expose_value=False,
            callback=_note("keyring"),
            help="Where keys of persons are, if not in your home.",
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


pass_invocation = click.make_pass_decorator(Invocation, ensure=True)


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
    context.ensure_object(Invocation)
    context.color = colours()


def complete_thread(context: click.Context, _: click.Parameter, begun: str) -> list[str]:
    """Names of threads for the shell; those that a shell would take apart are left out."""
    from itertools import islice

    call = context.find_object(Invocation) or Invocation()
    try:
        with call.store(settle=False) as store:
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
        names = [info.name for info in islice(store.threads(), _SIMILAR_NAMES_MAX)]
    except DamageError:
        return "; see everthread doctor"
    near = get_close_matches(name, names, n=3, cutoff=0.5)
    near += [other for other in names if other.startswith(name[:3]) and other not in near]
    if near:
        return f"; there is {' and '.join(map(repr, near[:3]))}"
    if names:
        return "; see everthread status"

    others = namespaces_in_words(other_namespaces(store))
    return f"; there is none here, but {others} (--namespace)" if others else "; there is none at all yet"


def refuse_while_running(store: Store, thread: str, instead: str) -> None:
    """A run that finds its thread moved would go on from a past that isn't its own. ``instead``: another way.
    Raises :class:`SessionBusyError`."""
    from everthread.cli.family import has_session
    from everthread.errors import SessionBusyError

    if not has_session(store, thread):
        return
    records = store.session_records(thread)
    if records.holder_alive:
        holder = records.holder
        raise SessionBusyError(
            f"a run is at work on {thread!r}: {holder}; let it end first, or {instead}",
            holder=holder,
            expires=None,
        )


def confirm(call: Invocation, question: str, yes: bool) -> None:
    """Go on only if whoever asked says so. Where nobody can answer ``--yes`` must have."""
    from everthread.cli.errors import FAILURE
    from everthread.cli.output import clean, note

    if yes:
        return
    if not call.output.for_people:
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


#: Said in the help of every command that takes a version.
HOW = f"{HOW_TO_NAME}, as log lists them."


def find_version(thread: Thread, text: str) -> Version:
    """The version of a thread that ``text`` names. Raises :class:`VersionNotFoundError`, and
    :class:`UsageError` for a label that several have."""
    return thread.at(text).version


# Sealed values whose keys aren't here.


#: What is counted without being asked to: reading all may take long.
SEALED_MAX = 1_000


def unopened_code(needs: KeyNeeds, *, answered: bool = False) -> int:
    """Say how many sealed values can't be opened here, unless the answer has, and what to do; the exit code
    that says so."""
    from everthread.cli.errors import OK, UNOPENED, as_typed
    from everthread.cli.output import note

    if not needs.unopened:
        return OK
    if not answered:
        note(as_typed(str(needs)))
    if needs.advice:
        note(as_typed(needs.advice))
    return UNOPENED


# What a store holds outside the namespace that was asked about.


#: Entries that are looked through: more would take longer than the rest of the command.
_ENTRIES_MAX = 20_000
_NAMED_MAX = 3


def other_namespaces(store: Store) -> Mapping[str, int]:
    """The other namespaces that hold threads, and how many; of a very large store those seen first."""
    found: Counter[str] = Counter()
    for line in islice(store.core.backend.every_line(), _ENTRIES_MAX):
        # What stands beside threads has a space of its own, with a NUL in its name.
        if line.space != store.namespace and "\0" not in line.space and not line.deleted:
            found[line.space] += 1
    return found


def namespaces_in_words(others: Mapping[str, int]) -> str:
    """The other namespaces in words; empty if there are none."""
    if not others:
        return ""
    most = sorted(others, key=lambda name: (-others[name], name))
    named = [repr(name) if name else "the one without a name" for name in most[:_NAMED_MAX]]
    more = f" and {len(most) - _NAMED_MAX:,} more" if len(most) > _NAMED_MAX else ""
    word = "another namespace" if len(most) == 1 else "other namespaces"
    return f"{counted(sum(others.values()), 'thread')} in {word}: {', '.join(named)}{more}"


# Options that export, import and copy share.


#: Where the passphrase may stand for keys in an archive.
PASSPHRASE_VARIABLE = "EVERTHREAD_ARCHIVE_PASSPHRASE"  # noqa: S105 - a name, not a secret


_PASSPHRASE_CHARS_MAX = 4_096


_RULES = ("error", "skip", "rename")


conflict_option = click.option(
    "--on-conflict",
    type=click.Choice(_RULES),
    default="error",
    show_default=True,
    help="What to do about names that are taken by something else.",
)


durability_option = click.option(
    "--durability",
    type=click.Choice(("full", "process")),
    default="full",
    show_default=True,
    help="process: accept a server that may lose it when its machine fails.",
)


keys_option = click.option(
    "--with-keys",
    is_flag=True,
    help=f"Keys of persons too, under a passphrase: ${PASSPHRASE_VARIABLE}, or the one in --passphrase-file.",
)


passphrase_option = click.option(
    "--passphrase-file",
    type=click.Path(dir_okay=False),
    help="A file whose first line is the passphrase for --with-keys.",
)


def passphrase(with_keys: bool, file: str | None) -> str | None:
    """The passphrase, from a place that no list of processes shows."""
    if not with_keys:
        if file is not None:
            raise click.UsageError("--passphrase-file is for --with-keys")
        return None
    if file is not None:
        return _first_line(file)
    found = os.environ.get(PASSPHRASE_VARIABLE)
    if found is None:
        raise click.UsageError(f"--with-keys needs a passphrase: ${PASSPHRASE_VARIABLE} or --passphrase-file")
    return found


def key_passphrase(file: str | None, *, twice: bool = False) -> str:
    """The passphrase of a keyring backup; whoever sits at a terminal is asked for it, ``twice`` for a new
    one."""
    if file is not None:
        return _first_line(file)
    found = os.environ.get(PASSPHRASE_VARIABLE)
    if found is None and sys.stdin is not None and sys.stdin.isatty():
        found = click.prompt("Passphrase", hide_input=True, confirmation_prompt=twice, err=True)
    if found is None:
        raise click.UsageError(f"a passphrase is needed: ${PASSPHRASE_VARIABLE} or --passphrase-file")
    return str(found)


def _first_line(file: str) -> str:
    try:
        with open(file, encoding="utf-8") as lines:
            return lines.readline(_PASSPHRASE_CHARS_MAX).rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"can't read the passphrase from {file}: {error}") from None


def transfer_stopped(step: Step) -> str:
    reached = step.reached("versions and events")
    return f"stopped{reached}: what was brought over stays; run it again to go on"


def tell_transfer(call: Invocation, command: str, report: ExportReport | ImportReport) -> None:
    data = {"report": msgspec.to_builtins(report), "summary": str(report)}
    call.output.answer(command, data, lambda: click.echo(clean(str(report))))
