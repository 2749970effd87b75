"""Shared parts of the commands that write: which thread they write to, and the store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from everthread.agents import project
from everthread.agents.project import THREAD_VARIABLE
from everthread.cli.options import complete_thread
from everthread.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from everthread.cli.context import Invocation
    from everthread.store import Store
    from everthread.working.sync.state import WorkingState

F = TypeVar("F", bound="Callable[..., Any]")


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
    name = project.chosen_thread(given)
    if not name:
        raise UsageError(
            f"no thread was chosen: pass --thread NAME, set ${THREAD_VARIABLE}, or run everthread init, "
            "which gives this folder a thread of its own"
        )
    return name


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
