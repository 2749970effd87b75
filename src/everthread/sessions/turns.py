"""One turn of a run: a model call and the tools it asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Self

from everthread.errors import EverthreadError, InvalidStateError
from everthread.sessions.calling import ToolUse
from everthread.sessions.messages import Messages, deliver
from everthread.sessions.usage import Count, Usage, checked_counts

if TYPE_CHECKING:
    from types import TracebackType

    from everthread.sessions.failures import Failures
    from everthread.sessions.held import HeldThread
    from everthread.sessions.runs import Runs
    from everthread.versions import Version


class Turn:
    """What ``with session.turn() as t:`` gives. It is counted when it begins, also if it dies half-way.

    ``number`` counts over all runs of the thread.
    """

    def __init__(
        self,
        thread: HeldThread,
        runs: Runs,
        failures: Failures,
        tell: Callable[..., None],
        mark: Callable[[Turn, bool], None],
        uid: str,
    ) -> None:
        self._thread = thread
        self._runs = runs
        self._failures = failures
        self._tell = tell
        self._mark = mark
        self._uid = uid
        self._counts: dict[str, Count] = {}
        self._open = False
        self._start: Version | None = None
        self.number = 0
        self.rewound = False
        #: As ``session.messages``, but closed with the turn: what a cancelled tool appends late is refused.
        self.messages = Messages(thread, permit=self._permit)

    # ── inside ───────────────────────────────────────────────────────────────────────────────

    def message_id(self, slot: Any) -> str:
        """An id derived from the thread, this turn and ``slot``, to append a message under: the same whenever
        this turn asks for it, whatever ids a model provider uses again, and never that of another turn."""
        # With the run: a journal that fell back to an older version counts turns from there once more.
        text = f"{self._uid}\0{self._runs.run_id}\0{self.number}\0{slot}"
        return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]

    def add_usage(self, counts: Mapping[str, Count] | None = None, /, **more: Count) -> None:
        """Count what this turn used: ``t.add_usage(input_tokens=120, output_tokens=40)``. Durable at once: it
        is used, whatever becomes of the turn."""
        self._check_open()
        added = checked_counts(counts or {}, more)
        self._runs.add_usage(added)
        for name, count in added.items():
            self._counts[name] = self._counts.get(name, 0) + count

    @property
    def usage(self) -> Usage:
        """What was counted in this turn."""
        return Usage(self._counts)

    @contextmanager
    def tool(self, name: str, *args: Any, **kwargs: Any) -> Iterator[None]:
        """Around a tool that needs no ledger: tells ``on_tool_use``, and notes it if the tool raises."""
        self._check_open()
        use: dict[str, Any] = {"name": name, "args": args, "kwargs": kwargs}
        self._tell("on_tool_use", ToolUse(phase="pre", **use))
        try:
            yield
        except Exception as error:
            self._failures.note(error, f"tool {name}")
            self._tell("on_tool_use", ToolUse(phase="failure", error=error, **use))
            raise
        self._tell("on_tool_use", ToolUse(phase="post", **use))

    def rewind(self) -> Version | None:
        """Take back what this turn did to the thread: messages, tasks, working and custom state together. The
        turn stays counted, usage and effects stay recorded, and nothing can be appended through it."""
        with self._thread.lock:
            self._check_open()
            self.rewound = True
            self._thread.discard()
            if self._start is None or self._start is self._thread.head:
                return self._thread.head
            return self._thread.rewind(self._start)

    def _check_open(self) -> None:
        if not self._open:
            raise InvalidStateError("a turn works inside its with block only")

    def _permit(self) -> None:
        self._check_open()
        if self.rewound:
            raise InvalidStateError(
                f"turn {self.number} was rewound; nothing is appended through it any more"
            )

    # ── entering and leaving ─────────────────────────────────────────────────────────────────

    def __enter__(self) -> Self:
        if self.number:
            raise InvalidStateError("a turn is entered once; begin the next with session.turn()")
        try:
            self._mark(self, True)
            with self._thread.writing():
                deliver(self._thread)
            self.number = self._runs.begin_turn()
            self._start = self._thread.head
            self._open = True
            self._tell("on_turn", self)
        except BaseException:
            self._open = False
            self._mark(self, False)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._open = False
            with self._thread.writing():
                deliver(self._thread)
            if isinstance(error, Exception):
                self._failures.note(error, f"turn {self.number}")
            self._runs.end_turn()
        except EverthreadError as failure:
            if error is None:
                raise
            # What the turn itself raised is the news; that it could not be recorded is a note to it.
            error.add_note(f"the end of turn {self.number} could not be recorded: {failure}")
        finally:
            self._mark(self, False)

    def __repr__(self) -> str:
        return f"<turn {self.number}{'' if self._open else ', over'}>"
