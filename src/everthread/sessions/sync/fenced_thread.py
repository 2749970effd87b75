# Generated from sessions/aio/fenced_thread.py by tools/twin.py: change that, then run: make twin
"""Handles that only the holder of a lease may write through."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from everthread import process
from everthread.errors import (
    ConflictError,
    EverthreadError,
    InvalidStateError,
    MergeConflictError,
    SessionFencedError,
)
from everthread.history.merge import ABSENT, Conflict, Merge
from everthread.sessions.journal import OPEN
from everthread.sessions.sync.lease import OwnLease
from everthread.threads.document import TrackedDict
from everthread.threads.sync.core import Core
from everthread.threads.sync.step import Step
from everthread.threads.sync.thread import AnyVersion, Thread
from everthread.versions import Version

_TRIES = 100
_ENDED = "this session has ended; begin another one"


def _last_word(conflict: Conflict) -> Any:
    """What becomes of a place in a journal that two processes of one run have changed: of an open effect only
    the one that it belongs to may change anything, and has done so; what is gone stays gone; else the later
    word counts."""
    if conflict.theirs is ABSENT or conflict.path[:1] == (OPEN,):
        return conflict.theirs
    return conflict.ours


class RunGuard:
    """Whether a run may still write: it holds the lease, is open, and is in the process that began it."""

    def __init__(self, lease: OwnLease) -> None:
        self.lease = lease
        self._pid = os.getpid()
        self._fenced: SessionFencedError | None = None
        self._closed = False

    @property
    def fenced(self) -> SessionFencedError | None:
        """What every write raises, if another run has taken over."""
        return self._fenced

    def check(self) -> None:
        """For the handle: nothing may be built on it once another run has taken over."""
        if self._fenced is not None:
            raise self._fenced

    def permit(self) -> None:
        """Before a write. Raises :class:`SessionFencedError` or :class:`InvalidStateError`."""
        if self._fenced is not None:
            raise self._fenced
        if self._closed:
            raise InvalidStateError(_ENDED)
        if os.getpid() != self._pid:
            raise InvalidStateError(
                "this session belongs to the process that began it; begin one of its own after a fork"
            )

    def met_others(self) -> None:
        """After reading versions of somebody else. A run that takes over changes the lease first and writes
        afterwards, so this run, having read those versions, finds the lease changed."""
        try:
            self.lease.check()
        except SessionFencedError as fenced:
            self._fenced = fenced
            raise

    def wrote(self) -> None:
        """After a write, which stands whatever becomes of the lease."""
        try:
            self.lease.renew_if_due()
        except SessionFencedError as fenced:
            self._fenced = fenced

    def beat(self) -> None:
        """Renew the lease now."""
        self.permit()
        try:
            self.lease.renew()
        except SessionFencedError as fenced:
            self._fenced = fenced
            raise

    def close(self) -> None:
        self._closed = True

    @property
    def closed(self) -> bool:
        return self._closed


class FencedThread(Thread):
    """A thread handle of a run: it writes, and moves onto what others wrote, only while the lease is its own.

    So nothing goes over the fence: no commit, no rebase, no step or update that wakes up later.
    """

    #: A run has its thread by its lease, so that others needn't be kept out: this is for its own calls.
    lock: Any

    def __init__(
        self, core: Core, name: str, guard: RunGuard | None = None, is_journal: bool = False
    ) -> None:
        super().__init__(core, name, guard=guard)
        #: A journal is changed by :meth:`writing` only: what is uncommitted between two writes is left over
        #: from one that was interrupted.
        self._is_journal = is_journal
        #: ``None`` for handles that the threads layer makes from this class: these are ordinary ones.
        self._guard = guard
        #: For everything that a session does with this handle: its tools may run in several threads or tasks.
        self.mutex = process.ProcessLock()
        #: Called at the beginning of every :meth:`writing`, to put in what belongs to the same version.
        self.before_write: Callable[[], None] | None = None
        #: Metadata for the first version that this run makes of the thread.
        self.tags: Mapping[str, Any] = {}
        #: Whether the fate of the last write is open.
        self._unsure = False
        #: The version at which the lease was last known to be this run's.
        self._vouched: Version | None = None

    @property
    def state(self) -> TrackedDict:
        """The document; once the session has ended it can only be read."""
        found = super().state
        if self._guard is not None and self._guard.closed:
            self.end()
        return found

    def end(self) -> None:
        """Let nobody change the document any more, where nothing would ever be saved."""
        if self.handle.document is not None:
            self.handle.document.lock(_ENDED)

    def now_us(self) -> int:
        return self.core.runtime.now_us()

    def new_id(self) -> str:
        """Short, because people and models read it in briefings."""
        return self.core.runtime.random_bytes(6).hex()

    @property
    def is_held(self) -> bool:
        """Whether it is a run's own handle."""
        return self._guard is not None

    @property
    def is_fenced(self) -> bool:
        """Whether another run has taken over."""
        return self._guard is not None and self._guard.fenced is not None

    def _permit(self) -> None:
        """Before a write, wherever the handle has come from: its first read, or a move cut short."""
        if self._guard is not None:
            self._guard.permit()
            self._vouch()

    def _vouch(self) -> None:
        head = self.head
        if self._guard is not None and (head is None or head is not self._vouched):
            try:
                self._guard.met_others()
            except SessionFencedError:
                # It stands on what is the new holder's: nothing may be built on that, by whatever way.
                self.handle.deleted = True
                raise
            self._vouched = head

    def _met_others(self) -> None:
        if self._guard is not None:
            self._guard.met_others()

    def require_lease(self) -> None:
        """Before what is remembered counts. Raises :class:`SessionFencedError` if the lease is gone."""
        self._met_others()

    def _moving_on(self, move: Callable[[], Version | None]) -> Version | None:
        head = move()
        self._vouch()
        return head

    def refresh(self) -> Version | None:
        return self._moving_on(super().refresh)

    def rebase(self, *, resolve: str | Callable[[Any], Any] | None = None) -> Version | None:
        return self._moving_on(partial(super().rebase, resolve=resolve))

    def commit(
        self, label: str | None = None, metadata: Mapping[str, Any] | None = None, key: str | None = None
    ) -> Version:
        self._permit()
        if self.tags and self.dirty:
            metadata = {**self.tags, **(metadata or {})}
        try:
            version = super().commit(label, metadata, key)
        except ConflictError:
            self._met_others()
            raise
        if metadata:
            self.tags = {}
        self._vouched = self.head
        if self._guard is not None:
            if self._is_journal and version is not None:
                self._guard.lease.wrote_journal(version)
            self._guard.wrote()
        return version

    def save(
        self, label: str | None = None, metadata: Mapping[str, Any] | None = None, key: str | None = None
    ) -> Version:
        """Commit; what others wrote meanwhile, without taking over, is brought together with it."""
        with self.mutex:
            for left in reversed(range(_TRIES)):
                try:
                    return self.commit(label, metadata, key)
                except MergeConflictError:
                    raise
                except ConflictError:
                    if not left:
                        raise
                    self.rebase(resolve=_last_word if self._is_journal else None)
        raise AssertionError("the last try ends by returning or raising")

    def write_anew(self, change: Callable[[], None], *, key: str | None = None) -> None:
        """As :meth:`writing`, but what others wrote meanwhile is read first, and ``change`` made anew."""
        with self.mutex:
            for left in reversed(range(_TRIES)):
                try:
                    with self.writing(key=key, rebases=False):
                        change()
                    return
                except ConflictError:
                    if not left:
                        raise

    @contextmanager
    def writing(
        self,
        *,
        label: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        key: str | None = None,
        rebases: bool = True,
    ) -> Iterator[None]:
        """What is changed in the block is one version, durable when the block is left. Without ``rebases``
        it raises :class:`ConflictError` if others wrote meanwhile; the next one sees that.

        If it fails, the changes of the block are taken back, unless there were uncommitted ones before: then
        all of them wait for the next commit. Not for nesting: an inner block would commit the outer one's.
        """
        with self.mutex:
            if self._guard is not None:
                # First of all: in a forked child even reading fails, with an error of the store.
                self._guard.permit()
            self.look_again()
            clean = not self.dirty
            try:
                if self.before_write is not None:
                    self.before_write()
                yield
                (self.save if rebases else self.commit)(label, metadata, key)
            except BaseException:
                # Whether it was written nobody knows: the next one looks first.
                self._unsure = True
                self.handle.writing = False
                if clean:
                    with suppress(EverthreadError):
                        self.discard()
                raise

    def load(self) -> None:
        """Have something to look at: the newest version, unless the handle stands on one already."""
        self.handle.load()

    def look_again(self) -> None:
        """Before building on what is known: a write whose fate is open may have landed, and one that was
        interrupted may have left something behind."""
        if self._is_journal and self.dirty:
            self.discard()
            self._unsure = True
        if self._unsure and not self.dirty:
            self.refresh()
            self._unsure = False

    def step(
        self, key: str | Sequence[Any], attempt: int = 1, slot: int | None = None, **options: Any
    ) -> Step:
        # Entering it looks at the lease: whatever it finds there, it has read the newest version first.
        if self._guard is not None:
            self._guard.permit()
        return super().step(key, attempt, slot, **options)

    def rewind(self, version: AnyVersion, *, files: bool = False) -> Version:
        self._permit()
        try:
            made = super().rewind(version, files=files)
        except ConflictError:
            self._met_others()
            raise
        self._vouched = self.head
        return made

    def merge(
        self,
        other: Thread | str,
        *,
        resolve: str | Callable[[Any], Any] | None = None,
        label: str | None = None,
        unrelated: bool = False,
    ) -> Merge:
        self._permit()
        try:
            return super().merge(other, resolve=resolve, label=label, unrelated=unrelated)
        except ConflictError:
            self._met_others()
            raise
