# Generated from src/everthread/sessions/aio/status.py by tools/twin.py: change that, then run: make twin
"""The reading side of sessions: what is known of a thread's runs, effects, decisions and errors.

Everything here reads documents and the ends of logs, never the whole past, and writes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from everthread.arguments import check_count, check_limit, check_seconds
from everthread.errors import ThreadNotFoundError
from everthread.sessions import journal as j
from everthread.sessions.effects import intent_of, may_be_called_now
from everthread.sessions.journal import Losses, is_held_by, losses_in, run_status, with_doubts
from everthread.sessions.lease import Holder, Lease
from everthread.sessions.records import (
    TERMINAL,
    CheckpointRecord,
    DecisionRecord,
    EffectRecord,
    ErrorRecord,
    RunRecord,
    Status,
    TurnUsage,
    effect_of,
    revealed,
    run_of,
    turn_usage_of,
)
from everthread.sessions.sync.checkpoints import checkpoint_parts, read_checkpoints
from everthread.sessions.sync.decisions import decided_count, read_decisions, read_open_decisions
from everthread.sessions.sync.effects import find_done
from everthread.sessions.sync.journal import (
    error_count,
    losses_of,
    losses_of_a_namesake,
    read_errors,
    read_journal,
    read_with_lease,
    total_in,
)
from everthread.sessions.sync.lease import read_lease
from everthread.sessions.sync.logs import newest_first, revealing
from everthread.sessions.sync.tasks import TaskView
from everthread.sessions.tasks import slice_of
from everthread.sessions.usage import Total, Usage
from everthread.threads.doubts import unacknowledged
from everthread.threads.sync.journals import read_doubts
from everthread.threads.sync.store import ThreadStore
from everthread.threads.sync.thread import Thread
from everthread.threads.twins import pause
from everthread.versions import Version

T = TypeVar("T")

#: How often a waiting reader looks, at first and at most.
_POLL_S, _POLL_S_MAX = 0.01, 0.25


class SessionRecords:
    """A session as it was when this was read; its own handles, which nothing moves."""

    def __init__(self, thread: Thread, journal: Thread, lease: Lease | None) -> None:
        """``lease`` was read before the journal; see :func:`read_records`."""
        self.thread = thread
        self._uid = uid_of(thread)
        self._journal = journal
        self._lease = lease
        document = journal.state.plain()
        j.check_format(document)
        own = j.own_part(document, self._uid)
        #: The last run that is recorded in the journal, if a newer one has begun and isn't there yet.
        self._run_before: Any = None
        holder = j.unrecorded(own, lease)
        if holder is not None:
            self._run_before = own.get(j.RUN)
            own = j.with_run(own, holder, self._uid)
        self._own = own
        #: That records of the journal were lost: an effect that it doesn't know may have happened.
        self.losses = losses_of(journal, "" if lease is None else lease.holder.journal)

    def _look_for_losses(self) -> None:
        """Find out what the journal alone doesn't tell: whether there should be one, and the doubts that hold
        for every ledger of the store."""
        thread = self.thread
        if self.losses is None and self._journal.head is None:
            self.losses = losses_of_a_namesake(thread) or _losses_of_sources(thread)
        doubts = read_doubts(thread.core)
        self.losses = with_doubts(self.losses, unacknowledged(doubts, self._journal.state, self._uid))

    @property
    def name(self) -> str:
        return self.thread.name

    @property
    def head(self) -> Version | None:
        """The thread's version as found."""
        return self.thread.head

    def _look_again(self) -> None:
        """Take the thread as it is now: for a run that begins, until its fence stands."""
        self.thread.refresh()

    @property
    def user_id(self) -> str | None:
        """Whose session it is, if the newest run said so and that person wasn't erased."""
        stored = self._run_before if self._run_before is not None else self._own.get(j.RUN)
        if not isinstance(stored, Mapping):
            return None
        return revealing(self.thread.core, revealed, stored.get("user"))

    # ── runs ─────────────────────────────────────────────────────────────────────────────────

    @property
    def last_run(self) -> RunRecord | None:
        """The newest run. One without an end whose lease is gone, or expired, has crashed, or is silent if
        its caller named it. If the newest versions of the journal can't be read, how it stands is
        ``unknown``, unless it is at work."""
        stored = self._own.get(j.RUN)
        if not isinstance(stored, Mapping):
            return None
        status = run_status(stored, self._lease)
        if self._journal.recovered is not None and not is_held_by(self._lease, stored.get("run_id")):
            status = "unknown"
        return run_of({**stored, "status": status})

    def runs(self, limit: int | None = None) -> list[RunRecord]:
        """Return the runs of this thread, newest first, all of them without a ``limit``; not those of what it
        was forked from."""
        limit = check_limit(limit)
        last = self.last_run
        found = [last] if last is not None else []
        if isinstance(self._run_before, Mapping):
            found.append(run_of({**self._run_before, "status": run_status(self._run_before, self._lease)}))
        if last is not None:
            for item in newest_first(self._journal.log(j.RUN_LOG)):
                if len(found) >= limit or not isinstance(item, Mapping) or item.get("line") != self._uid:
                    break
                found.append(run_of(item))
        return found[:limit]

    @property
    def status(self) -> Status | None:
        """Of the newest run; ``None`` if there never was one."""
        last = self.last_run
        return None if last is None else last.status

    @property
    def turns(self) -> int:
        """Turns of all runs, subagents included."""
        return (self._total()).turns

    @property
    def usage(self) -> Usage:
        """What all runs used, subagents included."""
        return (self._total()).usage

    def turn_usage(self, limit: int | None = None) -> list[TurnUsage]:
        """Return what each turn of this thread counted, newest first, all of them without a ``limit``; not
        turns of what it was forked from, nor those that counted nothing."""
        limit = check_limit(limit)
        found: dict[tuple[str, int], TurnUsage] = {}
        for item in newest_first(self._journal.log(j.USAGE_LOG)):
            if not isinstance(item, Mapping) or item.get("line") != self._uid:
                break
            one = turn_usage_of(item)
            later = found.get((one.run, one.turn))
            if later is None and len(found) >= limit:
                break
            found[one.run, one.turn] = one if later is None else later + one
        return list(found.values())

    def _total(self) -> Total:
        return total_in(self.thread.core, self._own, {self._uid})

    @property
    def version(self) -> int:
        """Grows with every version of the thread and every change of status, never with turns or usage."""
        head = self.thread.head
        return (head.seq if head else 0) + int(self._own.get(j.CHANGES) or 0)

    # ── who has it ───────────────────────────────────────────────────────────────────────────

    @property
    def holder(self) -> Holder | None:
        """The run that holds the session, or held it and has not given it back."""
        return self._lease.holder if self._lease is not None and self._lease.holder.run else None

    @property
    def holder_alive(self) -> bool:
        """Whether that run may well be alive: its lease hasn't expired, and its process isn't gone."""
        return self._lease is not None and self._lease.active

    @property
    def heartbeat_us(self) -> int | None:
        """When it was last heard of."""
        return None if self._lease is None else self._lease.renewed_us

    # ── what happened ────────────────────────────────────────────────────────────────────────

    def open_effects(self) -> list[EffectRecord]:
        """Effects that were begun and have no end: in flight while their run lives, else in doubt. Of a run
        that several processes share: while the process lives that calls it, as far as can be known."""
        found = self._own.get(j.OPEN)
        if not isinstance(found, Mapping):
            return []
        opened = []
        for key, stored in found.items():
            if isinstance(stored, Mapping):
                flying = not stored.get("error") and is_held_by(self._lease, stored.get("run"))
                if flying and self._lease is not None and stored.get("place") is not None:
                    now_us, ttl_us = self.thread.core.runtime.now_us(), self._lease.holder.ttl_us
                    flying = may_be_called_now(intent_of(key, stored), now_us, ttl_us)
                opened.append(effect_of({**stored, "key": key}, "in_flight" if flying else "in_doubt"))
        return opened

    def effects(self, limit: int | None = None) -> list[EffectRecord]:
        """Return the settled effects, newest first, all of them without a ``limit``, those of what it was
        forked from included. One that was found not to have happened and was called again is there for each
        time."""
        limit = check_limit(limit)
        log = self._journal.log(j.EFFECT_LOG)
        items = log.read(max(0, len(log) - limit))
        return [effect_of(item) for item in reversed(items) if isinstance(item, Mapping)]

    @property
    def effect_count(self) -> int:
        """How many settled effects there are: as many as ``effects()`` gives."""
        return len(self._journal.log(j.EFFECT_LOG))

    @property
    def error_count(self) -> int:
        """How many errors there are: as many as ``errors()`` gives."""
        return error_count(self._journal)

    @property
    def decided_count(self) -> int:
        """How many decisions have an outcome."""
        return decided_count(self.thread)

    def effect(self, key: str) -> EffectRecord | None:
        """How one effect stands, a done one as it is known now; ``None`` if it was never begun, or found not
        to have happened, or (see ``losses``) isn't known any more."""
        opened = [effect for effect in self.open_effects() if effect.key == key]
        # Looking a key up moves a handle: not the one that stands at what was found.
        if opened:
            return opened[0]
        return find_done(read_journal(self.thread.core, self._uid), key)

    def open_decisions(self) -> list[DecisionRecord]:
        """Return decisions without an outcome, oldest first, except those whose effect is done."""

        def is_done(key: str) -> bool:
            found = self.effect(key)
            return found is not None and found.state == "done"

        return read_open_decisions(self.thread, is_done)

    def decisions(self, limit: int | None = None) -> list[DecisionRecord]:
        """Return the decisions, newest first, all of them without a ``limit``."""
        return read_decisions(self.thread, check_limit(limit))

    def errors(self, limit: int | None = None) -> list[ErrorRecord]:
        """Return the errors, newest first, all of them without a ``limit``."""
        return read_errors(self._journal, check_limit(limit))

    def checkpoints(self, limit: int | None = None) -> list[CheckpointRecord]:
        """Oldest first; with a limit the newest of them."""
        return read_checkpoints(self.thread, check_limit(limit))

    def get_checkpoint(self, label: str) -> dict[str, Any] | None:
        """What the newest checkpoint with this label kept, or ``None``; also while a run is at work."""
        return checkpoint_parts(self.thread, label)

    @property
    def tasks(self) -> TaskView:
        return TaskView(self.thread)

    def slice(self) -> dict[str, Any]:
        """Tasks and custom state."""
        return slice_of(self.thread.state.plain())

    # ── waiting ──────────────────────────────────────────────────────────────────────────────

    def again(self) -> SessionRecords:
        """The same session as it is now."""
        return records_of(self.thread)

    def wait_for_change(
        self,
        last_version: int,
        timeout: float = 55.0,
    ) -> SessionRecords:
        """Wait until ``version`` exceeds ``last_version``, the session has ended, or the time is over; the
        session as it is then."""
        check_count(last_version, "last_version", least=-1)
        return wait_until(
            self.again, lambda now: now.version > last_version or now.status in TERMINAL, timeout
        )

    def __repr__(self) -> str:
        return f"<session {self.name!r}: {self.status or 'no run yet'}, version {self.version}>"


