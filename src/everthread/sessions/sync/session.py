# Generated from src/everthread/sessions/aio/session.py by tools/twin.py: change that, then run: make twin
"""One run of an agent on a thread: how it begins, what it does, how it ends."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from time import monotonic
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from everthread.arguments import check_mapping, check_name, check_seconds, counted
from everthread.briefing.selection import Briefing
from everthread.errors import (
    EverthreadError,
    InvalidStateError,
    InvalidValueError,
    MaxTurnsError,
    NotFoundError,
    SessionBusyError,
    ThreadDeletedError,
    ToolVetoError,
    UsageError,
)
from everthread.hooks import HookFailure, SessionLifecycle, hooks_of
from everthread.sessions.effects import Done, ToolUse, make_call, repeated
from everthread.sessions.records import (
    STATUS_OF,
    CheckpointRecord,
    DecisionRecord,
    EffectRecord,
    ErrorRecord,
    Reason,
    RunRecord,
    Status,
)
from everthread.sessions.resume import ResumeReport
from everthread.sessions.sync.checkpoints import Checkpoints, checkpoint_parts, read_checkpoints
from everthread.sessions.sync.decisions import Decisions, PendingDecision, read_open_decisions
from everthread.sessions.sync.effects import Caller, Ledger, OvertakenError, settle
from everthread.sessions.sync.inbox import Inbox
from everthread.sessions.sync.journal import Failures, read_errors
from everthread.sessions.sync.run_start import SessionOptions, StartedRun, begin
from everthread.sessions.sync.status import records_of
from everthread.sessions.sync.tasks import Tasks
from everthread.sessions.sync.turns import Messages, Turn, deliver, post
from everthread.sessions.usage import Count, Total, Usage, checked_counts
from everthread.threads.document import TrackedDict
from everthread.threads.sync.thread import AnyVersion, Effects, Thread
from everthread.threads.sync.workspace import wanted_files
from everthread.threads.twins import BlockingFace, pause
from everthread.verifiers.specs import AllowCommands
from everthread.versions import RunToken, Version
from everthread.working.config import Config
from everthread.working.sync.home import Home
from everthread.working.sync.state import WorkingState

T = TypeVar("T")

LEASE_TTL_S = 300.0
#: How long a session that waits for its turn pauses before it looks again, at first and at most.
_PAUSE_S, _PAUSE_S_MAX = 0.005, 0.25


class AgentSession(BlockingFace):
    """One run of an agent on a thread: begun when this is made, ended by :meth:`close` or the ``with`` block.

    What its calls change is durable when they return. Three lifetimes: ``scratch`` is in memory only,
    :meth:`checkpoint` keeps parts of it at meaningful boundaries, everything else is the thread's. Effects,
    usage, turns, runs and errors are kept beside the thread and never rewound.

    ``mode``: ``"continue"`` the thread (it is created if there is none), ``"new"`` (raises
    :class:`ThreadExistsError` if there is one), or ``"fork"`` from ``source``, at a version if ``at`` names
    one, its logs changed by ``prepare`` and ``transform`` as :meth:`Thread.fork` does it, and without
    effects of its own if ``effects`` is ``"deny"``. Repeated with its ``key``, after a kill for one, either
    of the latter goes on with the thread that the first call made.
    ``system`` is the first message of a thread that is created, ``initial`` its custom state. On a
    thread that has messages, a ``system`` that isn't its own raises, unless ``replace_system`` says that it
    shall take the other's place. After ``max_turns`` turns :meth:`turn` raises :class:`MaxTurnsError`.
    ``lease_ttl`` is how many seconds after its last write or :meth:`heartbeat` another process may take the
    session over, if it can't see that this one is dead. ``wait_s`` is how many seconds to wait while another
    run holds the thread. ``parent`` is the session that this is a subagent of.

    ``run`` names the run, as text or a :class:`RunToken`: every process that begins a session with the same
    name is part of one run, several at a time. Leaving the block leaves such a run open, unless an end was
    chosen in it (:meth:`complete`, :meth:`fail`, :meth:`cancel`, :meth:`wait_for_input`), which then is the
    end for all; an exception is recorded, and leaves it open. A newer run takes over from an older one, which
    gets :class:`SessionFencedError` from then on.

    Tools may run in several threads or tasks: :meth:`call`, ``messages``, ``tasks`` and the rest take turns.
    ``work`` and ``state`` are for one thread at a time. Raises :class:`SessionBusyError` if another live run
    holds the thread, and :class:`SessionFencedError` from the first write after another one has taken over.
    """

    def __init__(
        self,
        session_id: str | None = None,
        user_id: str | None = None,
        *,
        agent: str | None = None,
        store: Any = None,
        max_turns: int | None = None,
        hooks: Any = None,
        mode: str = "continue",
        source: str | Thread | None = None,
        at: AnyVersion | None = None,
        key: str | None = None,
        effects: Effects = "inherit",
        prepare: Callable[..., Any] | None = None,
        transform: Callable[..., Any] | None = None,
        system: Any = None,
        replace_system: bool = False,
        initial: Mapping[str, Any] | None = None,
        lease_ttl: float = LEASE_TTL_S,
        wait_s: float = 0,
        parent: AgentSession | None = None,
        run: str | RunToken | None = None,
        _must_exist: bool = False,
        _unlisted: bool = False,
    ) -> None:
        lifecycle = hooks_of(hooks)
        if parent is not None and not isinstance(parent, AgentSession):
            # Before a run is begun, which would hold the thread.
            kind = type(parent).__name__
            raise InvalidValueError(f"parent is the session that began this one, not {kind}", path="parent")
        self._wanted = SessionOptions(
            name=session_id,
            mode=mode,
            source=source,
            at=at,
            key=key,
            effects=effects,
            prepare=prepare,
            transform=transform,
            agent=agent,
            user_id=user_id,
            system=system,
            replace_system=replace_system,
            initial=initial,
            ttl_s=lease_ttl,
            max_turns=max_turns,
            must_exist=_must_exist,
            unlisted=_unlisted and run is None,
            run=run,
        )
        self._wait_s = check_seconds(wait_s, "wait_s")
        self.agent = agent
        self.max_turns = max_turns
        self._lifecycle = lifecycle
        self._parent = parent
        self._pid = os.getpid()
        self._chosen: Reason | None = None
        self._turn: Turn | None = None
        self._exhausted: MaxTurnsError | None = None
        self._closing = False
        self._ended: tuple[Reason | None, RunRecord, Total] | None = None
        self.sandbox_id: str | None = None
        #: What ``on_session_exit`` is told; set it to the reference of a snapshot taken at the end.
        self.exit_snapshot: Any = None
        self._has_begun = False
        self._home = Home(store, Config())
        self._begin_in_turn()

    def _begin_in_turn(self) -> None:
        """Begin, and while another run holds the thread try again, for as long as the caller waits."""
        until_s, pause_s = monotonic() + self._wait_s, _PAUSE_S
        try:
            while not self._has_begun:
                try:
                    self._begin()
                except SessionBusyError:
                    left_s = until_s - monotonic()
                    if left_s <= 0 or self._has_begun:
                        raise
                    pause(min(pause_s, left_s))
                    pause_s = min(2 * pause_s, _PAUSE_S_MAX)
        except BaseException:
            if not self._has_begun:
                self._home.close()
            raise

    def _begin(self) -> None:
        parent = self._parent
        store = self._home.open()
        wanted = self._wanted
        if parent is not None and parent._caller.denied is not None:
            wanted = msgspec.structs.replace(wanted, denied=True)
        begun = begin(store, wanted, None if parent is None else parent._runs)
        self._set_up(begun, self._lifecycle)
        try:
            if parent is not None:
                parent._runs.begin_child(self.session_id, self._uid, self._runs.total)
            self._notify("on_session_start", self)
        except BaseException as error:
            self.close(error=error)
            raise

    def _set_up(self, begun: StartedRun, hooks: SessionLifecycle) -> None:
        self._has_begun = True
        self._report: ResumeReport | None = None
        self._runs, self._uid = begun.runs, begun.uid
        #: What this run found when it began: see ``sessions/records``.
        self.found = begun.found
        self.user_id = begun.user_id
        self.run_id = begun.run_id
        self._hooks = hooks
        self._guard = begun.guard
        self._thread = begun.thread
        self._journal = begun.journal
        #: The working state in the sense of A1: this process's memory, gone with ``close()``.
        self.scratch: dict[str, Any] = {}
        #: Tasks and what blocks them.
        self.tasks = Tasks(self._thread)
        #: As ``thread.messages``, each change committed.
        self.messages = Messages(self._thread)
        self._inbox = Inbox(self._thread, self._guard, self._uid)
        self._checkpoints = Checkpoints(self._thread, self.scratch)
        self._decisions = Decisions(self._thread, self.run_id, self.agent)
        self._failures = Failures(self._journal, self.run_id, self.user_id)
        shared = self._guard.lease.shared
        denied: str | None = None if self._parent is None else self._parent._caller.denied
        self._ledger = Ledger(self._journal, self.run_id, shared)
        self._caller: Caller = Caller(
            self._journal,
            self._ledger,
            self.run_id,
            self._notify_tool_use,
            self._failures.put,
            ttl_us=self._guard.lease.holder.ttl_us if shared else None,
            denied=self._thread.name if self._thread.effects == "deny" else denied,
        )
        self._thread.handle.effect_caller = self._caller

    @classmethod
    def restore(cls, session_id: str, user_id: str | None = None, **options: Any) -> Self:
        """Go on with a session that exists: its checkpoints are there, its working state is empty. Raises
        :class:`ThreadNotFoundError` if there is none."""
        return cls(session_id, user_id, _must_exist=True, **options)

    # ── what it is ───────────────────────────────────────────────────────────────────────────

    @property
    def session_id(self) -> str:
        return self._thread.name

    @property
    def fence(self) -> int:
        """A number that is higher in every later run: hand it to services that can refuse an older one."""
        return self._guard.lease.fence

    # ── how it stands ────────────────────────────────────────────────────────────────────────

    @property
    def run(self) -> RunRecord:
        """This run."""
        return self._ended[1] if self._ended is not None else self._runs.current

    @property
    def status(self) -> Status:
        return self.run.status

    @property
    def exit_reason(self) -> Reason | None:
        """Why it ended; ``None`` while it goes on."""
        return self._ended[0] if self._ended is not None else None

    @property
    def turns(self) -> int:
        """Turns of all runs on this thread, subagents included."""
        return self._totals().turns

    @property
    def turns_left(self) -> float:
        """How many turns this run may still begin; ``math.inf`` without ``max_turns``, so that the same loop
        serves with a limit and without."""
        return math.inf if self.max_turns is None else max(0, self.max_turns - self.run.turns)

    @property
    def usage(self) -> Usage:
        """What all runs on this thread used, subagents included."""
        return self._totals().usage

    def _totals(self) -> Total:
        return self._ended[2] if self._ended is not None else self._runs.total

    @property
    def version(self) -> int:
        """Grows with every version of the thread and every change of status, never with turns or usage."""
        head = self._thread.head
        return (head.seq if head else 0) + self._runs.changes

    def wait_for_change(self, last_version: int, timeout: float = 55.0) -> int:
        """Wait until ``version`` exceeds ``last_version``, the session has ended, or the time is over; the
        version then. For another thread, or for what others write to the thread; another process has
        ``store.session_records(name).wait_for_change(…)``."""
        if self._ended is not None:
            return self.version
        changed = (records_of(self._thread)).wait_for_change(last_version, timeout)
        return changed.version

    @property
    def resumed(self) -> ResumeReport | None:
        """A report of what this run found, verified; ``None`` if it is the thread's first run."""
        if self.found.last_run is None:
            return None
        if self._report is None:
            from everthread.sessions.sync.resume import resume_report

            self._report = resume_report(self.found, now_us=self._thread.now_us())
        return self._report

    def briefing(
        self,
        max_tokens: int = 1500,
        *,
        tokenizer: Any = None,
        max_age_s: float | None = 86_400.0,
        allow_commands: AllowCommands = False,
        allow_network: bool = True,
        reveal: bool = False,
    ) -> Briefing:
        """The text that a model needs to go on, within a budget, essentials first. Personal values are masked
        unless ``reveal`` is asked for."""
        from everthread.sessions.sync.briefing import session_briefing

        return session_briefing(
            records_of(self._thread),
            found=self.found,
            now_us=self._thread.now_us(),
            max_tokens=max_tokens,
            tokenizer=tokenizer,
            max_age_s=max_age_s,
            allow_commands=allow_commands,
            allow_network=allow_network,
            reveal=reveal,
        )

    # ── while it runs ────────────────────────────────────────────────────────────────────────

    def turn(self) -> Turn:
        """The next turn, to be entered with ``with``. Raises :class:`MaxTurnsError` if ``turns_left`` is 0:
        leaving the session's block with that ends the run, with ``max_turns`` as the reason."""
        self._guard.permit()
        if self.max_turns is not None and not self.turns_left:
            used = counted(self.max_turns, "turn")
            self._exhausted = MaxTurnsError(
                f"this run has used its {used}; end it, or begin one with more max_turns",
                max_turns=self.max_turns,
            )
            raise self._exhausted
        return Turn(
            self._thread, self._runs, self._inbox, self._failures, self._notify, self._mark_turn, self._uid
        )

    def _mark_turn(self, turn: Turn, begins: bool) -> None:
        """A turn begins, or is over."""
        with self._thread.mutex:
            if begins:
                if self._turn is not None:
                    raise InvalidStateError(f"turn {self._turn.number} isn't over yet")
                self._turn, self._chosen = turn, None
            elif self._turn is turn:
                self._turn = None

    def add_usage(self, counts: Mapping[str, Count] | None = None, /, **more: Count) -> None:
        """Count what was used outside a turn: ``s.add_usage(input_tokens=120)``. Durable at once."""
        self._runs.add_usage(checked_counts(counts or {}, more))

    def receive(self, message: Any) -> None:
        """Take a message from outside. Within a turn it is kept, durably, and appended when the turn is over:
        nothing comes between a tool call and its result."""
        with self._thread.mutex:
            if self._turn is not None:
                post(self._thread, message)
            else:
                self.messages.append(message)

    def next_input(self, timeout_s: float | None = None) -> Any:
        """The next message that somebody sent to this thread (``store.send``), appended to ``messages``;
        waits for it so long, without a limit for ever, and then gives ``None``. The run keeps its lease
        meanwhile. Raises :class:`SessionFencedError` if another run has taken over all the same. What comes
        in without this is appended at the start of the next turn."""
        return self._inbox.next(timeout_s)

    def heartbeat(self) -> None:
        """Say that this run is alive, before something that takes long. Writing does so by itself. Raises
        :class:`SessionFencedError` if another run has taken over."""
        self._guard.beat()

    def sandbox_ready(self, sandbox_id: str, base_snapshot: Any = None) -> None:
        """Note the sandbox that this run works in, and tell ``on_sandbox_ready``."""
        # Before anything can fail: the teardown must know of it.
        self.sandbox_id = sandbox_id
        self._runs.set_sandbox(sandbox_id, base_snapshot)
        self._notify("on_sandbox_ready", sandbox_id, base_snapshot)

    def wait_for_input(self) -> None:
        """Someone else's turn. If the run ends like this, that is the reason; the next turn goes on."""
        self._choose("waiting_for_input")

    def complete(self) -> None:
        """The work is done. Said without it, too, by leaving the block."""
        self._choose("completed")

    def cancel(self) -> None:
        """The work was stopped."""
        self._choose("cancelled")

    def fail(self, error: BaseException | str | None = None) -> None:
        """The work failed, although no exception leaves the block."""
        if error is not None:
            self._failures.record(error, where="session")
        self._choose("failed")

    def _choose(self, reason: Reason) -> None:
        with self._thread.mutex:
            self._chosen = reason
            self._runs.set_status(STATUS_OF[reason])

    # ── what it keeps ────────────────────────────────────────────────────────────────────────

    def _notify(self, event: str, *args: Any) -> None:
        """Call the hooks of an event; one that fails is noted and changes nothing. Before a tool runs, a
        :class:`ToolVetoError` of theirs is raised."""
        vetoed = event == "on_tool_use" and args[0].phase == "pre"
        passing = (ToolVetoError,) if vetoed else ()
        for failure in self._hooks.fire(event, *args, passing=passing):
            self._record_hook_failure(failure)

    def _record_hook_failure(self, failure: HookFailure) -> None:
        # If that fails, too: it is in the log of the process and in the lifecycle's own list as well.
        with suppress(EverthreadError):
            self._failures.note(failure.error, f"hook {failure.hook} of {failure.event}")

    def _notify_tool_use(self, use: ToolUse) -> None:
        self._notify("on_tool_use", use)

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
        from everthread.working.sync.state import WorkingState

        thread = self._thread
        return WorkingState.on(
            thread,
            save=thread.save,
            lock=thread.mutex,
            hooks=self._hooks,
            clock=thread.now_us,
            ids=thread.new_id,
        )

    def log(self, name: str) -> Messages:
        """A log of the thread, as ``messages`` is one, with a slice of its own."""
        return Messages(self._thread, name)

    # ── three lifetimes ──────────────────────────────────────────────────────────────────────

    def set_working(self, key: str, value: Any) -> None:
        """Keep a value in memory, until :meth:`close`."""
        self._guard.permit()
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
        with self._thread.mutex:
            return checkpoint_parts(self._thread, label)

    def list_checkpoints(self) -> list[CheckpointRecord]:
        """All of them, oldest first."""
        with self._thread.mutex:
            return read_checkpoints(self._thread)

    def save(self, label: str | None = None, metadata: Mapping[str, Any] | None = None) -> Version:
        """Commit what was changed directly in ``state`` or through ``thread``."""
        with self._thread.writing(label=label, metadata=metadata):
            pass
        head = self._thread.head
        assert head is not None, "a run begins by making its thread"
        return head

    def rewind(self, version: AnyVersion, *, files: bool = False) -> Version:
        """Go back to an earlier version of the thread: document, logs, tasks, working state. What was
        uncommitted is committed first, so that the rewind can be undone. With ``files`` the working folder
        goes back as well, as :meth:`Thread.rewind` does it."""
        with self._thread.mutex:
            if files:
                wanted_files(self._thread, version)
            self.save()
            return self._thread.rewind(version, files=files)

    def fork(
        self,
        name: str,
        at: AnyVersion | None = None,
        *,
        key: str | None = None,
        effects: Effects = "inherit",
        prepare: Callable[..., Any] | None = None,
        transform: Callable[..., Any] | None = None,
    ) -> Thread:
        """A new thread that shares this one's past, as :meth:`Thread.fork`. What was uncommitted is
        committed first, and in the fork."""
        with self._thread.mutex:
            self.save()
            return self._thread.fork(name, at, key=key, effects=effects, prepare=prepare, transform=transform)

    def rewind_to_checkpoint(self, label: str, *, files: bool = False) -> Version:
        """Go back to the newest checkpoint with this label, as :meth:`rewind` does; :class:`NotFoundError` if
        there is none."""
        with self._thread.mutex:
            self.save()
            return self.rewind(self._checkpoints.version_of(label), files=files)

    # ── the slice ────────────────────────────────────────────────────────────────────────────

    def slice(self) -> dict[str, Any]:
        """Tasks and custom state as plain data: what goes on from run to run, apart from bookkeeping. Tasks
        are pairs of id and fields; :meth:`merge_update` takes all of it back."""
        return self.messages.slice()

    def merge_update(self, update: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        """Assign custom state key by key; ``tasks``, if given, replaces all tasks. One version. Bookkeeping
        (status, turns, usage, …) that comes along is left out."""
        if update is not None:
            check_mapping(update, "update")
        self.messages.merge_update({**(update or {}), **more})

    # ── decisions, errors ────────────────────────────────────────────────────────────────────

    def decide(
        self,
        decision: Any,
        rationale: Any = "",
        planned_action: Any = "",
        rejected: Iterable[Any] = (),
        *,
        key: str | None = None,
        effect: str | None = None,
    ) -> PendingDecision:
        """Write a decision down before acting upon it. As a context manager it records its outcome. The
        same ``key`` again gives the decision that was made under it. ``effect`` is the key of the
        :meth:`call` that carries it out: once that is done, so is the decision."""
        return self._decisions.decide(decision, rationale, planned_action, rejected, key, effect)

    def record_outcome(self, decision_id: str, outcome: Any, *, failed: bool = False) -> DecisionRecord:
        """Say what came of a decision. The same again changes nothing; another outcome is refused, as is an
        unknown id: :class:`InvalidStateError`."""
        return self._decisions.settle(decision_id, outcome, failed)

    def incomplete_decisions(self) -> list[DecisionRecord]:
        """What was decided, by this run or an earlier one, and has no outcome; oldest first."""

        def is_done(key: str) -> bool:
            return isinstance(self._ledger.find(key), EffectRecord)

        with self._thread.mutex:
            return read_open_decisions(self._thread, is_done)

    @property
    def errors(self) -> list[ErrorRecord]:
        """What went wrong in all runs, oldest first."""
        with self._journal.mutex:
            return (read_errors(self._journal, sys.maxsize))[::-1]

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
        fn: Callable[..., T],
        /,
        *args: Any,
        verify: Callable[..., Any] | None = None,
        retry_on: Any = (),
        repeatable: bool = False,
        **kwargs: Any,
    ) -> T:
        """Call ``fn(*args, **kwargs)``, which has an effect on the world, at most once for this key, over all
        runs, rewinds and forks; its result, recorded or fresh.

        Written down before and after. If it was begun and isn't known to have ended, ``verify``, called with
        the same arguments, says what happened: ``True`` or ``Done(result)``: it is done; ``False``: it is run
        again; ``None``: unknown. Without an answer :class:`InDoubtError` is raised and nothing is repeated.
        An exception of ``fn`` is raised as it is and leaves the effect in doubt, because nobody knows how far
        it had got, unless ``retry_on`` names it as one after which nothing has happened.

        ``repeatable=True`` is for functions that do no harm if they run twice: one without a recorded result
        is run again and is never in doubt. A recorded result is still returned.
        """
        if repeatable:
            verify, retry_on = repeated(verify), BaseException
        result: T = self._caller.call(make_call(key, fn, args, kwargs, verify, retry_on))
        # If that fails, the ledger still knows that it is done, and whoever reads decisions asks it.
        with suppress(EverthreadError):
            self._decisions.close_for(key)
        return result

    def settle(self, key: str, outcome: Done | bool) -> None:
        """Say what became of an effect in doubt: ``True`` or ``Done(result)``, or ``False`` if it has not
        happened. Raises :class:`NotFoundError` if it isn't in doubt."""
        with self._journal.mutex:
            intent = self._ledger.require(check_name(key, "key"))
            try:
                settle(self._ledger, intent, outcome, "settle")
            except OvertakenError:
                raise NotFoundError(f"the effect {key!r} was settled by somebody else just now") from None

    def accept_loss(self) -> bool:
        """Say that nothing which the journal of this thread has lost can be called again, or that it may:
        effects that it doesn't know count as not begun from here on. Whether it had lost anything."""
        return self._ledger.accept_loss()

    def in_doubt(self) -> list[EffectRecord]:
        """Effects that were begun and are not known to have ended, except those that run just now."""
        records = records_of(self._thread)
        return [
            msgspec.structs.replace(effect, state="in_doubt")
            for effect in records.open_effects()
            if not self._caller.runs(effect.key)
            and not (self._guard.lease.shared and effect.state == "in_flight")
        ]

    def effects(self, limit: int | None = None) -> list[EffectRecord]:
        """Return the settled effects, newest first, all of them without a ``limit``."""
        return (records_of(self._thread)).effects(limit)

    # ── the end ──────────────────────────────────────────────────────────────────────────────

    def close(self, *, error: BaseException | None = None) -> None:
        """End the run: save what isn't saved, tell the hooks, record the end, give the lease back. On every
        path, and once. ``error`` is why it ends, if it failed."""
        with self._thread.mutex:
            if self._closing:
                return
            self._closing = True
        if os.getpid() != self._pid:
            # A child that was forked off: the session is its parent's.
            return
        self._end(error)

    def leave(self) -> None:
        """End this part of a run that its caller named (``run=``); the run itself goes on. Leaving the block
        does the same, unless an end was chosen in it."""
        if not self._guard.lease.shared:
            raise UsageError("a run that belongs to this process is ended: close(), complete(), fail(), …")
        self._chosen = None
        self.close()

    def _leaves_open(self, error: BaseException | None) -> bool:
        """Whether the run goes on in other processes, or later."""
        if not self._guard.lease.shared or (error is not None and error is self._exhausted):
            return False
        return self._chosen is None or error is not None

    def _end(self, error: BaseException | None) -> None:
        end = Teardown()
        leaves_open = self._leaves_open(error)
        end.take(self._save_all)
        end.take(self._caller.flush)
        reason = reason_of(error, self._chosen, error is not None and error is self._exhausted)
        if self._guard.fenced is not None:
            reason = "failed"
        if reason == "failed" and error is not None:
            end.take(self._failures.note, error, "session")
        total = end.take(lambda: self._runs.total) or Total()
        if leaves_open:
            self._ended = (None, self._runs.current, total)
        else:
            own = end.take(lambda: self._runs.current)
            own_turns, own_usage = (0, Usage()) if own is None else (own.turns, own.usage)
            figures = (reason, total.turns, total.usage, own_turns, own_usage)
            end.take(self._notify, "on_session_end", *figures)
            end.take(self._runs.end, reason, None if error is None else type(error).__name__)
            run = msgspec.structs.replace(self._runs.current, status=STATUS_OF[reason], reason=reason)
            self._ended = (reason, run, total)
        end.take(self._notify, "on_session_exit", self.sandbox_id, self.exit_snapshot, self._thread)
        if self._parent is not None:
            end.take(self._parent._runs.end_child, self.session_id, total)
        with self._thread.mutex, self._journal.mutex:
            # A tool of another thread or task finishes what it writes just now, and begins nothing more.
            self._guard.close()
        self._thread.end()
        # A run that no journal tells of must not vanish: its lease shows that it began.
        recorded = end.take(lambda: self._runs.recorded or self._runs.is_unlisted)
        gives_back = recorded and not leaves_open
        end.take(self._guard.lease.release if gives_back else self._guard.lease.abandon)
        self.scratch.clear()
        end.take(self._home.close)
        end.conclude(error)

    def _save_all(self) -> None:
        with self._thread.writing():
            deliver(self._thread)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(error=error)

    def __repr__(self) -> str:
        return f"<session {self.session_id!r}, run {self.run_id}: {self.status}>"


