"""``store.gc()``: what has expired, what belongs to nobody, and the versions that retention doesn't keep."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import msgspec

from everthread.codec import records
from everthread.errors import EverthreadError, StateCorruptedError
from everthread.events.saved import TRIMS, stream_of
from everthread.events.sync import trim
from everthread.events.sync.stream import EventStream
from everthread.history.retention import Retention, Spans, VersionLike
from everthread.maintenance.file_pins import FilePins
from everthread.maintenance.prune import Family, LinePruning, Moved, Pins, Sweep
from everthread.maintenance.reports import DELETED, EXPIRED, THREAD, GcReport, kind_of
from everthread.stores.contract import SEAL_SEQ, Found, Line, StaleCell
from everthread.threads.lifetimes import left_s
from everthread.threads.reports import Progress
from everthread.threads.sync import journals
from everthread.threads.sync.core import Core
from everthread.threads.sync.pins import PINS, PRUNING, pins_of, read_pin, shown
from everthread.threads.sync.thread import Thread

if TYPE_CHECKING:
    from everthread.threads.sync.store import ThreadStore
    from everthread.versions import Pin

_PAGE = 200
#: How often a family of threads is looked at again that others forked or rewound at that very moment.
_TRIES = 5
_NAMES_MAX = 1000
#: A companion is made before its thread: one without a thread counts as left over only after so long.
_GRACE_US = 3_600 * 1_000_000
#: Since when companions without a thread have been there.
_UNCLAIMED = "gc/unclaimed"
_UNCLAIMED_MAX = 10_000


class Cleaner:
    """One cleaning of one namespace. Others may go on writing meanwhile."""

    def __init__(self, core: Core, rule: Retention, *, dry_run: bool, progress: Progress | None) -> None:
        self.core = core
        self._rule = rule
        self._dry_run = dry_run
        self._progress = progress
        self._now_us = core.runtime.now_us()
        self._problems: list[str] = []
        #: Lines whose past can't be read, and why; those that pruning has told of itself are left out again.
        self._unread: dict[int, tuple[str, str]] = {}
        self._expired: list[str] = []
        self._expired_count = self._companions = self._threads = self._versions = self._bytes = 0
        self._events = 0
        self._expired_ids: set[int] = set()
        self._others: dict[str, int] = {}
        self._pinned: list[Pin] = []
        self._file_pins = FilePins(core, rule, self._now_us)
        #: Tells what this cleaning announces from what others do.
        self._token = core.runtime.random_bytes(8).hex()

    def run(self, *, compact: bool) -> GcReport:
        before = self._size()
        self._remove_expired()
        self._remove_orphans()
        self._trim_streams()
        self._look_at_pins()
        self._prune_all()
        if compact and not self._dry_run:
            self.core.backend.compact()
        return GcReport(
            dry_run=self._dry_run,
            expired=tuple(self._expired),
            expired_count=self._expired_count,
            companions=self._companions,
            threads=self._threads,
            others=self._others,
            versions=self._versions,
            events=self._events,
            bytes=self._bytes,
            size_before=before,
            size_after=self._size(),
            pins=tuple(self._pinned),
            problems=(*self._problems, *(f"{name!r}: {why}" for name, why in self._unread.values())),
        )

    def _size(self) -> int:
        totals = self.core.backend.totals()
        return totals.data or sum(size for _, size in totals.files)

    def _named(self, space: str) -> Iterator[Found]:
        after: str | None = None
        while entries := self.core.backend.lines(space, "", after, _PAGE):
            yield from entries
            after = entries[-1].line.name

    # ── names ────────────────────────────────────────────────────────────────────────────────

    def _remove_expired(self) -> None:
        for entry in self._named(self.core.space):
            if left_s(entry, self._now_us) > 0:
                continue
            if self._dry_run or journals.remove_expired(self.core, entry):
                self._expired_count += 1
                self._expired_ids.add(entry.line.id)
                if len(self._expired) < _NAMES_MAX:
                    self._expired.append(entry.line.name)

    def _remove_orphans(self) -> None:
        """Companions whose thread is deleted, or never came to be."""
        cores = [journals.beside(self.core, kind) for kind in journals.COMPANIONS]
        unclaimed: dict[str, None] = {}
        gone: dict[str, None] = {}
        for core in cores:
            for entry in self._named(core.space):
                with suppress(ValueError):
                    owner = core.backend.line_by_uid(bytes.fromhex(entry.line.name))
                    if owner is None:
                        unclaimed[entry.line.name] = None
                    elif owner.deleted:
                        gone[entry.line.name] = None
        for name in [*gone, *self._long_unclaimed(list(unclaimed))]:
            for core in cores:
                if core.backend.find(core.space, name) is not None:
                    self._remove_orphan(core, name)

    def _remove_orphan(self, core: Core, name: str) -> None:
        self._companions += 1
        if not self._dry_run:
            with suppress(EverthreadError):
                companion = Thread(core, name)
                companion.handle.load()
                companion.delete()

    def _long_unclaimed(self, names: list[str]) -> list[str]:
        """Those of the names that were there, without a thread, a good while ago; notes the others."""
        backend, space = self.core.backend, self.core.space
        cell = backend.cell(space, _UNCLAIMED, self._now_us)
        since: dict[str, int] = {}
        if cell is not None:
            with suppress(StateCorruptedError, msgspec.DecodeError):
                payload = records.expand(cell.value, "a cell")
                since = msgspec.msgpack.decode(payload, type=dict[str, int])
        found = {name: since.get(name, self._now_us) for name in names[:_UNCLAIMED_MAX]}
        if found != since and not self._dry_run:
            value = records.compress(msgspec.msgpack.encode(found)) if found else None
            # Somebody else is cleaning up as well: then that is noted.
            with suppress(StaleCell):
                backend.swap(space, _UNCLAIMED, cell.revision if cell else 0, value, self._now_us)
        return [name for name, at_us in found.items() if self._now_us - at_us >= _GRACE_US]

    def _trim_streams(self) -> None:
        """What the retention of streams doesn't keep."""
        for name, _ in journals.every_cell(self.core, self.core.space, TRIMS):
            stream = EventStream(self.core, stream_of(name))
            try:
                up_to = trim.due(stream)
                if not self._dry_run:
                    self._events += trim.trim(stream, up_to)
                elif first := stream._first_seq():
                    self._events += max(min(up_to, stream._last_seq()) - first + 1, 0)
            except EverthreadError as error:
                self._problems.append(f"events of {stream.name!r} were left as they are: {error}")

    def _look_at_pins(self) -> None:
        """Note the pins; those whose time is over, or whose thread is gone, are dropped."""
        space = journals.space_beside(self.core.space, PINS)
        for name, cell in journals.every_cell(self.core, space):
            if name.startswith(PRUNING):
                continue
            try:
                stored = read_pin(cell, name)
                line = self.core.backend.line_by_uid(bytes.fromhex(name.partition("/")[0]))
            except (StateCorruptedError, ValueError) as error:
                self._problems.append(f"a pin was left alone: {error}")
                continue
            over = stored.until_us is not None and stored.until_us <= self._now_us
            if line is not None and not line.deleted and not over:
                self._pinned.append(shown(stored, line.name))
            elif not self._dry_run:
                # Pinned anew at this very moment, it stays.
                with suppress(StaleCell):
                    self.core.backend.swap(space, name, cell.revision, None, self._now_us)

    # ── versions ─────────────────────────────────────────────────────────────────────────────

    def _prune_all(self) -> None:
        forks: dict[int, list[Line]] = {}
        total = done = 0
        remains = False
        for line in self._lines():
            total += 1
            if line.parent:
                forks.setdefault(line.root, []).append(line)
            if line.deleted and not remains:
                remains = bool(self.core.backend.scan(line.id, SEAL_SEQ - 1, 1))
        if not (self._rule.takes or remains) or not self.core.backend.capabilities.prune:
            return
        pins = self._pins()
        for line in self._lines():
            if not line.parent:
                family = [line, *forks.pop(line.id, ())]
                # The real run has removed an expired thread without forks by now.
                is_gone = self._dry_run and len(family) == 1 and line.id in self._expired_ids
                if not is_gone and (self._rule.takes or any(each.deleted for each in family)):
                    self.prune_family(family, pins)
                done += len(family)
                if self._progress is not None:
                    self._progress(min(done, total), total)

    def _pins(self) -> Pins:
        """What the threads, as they are now, go back to."""
        pins = Pins()
        for line in self._lines():
            if not line.deleted:
                try:
                    rows = self.core.backend.scan(line.id, SEAL_SEQ - 1, 1)
                    seq = rows[0].seq if rows else line.parent_seq
                    pins.add_past(self.core.reader, line, seq)
                except EverthreadError as error:
                    self._unread[line.id] = (line.name, str(error))
        return pins

    def _lines(self) -> Iterator[Line]:
        """All lines of this namespace, with their companions."""
        space = self.core.space
        for line in self.core.backend.every_line():
            if line.space == space or line.space.startswith(f"{space}\0"):
                yield line

    def prune_family(self, lines: list[Line], pins: Pins) -> None:
        name = lines[0].name
        try:
            for _ in range(_TRIES):
                family = Family(self.core.reader, lines)
                family.look()
                with suppress(Moved), self._announced(family):
                    self._add_pins(family, pins)
                    self._prune(family, pins)
                    return
                # Another writer forked or rewound meanwhile: look at the family again.
                lines = [now for each in lines if (now := self.core.backend.line(each.id)) is not None]
                lines = self._with_forks(lines)
            self._problems.append(f"{name!r}: others forked or rewound it all the time; run gc() again")
        except EverthreadError as error:
            # What was met before, while looking at what stays, says more and is told once.
            met = [self._unread.pop(line.id)[1] for line in lines if line.id in self._unread]
            why = "; ".join(dict.fromkeys(met)) if met else str(error)
            self._problems.append(f"{name!r} was left as it is: {why}")

    @contextmanager
    def _announced(self, family: Family) -> Iterator[None]:
        """Within the block whoever pins a version of this family waits: the pins have been read already."""
        self._announce(family, there=True)
        try:
            yield
        finally:
            self._announce(family, there=False)

    def _announce(self, family: Family, *, there: bool) -> None:
        """Say, once more before each line, that this family is being pruned; or that it isn't any more."""
        first = next(iter(family.lines.values()))
        if self._dry_run or first.space != self.core.space:
            return
        backend, space = self.core.backend, journals.space_beside(self.core.space, PINS)
        name, now_us = f"{PRUNING}{first.root}/{self._token}", self.core.runtime.now_us()
        cell = backend.cell(space, name, now_us)
        if cell is not None or there:
            revision = cell.revision if cell is not None else 0
            backend.swap(space, name, revision, b"" if there else None, now_us, durable=False)

    def _add_pins(self, family: Family, pins: Pins) -> None:
        self._file_pins.add(family, self._lines, pins)
        for line in family.lines.values():
            if line.space == self.core.space and not line.deleted:
                for each in pins_of(self.core, line):
                    owner = self.core.reader.by_uid(line, each.owner)
                    pins.add(owner.id, each.seq)

    def _with_forks(self, lines: list[Line]) -> list[Line]:
        known = {line.id for line in lines}
        root = lines[0].root
        return lines + [line for line in self._lines() if line.root == root and line.id not in known]

    def _prune(self, family: Family, pins: Pins) -> None:
        kept = family.kept(self._rule, self._now_us, pins)
        reader = self.core.reader
        # Forks first: a rewind of theirs may still have to be read from what they were forked from.
        for line in reversed(family.lines.values()):
            if family.newest[line.id] == line.parent_seq:
                continue
            pruning = LinePruning(reader, line, kept[line.id], family.seen(line))
            if self._dry_run:
                self._count(line, pruning.count(), 0)
                continue
            self._announce(family, there=True)
            before = self.core.backend.usage(line.id)
            self._fold(line, kept[line.id])
            gone = pruning.run()
            after = self.core.backend.usage(line.id)
            self._count(line, gone, _total(before) - _total(after))
        if not self._dry_run:
            sizes = [self.core.backend.usage(number) for number in family.lines]
            Sweep(reader, family).run()
            swept = [self.core.backend.usage(number) for number in family.lines]
            self._bytes += sum(map(_total, sizes)) - sum(map(_total, swept))

    def _fold(self, line: Line, kept: Spans) -> None:
        """What is pruned is no tail any more: single records up to there have to be folded."""
        left = sys.maxsize
        while True:
            tail = [row for row, _ in self.core.backend.tail(line.id)]
            if len(tail) >= left or all(row.seq in kept for row in tail):
                return
            # A store may fold less at a time.
            left = len(tail)
            self.core.folder.fold_tail(line, newest=line.deleted)

    def _count(self, line: Line, versions: int, size: int) -> None:
        kind = kind_of(line, self.core.space, is_expired=line.id in self._expired_ids)
        # The real run has deleted expired threads by now; a dry run must report the same.
        kind = DELETED if kind == EXPIRED else kind
        if kind == THREAD:
            self._threads += versions > 0
        elif versions:
            self._others[kind] = self._others.get(kind, 0) + 1
        self._versions += versions
        self._bytes += size


