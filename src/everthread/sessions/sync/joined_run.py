# Generated from src/everthread/sessions/aio/joined_run.py by tools/twin.py: change that, then run: make twin
"""A run that its caller named, as the steps of one process take part in it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from everthread import process
from everthread.errors import ConflictError, SessionFencedError, UsageError
from everthread.sessions.effects import ToolUse
from everthread.sessions.lease import token_of
from everthread.sessions.sync.effects import Caller, Ledger
from everthread.sessions.sync.fenced_thread import FencedThread, RunGuard
from everthread.sessions.sync.journal import Failures, Runs
from everthread.sessions.sync.lease import SharedLease
from everthread.sessions.sync.run_start import SessionOptions, join
from everthread.sessions.sync.status import uid_of
from everthread.versions import RunToken

if TYPE_CHECKING:
    from everthread.sessions.records import EffectRecord, Reason
    from everthread.threads.sync.core import Core, RunError
    from everthread.threads.sync.thread import Thread

_log = logging.getLogger("everthread")

#: How long such a run is waited for after its last write by runs that belong to a process.
_TTL_S = 300.0
#: So many runs are remembered by an open store.
_RUNS_MAX = 256


class JoinedRun:
    """One run on one thread. Its steps, in however many threads or tasks, share its claims on effects."""

    def __init__(self, core: Core, name: str, uid: str, run: str | RunToken, *, ends: bool = False) -> None:
        #: Whether it is here to end the run: then it may write after :meth:`close`.
        self._ends = ends
        self.id = token_of(run)[0]
        self._token = run
        #: The effects that this run skipped, each with the execution that had made it.
        self.skipped: dict[str, str] = {}
        self._core = core
        self._name = name
        self._uid = uid
        self._lease = self._new_lease(run)
        self.vouched = b""
        self._writers: tuple[Caller, Runs, Failures] | None = None
        self._guard: RunGuard | None = None
        self._lock = process.ProcessLock()

    def _new_lease(self, run: str | RunToken) -> SharedLease:
        return SharedLease(self._core, self._uid, run, ttl_us=round(_TTL_S * 1_000_000), ends=self._ends)

    def enter(self, run: str | RunToken) -> bool:
        """Before something is written; whether the thread may have got a fence from this. One read, unless
        the run begins, or takes over.

        Raises :class:`SessionFencedError` if a newer run has come, :class:`SessionBusyError` if a run holds
        the thread that belongs to a process.
        """
        with self._lock:
            with suppress(SessionFencedError):
                self._lease.check()
                if not self._lease.fence_due:
                    return False
            self._start(run)
            return True

    def require_not_superseded(self) -> None:
        """Before what is recorded is handed out; nothing is begun by that."""
        fenced = self._lease.is_superseded()
        if fenced is not None:
            raise fenced

    def close(self) -> None:
        """Let nothing more of the run be written but its end. What is in progress is refused when it commits:
        it meets the version of the end, and finds the lease closed."""
        with self._lock:
            self._lease.close()

    def describe(self, **about: Any) -> None:
        """Record more about the run, such as its agent."""
        with self._lock:
            _, runs, _ = self._begun()
            runs.describe(**about)

    def end(self, reason: str, error: RunError | None = None, **about: Any) -> None:
        """End the run for good, for all of its processes, and record the reason: others may have the thread
        at once. Record what it failed with once, sealed as its user's if the session has one. Do nothing if
        it has ended already, or if another run has taken over."""
        with self._lock:
            self.vouched = b""
            # Whoever has ended it, or taken over, has recorded that.
            with suppress(SessionFencedError):
                self._lease.check()
                _, runs, failures = self._begun()
                note = None
                if error is not None and not failures.is_known(error.id):
                    note = partial(failures.put_named, error.name, error.message, "workflow", id_=error.id)
                name = None if error is None else error.name
                runs.end(cast("Reason", reason), name, note, about)
                self._lease.release()

    def wrote(self) -> None:
        """After a write, which stands whatever becomes of the lease."""
        with suppress(SessionFencedError):
            self._lease.renew_if_due()

    def call_effect(
        self,
        key: str,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        verify: Callable[..., Any] | None,
        retry_on: Any,
        step: tuple[str, int],
    ) -> Any:
        """Call a function that has an effect: see :meth:`AgentSession.call`."""
        with self._lock:
            caller, _, _ = self._begun()
        options: Any = {"verify": verify, "retry_on": retry_on, "step": step}
        return caller.call_effect(key, fn, args, kwargs, **options)

    def _begun(self) -> tuple[Caller, Runs, Failures]:
        """What writes to the journal of the run. Needs the lock."""
        if self._writers is None or self._guard is None or self._guard.fenced is not None:
            # At the first call; and where the run was ended, and goes on.
            return self._start(self._token)
        return self._writers

    def _start(self, run: str | RunToken) -> tuple[Caller, Runs, Failures]:
        """Become part of the run, and open its journal."""
        self._writers, self._token = None, run
        lease = self._new_lease(run)
        options = SessionOptions(name=self._name, run=run, ttl_s=_TTL_S)
        begun = join(self._core, self._name, self._uid, options, lease)
        self._lease, self._guard = lease, begun.guard
        failures = Failures(begun.journal, self.id, begun.user_id)
        execution = run.execution if isinstance(run, RunToken) else ""

        def note_skipped(effect: EffectRecord) -> None:
            self._note_skipped(effect, begun.runs)

        caller = Caller(
            begun.journal,
            Ledger(begun.journal, self.id, shared=True, execution=execution),
            self.id,
            _tell_nobody,
            failures.put,
            ttl_us=lease.holder.ttl_us,
            denied=self._name if begun.thread.effects == "deny" else None,
            on_skip=note_skipped,
        )
        self._writers = caller, begun.runs, failures
        return self._writers

    def _note_skipped(self, effect: EffectRecord, runs: Runs) -> None:
        """Record and log, at the first effect that is skipped, which earlier execution made it."""
        is_first = not self.skipped and runs.current.skipped is None
        self.skipped[effect.key] = effect.execution
        if not is_first:
            return
        _log.warning(
            "effect %r on thread %r was skipped: execution %s made it at %s; to make effects once in each "
            'execution, call open_thread(effects="execution")',
            effect.key,
            self._name,
            effect.execution,
            f"{effect.at:%Y-%m-%d %H:%M:%S} UTC",
        )
        runs.describe(skipped=effect.execution)


def _tell_nobody(use: ToolUse) -> None:
    """Steps have no hooks."""


def join_run(thread: Thread, run: str | RunToken, *, ends: bool = False) -> JoinedRun:
    """For ``thread.step(…, run=…)``: the run, on a thread that exists from then on. See ``Core.join_run``."""
    if isinstance(thread, FencedThread) and thread.is_held:
        raise UsageError("this handle is a session's, whose run its steps belong to: leave out run=")
    core, name = thread.core, token_of(run)[0]
    if thread.head is None:
        # A lease belongs to a thread that exists.
        try:
            thread.commit(metadata={"run": name})
        except ConflictError:
            thread.discard()
            thread.refresh()
    uid = uid_of(thread)
    if ends:
        # One of its own: steps of the run that share the other one must not write after it is closed.
        return JoinedRun(core, thread.name, uid, run, ends=True)
    known = core.joined_runs
    joined = known.get((uid, name))
    if joined is None:
        joined = known.setdefault((uid, name), JoinedRun(core, thread.name, uid, run))
        while len(known) > _RUNS_MAX:
            known.pop(next(iter(known)), None)
    found: JoinedRun = joined
    return found
