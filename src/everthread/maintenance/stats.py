"""``store.stats()``: what threads take up, from what the store says of their lines."""

from __future__ import annotations

import datetime
from collections.abc import Mapping

import msgspec

from everthread.arguments import counted
from everthread.errors import EverthreadError
from everthread.maintenance.reports import DELETED, THREAD, counted_kinds, kind_of
from everthread.stores.contract import SEAL_SEQ, Found, Line, Row, Totals, Usage
from everthread.threads.lifetimes import left_s
from everthread.threads.reports import Progress
from everthread.threads.sync.core import Core
from everthread.threads.sync.journals import COMPANIONS, FILES

# What ``store.stats()`` answers.


_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_DAY_US = 86_400 * 1_000_000
#: Names of ages, with the days since the last write that they end with.
AGES = (("day", 1), ("week", 7), ("month", 30), ("year", 365))
OLDER = "older"


class ThreadStats(msgspec.Struct, frozen=True, kw_only=True):
    """What one thread takes up, without what it shares with the thread it was forked from.

    ``versions`` are its own that can be read, ``pruned`` those that can't any more; the rest are bytes.
    ``files`` is what was recorded of its working folder, beside it. The contents of files that it holds
    itself are in ``chunks``.
    """

    name: str
    updated_at_us: int
    versions: int = 0
    pruned: int = 0
    records: int = 0
    packs: int = 0
    keyframes: int = 0
    chunks: int = 0
    tombstones: int = 0
    files: int = 0

    @property
    def bytes(self) -> int:
        return self.records + self.packs + self.keyframes + self.chunks + self.tombstones + self.files

    @property
    def updated_at(self) -> datetime.datetime:
        return _EPOCH + datetime.timedelta(microseconds=self.updated_at_us)


class StoreStats(msgspec.Struct, frozen=True, kw_only=True):
    """What a store takes up, in bytes of payload; files are larger by what the engine needs.

    ``count`` is the number of threads that ``store.threads()`` lists, ``others`` that of each other kind
    (``"journal"``, ``"inbox"``, ``"files"``, ``"expired thread"``, ``"deleted thread"`` …).
    ``threads`` are the largest threads of the namespace by name; ``kinds`` sums all lines by kind, ``by_age``
    by the time since the last write; ``versions`` can be read, ``pruned`` can't any more, and :meth:`verify`
    counts both; ``deleted`` is kept for forks of deleted threads. ``beside`` is what lies beside threads, by
    kind: their journals, inboxes, and the files of their working folders. What stands under ``totals``
    belongs to the whole store: sealed values, cells, events, files, free space.
    """

    count: int
    others: Mapping[str, int]
    versions: int
    pruned: int
    bytes: int
    deleted: int
    beside: Mapping[str, int]
    kinds: Mapping[str, int]
    by_age: Mapping[str, int]
    threads: Mapping[str, ThreadStats]
    totals: Totals

    def __str__(self) -> str:
        files = sum(size for _, size in self.totals.files)
        counts = f"{counted_kinds(self.count, self.others)}, {counted(self.versions, 'version')}"
        if self.pruned:
            counts += f" and {self.pruned:,} that were pruned"
        return f"{counts}, {counted(self.bytes, 'byte')}, {files:,} on disk"


