# Generated from src/everthread/threads/aio/lock.py by tools/twin.py: change that, then run: make twin
"""The lock of a thread: one holder at a time, over all processes and hosts, in the order in which they came.

A cell beside the threads holds the queue. Its first entry holds the lock; the others look again and again.
Nobody has to be trusted to leave: an entry of a process that is gone doesn't count, nor one that hasn't been
renewed for as long as it lasts. The commit at the end compares and sets as every commit does, and whoever
takes the lock from a holder that may still be alive writes a version first: so that one can't commit any
more.
"""

from __future__ import annotations

import hashlib
import weakref
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING

import msgspec

from everthread.arguments import check_seconds
from everthread.errors import (
    ConflictError,
    FencedError,
    InvalidValueError,
    StateCorruptedError,
    StoreBusyError,
    UnavailableError,
    UsageError,
)
from everthread.process import Place, here, is_gone
from everthread.stores.contract import Cell, StaleCell
from everthread.threads.sync.journals import space_beside
from everthread.threads.sync.update import Draft
from everthread.threads.twins import BlockingFace, pause

if TYPE_CHECKING:
    from everthread.threads.sync.thread import Thread

LOCK = "lock"
#: How long a holder that can't be seen keeps the lock, unless it says otherwise.
LEASE_S = 300.0
#: The label of the version that fences a holder off which may still be alive.
TAKEN_OVER = "lock taken over"
#: An entry that waits and hasn't been renewed for this long doesn't count; it is renewed in time.
_WAITING_US = 15_000_000
_PAUSE_S, _PAUSE_S_MAX = 0.002, 0.1
_TRIES = 1000


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """Somebody's place in the queue."""

    token: str
    place: Place
    lease_us: int
    holds: bool
    #: By the store's clock; 0 for when the cell was written, which nobody knows before it is.
    renewed_us: int


class Queue(msgspec.Struct, frozen=True, array_like=True):
    """What the cell of a thread holds."""

    entries: tuple[Entry, ...]
    #: A holder was left out that may still be alive: the next one fences it off.
    fence_due: bool = False


#: The locks of this process by token. One that nobody refers to any more holds nothing.
_live: weakref.WeakValueDictionary[str, ThreadLock] = weakref.WeakValueDictionary()


