"""The store contract in the memory of this process, and its reference: other stores are compared with it."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from everthread import process
from everthread.errors import StoreBusyError, StoreClosedError, UnsupportedError
from everthread.stores import interface
from everthread.stores.interface import At, Batch, Get, Key, Outcome, Page, Progress, Query, Refused, Table


class _Collection:
    """The values of one table and owner, in order of ``at``, and its feed in order of stamps."""

    def __init__(self) -> None:
        self.values: dict[At, bytes] = {}
        self.order: list[Any] = []
        #: The stamp of each key of a followed table, tombstones included.
        self.stamps: dict[At, int] = {}
        self.feed: list[tuple[int, At]] = []

    def within(self, start: At | None, stop: At | None) -> list[Any]:
        first = 0 if start is None else bisect_left(self.order, start)
        return self.order[first : len(self.order) if stop is None else bisect_left(self.order, stop)]

    def change(self, at: At, value: bytes | None, stamp: int | None) -> None:
        """Give a key this content. Correct also after an interrupted change of the same key."""
        index = bisect_left(self.order, at)
        present = index < len(self.order) and self.order[index] == at
        if value is None:
            if present:
                del self.order[index]
            self.values.pop(at, None)
        else:
            if not present:
                self.order.insert(index, at)
            self.values[at] = value
        old = self.stamps.get(at)
        if old is not None:
            index = bisect_left(self.feed, (old,))
            if index < len(self.feed) and self.feed[index][0] == old:
                del self.feed[index]
        if stamp is None:
            self.stamps.pop(at, None)
        else:
            self.stamps[at] = stamp
            insort(self.feed, (stamp, at))


_EMPTY = _Collection()


class MemoryStore:
    """Values that live as long as this object. Safe for several threads."""

    def __init__(
        self, tables: Sequence[Table], *, clock_us: Callable[[], int] = lambda: time.time_ns() // 1_000
    ) -> None:
        self.info = interface.Info("memory:", "memory", f"memory {id(self)}", durable=False, shared=False)
        self._tables = {table.number: table for table in tables}
        self._clock_us = clock_us
        self._collections: dict[tuple[int, int], _Collection] = {}
        self._stamp = 0
        #: What the newest write replaced: key, value, stamp.
        self._undo: list[tuple[Key, bytes | None, int | None]] = []
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._closed = False
        self._generation = process.generation

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        process.check_not_forked(self._generation)
        if self._lock._is_owned():  # type: ignore[attr-defined]
            # In a signal handler or a finaliser that runs inside write().
            raise StoreBusyError("this thread is in the middle of a call of this store; try again after it")
        with self._lock:
            if self._closed:
                raise StoreClosedError("this store is closed; open it again")
            yield

    def _of(self, table: int, owner: int) -> _Collection:
        return self._collections.get((table, owner), _EMPTY)

    # ── reading ──

    async def read(
        self, queries: Sequence[Query], namespace: int = 0, partition: int = 0
    ) -> tuple[list[list[Any]], int]:
        with self._exclusive():
            return [self._answer(query) for query in queries], self._clock_us()

    def _answer(self, query: Query) -> list[Any]:
        if isinstance(query, Get):
            return [self._of(table, owner).values.get(at) for table, owner, at in query.keys]
        found = self._of(query.table, query.owner)
        if isinstance(query, Page):
            ats = found.within(query.start, query.stop)
            return [(at, found.values[at]) for at in _first(ats, query.limit, query.reverse)]
        stamp = int.from_bytes(query.after, "big")
        if query.reverse:
            feed = found.feed[: bisect_left(found.feed, (stamp,))] if query.after else found.feed
        else:
            feed = found.feed[bisect_left(found.feed, (stamp + 1,)) :]
        return [
            (stamp.to_bytes(8, "big"), at, found.values.get(at))
            for stamp, at in _first(feed, query.limit, query.reverse)
        ]

    async def walk(self, table: int, after: tuple[int, At] | None, limit: int) -> list[tuple[int, At, bytes]]:
        with self._exclusive():
            owners = sorted(owner for number, owner in self._collections if number == table)
            page: list[tuple[int, At, bytes]] = []
            for owner in owners[0 if after is None else bisect_left(owners, after[0]) :]:
                found = self._of(table, owner)
                ats = found.order
                if after is not None and owner == after[0]:
                    index = bisect_left(ats, after[1])
                    ats = ats[index + (ats[index : index + 1] == [after[1]]) :]
                page += [(owner, at, found.values[at]) for at in ats[: limit - len(page)]]
                if len(page) >= limit:
                    break
            return page

    # ── writing ──

    async def write(self, batches: Sequence[Batch]) -> list[Outcome]:
        with self._exclusive():
            self._undo = []
            try:
                outcomes = [self._apply(batch) for batch in batches]
            except BaseException:
                # An interrupt, or a key outside its range: nothing of this write remains.
                for (table, owner, at), value, stamp in reversed(self._undo):
                    self._collections[table, owner].change(at, value, stamp)
                raise
            self._changed.notify_all()
            return outcomes

    def _apply(self, batch: Batch) -> Outcome:
        for guard in batch.guards:
            table, owner, at = guard.key
            value = self._of(table, owner).values.get(at)
            if not interface.holds(guard, value):
                return Refused(guard, value)
        for span in batch.deletes:
            for at in self._of(span.table, span.owner).within(span.start, span.stop):
                self._change((span.table, span.owner, at), None)
        for key, value in batch.puts:
            self._put(key, value)
        first = self._append(batch.append) if batch.append is not None else 0
        for trim in batch.trims:
            self._trim(trim)
        return first

    def _put(self, key: Key, value: bytes) -> None:
        interface.check_key(self._tables[key[0]], *key[1:])
        self._change(key, value)

    def _append(self, append: interface.Append) -> int:
        order = self._of(append.table, append.owner).order
        first: int = order[-1] + 1 if order else 1
        for index, value in enumerate(append.values):
            self._put((append.table, append.owner, first + index), value)
            for name in append.names[index] if append.names else ():
                self._put((append.index_table, append.owner, name + (first + index).to_bytes(8, "big")), b"")
        return first if append.values else 0

    def _trim(self, trim: interface.Trim) -> None:
        found = self._of(trim.table, trim.owner)
        end = bisect_left(found.feed, (int.from_bytes(trim.up_to, "big") + 1,))
        for _, at in found.feed[:end]:
            if at not in found.values:
                self._change((trim.table, trim.owner, at), None, forget=True)

    def _change(self, key: Key, value: bytes | None, *, forget: bool = False) -> None:
        table, owner, at = key
        collection = self._collections.setdefault((table, owner), _Collection())
        self._undo.append((key, collection.values.get(at), collection.stamps.get(at)))
        self._stamp += 1
        collection.change(at, value, self._stamp if self._tables[table].followed and not forget else None)

    # ── waiting ──

    async def wait(
        self, keys: Mapping[Key, bytes | None], feeds: Mapping[tuple[int, int], bytes], timeout_s: float
    ) -> bool:
        def changed() -> bool:
            if self._closed:
                raise StoreClosedError("this store was closed while it was waited on; open it again")
            return any(
                self._of(table, owner).values.get(at) != value for (table, owner, at), value in keys.items()
            ) or any(
                bool(feed := self._of(*of).feed) and feed[-1][0] > int.from_bytes(stamp, "big")
                for of, stamp in feeds.items()
            )

        with self._exclusive():
            return self._changed.wait_for(changed, timeout_s)

    # ── the store as a whole ──

    async def purge(self, timeout_s: float, progress: Progress | None = None) -> interface.Purged:
        with self._exclusive():
            return interface.Purged(unreachable=("the memory of this process, until it ends",))

    async def find_residue(
        self, samples: Sequence[bytes], progress: Progress | None = None
    ) -> interface.Residue:
        with self._exclusive():
            return interface.Residue(unreachable=("the memory of this process",))

    async def check(self) -> list[str]:
        with self._exclusive():
            return []

    async def usage(self, owner: int | None) -> Mapping[str, tuple[int, int]]:
        with self._exclusive():
            sizes = {table.name: (0, 0) for table in self._tables.values()}
            for (number, of), found in self._collections.items():
                if owner in (None, of):
                    table = self._tables[number]
                    count, size = sizes[table.name]
                    names = 0 if table.numbered else sum(map(len, found.order))
                    size += names + sum(map(len, found.values.values()))
                    sizes[table.name] = count + len(found.values), size
            return sizes

    async def flush(self) -> None:
        with self._exclusive():
            """There is no disk: everything acknowledged is as durable as it ever will be."""

    async def close(self) -> None:
        process.check_not_forked(self._generation)
        with self._changed:
            self._closed = True
            self._collections.clear()
            self._changed.notify_all()

    def __getstate__(self) -> NoReturn:
        raise UnsupportedError("a memory: store belongs to one process and can't be sent to another")


def _first(values: list[Any], limit: int, reverse: bool) -> list[Any]:
    limit = max(limit, 0)
    return values[: -limit - 1 : -1] if reverse else values[:limit]
