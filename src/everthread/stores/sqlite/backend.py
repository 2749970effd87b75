"""The contract on SQLite."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import apsw
import msgspec

from everthread.codec.values import encode
from everthread.errors import StateCorruptedError
from everthread.history.packs import Chunk
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
    PutCell,
    Row,
    SourceGone,
    StaleWrite,
    VersionGone,
)
from everthread.stores.sqlite import checking, schema
from everthread.stores.sqlite.connecting import synchronous
from everthread.stores.sqlite.erasing import Erasing
from everthread.stores.sqlite.reading import replay
from everthread.stores.sqlite.registers import Registers
from everthread.stores.sqlite.rows import (
    checked_row,
    chunk_fits,
    line_sum,
    record_columns,
    row_id,
    row_sum,
    tag_columns,
    tag_fits,
    tagged,
    tagged_seq,
    to_chunk,
    to_found,
    to_line,
)
from everthread.stores.sqlite.sealed import APPEND_BESIDE, add_sealed, add_single, beside, refusal
from everthread.stores.sqlite.upkeep import Upkeep, add_chunks
from everthread.stores.text_index import IndexedTexts
from everthread.stores.urls import file_identity, quoted


class SqliteBackend(Upkeep, Registers, Erasing, IndexedTexts):
    """One database file. Safe for several threads and several processes at once."""

    capabilities = Capabilities(
        durable=True, multi_process=True, backup=True, texts=True, cold=True, beside=True
    )

    @property
    def url(self) -> str:
        return f"sqlite:///{quoted(self._settings.path)}"

    def identity(self) -> str:
        return file_identity(self._settings.path)

    # ── reading ──────────────────────────────────────────────────────────────────────────────

    def find(self, space: str, name: str) -> Found | None:
        with self._reading() as db:
            columns = db.execute(schema.FIND, (space, name)).fetchone()
            astray = columns is None and checking.misled(db, space, name)
        if astray:
            raise StateCorruptedError(
                f"the index of names in {self._settings.path} is damaged: whether there is a thread {name!r} "
                "can't be told; everthread.salvage() brings what can be saved into a new store",
                where=name,
            )
        return None if columns is None else to_found(columns)

    def line(self, line: int) -> Line | None:
        with self._reading() as db:
            columns = db.execute(schema.LINE, (line,)).fetchone()
        return None if columns is None else to_line(columns)

    def line_by_uid(self, uid: bytes) -> Line | None:
        with self._reading() as db:
            columns = db.execute(schema.LINE_BY_UID, (uid,)).fetchone()
        return None if columns is None else to_line(columns)

    def replay(self, line: int, seq: int, floor: int) -> list[Row]:
        with self._reading() as db:
            return replay(db, line, seq, floor)

    def scan(self, line: int, seq: int, limit: int) -> list[Row]:
        with self._reading() as db:
            newest = row_id(line, SEAL_SEQ - 1)
            bounds = row_id(line, min(seq, SEAL_SEQ - 1)), newest, row_id(line, 0), limit
            return [checked_row(line, columns) for columns in db.execute(schema.SCAN, bounds)]

    def tail(self, line: int) -> list[tuple[Row, bytes | None]]:
        rows: list[tuple[Row, bytes | None]] = []
        with self._reading() as db:
            cursor = db.execute(schema.TAIL, (row_id(line, 0), row_id(line, SEAL_SEQ - 1)))
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
            found: list[Any] = db.execute(schema.CHUNKS, (line, log, start, stop)).fetchall()
            if not all(chunk_fits(line, log, columns)[0] for columns in found):
                # One that isn't where it belongs is as good as missing, and may stand before the right one.
                found = db.execute(schema.CHUNKS, (line, log, 0, stop)).fetchall()
        chunks = [to_chunk(log, columns) for columns in found if chunk_fits(line, log, columns)[0]]
        return [chunk for chunk in chunks if chunk.position + chunk.count > start]

    def fingerprints(self, line: int, log: str, start: int) -> list[tuple[int, bytes]]:
        with self._reading() as db:
            found: list[Any] = db.execute(schema.FINGERPRINTS, (line, log, start)).fetchall()
        fitting = (columns for columns in found if all(chunk_fits(line, log, columns)))
        return [(at, prints or bytes(4 * n)) for at, n, prints, *_ in fitting if at + n > start]

    def keyed(self, root: int, key: bytes) -> list[tuple[int, int]]:
        with self._reading() as db:
            found: list[Any] = db.execute(schema.KEYED, (root, key)).fetchall()
        return found

    # ── writing ──────────────────────────────────────────────────────────────────────────────

    def append(self, line: int, row: NewRow) -> None:
        sealed = beside(line, row) if row.sealed else None
        # Before others are kept from writing.
        values = record_columns(line, row)
        with self._connections as db:
            if sealed is not None or not (row.chunks or row.sealed):
                # One statement is one transaction: the hot path.
                landed = self._insert(db, row, values, sealed)
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
        from everthread.stores.sqlite.together import append_together, fits

        outcomes: list[Exception | bool] = []
        try:
            if fits(rows):
                with self._connections as db:
                    added = append_together(db, rows)
                if added:
                    self.signals.ring(*(line for line, _ in rows))
                    return [None] * len(rows)
            with self._connections as db:
                db.execute("BEGIN IMMEDIATE")
                for line, row in rows:
                    sealed = beside(line, row) if row.sealed else None
                    refused = refusal(db, row.sealed) if row.sealed and sealed is None else None
                    outcomes.append(refused or self._insert(db, row, record_columns(line, row), sealed))
                    if sealed is None and (row.chunks or row.sealed) and outcomes[-1] is True:
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

    def _insert(
        self, db: apsw.Connection, row: NewRow, values: tuple[Any, ...], sealed: bytes | None = None
    ) -> bool:
        if sealed is not None:
            db.execute(APPEND_BESIDE, (*values, sealed, row.sealed[0][1]))
        elif row.source is not None:
            db.execute(schema.APPEND_REWIND, (*values, *_from(*row.source)))
        elif row.guard:
            db.execute(schema.APPEND_GUARDED, (*values, row.guard))
        else:
            db.execute(schema.APPEND, values)
        return db.changes() == 1

    def _insert_rest(self, db: apsw.Connection, line: int, row: NewRow) -> None:
        add_sealed(db, row.sealed)
        add_chunks(db, line, row.chunks)

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
                    kinds: list[Any] = db.execute(schema.FORKED_FROM, (source, *bounds)).fetchall()
                    if kinds in ([], [(None,)]):
                        raise SourceGone
                    if kinds == [(PRUNED,)]:
                        raise VersionGone
                counts = encode(line.counts) if line.counts else b""
                rest = (line.parent, line.parent_seq, line.parent_segment, line.parent_hash, line.start_hash)
                named = (line.uid, line.space, line.name)
                db.execute(schema.CREATE_LINE, (*named, line.root, *rest, counts))
                id_ = db.last_insert_rowid()
                root = line.root or id_
                db.execute(schema.COMPLETE_LINE, (id_, root, line_sum((id_, *named, root, *rest, counts))))
                line = msgspec.structs.replace(line, id=id_, root=root)
                db.executemany(schema.ADD_TAG, tag_columns(line.id, tags))
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
                # Here, because nobody waits and nobody else writes.
                self._connections.lengthen_log()
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
        db.execute(schema.FOLD_OUT, (first, last))
        if db.changes() != last - first:
            return False
        sum_ = row_sum(last, PACK, pack.first, fold.hash, None)
        packed = last, pack.first, pack.net, fold.keyframe, pack.body, sum_
        db.execute(schema.FOLD_IN, (*packed, fold.hash, first - 1, fold.beside))
        if db.changes() != 1:
            return False
        add_chunks(db, line.id, pack.chunks)
        # In key order: neighbours share pages.
        keys = sorted([(line.root, key, line.id, seq) for key, seq in fold.keys])
        db.executemany(schema.ADD_KEYED, keys)
        self._tag(db, line.id, pack.last, fold.tags)
        return True

    def keyframe(self, line: int, seq: int, digest: bytes, keyframe: bytes) -> None:
        with self._connections as db:
            db.execute(schema.KEYFRAME, (row_id(line, seq), keyframe, digest))

    def delete(self, line: Line, newest: bytes | None = None) -> bool:
        with self._connections as db:
            db.execute("BEGIN IMMEDIATE")
            db.execute(schema.SEAL_LINE, (line.id, line.uid, newest))
            sealed = db.changes() == 1
            if sealed:
                seal = row_id(line.id, SEAL_SEQ)
                db.execute(schema.ADD_SEAL, (seal, row_sum(seal, SEAL, SEAL_SEQ, b"", None)))
                self._purge(db, line.id)
            db.execute("COMMIT")
        self.signals.ring(line.id)
        return sealed

    def _purge(self, db: apsw.Connection, line: int) -> None:
        """Remove what no living thread reaches any more: this deleted line, then perhaps its ancestors."""
        while line and not db.execute(schema.NEEDED, (line,)).fetchall():
            for statement in schema.PURGE_LINE:
                db.execute(statement, (line,))
            parents: Any = db.execute(schema.PARENT, (line,)).fetchall()
            line = parents[0][0]

    # ── the store as a whole ─────────────────────────────────────────────────────────────────

    def lines(self, space: str, prefix: str, after: str | None, limit: int) -> list[Found]:
        with self._reading() as db:
            rows = db.execute(schema.LINES, (space, prefix, after or "", limit)).fetchall()
        found = [to_found(columns) for columns in rows]
        return [entry for entry in found if entry.line.name.startswith(prefix)]

    def lines_by_tags(self, space: str, tags: Mapping[str, bytes]) -> list[Found]:
        (name, value), *others = tags.items()
        kept = []
        with self._reading(together=True) as db:
            ways = [schema.TAGGED_BY_INDEX, schema.TAGGED_BY_TABLE]
            told, fact = [db.execute(way, (name, value)).fetchall() for way in ways]
            rows = db.execute(schema.LINES_BY_TAG, (space, name, value)).fetchall()
            # Each of them checked: else a thread that the index, or the table of threads, has lost would be
            # missing in silence.
            foreign = db.execute(schema.OTHERS_BY_TAG, (space, name, value)).fetchall()
            sound = told == fact and len(rows) + len(foreign) == len(fact)
            for *entry, ended in foreign:
                other = to_line(tuple(entry))
                sound = sound and other.deleted is bool(ended) and (other.deleted or other.space != space)
            for columns in rows:
                found = to_found(columns)
                tagged: list[Any] = db.execute(schema.TAGS, (found.line.id,)).fetchall()
                sound = sound and all(tag_fits(found.line.id, *each) for each in tagged)
                has = {tag: content for tag, content, _ in tagged}
                if all(has.get(tag) == wanted for tag, wanted in others):
                    kept.append(found)
        if not sound:
            raise StateCorruptedError(
                "the index of metadata is damaged: verify() tells more, salvage() rebuilds it",
                where="tag_value",
            )
        return kept

    def untagged(self, space: str) -> list[tuple[Line, int]]:
        with self._reading() as db:
            rows: list[Any] = db.execute(schema.UNTAGGED, (space,)).fetchall()
        return [(line := to_line(columns[:13]), tagged_seq(line.id, columns[13])) for columns in rows]

    def tag(self, line: int, seq: int, tags: Mapping[str, bytes]) -> None:
        hurried, me = self._connections.hurried, threading.get_ident()
        hurried.add(me)
        try:
            with self._connections as db:
                db.execute("BEGIN IMMEDIATE")
                self._tag(db, line, seq, tags)
                db.execute("COMMIT")
        finally:
            hurried.discard(me)

    def _tag(self, db: apsw.Connection, line: int, seq: int, tags: Mapping[str, bytes]) -> None:
        db.execute(schema.TAGGED_UP_TO, (line, tagged(line, seq)))
        if db.changes() == 1:
            db.executemany(schema.ADD_TAG, tag_columns(line, tags))

    def every_line(self) -> Iterator[Line]:
        return checking.every_line(self._reading)

    def unreadable_lines(self) -> list[str]:
        return checking.unreadable_lines(self._reading)

    def check(self) -> list[str]:
        with self._reading(apart=True) as db:
            return checking.check(db)

    def backup(self, path: str) -> None:
        from everthread.stores.sqlite.copies import write_backup

        with self._reading(apart=True) as db:
            write_backup(db, path)

    def restore(self, path: str, cells: Sequence[PutCell] = ()) -> None:
        from everthread.stores.sqlite.copies import open_backup, replace_all

        with open_backup(path) as source, self._reading(apart=True) as witness, self._connections as db:
            replace_all(db, source, witness, cells)
        self.signals.ring_all()

    def close(self) -> None:
        self._texts.close()
        self._connections.close()
        self.signals.close()


def _from(line: int, seq: int) -> tuple[int, int]:
    """Where the row that holds a version is looked for."""
    return row_id(line, seq), row_id(line, SEAL_SEQ - 1)
