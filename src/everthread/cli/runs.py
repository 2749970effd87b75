"""``everthread runs``: the runs of agents on a thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from everthread.cli.context import Invocation
from everthread.cli.errors import NOTHING
from everthread.cli.log import thread_argument
from everthread.cli.options import example, existing, pass_invocation, shared_options
from everthread.cli.output import ago, clean, note, records

if TYPE_CHECKING:
    from everthread.sessions.records import RunRecord

COLUMNS = (
    "number", "id", "status", "reason", "agent", "host", "pid", "started_at", "ended_at", "turns", "usage",
    "error", "workflow", "execution", "skipped",
)  # fmt: skip


@click.command(epilog=example("runs invoice-bot", "runs invoice-bot --limit 100 --format tsv"))
@thread_argument
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1), help="How many at most.")
@shared_options
@pass_invocation
def runs(call: Invocation, thread: str, limit: int) -> None:
    """The runs of agents on THREAD, the newest first; not those of what it was forked from.

    Ends with 3 if there are none.
    """
    with call.store() as store:
        existing(store, thread)
        records_ = store.session_records(thread)
        every = records_.runs()
        found = every[:limit]
        now_us = store.core.runtime.now_us()

        def show() -> None:
            for run in found:
                verb = "began" if run.ended_us is None else "ended"
                words = f"{run.text}, {verb} {ago(run.ended_us or run.started_us, now_us)}"
                if run.status == "silent" and records_.heartbeat_us is not None:
                    words += f", last heard of {ago(records_.heartbeat_us, now_us)}"
                # The text of one that failed says with what.
                error = run.error if run.error and run.status != "failed" else ""
                details = [f"{run.turns:,} turns" if run.turns else "", _used(run), run.agent or "", error]
                details.append(f"workflow {run.workflow}" if run.workflow else "")
                details.append(f"skipped effects that execution {run.skipped} made" if run.skipped else "")
                click.echo(clean(", ".join(filter(None, [words, *details]))))
            if not found:
                note("no run yet")
            if len(found) < len(every):
                note(f"{len(found):,} of {len(every):,} runs; --limit shows more")

        listed = [{name: _field(getattr(run, name)) for name in COLUMNS} for run in found]
        call.output.answer("runs", {"thread": thread, "runs": listed}, show, records("runs", COLUMNS))
    if not found:
        raise click.exceptions.Exit(NOTHING)


def _used(run: RunRecord) -> str:
    """Return what a run used, such as ``812 input_tokens``."""
    return ", ".join(f"{count:,} {name}" for name, count in run.usage.items())


def _field(value: Any) -> Any:
    return msgspec.structs.asdict(value) if isinstance(value, msgspec.Struct) else value