class ThreadLock(BlockingFace):
    """See :meth:`Thread.lock`. For one block."""

    def __init__(self, thread: Thread, timeout_s: float | None, lease_s: float) -> None:
        if timeout_s is not None:
            timeout_s = check_seconds(timeout_s, "timeout_s")
        self._thread = thread
        self._core = thread.core
        self._timeout_s = timeout_s
        self._lease_us = int(check_seconds(lease_s, "lease_s") * 1_000_000)
        if not self._lease_us:
            words = f"lease_s must be more than nothing, and {lease_s!r} isn't"
            raise InvalidValueError(words, path="lease_s")
        self._space = space_beside(self._core.space, LOCK)
        # A digest: names of threads may be longer than those of cells, or somebody's.
        self._name = hashlib.sha256(thread.name.encode()).hexdigest()
        self._token = self._core.runtime.random_bytes(16).hex()
        self._used = False
        self._fences = False
        self._fenced = False

    def __enter__(self) -> Draft:
        if self._used:
            raise UsageError("a lock is for one block: call thread.lock() again")
        thread = self._thread
        thread.handle.require_clean("lock()")
        self._used = True
        # Before it is in the queue: whoever reads that in this process must find that it is alive.
        _live[self._token] = self
        try:
            self._wait()
            thread.refresh()
            if self._fences:
                self._fence()
        except BaseException:
            self._release()
            raise
        return Draft(thread)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is not None:
                self._thread.handle.drop_changes()
            elif self._thread.dirty:
                self._commit()
            self._release()
        except BaseException:
            # Also if the release itself was interrupted: it is repeated.
            self._release()
            raise

    # ── waiting ──────────────────────────────────────────────────────────────────────────────

    def _wait(self) -> None:
        """Until this is the first in the queue that counts."""
        until_s = None if self._timeout_s is None else monotonic() + self._timeout_s
        pause_s = _PAUSE_S
        while True:
            cell, queue = self._read()
            ahead, behind, mine = self._around(cell, queue)
            alive = tuple(entry for entry in ahead if _counts(entry, cell))
            due = queue.fence_due or any(
                entry.holds and not _is_over(entry) for entry in set(ahead) - set(alive)
            )
            if not alive or mine is None or len(alive) < len(ahead) or _renewal_due(mine, cell):
                entry = Entry(
                    self._token,
                    here(),
                    _WAITING_US if alive else self._lease_us,
                    not alive,
                    0,
                )
                if not self._write(cell, Queue((*alive, entry, *behind), due)):
                    continue
                if not alive:
                    self._fences = due
                    return
            left_s = _PAUSE_S_MAX if until_s is None else until_s - monotonic()
            if left_s <= 0:
                raise self._busy(alive[0])
            pause(min(pause_s, left_s))
            pause_s = min(pause_s * 1.5, _PAUSE_S_MAX)

    def _around(
        self, cell: Cell | None, queue: Queue
    ) -> tuple[tuple[Entry, ...], tuple[Entry, ...], Entry | None]:
        """Who is before this one, who after it, and its own entry; without one everybody is before it."""
        written_us = 0 if cell is None else cell.written_us
        entries = tuple(
            entry if entry.renewed_us else msgspec.structs.replace(entry, renewed_us=written_us)
            for entry in queue.entries
        )
        for number, entry in enumerate(entries):
            if entry.token == self._token:
                return entries[:number], entries[number + 1 :], entry
        return entries, (), None

    def _busy(self, holder: Entry) -> StoreBusyError:
        place = holder.place
        return StoreBusyError(
            f"{self._thread.name!r} is locked by process {place.pid} on {place.host}, and was for "
            f"{self._timeout_s:g} s; try again, or wait longer (timeout_s=)"
        )

    def _fence(self) -> None:
        """Write a version, so that what a holder from before would commit conflicts."""
        for left in reversed(range(_TRIES)):
            try:
                self._thread.commit(label=TAKEN_OVER)
                break
            except ConflictError:
                if not left:
                    raise
                self._thread.discard()
                self._thread.refresh()
        self._fenced = True

    # ── leaving ──────────────────────────────────────────────────────────────────────────────

    def _commit(self) -> None:
        """Once, whatever those wrote meanwhile who didn't ask for the lock."""
        thread = self._thread
        for left in reversed(range(_TRIES)):
            try:
                thread.commit()
            except ConflictError:
                if not self._is_held():
                    thread.handle.drop_changes()
                    raise FencedError(
                        f"another process has taken the lock of {thread.name!r}, because this one held it "
                        "longer than its lease_s; nothing of the block was written",
                        attempt=0,
                        newest=1,
                    ) from None
                if not left:
                    raise
                thread.rebase()
            else:
                return

    def _is_held(self) -> bool:
        _, queue = self._read()
        return bool(queue.entries) and queue.entries[0].token == self._token

    def _release(self) -> None:
        """Leave the queue, also if the caller is cancelled or interrupted meanwhile: other processes would
        wait for the whole lease."""
        try:
            self._leave()
        except BaseException:
            self._leave()
            raise

    def _leave(self) -> None:
        """Let the next one go ahead. If the store can't be asked now, the lease runs out."""
        _live.pop(self._token, None)
        try:
            while True:
                cell, queue = self._read()
                ahead, behind, mine = self._around(cell, queue)
                if mine is None:
                    return
                left = Queue((*ahead, *behind), queue.fence_due and not self._fenced)
                if self._write(cell, left):
                    return
        except UnavailableError:
            return

    # ── the cell ─────────────────────────────────────────────────────────────────────────────

    def _read(self) -> tuple[Cell | None, Queue]:
        cell = self._core.backend.cell(self._space, self._name, self._core.runtime.now_us())
        if cell is None:
            return None, Queue(())
        try:
            return cell, msgspec.msgpack.decode(cell.value, type=Queue)
        except (msgspec.DecodeError, ValueError) as error:
            words = f"the lock of {self._thread.name!r} can't be read"
            raise StateCorruptedError(words, where=self._thread.name) from error

    def _write(self, cell: Cell | None, queue: Queue) -> bool:
        """Whether nobody else was first. A power cut ends all that hold it: it needn't last longer."""
        value = msgspec.msgpack.encode(queue) if queue.entries or queue.fence_due else None
        revision = 0 if cell is None else cell.revision
        now_us = self._core.runtime.now_us()
        try:
            self._core.backend.swap(self._space, self._name, revision, value, now_us, durable=False)
        except StaleCell:
            return False
        return True


def _is_over(entry: Entry) -> bool:
    """Whether whoever it belongs to is certainly gone."""
    if entry.place == here():
        return entry.token not in _live
    return is_gone(entry.place)


def _counts(entry: Entry, cell: Cell | None) -> bool:
    # A clock that was set back counts as time that has passed: the fence decides who may write.
    assert cell is not None, "entries are read from a cell"
    return abs(cell.read_us - entry.renewed_us) < entry.lease_us and not _is_over(entry)


def _renewal_due(mine: Entry, cell: Cell | None) -> bool:
    return cell is not None and abs(cell.read_us - mine.renewed_us) * 3 > _WAITING_US
