"""The contract on SQLite."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import apsw
import msgspec

from everthread.codec.values import encode
from everthread.errors import StateCorruptedError
from everthread.history.packs import Chunk, Places, pruned_chunks
from everthread.stores.contract import (
    DAMAGED,
    NO_TAGS,
    PACK,
    PRUNED,
    SEAL,
    SEAL_SEQ,
    Capabilities,
    Fold,
    Found,
    KeyKnown,
    Line,
    NameTaken,
    NewRow,
    Prune,
    PutCell,
    Row,
    SourceGone,
    StaleWrite,
    Totals,
    Usage,
    VersionGone,
    line_usage,
)
from everthread.stores.signals import Signals
from everthread.stores.sqlite import sealed
from everthread.stores.sqlite.cells_and_events import (
    CellVerbs,
    EventVerbs,
    damaged_streams,
    highest_revision,
    put_cells,
    raise_revisions,
)
from everthread.stores.sqlite.connection import Connections, Reading, Settings, synchronous
from everthread.stores.sqlite.files import sync_log
from everthread.stores.sqlite.rows import (
    checked_row,
    chunk_columns,
    chunk_fits,
    line_sum,
    record_columns,
    replay,
    row_sum,
    tag_columns,
    tag_fits,
    tagged,
    tagged_seq,
    to_chunk,
    to_found,
    to_line,
)
from everthread.stores.sqlite.schema import MIGRATIONS, SQL, row_id
from everthread.stores.sqlite.sealed import ErasureVerbs, add_sealed, add_single, refusal
from everthread.stores.text_index import IndexedTexts, TextIndex
from everthread.stores.urls import file_identity, quoted

#: Rows that one statement appends: for each size it is prepared once, and unused places hold NULL.
_GROUP_SIZES = (4, 8, 16, 32, 64, 128, 256)
_EMPTY_PLACE = (None,) * 7


class SqliteBackend(CellVerbs, EventVerbs, ErasureVerbs, IndexedTexts):
    """One database file. Safe for several threads and several processes at once."""

    capabilities = Capabilities(durable=True, multi_process=True, backup=True, texts=True, cold=True)

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._texts = TextIndex(settings.path + "-search")
        self._connections = Connections(settings)
        self.signals = Signals(lambda: DataVersion(settings))

    def _reading(self, *, together: bool = False, apart: bool | None = None) -> Reading:
        return Reading(self._connections, together=together, apart=apart)

    @property
    def url(self) -> str:
        return f"sqlite:///{quoted(self._settings.path)}"

    def identity(self) -> str:
        return file_identity(self._settings.path)

    # ── reading ──

    def find(self, space: str, name: str) -> Found | None:
        with self._reading() as db:
            columns = db.execute(SQL["find"], (space, name)).fetchone()
            astray = columns is None and misled(db, space, name)
        if astray:
            raise StateCorruptedError(
                f"the index of names in {self._settings.path} is damaged: whether there is a thread {name!r} "
                "can't be told; everthread.salvage() brings what can be saved into a new store",
                where=name,
            )
        return None if columns is None else to_found(columns)

    def line(self, line: int) -> Line | None:
        with self._reading() as db:
            columns = db.execute(SQL["line"], (line,)).fetchone()
        return None if columns is None else to_line(columns)

    def line_by_uid(self, uid: bytes) -> Line | None:
        with self._reading() as db:
            columns = db.execute(SQL["line_by_uid"], (uid,)).fetchone()
        return None if columns is None else to_line(columns)

    def replay(self, line: int, seq: int, floor: int) -> list[Row]:
        with self._reading() as db:
            return replay(db, line, seq, floor)

    def scan(self, line: int, seq: int, limit: int) -> list[Row]:
        with self._reading() as db:
            newest = row_id(line, SEAL_SEQ - 1)
            bounds = row_id(line, min(seq, SEAL_SEQ - 1)), newest, row_id(line, 0), limit
            return [checked_row(line, columns) for columns in db.execute(SQL["scan"], bounds)]

    def tail(self, line: int) -> list[tuple[Row, bytes | None]]:
        rows: list[tuple[Row, bytes | None]] = []
        with self._reading() as db:
            cursor = db.execute(SQL["tail"], (row_id(line, 0), row_id(line, SEAL_SEQ - 1)))
            for columns in cursor:
                if columns[2] in (PACK, PRUNED):
                    break
                row = checked_row(line, columns)
                rows.append((row, None if row.kind == DAMAGED else columns[7]))
            cursor.close(True)
        rows.reverse()
        return rows

    def chunks(self, line: int, log: str, start: int, stop: int) -> list[Chunk]:
        with self._reading() as db:
            found: list[Any] = db.execute(SQL["chunks"], (line, log, start, stop)).fetchall()
            if not all(chunk_fits(line, log, columns)[0] for columns in found):
                # One that isn't where it belongs is as good as missing, and may stand before the right one.
                found = db.execute(SQL["chunks"], (line, log, 0, stop)).fetchall()
        chunks = [to_chunk(log, columns) for columns in found if chunk_fits(line, log, columns)[0]]
        return [chunk for chunk in chunks if chunk.position + chunk.count > start]

    def fingerprints(self, line: int, log: str, start: int) -> list[tuple[int, bytes]]:
        with self._reading() as db:
            found: list[Any] = db.execute(SQL["fingerprints"], (line, log, start)).fetchall()
        fitting = (columns for columns in found if all(chunk_fits(line, log, columns)))
        return [(at, prints or bytes(4 * n)) for at, n, prints, *_ in fitting if at + n > start]

    def keyed(self, root: int, key: bytes) -> list[tuple[int, int]]:
        with self._reading() as db:
            found: list[Any] = db.execute(SQL["keyed"], (root, key)).fetchall()
        return found

    # ── writing ──

    def append(self, line: int, row: NewRow) -> None:
        # Before others are kept from writing.
        values = record_columns(line, row)
        with self._connections as db:
            if not (row.chunks or row.sealed):
                # One statement is one transaction: the hot path.
                landed = self._insert(db, row, values)
            else:
                db.execute("BEGIN IMMEDIATE")
                # Mostly one value, of one person.
                added = len(row.sealed) == 1 and add_single(db, row.sealed[0])
                if not added and (erased := refusal(db, row.sealed)):
                    raise erased
                landed = self._insert(db, row, values)
                if landed and (row.chunks or not added):
                    self._insert_rest(db, line, row)
                db.execute("COMMIT" if landed else "ROLLBACK")
        if not landed:
            raise self._refusal(line, row)
        if self.signals.awaited:
            self.signals.ring(line)

    def append_all(self, rows: Sequence[tuple[int, NewRow]]) -> list[Exception | None]:
        if len(rows) == 1:
            try:
                self.append(*rows[0])
            except Exception as error:
                return [error]
            return [None]
        outcomes: list[Exception | bool] = []
        try:
            if _fit_one_statement(rows):
                with self._connections as db:
                    landed = _append_together(db, rows)
                if landed:
                    self.signals.ring(*(line for line, _ in rows))
                    return [None] * len(rows)
            with self._connections as db:
                db.execute("BEGIN IMMEDIATE")
                for line, row in rows:
                    erased = refusal(db, row.sealed) if row.sealed else None
                    outcomes.append(erased or self._insert(db, row, record_columns(line, row)))
                    if (row.chunks or row.sealed) and outcomes[-1] is True:
                        self._insert_rest(db, line, row)
                db.execute("COMMIT")
        except Exception as error:
            # One transaction: with any of it, all of it failed.
            return [error] * len(rows)
        self.signals.ring(*(line for line, _ in rows))
        return [
            outcome if isinstance(outcome, Exception) else None if outcome else self._refusal(line, row)
            for outcome, (line, row) in zip(outcomes, rows, strict=True)
        ]

    def _insert(self, db: apsw.Connection, row: NewRow, values: tuple[Any, ...]) -> bool:
        if row.source is not None:
            db.execute(SQL["append_rewind"], (*values, *_from(*row.source)))
        elif row.guard:
            db.execute(SQL["append_guarded"], (*values, row.guard))
        else:
            db.execute(SQL["append"], values)
        return db.changes() == 1

    def _insert_rest(self, db: apsw.Connection, line: int, row: NewRow) -> None:
        add_sealed(db, row.sealed)
        _add_chunks(db, line, row.chunks)

    def _refusal(self, line: int, row: NewRow) -> Exception:
        """Why a row wasn't taken."""
        if row.sealed:
            with self._reading() as db:
                erased = refusal(db, row.sealed)
            if erased is not None:
                return erased
        if row.guard and row.key is not None and self.keyed(row.guard, row.key):
            return KeyKnown()
        if row.source is not None:
            source = self.scan(*row.source, 1)
            if not source or source[0].kind == PRUNED:
                return VersionGone()
        found = self.line(line)
        rows = self.scan(line, SEAL_SEQ - 1, 1)
        return StaleWrite(rows[0] if rows else None, sealed=found is None or found.deleted)

    def create(
        self, line: Line, row: NewRow | None, source: int = 0, tags: Mapping[str, bytes] = NO_TAGS
    ) -> Line:
        try:
            with self._connections as db:
                db.execute("BEGIN IMMEDIATE")
                if row is not None and (erased := refusal(db, row.sealed)):
                    raise erased
                if source:
                    bounds = _from(line.parent, line.parent_seq)
                    kinds: list[Any] = db.execute(SQL["forked_from"], (source, *bounds)).fetchall()
                    if kinds in ([], [(None,)]):
                        raise SourceGone
                    if kinds == [(PRUNED,)]:
                        raise VersionGone
                counts = encode(line.counts) if line.counts else b""
                rest = (line.parent, line.parent_seq, line.parent_segment, line.parent_hash, line.start_hash)
                named = (line.uid, line.space, line.name)
                db.execute(SQL["create_line"], (*named, line.root, *rest, counts))
                id_ = db.last_insert_rowid()
                root = line.root or id_
                db.execute(SQL["complete_line"], (id_, root, line_sum((id_, *named, root, *rest, counts))))
                line = msgspec.structs.replace(line, id=id_, root=root)
                db.executemany(SQL["add_tag"], tag_columns(line.id, tags))
                if row is not None:
                    self._insert(db, row, record_columns(line.id, row))
                    self._insert_rest(db, line.id, row)
                db.execute("COMMIT")
        except apsw.ConstraintError as error:
            raise NameTaken from error
        self.signals.ring(0)
        return line

    def fold(self, line: Line, fold: Fold) -> bool:
        with self._connections as db:
            # Losing a fold loses nothing, so it needn't wait for the disk: the next commit's sync, which
            # covers everything before it in the log, makes it durable along with that commit.
            synchronous(db, "process")
            try:
                db.execute("BEGIN IMMEDIATE")
                folded = self._fold(db, line, fold)
                db.execute("COMMIT" if folded else "ROLLBACK")
            finally:
                # Not while the transaction is still open: then leaving the block sees to it.
                if not db.in_transaction:
                    synchronous(db, self._settings.durability)
        return folded

    def _fold(self, db: apsw.Connection, line: Line, fold: Fold) -> bool:
        pack = fold.pack
        first, last = row_id(line.id, pack.first), row_id(line.id, pack.last)
        db.execute(SQL["fold_out"], (first, last))
        if db.changes() != last - first:
            return False
        sum_ = row_sum(last, PACK, pack.first, fold.hash, None)
        packed = last, pack.first, pack.net, fold.keyframe, pack.body, sum_
        db.execute(SQL["fold_in"], (*packed, fold.hash, first - 1, fold.beside))
        if db.changes() != 1:
            return False
        _add_chunks(db, line.id, pack.chunks)
        # In key order: neighbours share pages.
        keys = sorted([(line.root, key, line.id, seq) for key, seq in fold.keys])
        db.executemany(SQL["add_keyed"], keys)
        self._tag(db, line.id, pack.last, fold.tags)
        return True

    def keyframe(self, line: int, seq: int, digest: bytes, keyframe: bytes) -> None:
        with self._connections as db:
            db.execute(SQL["keyframe"], (row_id(line, seq), keyframe, digest))

    def delete(self, line: Line, newest: bytes | None = None) -> bool:
        with self._connections as db:
            db.execute("BEGIN IMMEDIATE")
            db.execute(SQL["seal_line"], (line.id, line.uid, newest))
            sealed = db.changes() == 1
            if sealed:
                seal = row_id(line.id, SEAL_SEQ)
                db.execute(SQL["add_seal"], (seal, row_sum(seal, SEAL, SEAL_SEQ, b"", None)))
                self._purge(db, line.id)
            db.execute("COMMIT")
        self.signals.ring(line.id)
        return sealed

    def _purge(self, db: apsw.Connection, line: int) -> None:
        """Remove what no living thread reaches any more: this deleted line, then perhaps its ancestors."""
        while line and not db.execute(SQL["needed"], (line,)).fetchall():
            for part in ("purge_records", "purge_chunks", "purge_keys", "purge_tags"):
                db.execute(SQL[part], (line,))
            parents: Any = db.execute(SQL["parent"], (line,)).fetchall()
            line = parents[0][0]

    # ── waiting ──

    def newer(self, line: int, seq: int) -> bool:
        with self._reading() as db:
            ((found,),) = db.execute(SQL["newer"], (line, row_id(line, seq))).fetchall()
        return bool(found)

    def wait(self, line: int, seq: int, timeout_s: float) -> bool:
        return self.signals.wait(line, timeout_s, lambda: line > 0 and self.newer(line, seq))

    def reserve(self) -> bool:
        """Hold the write lock from reading to writing: see :meth:`Connections.reserve`."""
        return self._connections.reserve()

    def release(self) -> None:
        self._connections.release()

    # ── pruning ──

    def prune(self, line: Line, prune: Prune) -> bool:
        with self._connections as db:
            db.execute("BEGIN IMMEDIATE")
            fits = _unchanged_since(db, prune.seen) and _rows_are(db, line.id, prune.old)
            fits = fits and all(_holds(db, line.id, chunk) for chunk in prune.held)
            if fits:
                if prune.old:
                    bounds = row_id(line.id, prune.old[0].seq), row_id(line.id, prune.old[-1].seq)
                    db.execute(SQL["remove_rows"], bounds)
                db.executemany(SQL["add_row"], (_columns(line.id, row) for row in prune.rows))
                for log, start, stop in prune.dropped:
                    _drop(db, line.id, log, start, stop)
                _bring_back(db, line.id, prune.chunks)
            db.execute("COMMIT")
        return fits

    # ── sizes ──

    def usage(self, line: int) -> Usage:
        with self._reading(together=True) as db:
            rows: list[Any] = db.execute(
                SQL["size_of_rows"], (row_id(line, 0), row_id(line, SEAL_SEQ - 1))
            ).fetchall()
            chunks: Any = db.execute(SQL["size_of_chunks"], (line,)).fetchall()[0][0]
        return line_usage(rows, chunks)

    def totals(self) -> Totals:
        with self._reading(apart=True) as db:
            taken: list[Any] = [
                db.execute(statement).fetchall()[0]
                for statement in (SQL["size_of_sealed"], SQL["size_of_cells"], SQL["size_of_events"])
            ]
            page = db.pragma("page_size")
            free, data = db.pragma("freelist_count") * page, db.pragma("page_count") * page
        paths = (self._settings.path + ending for ending in ("", "-wal", "-shm", "-lock"))
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

    # ── the store as a whole ──

    def lines(self, space: str, prefix: str, after: str | None, limit: int) -> list[Found]:
        with self._reading() as db:
            rows = db.execute(SQL["lines"], (space, max(prefix, after or ""), after or "", limit)).fetchall()
        found = [to_found(columns) for columns in rows]
        return [entry for entry in found if entry.line.name.startswith(prefix)]

    def lines_by_tags(self, space: str, tags: Mapping[str, bytes]) -> list[Found]:
        (name, value), *others = tags.items()
        fitting = []
        with self._reading(together=True) as db:
            for columns in db.execute(SQL["lines_by_tag"], (space, name, value)).fetchall():
                found = to_found(columns)
                stored: list[Any] = db.execute(SQL["tags_of"], (found.line.id,)).fetchall()
                if not all(tag_fits(found.line.id, *each) for each in stored):
                    raise StateCorruptedError(
                        "the index of metadata is damaged: verify() says more, salvage() rebuilds it",
                        where="tag_value",
                    )
                has = {tag: content for tag, content, _ in stored}
                if all(has.get(tag) == wanted for tag, wanted in others):
                    fitting.append(found)
        return fitting

    def untagged(self, space: str) -> list[tuple[Line, int]]:
        with self._reading() as db:
            rows: list[Any] = db.execute(SQL["untagged"], (space,)).fetchall()
        return [(line := to_line(columns[:13]), tagged_seq(line.id, columns[13])) for columns in rows]

    def tag(self, line: int, seq: int, tags: Mapping[str, bytes]) -> None:
        with self._connections.optional(), self._connections as db:
            db.execute("BEGIN IMMEDIATE")
            self._tag(db, line, seq, tags)
            db.execute("COMMIT")

    def _tag(self, db: apsw.Connection, line: int, seq: int, tags: Mapping[str, bytes]) -> None:
        db.execute(SQL["tag_line"], (line, tagged(line, seq)))
        if db.changes() == 1:
            db.executemany(SQL["add_tag"], tag_columns(line, tags))

    def every_line(self) -> Iterator[Line]:
        return every_line(self._reading)

    def unreadable_lines(self) -> list[str]:
        return unreadable_lines(self._reading)

    def check(self) -> list[str]:
        with self._reading(apart=True) as db:
            return problems_of(db)

    def backup(self, path: str) -> None:
        from everthread.stores.sqlite.backup import write_backup

        with self._reading(apart=True) as db:
            write_backup(db, path)

    def restore(self, path: str, cells: Sequence[PutCell] = ()) -> None:
        from everthread.stores.sqlite.backup import open_backup, replace_all

        with open_backup(path) as source, self._reading(apart=True) as observer, self._connections as db:
            replace_all(db, source, observer, lambda: _carry_over(db, source, cells))
        self.signals.ring_all()

    def close(self) -> None:
        self._texts.close()
        self._connections.close()
        self.signals.close()