def _total(usage: object) -> int:
    names = ("records", "packs", "keyframes", "chunks", "tombstones")
    return sum(getattr(usage, name) for name in names)


class _WithoutKeys(Retention, frozen=True, kw_only=True):
    """Keeps what doesn't carry one of these keys; rewinds only where what they led to stays."""

    gone: frozenset[str]

    def keeps(self, version: VersionLike, now_us: int) -> bool:
        head: Any = version
        return head.kind != records.REWIND and head.key not in self.gone


def remove_versions(store: ThreadStore, name: str, keys: frozenset[str]) -> bool:
    """Remove the content of the versions that carry these keys, as far as nothing stands on them.

    False, and nothing is removed, if the store can't, or if a fork of the thread shares its history.
    """
    core = store.core
    found = core.find(name)
    if found is None or not core.backend.capabilities.prune or found.line.parent:
        return False
    line = found.line
    for each in core.backend.every_line():
        if each.parent == line.id and not each.deleted:
            return False
    pins = Pins()
    rows = core.backend.scan(line.id, SEAL_SEQ - 1, 1)
    pins.add_past(core.reader, line, rows[0].seq if rows else line.parent_seq)
    cleaner = Cleaner(core, _WithoutKeys(keep_last=1, gone=keys), dry_run=False, progress=None)
    cleaner.prune_family([line], pins)
    core.head_cache.slot(line.uid).forget()
    return True