def read_session(store: ThreadStore, name: str) -> SessionRecords | None:
    """What is known of a session; ``None`` if there is no thread of this name."""
    thread = store.thread(name)
    return None if thread.head is None else _records(thread)


def records_of(thread: Thread) -> SessionRecords:
    """What is known of the session on a thread, as it is now; the handle isn't moved.

    Raises :class:`ThreadNotFoundError` if the thread has no version."""
    from everthread.threads.sync.thread import Thread

    fresh = Thread(thread.core, thread.name)
    return _records(fresh)


def _records(thread: Thread) -> SessionRecords:
    """What is known of the session on a thread whose handle nobody else uses."""
    core, uid = thread.core, uid_of(thread)
    journal, lease = read_with_lease(
        core, uid, lambda: read_journal(core, uid), lambda journal: journal.state.plain()
    )
    return read_records(thread, journal, lease)


def read_records(thread: Thread, journal: Thread, lease: Lease | None) -> SessionRecords:
    """What a thread, its journal and its lease tell; the lease was read before the journal."""
    records = SessionRecords(thread, journal, lease)
    records._look_for_losses()
    return records


def uid_of(thread: Thread) -> str:
    """What names this incarnation of a thread. Raises :class:`ThreadNotFoundError` if there is none yet."""
    uid = thread.uid if thread.head is not None else None
    if uid is None:
        raise ThreadNotFoundError(f"there is no thread {thread.name!r} yet: it exists from its first commit")
    return uid


def _losses_of_sources(thread: Thread) -> Losses | None:
    """For a fork without a journal: whether one was lost that it should have got when it was forked."""
    core, line = thread.core, thread.handle.line
    while line is not None and line.parent:
        line = core.backend.line(line.parent)
        if line is None:
            continue
        uid = line.uid.hex()
        journal, lease = read_journal(core, uid), read_lease(core, uid)
        if journal.head is not None:
            # Forked before that began, unless that itself is what came after a loss.
            return losses_in(journal.state)
        if lease is not None and lease.holder.journal:
            why = f"that of what it was forked from isn't found, and had version {lease.holder.journal}"
            return Losses(why, core.runtime.now_us())
    return None


def wait_until(look: Callable[[], T], enough: Callable[[T], bool], timeout_s: float) -> T:
    """Look again and again, less and less often, until it is enough or the time is over."""
    deadline = time.monotonic() + check_seconds(timeout_s, "timeout")
    pause_s = _POLL_S
    while True:
        now = look()
        left = deadline - time.monotonic()
        if enough(now) or left <= 0:
            return now
        pause(min(pause_s, left))
        pause_s = min(pause_s * 1.5, _POLL_S_MAX)
