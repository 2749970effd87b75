"""The journal as it is stored: its parts, and the rules that need no store.

The journal is what a rewind of the thread never moves. Its document holds the run that is under way or was
last, what all runs of the line used up, and the effects that are open; its logs the runs before, the settled
effects, and what went wrong. It is never rewound, so that a position in one of its logs stays what it is.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from everthread.errors import SchemaVersionError
from everthread.sessions.lease import Holder, Lease
from everthread.sessions.records import STATUSES, Status, moment, usage_of
from everthread.sessions.usage import Total
from everthread.threads.doubts import Doubt
from everthread.threads.sync.journals import LOSSES, LOSSY_FORMAT

#: What this code understands. A journal that lost nothing is written as the first format, so that older code
#: goes on with it; one that did must not be taken for whole by code that knows nothing of that.
FORMAT: Final = LOSSY_FORMAT
FORMAT_WHOLE: Final = 1

# In the document.
LINE: Final = "line"
RUN: Final = "run"
RUNS: Final = "runs"
CHANGES: Final = "changes"
TURNS: Final = "turns"
USAGE: Final = "usage"
OPEN: Final = "open"
#: Subagents whose end isn't recorded, each with what it had used before; and what all others have used.
CHILDREN: Final = "children"
CHILD_USAGE: Final = "child_usage"
CHILD_TURNS: Final = "child_turns"
#: How many notes of what was done about an error the log of errors holds.
HANDLED: Final = "handled"

# Logs.
RUN_LOG: Final = "runs"
EFFECT_LOG: Final = "effects"
ERROR_LOG: Final = "errors"
#: What each turn counted.
USAGE_LOG: Final = "usage"


def check_format(document: Mapping[str, Any]) -> None:
    """Raises :class:`SchemaVersionError` if newer code wrote this journal."""
    found = document.get("format", FORMAT_WHOLE)
    if type(found) is not int or found > FORMAT:
        raise SchemaVersionError(
            f"this session was written by a newer Everthread (journal format {found}); upgrade to go on",
            found=found,
            supported=FORMAT,
        )


def own_part(document: Mapping[str, Any], uid: str) -> Mapping[str, Any]:
    """The document, if this line wrote it. What a fork took along counts nothing but its open effects: runs,
    turns and usage are its source's."""
    if document.get(LINE) == uid:
        return document
    return {OPEN: document.get(OPEN, {})}


# ── journals that lost records ──────────────────────────────────────────────────────────────────────
# A ledger that lacks an effect looks like one in which it never happened. So a process that notices
# that records are lost writes it down in the journal itself, where forks, copies and exports take it along:
# salvaging, a run that begins, a fork. From then on a key that the journal doesn't know may stand for
# something that has happened, until somebody accepts that.


#: Keys that are known not to have happened although records are lost: begun since, or settled.
CLEARED: Final = "cleared"
#: In the document of a journal: records of effects can't be read, which has been told. Stays when that was
#: accepted: they can't be read then either.
UNREADABLE: Final = "unreadable"


class Losses(msgspec.Struct, frozen=True):
    """That records of a journal were lost, why that is known, and since when: the time that a doubt of the
    whole store names, else the time when it was noticed; 0 if that isn't known.

    ``doubts`` are those of the whole store that the journal hasn't taken over yet.
    """

    why: str
    since_us: int
    doubts: tuple[Doubt, ...] = ()

    @property
    def since(self) -> datetime.datetime | None:
        """See ``since_us``; None if it isn't known."""
        return moment(self.since_us) if self.since_us else None

    def __str__(self) -> str:
        return f"the journal of this thread lost records ({self.why})"


def with_doubts(losses: Losses | None, doubts: Sequence[Doubt]) -> Losses | None:
    """Return what is lost of a journal together with the doubts that it hasn't taken over yet."""
    if not doubts:
        return losses
    since_us = min(each.since_us for each in doubts)
    whys = [str(each) for each in doubts]
    if losses is not None:
        since_us = min(since_us, losses.since_us)
        whys = [losses.why, *whys]
    return Losses("; ".join(dict.fromkeys(whys)), since_us, tuple(doubts))


