"""One run of an agent on a thread."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import msgspec

from everthread.arguments import counted
from everthread.errors import InvalidStateError, InvalidValueError, MaxTurnsError
from everthread.sessions import records
from everthread.sessions.beginning import Wanted, begin
from everthread.sessions.ending import Teardown, reason_of
from everthread.sessions.entries import STATUS_OF, Reason, RunRecord, Status
from everthread.sessions.hooking import hooks_of
from everthread.sessions.keeping import Keeping
from everthread.sessions.messages import deliver, post
from everthread.sessions.turns import Turn
from everthread.sessions.usage import Count, Total, Usage, checked_counts
from everthread.working.config import Config
from everthread.working.places import Home

if TYPE_CHECKING:
    from types import TracebackType

    from everthread.briefing.selecting import Briefing
    from everthread.sessions.resuming import ResumeReport
    from everthread.threads.sync.thread import AnyVersion, Thread
    from everthread.verifiers.permissions import AllowCommands

MAX_TURNS = 50
LEASE_TTL_S = 300.0


class AgentSession(Keeping):
    """One run of an agent on a thread: begun when this is made, ended by :meth:`close` or the ``with`` block.

    What its calls change is durable when they return. Three lifetimes: ``scratch`` is in memory only,
    :meth:`checkpoint` keeps parts of it at meaningful boundaries, everything else is the thread's. Effects,
    usage, turns, runs and errors are kept beside the thread and never rewound.

    ``mode``: ``"continue"`` the thread (it is created if there is none), ``"new"`` (raises
    :class:`ThreadExistsError` if there is one), or ``"fork"`` from ``source``, at a version if ``at`` names
    one. ``system`` is the first message of a thread that is created. ``lease_ttl`` is how many seconds after
    its last write or :meth:`heartbeat` another process may take the session over, if it can't see that this
    one is dead. ``parent`` is the session that this is a subagent of.

    Tools may run in several threads: :meth:`call`, ``messages``, ``tasks`` and the rest take turns. ``work``
    and ``state`` are for one thread at a time. Raises :class:`SessionBusyError` if another live run holds the
    thread, and :class:`SessionFencedError` from the first write after another one has taken over.
    """

    def __init__(
        self,
        session_id: str | None = None,
        user_id: str | None = None,
        *,
        agent: str | None = None,
        store: Any = None,
        max_turns: int | None = MAX_TURNS,
        hooks: Any = None,
        mode: str = "continue",
        source: str | Thread | None = None,
        at: AnyVersion | None = None,
        system: Any = None,
        lease_ttl: float = LEASE_TTL_S,
        parent: AgentSession | None = None,
        _must_exist: bool = False,
    ) -> None:
        lifecycle = hooks_of(hooks)
        if parent is not None and not isinstance(parent, AgentSession):
            # Before a run is begun, which would hold the thread.
            kind = type(parent).__name__
            raise InvalidValueError(f"parent is the session that began this one, not {kind}", path="parent")
        wanted = Wanted(
            name=session_id,
            mode=mode,
            source=source,
            at=at,
            agent=agent,
            user_id=user_id,
            system=system,
            ttl_s=lease_ttl,
            max_turns=max_turns,
            must_exist=_must_exist,
        )
        self._home = Home(store, Config())
        try:
            begun = begin(self._home.open(), wanted)
        except BaseException:
            self._home.close()
            raise
        super().__init__(begun, lifecycle)
        self.agent = agent
        self.max_turns = max_turns
        self._runs, self._uid = begun.runs, begun.uid
        self._pid = os.getpid()
        self._chosen: Reason | None = None
        self._turn: Turn | None = None
        self._exhausted: MaxTurnsError | None = None
        self._closing = False
        self._ended: tuple[Reason, RunRecord, Total] | None = None
        self.sandbox_id: str | None = None
        #: What ``on_session_exit`` is told; set it to the reference of a snapshot taken at the end.
        self.exit_snapshot: Any = None
        self._parent = parent
        try:
            if parent is not None:
                parent._runs.begin_child(self.session_id, self._uid, self._runs.total)
            self._tell("on_session_start", self)
        except BaseException as error:
            self.close(error=error)
            raise

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
        return self._hold.lease.fence

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
        return records.of(self._thread).wait_for_change(last_version, timeout).version

    @cached_property
    def resumed(self) -> ResumeReport | None:
        """A report of what this run found, verified; ``None`` if it is the thread's first run."""
        if self.found.last_run is None:
            return None
        from everthread.sessions.resuming import resume_report

        return resume_report(self.found, now_us=self._thread.now_us())

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
        from everthread.sessions.briefs import session_briefing

        return session_briefing(
            records.of(self._thread),
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
        """The next turn, to be entered with ``with``. Raises :class:`MaxTurnsError` if none is left: leaving
        the session's block with that ends the run, with ``max_turns`` as the reason, and goes no further."""
        self._hold.permit()
        if self.max_turns is not None and self._runs.current.turns >= self.max_turns:
            used = counted(self.max_turns, "turn")
            self._exhausted = MaxTurnsError(
                f"this run has used its {used}; end it, or begin one with more max_turns",
                max_turns=self.max_turns,
            )
            raise self._exhausted
        return Turn(self._thread, self._runs, self._failures, self._tell, self._mark_turn, self._uid)

    def _mark_turn(self, turn: Turn, begins: bool) -> None:
        """A turn begins, or is over."""
        with self._thread.lock:
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
        with self._thread.lock:
            if self._turn is not None:
                post(self._thread, message)
            else:
                self.messages.append(message)

    def heartbeat(self) -> None:
        """Say that this run is alive, before something that takes long. Writing does so by itself. Raises
        :class:`SessionFencedError` if another run has taken over."""
        self._hold.beat()

    def sandbox_ready(self, sandbox_id: str, base_snapshot: Any = None) -> None:
        """Note the sandbox that this run works in, and tell ``on_sandbox_ready``."""
        # Before anything can fail: whoever tears down must know of it.
        self.sandbox_id = sandbox_id
        self._runs.set_sandbox(sandbox_id, base_snapshot)
        self._tell("on_sandbox_ready", sandbox_id, base_snapshot)

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
        with self._thread.lock:
            self._chosen = reason
            self._runs.set_status(STATUS_OF[reason])

    # ── the end ──────────────────────────────────────────────────────────────────────────────

    def close(self, *, error: BaseException | None = None) -> None:
        """End the run: save what isn't saved, tell the hooks, record the end, give the lease back. On every
        path, and once. ``error`` is why it ends, if it failed."""
        with self._thread.lock:
            if self._closing:
                return
            self._closing = True
        if os.getpid() != self._pid:
            # A child that was forked off: the session is its parent's.
            return
        end = Teardown()
        end.take(self._save_all)
        end.take(self._caller.flush)
        reason = reason_of(error, self._chosen, error is not None and error is self._exhausted)
        if self._hold.fenced is not None:
            reason = "failed"
        if reason == "failed" and error is not None:
            end.take(self._failures.note, error, "session")
        total = end.take(lambda: self._runs.total) or Total()
        end.take(self._tell, "on_session_end", reason, total.turns, total.usage)
        end.take(self._runs.end, reason, None if error is None else type(error).__name__)
        run = msgspec.structs.replace(self._runs.current, status=STATUS_OF[reason], reason=reason)
        self._ended = (reason, run, total)
        end.take(self._tell, "on_session_exit", self.sandbox_id, self.exit_snapshot, self._thread)
        if self._parent is not None:
            end.take(self._parent._runs.end_child, self.session_id, total)
        self._hold.close()
        self._thread.end()
        end.take(self._hold.lease.release)
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
    ) -> bool:
        self.close(error=error)
        return error is not None and error is self._exhausted

    def __repr__(self) -> str:
        return f"<session {self.session_id!r}, run {self.run_id}: {self.status}>"
