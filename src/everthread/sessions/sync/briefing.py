# Generated from src/everthread/sessions/aio/briefing.py by tools/twin.py: change that, then run: make twin
"""The briefing of a session, read from its records: see ``sessions/briefing`` for what it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from everthread.briefing.facts import revealing
from everthread.briefing.selection import Briefing, brief
from everthread.sessions.briefing import Limits, Readings, background, with_run_found
from everthread.sessions.children import Child, children_in
from everthread.sessions.resume import MAX_AGE_S, ResumeReport
from everthread.sessions.sync.journal import newest_status
from everthread.sessions.sync.orders import Constraints
from everthread.sessions.sync.resume import heard_us, readable, resume_report
from everthread.threads.sync.item_times import item_times
from everthread.verifiers.specs import AllowCommands

if TYPE_CHECKING:
    from everthread.sessions.sync.status import SessionRecords


def session_briefing(
    records: SessionRecords,
    *,
    now_us: int,
    found: SessionRecords | None = None,
    max_tokens: int = 1_500,
    tokenizer: object = None,
    max_age_s: float | None = MAX_AGE_S,
    allow_commands: AllowCommands = False,
    allow_network: bool = True,
    reveal: bool = False,
) -> Briefing:
    """The text that a run needs to go on, within ``max_tokens``.

    ``records`` show the present state, ``found`` what this run found when it began, if it is under way. Facts
    are verified anew, so that none is called verified that isn't at this moment. Personal values are masked
    unless ``reveal`` is asked for.
    """
    report = resume_report(
        records,
        now_us=now_us,
        max_age_s=max_age_s,
        allow_commands=allow_commands,
        allow_network=allow_network,
    )
    if found is not None:
        report = with_run_found(report, found.last_run, heard_us(found))
    limits = Limits.of(max_tokens)
    read = _read(records, report, limits)

    def text() -> Briefing:
        with revealing(reveal):
            known = background(read, report, limits.each)
        return brief(known, max_tokens=max_tokens, tokenizer=tokenizer)

    return text()


def _read(records: SessionRecords, report: ResumeReport, limits: Limits) -> Readings:
    problems = list(report.problems)
    log = records.thread.messages
    length = len(log)
    start = max(0, length - limits.messages)
    tail = readable(problems, lambda: log.read(start))
    return Readings(
        tail=tail,
        times=item_times(records.thread, "messages", start) if tail else [],
        length=length,
        settled=readable(problems, lambda: records.effects(limit=limits.each)),
        effect_count=records.effect_count,
        errors=readable(problems, lambda: records.errors(limit=limits.each)),
        error_count=records.error_count,
        recent=readable(problems, lambda: records.decisions(limit=limits.each)),
        decided_count=records.decided_count,
        tasks=readable(problems, records.tasks.all),
        document=records.thread.state.plain(),
        children=readable(problems, lambda: _open_children(records, limits.each)),
        orders=readable(problems, Constraints(records.thread.core).all),
        problems=problems,
        effects_denied=records.thread.effects == "deny",
    )


def _open_children(records: SessionRecords, limit: int) -> list[tuple[Child, str | None]]:
    """Subagents without a result, and how the last run on the thread of each stands."""
    core = records.thread.core
    found: list[tuple[Child, str | None]] = []
    for child in children_in(records.thread.state):
        if child.is_open and len(found) < limit:
            line = core.find(child.thread) if child.mode != "parent" else None
            status = None if line is None else newest_status(core, line.line.uid.hex())
            found.append((child, status))
    return found
