"""The reading side of sessions: what is known of a thread's runs, effects, decisions and errors.

Everything here reads documents and the ends of logs, never the whole past, and writes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from everthread.arguments import check_count, check_limit, check_seconds
from everthread.errors import ThreadNotFoundError
from everthread.sessions import journal as j
from everthread.sessions.checkpoints import read_checkpoints
from everthread.sessions.decisions import open_decisions, read_decisions
from everthread.sessions.effects import find_done
from everthread.sessions.journal import (
    Losses,
    losses_in,
    losses_of,
    losses_of_a_namesake,
    read_errors,
    total_of,
)
from everthread.sessions.lease import (
    Holder,
    Lease,
    beside,
    core_of,
    core_under,
    read_lease,
    sources_of,
    uid_of,
)
from everthread.sessions.records import (
    STATUSES,
    TERMINAL,
    CheckpointRecord,
    DecisionRecord,
    EffectRecord,
    ErrorRecord,
    RunRecord,
    Status,
    decision_of,
    effect_of,
    revealed,
    run_of,
)
from everthread.sessions.tasks import TaskView, slice_of
from everthread.sessions.usage import Total, Usage

if TYPE_CHECKING:
    from everthread.stores.witness import Noted
    from everthread.threads.sync.core import Core
    from everthread.threads.sync.store import ThreadStore
    from everthread.threads.sync.thread import Thread
    from everthread.versions import Version


# ── standing ────────────────────────────────────────
# How the newest run on a thread stands, from two small reads. Loads little: lists of threads ask it.


T = TypeVar("T")


def standing(core: Core, uid: str) -> Status | None:
    """The status of the newest run on a line; ``None`` if there never was one.

    Raises :class:`StateCorruptedError` if the newest version of its journal can't be read.
    """
    space = beside(core)

    def document() -> Any:
        found = space.find(uid)
        return {} if found is None else space.head(found).build_document()

    read, lease, _ = with_lease(core, uid, document)
    j.check_format(read)
    run = j.own_part(read, uid).get(j.RUN)
    return run_status(run, lease) if isinstance(run, Mapping) else None


def with_lease(core: Core, uid: str, read: Callable[[], T]) -> tuple[T, Lease | None, Lease | None]:
    """What ``read`` finds, and the lease as it was after and before: of the same run."""
    lease = read_lease(core, uid)
    while True:
        found = read()
        again = read_lease(core, uid)
        if _run(again) == _run(lease):
            return found, again, lease
        # A run began or ended in between: seen half, it would look like one that crashed.
        lease = again


def _run(lease: Lease | None) -> str:
    return "" if lease is None else lease.holder.run


def run_status(stored: Mapping[str, Any], lease: Lease | None) -> Status:
    """Of a stored run. One without an end whose lease is gone, or expired, has crashed."""
    if stored.get("ended_us") is None and not held_by(lease, stored.get("run_id")):
        return "crashed"
    status = stored.get("status")
    return status if status in STATUSES else "crashed"


def held_by(lease: Lease | None, run_id: Any) -> bool:
    """Whether this run holds the lease, and may well be alive."""
    return lease is not None and lease.holder.run == run_id and lease.held


#: How often a waiting reader looks, at first and at most.
_POLL_S, _POLL_S_MAX = 0.01, 0.25


class SessionRecords:
    """A session as it was when this was read; its own handles, which nothing moves."""

    def __init__(
        self,
        thread: Thread,
        journal: Thread,
        lease: Lease | None,
        witness: Lease | None = None,
        noted: Noted | None = None,
    ) -> None:
        """``witness`` is a lease, ``noted`` a note beside the store, read before the journal."""
        self.thread = thread
        self._uid = uid_of(thread)
        self._journal = journal
        self._lease = lease
        document = journal.state.plain()
        j.check_format(document)
        self._own = j.own_part(document, self._uid)
        known = "" if witness is None else witness.holder.journal
        #: That records of the journal were lost: an effect that it doesn't know may have happened.
        self.losses = losses_of(journal, known, noted, bytes.fromhex(self._uid))
        if self.losses is None and journal.head is None:
            self.losses = losses_of_a_namesake(thread) or _losses_of_sources(thread)

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
        stored = self._own.get(j.RUN)
        return revealed(stored.get("user")) if isinstance(stored, Mapping) else None

    # ── runs ─────────────────────────────────────────────────────────────────────────────────

    @property
    def last_run(self) -> RunRecord | None:
        """The newest run. One without an end whose lease is gone, or expired, has crashed. If the newest
        versions of the journal can't be read, how it stands is ``unknown``, unless it is at work."""
        stored = self._own.get(j.RUN)
        if not isinstance(stored, Mapping):
            return None
        status = run_status(stored, self._lease)
        if self._journal.recovered is not None and not held_by(self._lease, stored.get("run_id")):
            status = "unknown"
        return run_of({**stored, "status": status})

    def runs(self, limit: int | None = 20) -> list[RunRecord]:
        """The newest runs of this thread, newest first; not those of what it was forked from."""
        limit = check_limit(limit)
        last = self.last_run
        found = [last] if last is not None else []
        if last is not None:
            for item in reversed(self._journal.log(j.RUN_LOG)):
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
        return self._total().turns

    @property
    def usage(self) -> Usage:
        """What all runs used, subagents included."""
        return self._total().usage

    def _total(self) -> Total:
        return total_of(core_under(self.thread), self._own, {self._uid})

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
        return self._lease is not None and self._lease.held

    @property
    def heartbeat_us(self) -> int | None:
        """When it was last heard of."""
        return None if self._lease is None else self._lease.renewed_us

    # ── what happened ────────────────────────────────────────────────────────────────────────

    def open_effects(self) -> list[EffectRecord]:
        """Effects that were begun and have no end: in flight while their run lives, else in doubt."""
        found = self._own.get(j.OPEN)
        if not isinstance(found, Mapping):
            return []
        opened = []
        for key, stored in found.items():
            if isinstance(stored, Mapping):
                flying = not stored.get("error") and held_by(self._lease, stored.get("run"))
                opened.append(effect_of({**stored, "key": key}, "in_flight" if flying else "in_doubt"))
        return opened

    def effects(self, limit: int | None = 20) -> list[EffectRecord]:
        """The newest settled effects, newest first, those of what it was forked from included. One that was
        found not to have happened and was called again is there for each time."""
        limit = check_limit(limit)
        log = self._journal.log(j.EFFECT_LOG)
        items = log[max(0, len(log) - limit) :]
        return [effect_of(item) for item in reversed(items) if isinstance(item, Mapping)]

    def effect(self, key: str) -> EffectRecord | None:
        """How one effect stands, a done one as it is known now; ``None`` if it was never begun, or found not
        to have happened, or (see ``losses``) isn't known any more."""
        opened = [effect for effect in self.open_effects() if effect.key == key]
        # Looking a key up moves a handle: not the one that stands at what was found.
        return opened[0] if opened else find_done(j.read_journal(core_under(self.thread), self._uid), key)

    def open_decisions(self) -> list[DecisionRecord]:
        """Decisions without an outcome, oldest first."""
        found = [decision_of(stored) for stored in open_decisions(self.thread).values()]
        return sorted(found, key=lambda decision: decision.at_us)

    def decisions(self, limit: int | None = 20) -> list[DecisionRecord]:
        """The newest decisions, newest first."""
        return read_decisions(self.thread, check_limit(limit))

    def errors(self, limit: int | None = 20) -> list[ErrorRecord]:
        """The newest errors, newest first."""
        return read_errors(self._journal, check_limit(limit))

    def checkpoints(self, limit: int | None = None) -> list[CheckpointRecord]:
        """Oldest first; with a limit the newest of them."""
        return read_checkpoints(self.thread, check_limit(limit))

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

    def wait_for_change(self, last_version: int, timeout: float = 55.0) -> SessionRecords:
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
    core_of(store)
    try:
        return records_of(store.thread(name))
    except ThreadNotFoundError:
        return None


