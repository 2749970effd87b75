"""``store.cool()``: threads that nobody has written to for long go to the archive.

All but the newest row of a line moves, which holds its newest version, and often nothing else: the rows and
chunks become a parcel, and one row stands in their place, with the state as of there. The newest stays, so
that finding, listing and committing go on as if nothing had happened; whoever reads further brings the line
back (``stores/cold``). The parcel is durable before the rows go, and they go only if they are still the rows
that it holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from everthread.errors import EverthreadError, LimitError, StateCorruptedError
from everthread.history.packs import Chunk
from everthread.history.snapshots import write_keyframe
from everthread.maintenance.reports import CoolReport
from everthread.stores.cold import Label, put_parcel, read_label, stand_in, uid_of, wrap
from everthread.stores.contract import COLD, DAMAGED, DELTA, REWIND, SEAL_SEQ, Found, Line, Prune, Row
from everthread.threads.lifetimes import left_s
from everthread.threads.sync import journals

if TYPE_CHECKING:
    from everthread.threads.reports import Progress
    from everthread.threads.sync.core import Core

_PAGE = 200
#: Rows and items read at a time, and the most that one line may hold to be moved.
_ROWS = 256
_ITEMS = 256
PARCEL_BYTES_MAX = 1 << 30
_REASONS_MAX = 1000
#: A parcel this young is never swept: whoever put it may be about to put its label into the store.
YOUNG_US = 3600 * 1_000_000


class Cooling:
    """One run through the threads of a namespace."""

    def __init__(self, core: Core, thawing: Any, idle_us: int, progress: Progress | None) -> None:
        self.core = core
        self._archive = thawing.archive
        #: Beneath what brings lines back: looking at a cold one must not.
        self._backend = thawing._backend
        self._before_us = core.runtime.now_us() - idle_us
        self._progress = progress
        self._threads = self._versions = self._bytes = 0
        self._problems: list[str] = []

    def run(self) -> CoolReport:
        now_us = self.core.runtime.now_us()
        for core in (self.core, *(journals.beside(self.core, kind) for kind in journals.COMPANIONS)):
            ids = self._lines(core.space)
            for number, name in enumerate(ids, 1):
                if self._progress is not None:
                    self._progress(number, len(ids))
                found = self._backend.find(core.space, name)
                if found is None or left_s(found, now_us) <= 0:
                    continue
                try:
                    self._consider(core, found)
                except EverthreadError as error:
                    if len(self._problems) < _REASONS_MAX:
                        self._problems.append(f"{name!r} was left where it is: {error}")
        return CoolReport(
            threads=self._threads, versions=self._versions, bytes=self._bytes, problems=tuple(self._problems)
        )

    def _lines(self, space: str) -> list[str]:
        """The names of a space, the youngest lines first: looking at a fork may take what it was forked from,
        which would bring that back."""
        names = []
        after: str | None = None
        while page := self._backend.lines(space, "", after, _PAGE):
            names += [(found.line.id, found.line.name) for found in page]
            after = page[-1].line.name
        return [name for _, name in sorted(names, reverse=True)]

    def _consider(self, core: Core, found: Found) -> None:
        newest, line = found.newest, found.line
        if newest is None or newest.kind in (COLD, DAMAGED):
            return
        if core.reader.head(newest, newest.seq).at_us > self._before_us:
            return
        # Keys of single rows stand in these rows; folding puts them into the index, which stays.
        core.folder.fold_tail(line, newest=False)
        rows = self._rows(line, newest.first - 1)
        if any(row.kind == DELTA for row in rows):
            # Another writer was folding; the next run moves it.
            return
        if not rows or rows[0].kind == COLD or rows[-1].seq >= newest.first:
            # There is nothing to move, or it has been, or somebody has folded the newest version meanwhile.
            return
        if newest.kind == REWIND:
            # Its state is that of a version which goes away.
            keyframe = write_keyframe((core.reader.load(line, newest.seq)).snapshot)
            if keyframe is not None:
                self._backend.keyframe(line.id, newest.seq, newest.hash, keyframe)
        snapshot = (core.reader.load(line, rows[-1].seq, pruned=True)).snapshot
        ends = {log: state.count for log, state in snapshot.logs.items()}
        chunks = self._chunks(line, ends)
        if any(chunk.pruned and chunk.fingerprints for chunk in chunks):
            # Somebody else has moved it since its rows were read: these stand for what is in another parcel.
            return
        data, label = wrap(line.uid, rows, chunks, core.runtime.random_bytes(8))
        begun_us = core.runtime.now_us()
        self._put(label, data)
        row = stand_in(rows, label, write_keyframe(snapshot))
        dropped = tuple((log, line.counts.get(log, 0), count) for log, count in ends.items())
        # Whether an id is known is asked at every append, and doesn't have to bring anything back.
        prints = tuple(Chunk(c.log, c.position, c.count, c.fingerprints, b"") for c in chunks)
        if self._backend.prune(line, Prune(rows, (row,), dropped, chunks=prints, held=chunks)):
            if core.runtime.now_us() - begun_us > YOUNG_US // 2:
                # It took so long (a machine that slept) that somebody may have swept it in between.
                self._put(label, data)
            self._threads += 1
            self._versions += row.seq - row.first + 1
            self._bytes += len(data)

    def _rows(self, line: Line, seq: int) -> tuple[Row, ...]:
        """All rows of a line up to a version, oldest first.

        Raises :class:`StateCorruptedError` if one of them is damaged or missing, :class:`LimitError` if they
        are too much to be moved at once.
        """
        rows: list[Row] = []
        size = 0
        while seq > line.parent_seq:
            found = self._backend.scan(line.id, seq, _ROWS)
            if not found:
                raise self.core.reader.missing(line, seq)
            for row in found:
                if row.kind == DAMAGED:
                    raise StateCorruptedError(f"version {row.seq} is damaged", where=line.name)
                if not row.first <= seq <= row.seq:
                    raise self.core.reader.missing(line, seq)
                seq = row.first - 1
            rows.extend(found)
            size += sum(len(row.body) + len(row.net or b"") + len(row.keyframe or b"") for row in found)
            if size > self._backend.capabilities.cold_rows_max:
                raise _too_large(self._backend.capabilities.cold_rows_max)
        rows.reverse()
        return tuple(rows)

    def _chunks(self, line: Line, ends: dict[str, int]) -> tuple[Chunk, ...]:
        chunks: list[Chunk] = []
        size = 0
        for log, count in ends.items():
            at = line.counts.get(log, 0)
            while at < count:
                stop = min(at + _ITEMS, count)
                found = self._backend.chunks(line.id, log, at, stop)
                chunks += found
                size += sum(len(chunk.data) + len(chunk.fingerprints) for chunk in found)
                if size > PARCEL_BYTES_MAX:
                    raise _too_large(PARCEL_BYTES_MAX)
                at = max([stop, *(chunk.end for chunk in found)])
        # One that reaches beyond belongs to the newest version as well, and stays.
        return tuple(chunk for chunk in chunks if chunk.end <= ends[chunk.log])

    def _put(self, label: Label, data: bytes) -> None:
        put_parcel(self._archive, label.key, data)

    def sweep(self, before_s: float) -> int:
        """Remove parcels of this store that were put before a moment and that no line refers to.

        Raises :class:`UnsupportedError` if the store may forget yet that a line has come back.
        """
        # Listed first: what a line refers to by then is needed, and what is put later isn't in the list.
        old = [key for key, at_s in list(self._archive.keys()) if at_s < before_s]
        needed = set()
        for line in self._backend.every_line():
            rows = self._backend.scan(line.id, line.parent_seq + 1, 1)
            if rows and rows[0].kind == COLD and rows[0].seq < SEAL_SEQ:
                needed.add(read_label(rows[0]).key)
        if not old:
            return 0
        # Those that came back must not be away again after a power cut.
        self._backend.persist()
        gone = 0
        for key in old:
            # Others may have theirs in the same archive, and so may namespaces that we aren't let into.
            if key not in needed and self._backend.line_by_uid(uid_of(key)) is not None:
                self._archive.delete(key)
                gone += 1
        return gone


def _too_large(bytes_max: int) -> LimitError:
    return LimitError(f"its past is larger than the {bytes_max:,} bytes that are moved at once")
