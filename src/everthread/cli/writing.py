"""Shared parts of the commands that write: which thread they write to, and how they find an item."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from everthread.cli.options import complete_thread
from everthread.cli.output import clean
from everthread.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from everthread.cli.context import Invocation
    from everthread.store import Store
    from everthread.working.sync.state import WorkingState

T = TypeVar("T")
F = TypeVar("F", bound="Callable[..., Any]")

THREAD_VARIABLE = "EVERTHREAD_THREAD"
#: The file in a project's `.everthread` folder that names its default thread.
THREAD_FILE = "thread"


def thread_option(command: F) -> F:
    """Add `--thread` to a command that writes."""
    return click.option(
        "--thread",
        "thread",
        metavar="NAME",
        shell_complete=complete_thread,
        help=f"The thread to write to.  [default: ${THREAD_VARIABLE}, else the project's own]",
    )(command)


def chosen_thread(given: str | None) -> str:
    """Return the thread that a command writes to. Raises :class:`UsageError` if none was chosen."""
    name = given or os.environ.get(THREAD_VARIABLE) or default_thread(os.getcwd())
    if not name:
        raise UsageError(
            f"no thread was chosen: pass --thread NAME, set ${THREAD_VARIABLE}, or run everthread init, "
            "which gives this folder a thread of its own"
        )
    return name


def default_thread(folder: str) -> str | None:
    """Return the default thread of the nearest project at or above a folder, if it has one."""
    from everthread.stores.urls import FOLDER

    here = os.path.abspath(folder)
    while True:
        place = os.path.join(here, FOLDER)
        if os.path.isdir(place):
            try:
                with open(os.path.join(place, THREAD_FILE), encoding="utf-8") as file:
                    return file.read(4096).strip() or None
            except (OSError, UnicodeDecodeError):
                return None
        above = os.path.dirname(here)
        if above == here:
            return None
        here = above


@contextmanager
def writable(call: Invocation) -> Iterator[Store]:
    """Open the store to write to it; it is created if it doesn't exist."""
    from everthread.stores.urls import default_url

    with call.made(call.url if call.url is not None else default_url()) as store:
        yield store


@contextmanager
def working_state(call: Invocation, thread: str | None) -> Iterator[tuple[str, WorkingState]]:
    """Open the working state of the chosen thread. Each change is durable when its method returns.

    It takes no lease: a run on the same thread merges the change with its own at its next commit.
    """
    from everthread.working.sync.state import WorkingState

    name = chosen_thread(thread)
    with writable(call) as store:
        state = WorkingState(store=store, thread=name, auto_save=True)
        try:
            yield name, state
        finally:
            state.close()


def parse_json(value: str) -> Any:
    """Return what VALUE means as JSON. Raises :class:`click.UsageError`."""
    try:
        return json.loads(value)
    except ValueError as error:
        raise click.UsageError(f"VALUE must be JSON with --parse, such as 3 or '\"text\"': {error}") from None


def find_item(items: Iterable[T], given: str, what: str, text: Callable[[T], Any]) -> T:
    """Return the one item whose id starts with `given`, or whose text is or contains it.

    Raises :class:`NotFoundError` if there is none, and :class:`UsageError` if there are several.
    """
    found = list(items)
    wanted = given.casefold()
    rules: list[Callable[[T], bool]] = [
        lambda item: str(item.id) == given,  # type: ignore[attr-defined]
        lambda item: str(text(item)).casefold() == wanted,
        lambda item: str(item.id).startswith(given),  # type: ignore[attr-defined]
        lambda item: wanted in str(text(item)).casefold(),
    ]
    for fits in rules:
        hits = [item for item in found if fits(item)]
        if len(hits) == 1:
            return hits[0]
        if hits:
            names = ", ".join(f"{item.id} ({clean(str(text(item)), 30)})" for item in hits[:5])  # type: ignore[attr-defined]
            raise UsageError(f"{given!r} fits {len(hits)} {what}s: {names}; give the id")
    names = ", ".join(f"{item.id} ({clean(str(text(item)), 30)})" for item in found[:5])  # type: ignore[attr-defined]
    raise NotFoundError(f"there is no {what} {given!r}; {f'there is {names}' if names else 'there is none'}")