def records_of(thread: Thread) -> SessionRecords:
    """What is known of the session on a thread, as it is now; the handle isn't moved.

    Raises :class:`ThreadNotFoundError` if the thread has no version."""
    from everthread.threads.sync.thread import Thread

    core = core_under(thread)
    own = Thread(core, thread.name)
    uid = uid_of(own)

    def read_journal() -> Thread:
        journal = j.read_journal(core, uid)
        journal.refresh()
        return journal

    noted = core.witness.known(core.space, thread.name)
    return SessionRecords(own, *with_lease(core, uid, read_journal), noted)


def _losses_of_sources(thread: Thread) -> Losses | None:
    """For a fork without a journal: whether one was lost that it should have got when it was forked."""
    core = core_under(thread)
    for line in sources_of(thread):
        uid = line.uid.hex()
        noted = core.witness.known(core.space, line.name)
        journal, lease = j.read_journal(core, uid), read_lease(core, uid)
        if journal.head is not None:
            # Forked before that began, unless that itself is what came after a loss.
            return losses_in(journal.state)
        known = lease.holder.journal if lease is not None else ""
        if not known and noted is not None and noted.uid == line.uid:
            known = str(noted.seq)
        if known:
            why = f"that of what it was forked from isn't found, and had version {known}"
            return Losses(why, core.runtime.now_us())
    return None


def wait_until(look: Callable[[], T], enough: Callable[[T], bool], timeout: float) -> T:
    """Look again and again, less and less often, until it is enough or the time is over."""
    deadline = time.monotonic() + check_seconds(timeout, "timeout")
    pause = _POLL_S
    while True:
        now = look()
        left = deadline - time.monotonic()
        if enough(now) or left <= 0:
            return now
        time.sleep(min(pause, left))
        pause = min(pause * 1.5, _POLL_S_MAX)