def _carry_over(present: apsw.Connection, restored: apsw.Connection, cells: Sequence[PutCell]) -> bool:
    """Keep of the present content what a restore must not take back; whether something had to go."""
    # Handles made before must never find another thread under their line's id, nor another value under a
    # cell's revision. Told to the copy, so that no moment shows the one without the other.
    lines: Any = present.execute(SQL["lines_ever"]).fetchall()[0]
    restored.execute(SQL["keep_lines_ever"], lines)
    raise_revisions(restored, highest_revision(present))
    put_cells(restored, cells)
    # Nobody comes back who was erased since the backup was made.
    return sealed.carry_over(present, restored)


def _from(line: int, seq: int) -> tuple[int, int]:
    """Where the row that holds a version is looked for."""
    return row_id(line, seq), row_id(line, SEAL_SEQ - 1)


class DataVersion:
    """Finds out whether any other connection has committed, with one statement that reads no page."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._connections = Connections(settings)
        self._known: Any = None

    def changed(self, lines: Sequence[int]) -> Collection[int] | None:
        with Reading(self._connections) as db:
            found = db, db.execute(SQL["data_version"]).fetchall()
        # Another connection than the last time counts for itself: then anything may have changed.
        before, self._known = self._known, found
        return () if found == before else None

    def close(self) -> None:
        self._connections.close()


def _unchanged_since(db: apsw.Connection, seen: tuple[tuple[int, int], ...]) -> bool:
    """Whether none of these lines was rewound, forked or pruned since."""
    known = {line for line, _ in seen}
    for line, seq in seen:
        if db.execute(SQL["rewound_since"], (row_id(line, seq), row_id(line, SEAL_SEQ - 1))).fetchall():
            return False
        if any(child not in known for (child,) in db.execute(SQL["children"], (line,)).fetchall()):
            return False
    return True


def _rows_are(db: apsw.Connection, line: int, old: tuple[Row, ...]) -> bool:
    """Whether these rows are what stands there."""
    if not old:
        return True
    bounds = row_id(line, old[0].seq), row_id(line, old[-1].seq)
    return db.execute(SQL["rows_between"], bounds).fetchall() == [
        # Whole: what was redacted since may be as long as it was.
        (row.seq, row.first, row.kind, row.hash, row.body, row.net, row.keyframe)
        for row in old
    ]


def _holds(db: apsw.Connection, line: int, chunk: Chunk) -> bool:
    """Whether a chunk is there as it was read."""
    found: list[Any] = db.execute(SQL["chunk_at"], (line, chunk.log, chunk.position)).fetchall()
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
        found: list[Any] = db.execute(SQL["chunks_within"], (line, log, first, last)).fetchall()
        stubs = [(id_, Chunk(log, at, count, b"", b"")) for id_, at, count, size in found if not size]
        db.executemany(SQL["remove_chunk"], ((id_,) for id_, stub in stubs if places.within(stub)))
    _add_chunks(db, line, chunks)


def _drop(db: apsw.Connection, line: int, log: str, start: int, stop: int) -> None:
    """Drop the chunks that lie between these positions."""
    found: list[Any] = db.execute(SQL["chunks_within"], (line, log, start, stop)).fetchall()
    if any(size for *_, size in found):
        db.executemany(SQL["remove_chunk"], ((chunk[0],) for chunk in found))
        stubs = pruned_chunks(log, ((position, count) for _, position, count, _ in found))
        _add_chunks(db, line, stubs)


def _add_chunks(db: apsw.Connection, line: int, chunks: Iterable[Chunk]) -> None:
    """Raises :class:`StateCorruptedError` if items stand there already, of which the rows know nothing."""
    try:
        db.executemany(SQL["add_chunk"], (chunk_columns(line, chunk) for chunk in chunks))
    except apsw.ConstraintError as error:
        raise StateCorruptedError(
            "there are items already where new ones belong: the store is damaged; see store.verify()"
        ) from error


def _fit_one_statement(rows: Sequence[tuple[int, NewRow]]) -> bool:
    """Whether each is a version and nothing else, and none goes on from another."""
    for _, row in rows:
        if row.sealed or row.chunks or row.guard or row.source is not None:
            return False
    return len(rows) <= _GROUP_SIZES[-1] and len({line for line, _ in rows}) == len(rows)


def _append_together(db: apsw.Connection, rows: Sequence[tuple[int, NewRow]]) -> bool:
    """Add versions of many lines with one statement, or none if any of them lost.

    The statement waits for the disk without holding up the other threads of this process; between several
    statements they would all take their turns.
    """
    size = next(size for size in _GROUP_SIZES if size >= len(rows))
    values: list[Any] = []
    for line, row in rows:
        values += record_columns(line, row)
    values += _EMPTY_PLACE * (size - len(rows))
    try:
        db.execute(_append_statement(size), values)
    except apsw.ConstraintError:
        return False
    return True


@cache
def _append_statement(size: int) -> str:
    return SQL["append_many"].format(", ".join(["(?, ?, ?, ?, ?, ?, ?)"] * size))


# ── what is wrong with the file: its pages, its tables, the sums of its rows ───────────────────────


#: As many findings of one kind are told; more say nothing new.
_TOLD_MAX = 100


def misled(db: apsw.Connection, space: str, name: str) -> bool:
    """Whether the search for a name that wasn't found passed a damaged entry of the index.

    The entry that should have been found stands where the search ended, whatever it says now.
    """
    found: list[Any] = db.execute(SQL["names_around"], (space, name)).fetchall()
    return any(columns[:2] != columns[2:] for columns in found)


def problems_of(db: apsw.Connection) -> list[str]:
    """Everything that is wrong, in words. Goes on after each failure."""
    found: list[str] = []
    for part in (
        _pages,
        _definitions,
        _lines,
        _seals,
        _homeless,
        _chunks,
        _tags,
        sealed.damaged,
        damaged_streams,
    ):
        told = 0
        try:
            for problem in part(db):
                told += 1
                if told > _TOLD_MAX:
                    found.append("… and more of the same")
                    break
                found.append(problem)
        except (apsw.Error, AttributeError, TypeError, ValueError, OverflowError) as error:
            # From a damaged page any column may come as any type, whatever the table says.
            if not told:
                found.append(str(error))
    return found


def _pages(db: apsw.Connection) -> Iterator[str]:
    for (text,) in db.execute(SQL["integrity"]).fetchall():
        if text != "ok":
            yield str(text)


def _definitions(db: apsw.Connection) -> Iterator[str]:
    """A flipped bit in the definition of a table or index changes what every later statement means."""
    fresh = apsw.Connection(":memory:")
    try:
        for migration in MIGRATIONS:
            fresh.execute(migration)
        expected = set(fresh.execute(SQL["definitions"]).fetchall())
    finally:
        fresh.close()
    for kind, name, _ in expected.symmetric_difference(db.execute(SQL["definitions"]).fetchall()):
        yield f"the definition of {kind} {name!r} isn't the one it was made with"


def _lines(db: apsw.Connection) -> Iterator[str]:
    for columns in db.execute(SQL["all_lines"]):
        try:
            to_line(columns)
        except StateCorruptedError as error:
            yield str(error)


def _seals(db: apsw.Connection) -> Iterator[str]:
    for (line,) in db.execute(SQL["wrong_seals"]):
        yield f"line {line} is marked as deleted and isn't sealed, or the other way round"


def _homeless(db: apsw.Connection) -> Iterator[str]:
    for line, seq in db.execute(SQL["records_without_line"]):
        yield f"version {seq} belongs to line {line}, which doesn't exist"


def _chunks(db: apsw.Connection) -> Iterator[str]:
    for number, line, log, *columns in db.execute(SQL["all_chunks"]):
        placed, printed = chunk_fits(line, log, tuple(columns))
        if not placed:
            yield f"chunk {number} of log {log!r} of line {line} isn't where it belongs"
        elif not printed:
            yield f"the fingerprints of chunk {number} of log {log!r} of line {line} fail their checksum"


def _tags(db: apsw.Connection) -> Iterator[str]:
    for line, found, untagged, newest in db.execute(SQL["tagged_lines"]):
        covered = tagged_seq(line, found)
        if (found and not covered) or (newest or 0) < covered or (not untagged and (newest or 0) > covered):
            yield f"up to which version the metadata of line {line} is indexed isn't known"
    for line, name, value, found in db.execute(SQL["all_tags"]):
        if not tag_fits(line, name, value, found):
            yield f"the index of the metadata {name!r} of line {line} fails its checksum"


#: So many numbers are tried where the table of lines can't be read; a damaged one may be any.
_NUMBERS_MAX = 100_000


def every_line(reading: Callable[[], Reading]) -> Iterator[Line]:
    """All lines, by id, without those that are damaged: :func:`problems_of` names these."""
    after = 0
    while True:
        try:
            with reading() as db:
                rows: list[Any] = db.execute(SQL["every_line"], (after,)).fetchall()
            if not rows:
                return
        except StateCorruptedError:
            # A page of the table can't be read: whatever is on others is found one by one.
            with reading() as db:
                ever: Any = db.execute(SQL["lines_ever"]).fetchall()[0][0]
            break
        yield from _intact(rows)
        # In a damaged table they needn't be in order: then what comes next has been there already.
        if rows[-1][0] <= after:
            return
        after = rows[-1][0]
    for number in range(after + 1, min(ever or 0, after + _NUMBERS_MAX) + 1):
        with suppress(StateCorruptedError):
            with reading() as db:
                rows = db.execute(SQL["line"], (number,)).fetchall()
            yield from _intact(rows)


def unreadable_lines(reading: Callable[[], Reading]) -> list[str]:
    """What :func:`every_line` leaves out."""
    try:
        with reading() as db:
            return list(_lines(db))
    except StateCorruptedError as error:
        return [str(error)]


def _intact(rows: list[Any]) -> Iterator[Line]:
    for columns in rows:
        with suppress(StateCorruptedError):
            yield to_line(columns)
