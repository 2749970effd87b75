"""What a session keeps, call by call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from everthread.arguments import check_mapping, check_name
from everthread.errors import EverthreadError
from everthread.hooks import HookFailure, SessionLifecycle
from everthread.sessions import records
from everthread.sessions.beginning import Begun
from everthread.sessions.calling import Caller, ToolUse, drive, drive_async, make_call, settle
from everthread.sessions.checkpointing import Checkpoints, kept_at, read_checkpoints
from everthread.sessions.decisions import Decisions, PendingDecision, open_decisions
from everthread.sessions.effects import Done, Ledger
from everthread.sessions.entries import (
    CheckpointRecord,
    DecisionRecord,
    EffectRecord,
    ErrorRecord,
    decision_of,
)
from everthread.sessions.failures import Failures, read_errors
from everthread.sessions.messages import Messages
from everthread.sessions.slices import TASKS, custom_part, slice_of
from everthread.sessions.taskgraph import checked_map, with_both_sides
from everthread.sessions.tasks import Tasks

if TYPE_CHECKING:
    from everthread.threads.document import TrackedDict
    from everthread.threads.sync.thread import AnyVersion, Thread
    from everthread.versions import Version
    from everthread.working.state import WorkingState

_ERRORS_SHOWN = 1_000


class Keeping:
    """The part of a session that is about what it keeps; :class:`AgentSession` adds its life."""

    def __init__(self, begun: Begun, hooks: SessionLifecycle) -> None:
        #: What this run found when it began: see ``sessions/records``.
        self.found = begun.found
        self.user_id = begun.user_id
        self.run_id = begun.run_id
        self._hooks = hooks
        self._hold = begun.hold
        self._thread = begun.thread
        self._journal = begun.journal
        #: The working state in the sense of A1: this process's memory, gone with ``close()``.
        self.scratch: dict[str, Any] = {}
        #: Tasks and what blocks them.
        self.tasks = Tasks(self._thread)
        #: As ``thread.messages``, each change committed.
        self.messages = Messages(self._thread)
        self._checkpoints = Checkpoints(self._thread, self.scratch)
        self._decisions = Decisions(self._thread, self.run_id)
        self._failures = Failures(self._journal, self.run_id, self.user_id)
        self._ledger = Ledger(self._journal, self.run_id)
        self._caller = Caller(self._journal, self._ledger, self.run_id, self._tell_tool, self._failures.put)

    def _tell(self, event: str, *args: Any) -> None:
        """Call the hooks of an event; one that fails is noted and changes nothing."""
        for failure in self._hooks.fire(event, *args):
            self._note_hook(failure)

    def _note_hook(self, failure: HookFailure) -> None:
        # If that fails, too: it is in the log of the process and in the lifecycle's own list as well.
        with suppress(EverthreadError):
            self._failures.note(failure.error, f"hook {failure.hook} of {failure.event}")

    def _tell_tool(self, use: ToolUse) -> None:
        self._tell("on_tool_use", use)

    @property
    def thread(self) -> Thread:
        """The session's handle on its thread. What is changed through it directly is committed by
        :meth:`save`, or together with the session's next change."""
        return self._thread

    @property
    def state(self) -> TrackedDict:
        """The document; see ``thread``."""
        return self._thread.state

    @cached_property
    def work(self) -> WorkingState:
        """Todos, context, open loops, intentions and constraints; each change is durable when it returns."""
        from everthread.working.state import WorkingState

        thread = self._thread
        return WorkingState.on(
            thread, save=thread.save, hooks=self._hooks, clock=thread.now_us, ids=thread.new_id
        )

    def log(self, name: str) -> Messages:
        """A log of the thread, as ``messages`` is one."""
        return Messages(self._thread, name)

    # ── three lifetimes ──────────────────────────────────────────────────────────────────────

    def set_working(self, key: str, value: Any) -> None:
        """Keep a value in memory, until :meth:`close`."""
        self._hold.permit()
        self.scratch[key] = value

    def get_working(self, key: str, default: Any = None) -> Any:
        return self.scratch.get(key, default)

    def clear_working(self, key: str | None = None) -> None:
        """Forget what is under ``key``, or without one all of it."""
        if key is None:
            self.scratch.clear()
        else:
            self.scratch.pop(key, None)

    def checkpoint(self, label: str, include_keys: Iterable[str] | None = None) -> str:
        """Keep parts of the working state at a meaningful boundary, all of it without ``include_keys``; the
        checkpoint's id. Raises :class:`InvalidValueError` if a named key is absent."""
        return self._checkpoints.make(label, include_keys)

    def get_checkpoint(self, label: str) -> dict[str, Any] | None:
        """What the newest checkpoint with this label kept, or ``None``."""
        with self._thread.lock:
            return kept_at(self._thread, label)

    def list_checkpoints(self) -> list[CheckpointRecord]:
        """All of them, oldest first."""
        with self._thread.lock:
            return read_checkpoints(self._thread)

    def save(self, label: str | None = None, metadata: Mapping[str, Any] | None = None) -> Version | None:
        """Commit what was changed directly in ``state`` or through ``thread``."""
        with self._thread.writing(label=label, metadata=metadata):
            pass
        return self._thread.head

    def rewind(self, version: AnyVersion) -> Version:
        """Go back to an earlier version of the thread: document, logs, tasks, working state. What was
        uncommitted is committed first, so that the rewind can be undone."""
        with self._thread.lock:
            self.save()
            return self._thread.rewind(version)

    def rewind_to_checkpoint(self, label: str) -> Version:
        """Go back to the newest checkpoint with this label; :class:`NotFoundError` if there is none."""
        with self._thread.lock:
            self.save()
            return self._thread.rewind(self._checkpoints.version_of(label))

    # ── the slice ────────────────────────────────────────────────────────────────────────────

    def slice(self) -> dict[str, Any]:
        """Tasks and custom state as plain data: what goes on from run to run, apart from bookkeeping."""
        with self._thread.lock:
            return with_both_sides(slice_of(self._thread.state.plain()))

    def merge_update(self, update: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        """Assign custom state key by key; ``tasks``, if given, replaces all tasks. One version. Bookkeeping
        (status, turns, usage, …) that comes along is left out."""
        if update is not None:
            check_mapping(update, "update")
        given = {**(update or {}), **more}
        custom = custom_part(given)
        tasks = checked_map(given[TASKS]) if TASKS in given else None
        with self._thread.writing():
            if tasks is not None:
                custom[TASKS] = tasks
            self._thread.state.update(custom)

    # ── decisions, errors ────────────────────────────────────────────────────────────────────

    def decide(
        self, decision: Any, rationale: Any = "", planned_action: Any = "", rejected: Iterable[Any] = ()
    ) -> PendingDecision:
        """Write a decision down before acting upon it. As a context manager it records its outcome."""
        return self._decisions.decide(decision, rationale, planned_action, rejected)

    def record_outcome(self, decision_id: str, outcome: Any, *, failed: bool = False) -> DecisionRecord:
        """Say what came of a decision. The same again changes nothing; another outcome is refused, as is an
        unknown id: :class:`InvalidStateError`."""
        return self._decisions.settle(decision_id, outcome, failed)

    def incomplete_decisions(self) -> list[DecisionRecord]:
        """What was decided, by this run or an earlier one, and has no outcome; oldest first."""
        with self._thread.lock:
            found = [decision_of(stored) for stored in open_decisions(self._thread).values()]
        return sorted(found, key=lambda decision: decision.at_us)

    @property
    def errors(self) -> list[ErrorRecord]:
        """What went wrong in all runs, oldest first (the newest thousand)."""
        with self._journal.lock:
            return read_errors(self._journal, _ERRORS_SHOWN)[::-1]

    def record_error(
        self, error: BaseException | str, *, where: str = "", handled: str | None = None
    ) -> ErrorRecord:
        """Note what went wrong and what was done about it. What leaves a turn, a tool, an effect or the
        session itself is noted without this."""
        return self._failures.record(error, where=where or "session", handled=handled)

    def record_handling(self, error_id: str, handled: str) -> None:
        """Say later what was done about an error."""
        self._failures.handled(error_id, handled)

    # ── effects ──────────────────────────────────────────────────────────────────────────────

    def call(
        self,
        key: str,
        fn: Callable[..., Any],
        /,
        *args: Any,
        verify: Callable[..., Any] | None = None,
        retry_on: Any = (),
        **kwargs: Any,
    ) -> Any:
        """Call ``fn(*args, **kwargs)``, which has an effect on the world, at most once for this key, over all
        runs, rewinds and forks; its result, recorded or fresh.

        Written down before and after. If it was begun and isn't known to have ended, ``verify``, called with
        the same arguments, says what happened: ``True`` or ``Done(result)``: it is done; ``False``: it is run
        again; ``None``: unknown. Without an answer :class:`InDoubtError` is raised and nothing is repeated.
        An exception of ``fn`` is raised as it is and leaves the effect in doubt, because nobody knows how far
        it had got, unless ``retry_on`` names it as one after which nothing has happened.
        """
        return drive(self._caller.plan(make_call(key, fn, args, kwargs, verify, retry_on)))

    async def acall(
        self,
        key: str,
        fn: Callable[..., Any],
        /,
        *args: Any,
        verify: Callable[..., Any] | None = None,
        retry_on: Any = (),
        **kwargs: Any,
    ) -> Any:
        """As :meth:`call`; ``fn`` and ``verify`` may be async functions. The ledger itself is written on the
        spot, which takes as long as a commit."""
        return await drive_async(self._caller.plan(make_call(key, fn, args, kwargs, verify, retry_on)))

    def settle(self, key: str, outcome: Done | bool) -> None:
        """Say what became of an effect in doubt: ``True`` or ``Done(result)``, or ``False`` if it has not
        happened. Raises :class:`NotFoundError` if it isn't in doubt."""
        with self._journal.lock:
            settle(self._ledger, self._ledger.require(check_name(key, "key")), outcome, "settle")

    def accept_losses(self) -> bool:
        """Say that nothing which the journal of this thread has lost can be called again, or that it may:
        effects that it doesn't know count as not begun from here on. Whether it had lost anything."""
        return self._ledger.accept_losses()

    def in_doubt(self) -> list[EffectRecord]:
        """Effects that were begun and are not known to have ended, except those that run just now."""
        return [
            msgspec.structs.replace(effect, state="in_doubt")
            for effect in records.of(self._thread).open_effects()
            if not self._caller.runs(effect.key)
        ]

    def effects(self, limit: int | None = 20) -> list[EffectRecord]:
        """The newest settled effects, newest first."""
        return records.of(self._thread).effects(limit)