def losses_in(document: Mapping[str, Any]) -> Losses | None:
    """What a journal's document says."""
    stored = document.get(LOSSES)
    if stored is None:
        return None
    if not isinstance(stored, Mapping):
        return Losses("it says so, and not why", 0)
    since = stored.get("since_us")
    return Losses(str(stored.get("why")), since if type(since) is int else 0)


# ── runs ────────────────────────────────────────────────────────────────────────────────────────────


def begun_run(holder: Holder, uid: str, number: int) -> dict[str, Any]:
    """The record of a run that has just begun, from the lease it holds."""
    return {
        "run_id": holder.run,
        "line": uid,
        "number": number,
        "status": "running",
        "started_us": holder.since_us,
        "agent": holder.agent,
        "host": holder.host,
        "pid": holder.pid,
        "turns": 0,
        "turn": 0,
        "usage": {},
    }


def with_run(own: Mapping[str, Any], holder: Holder, uid: str) -> dict[str, Any]:
    """A line's part of a journal once the run of this lease is recorded in it."""
    number = (own.get(RUNS) or 0) + 1
    return {
        LINE: uid,
        RUNS: number,
        TURNS: own.get(TURNS) or 0,
        USAGE: own.get(USAGE) or {},
        CHANGES: (own.get(CHANGES) or 0) + 1,
        OPEN: own.get(OPEN) or {},
        CHILDREN: own.get(CHILDREN) or {},
        CHILD_USAGE: own.get(CHILD_USAGE) or {},
        CHILD_TURNS: own.get(CHILD_TURNS) or 0,
        RUN: begun_run(holder, uid, number),
    }


def unrecorded(own: Mapping[str, Any], lease: Lease | None) -> Holder | None:
    """The holder of a lease whose run isn't in the journal yet: it has begun and written nothing there."""
    if lease is None or not lease.holder.run or not lease.holder.since_us:
        return None
    run = own.get(RUN)
    known = isinstance(run, Mapping) and run.get("run_id") == lease.holder.run
    return None if known else lease.holder


def tell_of_the_same_run(lease: Lease | None, run: Any) -> bool:
    """Whether a lease and the newest run of a journal don't contradict each other."""
    known = run if isinstance(run, Mapping) else {"run_id": "", "ended_us": 0}
    holding = holding_run(lease)
    return holding == known.get("run_id") or (not holding and known.get("ended_us") is not None)


def holding_run(lease: Lease | None) -> str:
    """The run that holds a lease; "" if none does."""
    return "" if lease is None else lease.holder.run


def run_status(stored: Mapping[str, Any], lease: Lease | None) -> Status:
    """Of a stored run. One without an end whose lease is gone, or expired, has crashed; one that its caller
    named belongs to no process that could: another run has superseded it, or it is silent, for days if its
    workflow waits for something."""
    status = stored.get("status")
    if stored.get("ended_us") is None and not is_held_by(lease, stored.get("run_id")):
        if lease is not None and is_superseded(stored, lease.holder):
            return "superseded"
        if lease is None or not (lease.holder.shared and lease.holder.run == stored.get("run_id")):
            return "crashed"
        return "waiting_for_input" if status == "waiting_for_input" else "silent"
    return status if status in STATUSES else "crashed"


def is_superseded(stored: Mapping[str, Any], holder: Holder) -> bool:
    """Whether a run was one that its caller named, and whose place this holder, or one before it, has
    taken."""
    return any(name == stored.get("run_id") for name, _ in holder.past)


def is_held_by(lease: Lease | None, run_id: Any) -> bool:
    """Whether this run holds the lease, and may well be alive."""
    return lease is not None and lease.holder.run == run_id and lease.active


def stored_total(stored: Mapping[str, Any]) -> Total:
    """Turns and usage as a document holds them."""
    turns = stored.get(TURNS)
    return Total(turns if type(turns) is int else 0, usage_of(stored.get(USAGE)))


def closed_run(run: Mapping[str, Any], holder: Holder, now_us: int) -> dict[str, Any]:
    """A run as its successor, which holds the lease, puts it away: one without an end has crashed or was
    superseded, and stays without one."""
    record = {name: value for name, value in run.items() if name != "user"}
    if run.get("ended_us") is not None:
        return record
    status = "superseded" if is_superseded(run, holder) else "crashed"
    return {**record, "status": status, "found_us": now_us}
