"""``everthread show``: the state of a thread."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from everthread.cli.context import Invocation
from everthread.cli.errors import CORRUPT, NOTHING
from everthread.cli.log import (
    end_if_damaged,
    found,
    recovered_data,
    tell_denied,
    thread_argument,
    version_data,
)
from everthread.cli.options import (
    HOW,
    example,
    find_version,
    pass_invocation,
    shared_options,
)
from everthread.cli.output import Table, ago, note

if TYPE_CHECKING:
    from everthread.sessions.records import RunRecord
    from everthread.sessions.sync.status import SessionRecords
    from everthread.store import Store
    from everthread.threads.sync.thread import Thread
    from everthread.versions import Version


@click.command(
    epilog=example(
        "show invoice-bot", "show invoice-bot head~1 --log tools --messages 50", "show invoice-bot 7 --tree"
    ),
    help=f"""The document of THREAD, and the end of one of its logs: now, or at VERSION. With --tree its
    subagents, and theirs, as they were then.

    {HOW} Personal values stay masked.
    """,
)
@thread_argument
@click.argument("version", required=False)
@click.option(
    "--messages", default=10, show_default=True, type=click.IntRange(0), help="How many of the last."
)
@click.option("--log", "log_name", default="messages", show_default=True, help="The log to show the end of.")
@click.option("--tree", "as_tree", is_flag=True, help="Show its subagents instead, and theirs.")
@shared_options
@pass_invocation
def show(
    call: Invocation, thread: str, version: str | None, messages: int, log_name: str, as_tree: bool
) -> None:
    with call.store() as store:
        handle = found(store, thread)
        thread = handle.name
        head = handle.head
        assert head is not None, "an existing thread has a head"
        stands = head if version is None else find_version(handle, version)
        view = handle.at(stands)
        if as_tree:
            _show_tree(call, store, handle, stands)
            return
        items = view.log(log_name)[-messages:] if messages else []
        document = view.state.plain()
        logs = {name: len(view.log(name)) for name in view.logs}
        session = _session(store, thread) if stands.id == head.id else None
        data = {
            "thread": thread,
            "version": version_data(stands),
            "state": document,
            "logs": logs,
            "log": {"name": log_name, "items": items},
            "session": session,
            "effects": handle.effects,
            "recovered": recovered_data(handle),
        }

        def text() -> None:
            from everthread.cli.output import plain
            from everthread.cli.render import draw_items, draw_state, draw_title

            told = session["text"] if session else ""
            draw_state(draw_title(thread, stands, told, time.time_ns() // 1000), plain(document), logs)
            tell_denied(handle)
            if items:
                note(f"the last {f'{len(items)} ' if len(items) > 1 else ''}of {log_name}:")
                draw_items(items)

        call.output.answer("show", data, text, _state_table)
        end_if_damaged(handle)
        if log_name not in logs and log_name != "messages":
            note(f"there is no log {log_name!r}; there are: {', '.join(logs) or 'none'}")
            raise click.exceptions.Exit(NOTHING)
        if session is not None and session["status"] == "unknown":
            raise click.exceptions.Exit(CORRUPT)


def _show_tree(call: Invocation, store: Store, thread: Thread, stands: Version) -> None:
    from everthread.cli.descendants import Descendants

    tree = Descendants(store)
    found = tree.of(thread.at(stands).state)
    data = {
        "thread": thread.name,
        "version": version_data(stands),
        "subagents": found,
        "complete": tree.complete,
    }

    def text() -> None:
        from everthread.cli.render import draw_descendants, draw_title

        draw_descendants(draw_title(thread.name, stands, "", time.time_ns() // 1000), found)

    call.output.answer("show", data, text, _tree_table)
    end_if_damaged(thread)
    if not found:
        note("it has no subagents there")
    if not tree.complete:
        note("not all of them were read")


def _tree_table(data: Mapping[str, Any]) -> Table:
    columns = ("depth", "name", "status", "mode", "thread", "version", "reason")
    rows: list[tuple[Any, ...]] = []
    pending = [(0, node) for node in reversed(data["subagents"])]
    while pending:
        depth, node = pending.pop()
        rows.append((depth, *(node[column] for column in columns[1:])))
        pending.extend((depth + 1, below) for below in reversed(node["subagents"]))
    return Table(columns, rows)


def _session(store: Store, thread: str) -> dict[str, Any] | None:
    """How the session of a thread stands, in a few fields."""
    from everthread.cli.family import has_session

    if not has_session(store, thread):
        return None
    found = store.session_records(thread)
    run = found.last_run
    text = "" if run is None else run.text + _said(found, run) + (f" by {run.agent}" if run.agent else "")
    if found.status == "silent" and found.heartbeat_us is not None:
        text += f", last heard of {ago(found.heartbeat_us, store.core.runtime.now_us())}"
    return {
        "status": found.status,
        "text": text,
        "turns": found.turns,
        "usage": dict(found.usage),
        "in_doubt": [effect.key for effect in found.open_effects() if effect.state == "in_doubt"],
    }


def _said(found: SessionRecords, run: RunRecord) -> str:
    """What the error said that a run failed with."""
    if run.error is None or run.status != "failed":
        return ""
    told = next((each for each in found.errors(1) if (each.run, each.kind) == (run.id, run.error)), None)
    if told is None or not told.message:
        return ""
    return f": {'•••' if told.personal else told.message.partition(chr(10))[0]}"


def _state_table(data: Mapping[str, Any]) -> Table:
    from everthread.arguments import format_path

    rows: list[tuple[str, Any]] = []
    pending: list[tuple[tuple[Any, ...], Any]] = [((), data["state"])]
    while pending:
        path, value = pending.pop()
        if isinstance(value, dict) and value:
            pending.extend(((*path, key), item) for key, item in reversed(value.items()))
        elif isinstance(value, list) and value:
            pending.extend(((*path, index), value[index]) for index in reversed(range(len(value))))
        else:
            rows.append((format_path(path), value))
    return Table(("path", "value"), rows)
