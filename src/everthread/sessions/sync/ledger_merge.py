# Generated from sessions/aio/ledger_merge.py by tools/twin.py: change that, then run: make twin
"""Bringing the ledger of another thread along when that is merged: what was done there is done here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from everthread.errors import AccessError, ConflictError, EverthreadError
from everthread.history.merge import ABSENT, Conflict
from everthread.sessions.journal import EFFECT_LOG, FORMAT, FORMAT_WHOLE, OPEN, Losses, losses_in, with_doubts
from everthread.sessions.sync.journal import read_journal
from everthread.threads.doubts import Doubt, unacknowledged
from everthread.threads.sync.journals import LOSSES, lost_records, read_doubts

if TYPE_CHECKING:
    from everthread.threads.sync.core import Core
    from everthread.threads.sync.merge import Choice
    from everthread.threads.sync.thread import Thread


class _Plan(msgspec.Struct, frozen=True):
    """What has to come along: records of what was done, what is in doubt there, what differs."""

    done: list[dict[str, Any]]
    doubtful: dict[str, Any]
    differing: list[tuple[dict[str, Any], dict[str, Any]]]
    losses: Losses | None


class LedgerMerge:
    """The ledgers of two threads: ``theirs`` is to come into the one of the line ``uid``."""

    def __init__(self, core: Core, uid: str, theirs: Thread, doubts: Sequence[Doubt] = ()) -> None:
        """``doubts`` are those that theirs hasn't taken over into its own mark yet."""
        self._core = core
        self._uid = uid
        self._theirs = theirs
        self._doubts = doubts

    def conflicts(self) -> tuple[Conflict, ...]:
        """The effects that both sides have made, with different results."""
        plan = self._plan(read_journal(self._core, self._uid))
        return tuple(_conflict(ours, theirs) for ours, theirs in plan.differing)

    def write(self, choice: Choice) -> int:
        """Bring it along, durably; how many effects came. Before the merge itself: no thread is ever without
        the effects that its content tells of. Whoever has the thread's lease goes on from there."""
        while True:
            ours = read_journal(self._core, self._uid)
            plan = self._plan(ours)
            settled = [_settled(*sides, choice) for sides in plan.differing]
            changed = [record for record in settled if record is not None]
            if not (plan.done or plan.doubtful or changed or plan.losses):
                return 0
            state = ours.state
            state.setdefault("format", FORMAT_WHOLE)
            for record in (*plan.done, *changed):
                _put(ours, record)
            state.setdefault(OPEN, {})
            for record in plan.done:
                state[OPEN].pop(record["key"], None)
            state[OPEN].update(plan.doubtful)
            if plan.losses is not None:
                state["format"] = FORMAT
                state[LOSSES] = lost_records(plan.losses.why, plan.losses.since_us)
            with suppress(ConflictError):
                ours.commit()
                return len(plan.done) + len(plan.doubtful) + len(changed)

    def _plan(self, ours: Thread) -> _Plan:
        theirs = self._theirs
        start, known = self._shared(ours)
        plan = _Plan([], {}, [], None)
        for record in theirs.log(EFFECT_LOG).read(start):
            if not isinstance(record, Mapping) or record.get("state") != "done" or "id" not in record:
                continue
            mine = _find(ours, record["id"])
            if mine is None:
                plan.done.append(dict(record))
            elif _outcome(mine) != _outcome(record):
                plan.differing.append((mine, dict(record)))
        here = ours.state.get(OPEN) or {}
        done = {record["key"] for record in plan.done}
        for key, intent in (theirs.state.plain().get(OPEN) or {}).items():
            # One that both had, and that isn't open here any more, was settled here.
            if key not in here and key not in done and intent.get("id") not in known:
                plan.doubtful[key] = intent
        lost = with_doubts(losses_in(theirs.state), self._doubts) if LOSSES not in ours.state else None
        return msgspec.structs.replace(plan, losses=lost)

    def _shared(self, ours: Thread) -> tuple[int, set[str]]:
        """How many records both have from before they went apart, and the ids of what was open then. None,
        where that isn't known: then all of them are looked at."""
        ours.handle.load()
        line, other = ours.handle.line, self._theirs.handle.line
        if line is None or other is None or not (other.parent == line.id or line.parent == other.id):
            return 0, set()
        source, fork = (line, other) if other.parent == line.id else (other, line)
        try:
            snapshot = (ours.core.reader.load(source, fork.parent_seq)).snapshot
        except EverthreadError:
            return 0, set()
        log = snapshot.logs.get(EFFECT_LOG)
        opened = snapshot.document.get(OPEN) or {}
        return 0 if log is None else log.length, {each["id"] for each in opened.values()}


def compare_ledgers(core: Core, uid: str, other: str) -> LedgerMerge | None:
    """For ``merge()``: see ``Core.compare_ledgers``. ``None`` if there is nothing to bring."""
    theirs = read_journal(core, other)
    doubts = unacknowledged(read_doubts(core), theirs.state, other)
    return None if theirs.head is None and not doubts else LedgerMerge(core, uid, theirs, doubts)


def _find(journal: Thread, record_id: str) -> dict[str, Any] | None:
    log = journal.log(EFFECT_LOG)
    at = log.find(record_id) if journal.head is not None else None
    return None if at is None else dict((log.read(at, at + 1))[0])


def _put(journal: Thread, record: dict[str, Any]) -> None:
    try:
        journal.handle.upsert(EFFECT_LOG, record)
    except AccessError:
        # Somebody's who was erased, or whose key isn't here: that it was done is what counts.
        rest = {name: value for name, value in record.items() if name != "result"}
        journal.handle.upsert(EFFECT_LOG, {**rest, "unstorable": "sealed"})


def _outcome(record: Mapping[str, Any]) -> tuple[Any, Any]:
    return record.get("result"), record.get("unstorable")


def _conflict(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Conflict:
    return Conflict(("effects", ours["key"]), ABSENT, ours.get("result"), theirs.get("result"))


def _settled(ours: dict[str, Any], theirs: dict[str, Any], choice: Choice) -> dict[str, Any] | None:
    """The record that takes the place of ours; ``None`` if ours stays."""
    if choice == "theirs":
        return theirs
    if not callable(choice):
        return None
    value = choice(_conflict(ours, theirs))
    if value is ABSENT or value is ours.get("result"):
        return None
    return {**{name: part for name, part in ours.items() if name != "unstorable"}, "result": value}
