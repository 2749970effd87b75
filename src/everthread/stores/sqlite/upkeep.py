"""Waiting for others, pruning, and what a store takes up: the contract's verbs that no commit waits for."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import apsw

from everthread.errors import StateCorruptedError
from everthread.history.packs import Chunk, Places, pruned_chunks
from everthread.stores.contract import SEAL_SEQ, Line, Prune, Row
from everthread.stores.signals import Signals
from everthread.stores.sqlite import forking
from everthread.stores.sqlite.connecting import Settings, close, connect
from everthread.stores.sqlite.connections import Connections
from everthread.stores.sqlite.failing import translated
from everthread.stores.sqlite.reading import Reading
from everthread.stores.sqlite.rows import chunk_columns, row_id, row_sum
from everthread.stores.sqlite.wal import sync_log
from everthread.stores.text_index import TextIndex

if TYPE_CHECKING:
    from everthread.stores.contract import Totals, Usage

#: Differs from the last time if any other connection, of whichever process, has committed.
DATA_VERSION = "PRAGMA data_version"
#: The newest row of line ?1, its seal included, comes after ?2; or there is no such line.
NEWER = """
    SELECT coalesce(
        (SELECT max(id) FROM record WHERE id BETWEEN ?1 << 32 AND ?1 << 32 | 0xffffffff) > ?2,
        NOT EXISTS (SELECT 1 FROM line WHERE id = ?1))
"""
STANDING = """
    SELECT id & 0xffffffff, first, kind, hash, body, net, keyframe
    FROM record WHERE id BETWEEN ?1 AND ?2 ORDER BY id
"""
#: A REWIND, or a PRUNED or COLD row, which may have been one.
REWOUND = "SELECT 1 FROM record WHERE id > ?1 AND id <= ?2 AND kind IN (2, 5, 6) LIMIT 1"
CHILDREN = "SELECT id FROM line WHERE parent = ?1 AND id > 0"
REMOVE_ROWS = "DELETE FROM record WHERE id BETWEEN ?1 AND ?2"
ADD_ROW = """
    INSERT INTO record (id, kind, first, sum, hash, key, net, keyframe, body)
    VALUES (?1, ?2, ?3, ?4, ?5, NULL, ?6, ?7, ?8)
"""
CHUNKS_WITHIN = """
    SELECT id, position, count, length(data) FROM chunk
    WHERE line = ?1 AND log = ?2 AND position >= ?3 AND position + count <= ?4 ORDER BY position
"""
CHUNK_AT = "SELECT count, fingerprints, data FROM chunk WHERE line = ?1 AND log = ?2 AND position = ?3"
REMOVE_CHUNK = "DELETE FROM chunk WHERE id = ?1"
ADD_CHUNK = """
    INSERT INTO chunk (line, log, position, count, sum, fingerprints, data)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
"""
ROWS_TAKE = """
    SELECT kind, sum((id & 0xffffffff) - first + 1), sum(length(body) + coalesce(length(net), 0)),
           sum(coalesce(length(keyframe), 0))
    FROM record WHERE id BETWEEN ?1 AND ?2 GROUP BY kind
"""
CHUNKS_TAKE = "SELECT coalesce(sum(length(data) + length(fingerprints)), 0) FROM chunk WHERE line = ?1"
SEALED_TAKE = "SELECT count(*), coalesce(sum(length(data)), 0) FROM sealed"
CELLS_TAKE = "SELECT count(*), coalesce(sum(length(value)), 0) FROM cell"
EVENTS_TAKE = "SELECT count(*), coalesce(sum(length(body)), 0) FROM event"


class DataVersion(forking.OneLock):
    """Looks whether any other connection has committed, with one statement that reads no page."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._mutex = threading.RLock()
        self._connection: apsw.Connection | None = None
        self._known: Any = None
        forking.enter(self)
        with self._mutex:
            self._connection = connect(settings)

    @property
    def file(self) -> str:
        return self._settings.path

    def changed(self, lines: Sequence[int]) -> Collection[int] | None:
        with self._mutex:
            if self._connection is None:
                self._connection, self._known = connect(self._settings), None
            try:
                found = self._connection.execute(DATA_VERSION).fetchall()
            except apsw.Error as error:
                raise translated(error, self._settings.path) from error
        before, self._known = self._known, found
        return () if found == before else None

    def shut(self, until_s: float) -> bool:
        connection, self._connection = self._connection, None
        if connection is not None:
            close(connection)
        return True

    def close(self) -> None:
        with self._mutex:
            self.shut(0.0)
        forking.leave(self)


