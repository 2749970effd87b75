"""``everthread resume``: what a new run would find."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from everthread.cli.context import Invocation
from everthread.cli.errors import BUSY, CORRUPT, DRIFT, NOTHING, OK, as_typed
from everthread.cli.options import (
    Span,
    complete_thread,
    example,
    existing,
    pass_invocation,
    shared_options,
)
from everthread.cli.output import Table, ago, clean, note
from everthread.cli.status import HIDDEN

if TYPE_CHECKING:
    from everthread.sessions.resume import ResumeReport
    from everthread.store import Store

_GIVEN = click.core.ParameterSource.COMMANDLINE
#: Todos, tasks and decisions that are named one by one.
_NAMED_MAX = 5


@click.command(
    epilog=example(
        "resume", "resume invoice-bot --briefing", "resume invoice-bot --json | jq .report.in_flight"
    )
)
@click.argument("thread", required=False, shell_complete=complete_thread)
@click.option("--briefing", is_flag=True, help="Print the text that a new run needs, instead of the report.")
@click.option(
    "--max-tokens", default=1500, show_default=True, type=click.IntRange(1), help="Of the briefing."
)
@click.option(
    "--max-age",
    default=86_400.0,
    show_default=True,
    type=Span(),
    metavar="SECONDS",
    help="When a fact that nothing verifies counts as stale.",
)
@click.option("--allow-commands", is_flag=True, help="Let commands that are stored with facts run.")
@click.option("--no-network", is_flag=True, help="Ask no server about facts.")
@shared_options
@pass_invocation
def resume(
    call: Invocation,
    thread: str | None,
    briefing: bool,
    max_tokens: int,
    max_age: float,
    allow_commands: bool,
    no_network: bool,
) -> None:
    """What a new run on THREAD (without one: the thread saved last; a fork counts once
    something was saved to it) would find: how the last run ended, what
    was in flight, what is next, and whether reality still agrees. Starts no run, writes nothing.

    Ends with 3 if there is nothing to resume (no run was ever on it, and it has no goal, todos, tasks or
    facts), with 4 if something must be looked at first (a fact is stale or
    contradicted, an effect is in doubt), with 5 if a run is at work on the thread, with 6 if records of it
    were lost or can't be read.
    """
    if not briefing and click.get_current_context().get_parameter_source("max_tokens") is _GIVEN:
        raise click.UsageError("--max-tokens is about the briefing: give --briefing, too")
    with call.store() as store:
        name = thread if thread is not None else _saved_last(store)
        if name is None:
            note(f"nothing to resume in {store.url}")
            raise click.exceptions.Exit(NOTHING)
        checks: dict[str, Any] = {
            "max_age_s": max_age,
            "allow_commands": allow_commands,
            "allow_network": not no_network,
        }
        existing(store, name)
        report = store.resume(name, **checks)
        if briefing:
            text = store.briefing(name, max_tokens, **checks)
            data = {"thread": name, "briefing": str(text), "tokens": text.tokens, "complete": text.complete}
            call.output.answer("resume", data, lambda: click.echo(str(text)))
        else:
            data = {"thread": name, "report": report.plain()}
            call.output.answer("resume", data, lambda: _print(call, report), _table)
        call.tell_of_damage(known=bool(report.problems))
    raise click.exceptions.Exit(_code(call, report))


def _saved_last(store: Store) -> str | None:
    """The thread saved last. A fork counts from its first own save on: until then it shares its newest
    version with the thread that was really worked on."""
    newest: list[str] = []
    at_us = -1
    for info in store.threads():
        if info.name.startswith(HIDDEN) or info.updated_at_us < at_us:
            continue
        if info.updated_at_us > at_us:
            newest, at_us = [], info.updated_at_us
        newest.append(info.name)
    if len(newest) > 1:
        from everthread.cli.family import untouched_fork

        newest.sort(key=lambda name: untouched_fork(store, name))
    return newest[0] if newest else None


def _code(call: Invocation, report: ResumeReport) -> int:
    if report.status == "running":
        note("a run is at work on it; a new one would have to wait")
        return BUSY
    if report.losses is not None or report.problems:
        return CORRUPT
    if report.stale or report.contradicted or report.in_doubt:
        return DRIFT
    if _is_empty(report):
        rest = f"{call.command('show', report.thread)} shows the rest"
        note(f"nothing to resume: no run, goal, todos, tasks or facts; {rest}")
        return NOTHING
    return OK


def _is_empty(report: ResumeReport) -> bool:
    """Whether there never was a run, and nothing is there that a first one would go on with."""
    kept = (report.goal, report.in_flight, report.decisions, report.facts, report.constraints)
    tasks = (report.ready, report.blocked, report.in_progress)
    todos = (*report.todos.values(), report.open_loops)
    return report.run is None and not any((*kept, *tasks, *todos))


def _print(call: Invocation, report: ResumeReport) -> None:
    if report.run is None:
        ended = "no run yet"
    else:
        verb = "last heard of" if report.run.ended_us is None else "ended"
        ended = report.run.text
        if report.status != "unknown":
            ended += f", {verb} {ago(report.heard_us or report.run.started_us, report.made_us)}"
    click.secho(clean(f"{report.thread}: {ended}"), bold=True)
    lines = list(_lines(report))
    width = max((len(title) + 1 for title, _, _ in lines), default=0)
    for title, words, colour in lines:
        # What is lost or can't be read is told to its end.
        words = clean(words) if colour == "red" else clean(words, 160)
        click.echo(f"{title:<{max(width, 13)}}{click.style(words, fg=colour)}")
    if report.losses is not None:
        command = call.command("settle", report.thread, "KEY", options="--done or --not-done")
        accept = call.command("settle", report.thread, options="--lost")
        note(
            f"an effect that isn't known here isn't called until you settle it: {command}; "
            f"or until you accept the loss for the thread: {accept}"
        )
    if report.in_doubt:
        key = report.in_doubt[0].key
        command = call.command("settle", report.thread, key, options="--done or --not-done")
        note(f"find out whether what is in doubt has happened, before anybody repeats it, then: {command}")


def _lines(report: ResumeReport) -> Iterator[tuple[str, str, str | None]]:
    """What is worth knowing, the most urgent first: a title, words, a colour."""
    from everthread.sessions.resume import RECORDS_LOST

    if report.goal is not None:
        yield "goal", _said(report.goal.text), None
    for effect in report.in_flight:
        doubtful = effect.state == "in_doubt"
        yield effect.state.replace("_", " "), f"{effect.key} ({effect.name})", "yellow" if doubtful else None
    for fact in (*report.contradicted, *report.stale):
        yield fact.status.value, f"{fact.key}: {fact.reason}", "yellow"
    for decision in report.decisions[:_NAMED_MAX]:
        yield "decided, no outcome", "•••" if decision.personal else decision.decision, "yellow"
    todos = report.todos
    for todo in (*todos.get("in_progress", ()), *todos.get("pending", ()))[:_NAMED_MAX]:
        yield "todo", _said(todo.content), None
    for loop in report.open_loops[:_NAMED_MAX]:
        yield "open loop", _said(loop.description), None
    for task in (*report.in_progress, *report.ready)[:_NAMED_MAX]:
        yield "task", _said(task.text), None
    counts = [f"{len(found):,} {status.replace('_', ' ')}" for status, found in todos.items() if found]
    if counts:
        yield "todos", ", ".join(counts), None
    if len(report.open_loops) > _NAMED_MAX:
        yield "open loops", f"{len(report.open_loops):,}", None
    if report.ready or report.blocked or report.in_progress:
        counts = [f"{len(report.in_progress):,} in progress", f"{len(report.ready):,} ready"]
        yield "tasks", ", ".join([*counts, f"{len(report.blocked):,} blocked"]), None
    checked = [f"{len(facts):,} {name}" for name, facts in _facts(report).items() if facts]
    if checked:
        yield "facts", ", ".join(checked), None
    for problem in report.problems:
        yield "records lost" if problem.startswith(RECORDS_LOST) else "unreadable", as_typed(problem), "red"


def _said(value: Any) -> str:
    """What was said, or that it was erased."""
    from everthread.values import Erased

    return "(erased)" if isinstance(value, Erased) else str(value)


def _facts(report: ResumeReport) -> dict[str, tuple[Any, ...]]:
    names = ("fresh", "stale", "contradicted", "unverifiable")
    return {name: getattr(report, name) for name in names}


def _table(data: Mapping[str, Any]) -> Table:
    report = data["report"]
    rows: list[tuple[Any, ...]] = [("session", data["thread"], report["status"], report["summary"])]
    rows += [("effect", each["key"], each["state"], each["name"]) for each in report["in_flight"]]
    rows += [("decision", each["id"], "open", each["decision"]) for each in report["decisions"]]
    for kind, status in (("in_progress", "in_progress"), ("ready", "ready"), ("blocked", "blocked")):
        rows += [("task", each["id"], status, each["subject"]) for each in report[kind]]
    for status, todos in report["todos"].items():
        rows += [("todo", each["id"], status, each["content"]) for each in todos]
    rows += [("fact", each["key"], each["status"], each["reason"]) for each in report["facts"]]
    rows += [("constraint", each["id"], None, each["text"]) for each in report["constraints"]]
    rows += [("open_loop", each["id"], "open", each["description"]) for each in report["open_loops"]]
    return Table(("kind", "id", "status", "text"), rows)
