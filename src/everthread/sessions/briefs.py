"""The briefing of a session: its records turned into facts, and these into the text for a new run."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from everthread.briefing.facts import Background, Fact, Kind
from everthread.briefing.selecting import Briefing, brief
from everthread.briefing.values import revealing
from everthread.sessions import brief_facts as facts
from everthread.sessions.drift import MAX_AGE_S
from everthread.sessions.resuming import ResumeReport, heard_us, resume_report
from everthread.sessions.salvage import readable
from everthread.verifiers.permissions import AllowCommands

if TYPE_CHECKING:
    from everthread.sessions.records import SessionRecords

#: As many of a kind are looked at for one briefing; constraints always all. No budget has room for more.
EACH_MAX = 60
_TAIL = 12


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
        report = msgspec.structs.replace(
            report, run=found.last_run, status=found.status, heard_us=heard_us(found)
        )
    with revealing(reveal):
        told = background(records, report)
    return brief(told, max_tokens=max_tokens, tokenizer=tokenizer)


def background(records: SessionRecords, report: ResumeReport) -> Background:
    """All that is known, cut to what a briefing could hold."""
    problems = list(report.problems)
    log = records.thread.messages
    length = len(log)
    tail = readable(problems, lambda: log[-_TAIL:] if length else [])
    settled = readable(problems, lambda: records.effects(limit=_TAIL))
    errors = readable(problems, lambda: records.errors(limit=_TAIL))
    recent = readable(problems, lambda: records.decisions(limit=EACH_MAX))
    decisions = [*reversed(report.decisions), *(each for each in recent if each.complete)]
    everything: list[Fact] = [
        *facts.run_fact(report),
        *facts.goal_fact(report),
        *facts.next_facts(report, settled),
        *facts.constraint_facts(report),
        *facts.problem_facts(problems),
        *facts.context_facts(report),
        *facts.call_facts(report, settled),
        *facts.todo_facts(report),
        *facts.decision_facts(decisions),
        *facts.loop_facts(report),
        *facts.failure_facts(errors),
        *facts.exchange_facts(tail, length),
    ]
    kept = [
        fact
        for kind in Kind
        for fact in islice(
            (each for each in everything if each.kind is kind),
            None if kind is Kind.CONSTRAINT else EACH_MAX,
        )
    ]
    more = Counter(fact.kind for fact in everything)
    more.subtract(fact.kind for fact in kept)
    more[Kind.EXCHANGE] += length - len(tail)
    return Background(
        thread=report.thread, version=report.version, now_us=report.made_us, facts=tuple(kept), more=more
    )