class Upkeep:
    """What :class:`SqliteBackend` is made of besides its tables' daily work."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._texts = TextIndex(settings.path + "-search")
        self._connections = Connections(settings)
        self.signals = Signals(lambda: DataVersion(settings))

    def _reading(self, *, together: bool = False, apart: bool = False) -> Reading:
        return Reading(self._connections, together, together or apart)

    # ── waiting ──────────────────────────────────────────────────────────────────────────────

    def newer(self, line: int, seq: int) -> bool:
        with self._reading() as db:
            ((found,),) = db.execute(NEWER, (line, row_id(line, seq))).fetchall()
        return bool(found)

    def wait(self, line: int, seq: int, timeout_s: float) -> bool:
        return self.signals.wait(line, timeout_s, lambda: line > 0 and self.newer(line, seq))

    def reserve(self) -> bool:
        """See :meth:`Connections.reserve`: for who reads, and writes what follows from that."""
        return self._connections.reserve()

    def release(self) -> None:
        self._connections.release()

    # ── pruning ──────────────────────────────────────────────────────────────────────────────

    def prune(self, line: Line, prune: Prune) -> bool:
        with self._connections as db:
            db.execute("BEGIN IMMEDIATE")
            fits = _as_seen(db, prune.seen) and _standing(db, line.id, prune.old)
            fits = fits and all(_holds(db, line.id, chunk) for chunk in prune.held)
            if fits:
                if prune.old:
                    bounds = row_id(line.id, prune.old[0].seq), row_id(line.id, prune.old[-1].seq)
                    db.execute(REMOVE_ROWS, bounds)
                db.executemany(ADD_ROW, (_columns(line.id, row) for row in prune.rows))
                for log, start, stop in prune.dropped:
                    _drop(db, line.id, log, start, stop)
                _bring_back(db, line.id, prune.chunks)
            db.execute("COMMIT")
        return fits

    # ── sizes ────────────────────────────────────────────────────────────────────────────────

    def usage(self, line: int) -> Usage:
        from everthread.stores.contract import line_usage

        with self._reading(together=True) as db:
            rows: list[Any] = db.execute(ROWS_TAKE, (row_id(line, 0), row_id(line, SEAL_SEQ - 1))).fetchall()
            chunks: Any = db.execute(CHUNKS_TAKE, (line,)).fetchall()[0][0]
        return line_usage(rows, chunks)

    def totals(self) -> Totals:
        from everthread.stores.contract import Totals

        with self._reading(apart=True) as db:
            taken: list[Any] = [
                db.execute(statement).fetchall()[0] for statement in (SEALED_TAKE, CELLS_TAKE, EVENTS_TAKE)
            ]
            page = db.pragma("page_size")
            free, data = db.pragma("freelist_count") * page, db.pragma("page_count") * page
        paths = (self._settings.path + ending for ending in ("", "-wal", "-shm", "-lock", "-witness"))
        files = tuple((path, os.stat(path).st_size) for path in paths if os.path.exists(path))
        return Totals(sealed=taken[0], cells=taken[1], events=taken[2], files=files, free=free, data=data)

    def persist(self) -> None:
        with self._connections:
            # What isn't in the log any more was synced before it left it.
            sync_log(self._settings.path)

    def compact(self) -> None:
        with self._connections as db:
            db.execute("VACUUM")
            # The new pages are in the log until a checkpoint: only then do the files shrink.
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _as_seen(db: apsw.Connection, seen: tuple[tuple[int, int], ...]) -> bool:
    """Whether none of these lines was rewound, forked or pruned since."""
    known = {line for line, _ in seen}
    for line, seq in seen:
        if db.execute(REWOUND, (row_id(line, seq), row_id(line, SEAL_SEQ - 1))).fetchall():
            return False
        if any(child not in known for (child,) in db.execute(CHILDREN, (line,)).fetchall()):
            return False
    return True


def _standing(db: apsw.Connection, line: int, old: tuple[Row, ...]) -> bool:
    """Whether these rows are what stands there."""
    if not old:
        return True
    bounds = row_id(line, old[0].seq), row_id(line, old[-1].seq)
    return db.execute(STANDING, bounds).fetchall() == [
        # Whole: what was redacted since may be as long as it was.
        (row.seq, row.first, row.kind, row.hash, row.body, row.net, row.keyframe)
        for row in old
    ]


def _holds(db: apsw.Connection, line: int, chunk: Chunk) -> bool:
    """Whether a chunk is there as it was read."""
    found: list[Any] = db.execute(CHUNK_AT, (line, chunk.log, chunk.position)).fetchall()
    return found == [(chunk.count, chunk.fingerprints, chunk.data)]


def _columns(line: int, row: Row) -> tuple[Any, ...]:
    id_ = row_id(line, row.seq)
    sum_ = row_sum(id_, row.kind, row.first, row.hash, None)
    return id_, row.kind, row.first, sum_, row.hash, row.net, row.keyframe, row.body


def _bring_back(db: apsw.Connection, line: int, chunks: tuple[Chunk, ...]) -> None:
    """Put chunks into the place of those that stand for them."""
    places = Places(chunks)
    for log in {chunk.log for chunk in chunks}:
        first = min(chunk.position for chunk in chunks if chunk.log == log)
        last = max(chunk.end for chunk in chunks if chunk.log == log)
        found: list[Any] = db.execute(CHUNKS_WITHIN, (line, log, first, last)).fetchall()
        stubs = [(id_, Chunk(log, at, count, b"", b"")) for id_, at, count, size in found if not size]
        db.executemany(REMOVE_CHUNK, ((id_,) for id_, stub in stubs if places.within(stub)))
    add_chunks(db, line, chunks)


def _drop(db: apsw.Connection, line: int, log: str, start: int, stop: int) -> None:
    """Drop the chunks that lie between these positions."""
    found: list[Any] = db.execute(CHUNKS_WITHIN, (line, log, start, stop)).fetchall()
    if any(size for *_, size in found):
        db.executemany(REMOVE_CHUNK, ((chunk[0],) for chunk in found))
        stubs = pruned_chunks(log, ((position, count) for _, position, count, _ in found))
        add_chunks(db, line, stubs)


def add_chunks(db: apsw.Connection, line: int, chunks: Iterable[Chunk]) -> None:
    """Raises :class:`StateCorruptedError` if items stand there already, of which the rows know nothing."""
    try:
        db.executemany(ADD_CHUNK, (chunk_columns(line, chunk) for chunk in chunks))
    except apsw.ConstraintError as error:
        raise StateCorruptedError(
            "there are items already where new ones belong: the store is damaged; see store.verify()"
        ) from error