class Counting:
    """Sums up the lines of a store; remembers the largest only."""

    def __init__(self, now_us: int, limit: int) -> None:
        self._now_us = now_us
        self._limit = limit
        self._largest: list[ThreadStats] = []
        self._kinds = dict.fromkeys(("records", "packs", "keyframes", "chunks", "tombstones"), 0)
        self._ages = dict.fromkeys([*(name for name, _ in AGES), OLDER], 0)
        self._beside = dict.fromkeys(COMPANIONS, 0)
        self._count = self._versions = self._pruned = self._deleted = 0
        self._others: dict[str, int] = {}

    def add_deleted(self, kind: str, usage: Usage) -> None:
        """Add a deleted branch. Those that take up nothing any more aren't counted."""
        size = self._sum_up(usage)
        self._deleted += size
        if size and kind == DELETED:
            self._add_other(kind)

    def add_beside(self, kind: str, usage: Usage) -> int:
        """Add what the library keeps beside a thread; return how many bytes that are."""
        size = self._sum_up(usage)
        self._beside[kind] = self._beside.get(kind, 0) + size
        self._add_other(kind)
        return size

    def add_expired(self, kind: str, usage: Usage) -> None:
        """Add a thread whose time is over and that ``gc()`` hasn't removed yet."""
        self._sum_up(usage)
        self._add_other(kind)

    def _add_other(self, kind: str) -> None:
        self._others[kind] = self._others.get(kind, 0) + 1

    def _sum_up(self, usage: Usage) -> int:
        for kind in self._kinds:
            self._kinds[kind] += getattr(usage, kind)
        self._versions += usage.versions
        self._pruned += usage.pruned
        return sum(getattr(usage, kind) for kind in self._kinds)

    def add(self, name: str, updated_us: int, usage: Usage, files: int) -> None:
        """A thread, with what was recorded of its working folder."""
        self._sum_up(usage)
        found = ThreadStats(name=name, updated_at_us=updated_us, files=files, **msgspec.structs.asdict(usage))
        self._count += 1
        days = (self._now_us - updated_us) / _DAY_US
        self._ages[next((age for age, most in AGES if days <= most), OLDER)] += found.bytes
        self._largest.append(found)
        if len(self._largest) > 2 * self._limit:
            self._shrink()

    def _shrink(self) -> None:
        self._largest.sort(key=lambda thread: (-thread.bytes, thread.name))
        del self._largest[self._limit :]

    def stats(self, totals: Totals) -> StoreStats:
        self._shrink()
        return StoreStats(
            count=self._count,
            others=self._others,
            versions=self._versions,
            pruned=self._pruned,
            bytes=sum(self._kinds.values()),
            deleted=self._deleted,
            beside=self._beside,
            kinds=self._kinds,
            by_age=self._ages,
            threads={thread.name: thread for thread in self._largest},
            totals=totals,
        )


def measure(core: Core, limit: int, progress: Progress | None) -> StoreStats:
    """Looks at each line of the namespace once, at its newest version and not at any other."""
    counting = Counting(core.runtime.now_us(), limit)
    total = 0
    if progress is not None:
        for _ in core.backend.every_line():
            total += 1
    done, files = 0, dict[str, int]()
    # What lies beside threads first: its bytes belong to them.
    for is_beside in (True, False):
        for line in core.backend.every_line():
            if line.space.startswith(f"{core.space}\0") is not is_beside:
                continue
            if is_beside or line.space == core.space:
                _count(core, counting, line, core.backend.usage(line.id), files)
            done = min(done + 1, total)
            if progress is not None:
                progress(done, total)
    return counting.stats(core.backend.totals())


def _count(core: Core, counting: Counting, line: Line, usage: Usage, files: dict[str, int]) -> None:
    """Sum a line up; ``files`` is filled, and asked, by the uids of the threads that files lie beside."""
    row = None if line.deleted or line.space != core.space else _newest(core, line)
    is_expired = left_s(Found(line, row), core.runtime.now_us()) <= 0
    kind = kind_of(line, core.space, is_expired=is_expired)
    if line.deleted:
        counting.add_deleted(kind, usage)
    elif kind == THREAD:
        counting.add(line.name, _updated_us(core, line, row), usage, files.get(line.uid.hex(), 0))
    elif line.space == core.space:
        counting.add_expired(kind, usage)
    else:
        size = counting.add_beside(kind, usage)
        if kind == FILES:
            files[line.name] = size


def _newest(core: Core, line: Line) -> Row | None:
    try:
        rows = core.backend.scan(line.id, SEAL_SEQ - 1, 1)
    except EverthreadError:
        # Damaged: how old it is can't be known.
        return None
    return rows[0] if rows else None


def _updated_us(core: Core, line: Line, row: Row | None) -> int:
    try:
        if row is not None:
            return core.reader.head(row, row.seq).at_us
        return (core.reader.version(line, line.parent_seq))[0].at_us
    except EverthreadError:
        # Damaged, or gone: how old it is nobody knows.
        return 0
