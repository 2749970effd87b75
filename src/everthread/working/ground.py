"""Where a state's document is: nowhere yet, in a thread, or in a thread's past."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

from everthread import process
from everthread.errors import InvalidStateError, UsageError
from everthread.threads.document import TrackedDict
from everthread.working import places
from everthread.working.loose import LooseDocument

if TYPE_CHECKING:
    from everthread.threads.sync.past import Past
    from everthread.threads.sync.thread import Thread
    from everthread.versions import Version


Lock = AbstractContextManager[Any]
_P = ParamSpec("_P")
_R = TypeVar("_R")


class _Grounded(Protocol):
    _ground: Ground


_G = TypeVar("_G", bound=_Grounded)


def held(method: Callable[Concatenate[_G, _P], _R]) -> Callable[Concatenate[_G, _P], _R]:
    """Let one thread at a time into the methods of everything that stands on one ground."""

    @functools.wraps(method)
    def inside(self: _G, /, *args: _P.args, **kw: _P.kwargs) -> _R:
        with self._ground.lock:
            return method(self, *args, **kw)

    return inside


class Ground:
    """Finds the document to read and to change. A loose one moves into a thread when one is asked for."""

    def __init__(self, home: places.Home | None, name: str, lock: Lock | None = None) -> None:
        self.home = home
        #: Taken again by the thread that has it.
        self.lock: Lock = process.fork_rlock() if lock is None else lock
        self.name = name
        self.thread: Thread | None = None
        self.past: Past | None = None
        self.loose = LooseDocument()
        self.closed = False

    @property
    def version(self) -> Version | None:
        """The version that the document is of, but for changes since."""
        self.check_open()
        if self.past is not None:
            return self.past.version
        return None if self.thread is None else self.thread.head

    @property
    def dirty(self) -> bool:
        return self.past is None and self.thread is not None and self.thread.dirty

    def root(self) -> TrackedDict:
        """The document to read. Raises :class:`InvalidStateError` once closed."""
        self.check_open()
        if self.past is not None:
            return self.past.state
        return self.loose.root if self.thread is None else self.thread.state

    def check_open(self) -> None:
        if self.closed:
            raise InvalidStateError("this state is closed; WorkingState.load(id) opens it again")

    def check_writable(self) -> None:
        self.check_open()
        if self.past is not None:
            raise InvalidStateError(
                "this is a state of the past and read only; fork() at this version or rewind() to it, "
                "then change that"
            )

    def writable(self) -> TrackedDict:
        """The document to change. Raises :class:`InvalidStateError` if it can't be changed."""
        self.check_writable()
        return self.root()

    def open_thread(self) -> Thread:
        """The handle of the thread, into which the document has moved by then."""
        self.check_open()
        if self.thread is None:
            if self.home is None:
                raise UsageError("this state has no store to be saved in")
            thread = self.home.thread(self.name)
            thread.state.update(self.loose.root.plain())
            self.adopt(thread)
        assert self.thread is not None
        return self.thread

    def adopt(self, thread: Thread, past: Past | None = None) -> None:
        """Stand on this handle, or in its past; what was loose is given up."""
        self.thread, self.past, self.name = thread, past, thread.name
        self.loose = LooseDocument()

    def start_over(self) -> None:
        """Become another, empty state that nobody has saved."""
        self.name = places.new_name()
        self.thread = None
        self.loose = LooseDocument()

    def close(self) -> None:
        self.closed = True
        self.thread = self.past = None
        self.loose = LooseDocument()
        if self.home is not None:
            self.home.close()