# ── how a run ends ───────────────────────────────────────────────────────────────────────────────


_STOPPED = (KeyboardInterrupt, SystemExit, GeneratorExit)


def reason_of(error: BaseException | None, chosen: Reason | None, exhausted: bool) -> Reason:
    """Why a run ends that leaves its block with ``error``; what was ``chosen`` before counts without one."""
    if error is None:
        return chosen or "completed"
    if exhausted:
        return "max_turns"
    return "cancelled" if is_cancellation(error) else "failed"


def is_cancellation(error: BaseException) -> bool:
    """Whether somebody stopped it, rather than that it failed."""
    # Only modules that are loaded can have raised their errors; don't load them for this.
    kinds = [
        getattr(sys.modules[name], "CancelledError", None)
        for name in ("asyncio", "concurrent.futures")
        if name in sys.modules
    ]
    return isinstance(error, (*_STOPPED, *(kind for kind in kinds if kind is not None)))


class Teardown:
    """Steps that are all taken, whatever becomes of those before; the first failure is remembered."""

    def __init__(self) -> None:
        self.failure: BaseException | None = None

    def take(self, step: Callable[..., Any], *args: Any) -> Any:
        """What the step gives; ``None`` if it fails."""
        try:
            return step(*args)
        except Exception as error:
            self.failure = self.failure or error
        except BaseException as error:
            # An interrupt in the middle of it: the rest is still to be done, and then it counts.
            if self.failure is None or isinstance(self.failure, Exception):
                self.failure = error
        return None

    def conclude(self, error: BaseException | None) -> None:
        """Raise what failed, or make it a note to the error that is on its way already."""
        # What was deleted meanwhile needs no end.
        if self.failure is None or self.failure is error or isinstance(self.failure, ThreadDeletedError):
            return
        if error is None or not isinstance(self.failure, EverthreadError):
            raise self.failure
        error.add_note(f"ending the session: {self.failure}")
