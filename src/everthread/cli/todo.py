"""``everthread todo``: the todos of a thread, for people and for agents that have only a shell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from everthread.agents.project import find_item
from everthread.cli.context import Invocation
from everthread.cli.options import example, pass_invocation, shared_options
from everthread.cli.output import clean, note, records
from everthread.cli.writing import chosen_thread, thread_option, working_state

if TYPE_CHECKING:
    from everthread.working.items import Todo

COLUMNS = ("id", "status", "priority", "text", "created_at", "completed_at")
SIGNS = {"pending": "○", "in_progress": "◐", "completed": "✓", "cancelled": "✗"}


@click.group(
    epilog=example("todo add 'reconcile March' --priority high", "todo list", "todo done reconcile"),
    invoke_without_command=True,
)
@shared_options
@click.pass_context
def todo(context: click.Context) -> None:
    """Add, start, finish, cancel and list the todos of a thread.

    A todo is named by its id, the start of its id, or words of its text. Works beside a run on the same
    thread: the run merges the change at its next commit.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@todo.command(epilog=example("todo add 'reconcile March'", "todo add 'call the bank' --priority high"))
@click.argument("text")
@click.option("--priority", type=click.Choice(("low", "medium", "high")), default="medium", show_default=True)
@thread_option
@shared_options
@pass_invocation
def add(call: Invocation, text: str, priority: str, thread: str | None) -> None:
    """Add a todo. Durable when this returns."""
    with working_state(call, thread) as (name, state):
        _answer(call, name, "added", state.add_todo(text, priority=priority))


@todo.command(epilog=example("todo start reconcile"))
@click.argument("which")
@thread_option
@shared_options
@pass_invocation
def start(call: Invocation, which: str, thread: str | None) -> None:
    """Mark a todo as in progress."""
    with working_state(call, thread) as (name, state):
        found = find_item(state.todos, which, "todo", lambda item: item.content)
        _answer(call, name, "started", state.start_todo(found.id))


@todo.command(epilog=example("todo done reconcile", "todo done afd9"))
@click.argument("which")
@thread_option
@shared_options
@pass_invocation
def done(call: Invocation, which: str, thread: str | None) -> None:
    """Mark a todo as completed."""
    with working_state(call, thread) as (name, state):
        found = find_item(state.todos, which, "todo", lambda item: item.content)
        _answer(call, name, "done", state.complete_todo(found.id))


@todo.command(epilog=example("todo cancel 'call the bank'"))
@click.argument("which")
@thread_option
@shared_options
@pass_invocation
def cancel(call: Invocation, which: str, thread: str | None) -> None:
    """Cancel a todo; it stays in the list of finished ones."""
    with working_state(call, thread) as (name, state):
        found = find_item(state.todos, which, "todo", lambda item: item.content)
        _answer(call, name, "cancelled", state.cancel_todo(found.id))


@todo.command("list", epilog=example("todo list", "todo list --all --json"))
@click.option("--all", "everything", is_flag=True, help="Finished and cancelled todos too.")
@thread_option
@shared_options
@pass_invocation
def list_(call: Invocation, everything: bool, thread: str | None) -> None:
    """List the open todos. Reading never creates a store or a thread."""
    from everthread.working.sync.state import WorkingState

    name = chosen_thread(thread)
    with call.store() as store:
        state = WorkingState(store=store, thread=name)
        todos = list(state.todos)
        state.close()
    shown = [item for item in todos if everything or item.open]
    finished = len(todos) - sum(item.open for item in todos)

    def show() -> None:
        for item in shown:
            mark = " !" if item.priority == "high" else ""
            click.echo(f"{SIGNS[item.status]} {item.id}{mark} {clean(str(item.content))}")
        if not shown:
            note("no open todos")
        if finished and not everything:
            note(f"{finished} finished (--all)")

    data = {"thread": name, "todos": [_data(item) for item in shown], "finished": finished}
    call.output.answer("todo", data, show, records("todos", COLUMNS))


def _answer(call: Invocation, thread: str, verb: str, item: Todo) -> None:
    call.output.answer(
        "todo",
        {"thread": thread, "todo": _data(item)},
        lambda: click.echo(f"{verb} {item.id}: {clean(str(item.content))}"),
    )


def _data(item: Todo) -> dict[str, Any]:
    return {name: getattr(item, name) for name in COLUMNS}
