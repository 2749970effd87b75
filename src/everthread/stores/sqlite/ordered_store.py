"""The store contract on one SQLite file."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import apsw

from everthread.errors import StateCorruptedError
from everthread.stores import interface
from everthread.stores.byte_scan import search
from everthread.stores.interface import (
    Append,
    At,
    Batch,
    Feed,
    Get,
    Key,
    Outcome,
    Page,
    Progress,
    Purged,
    Query,
    Refused,
    Residue,
    Span,
    Table,
    Trim,
    check_key,
    holds,
    run,
)
from everthread.stores.signals import Signals
from everthread.stores.sqlite.connection import Connections, Reading, Settings, synchronous
from everthread.stores.sqlite.files import RawFile, sync_log
from everthread.stores.sqlite.purging import READER_KEEPS_LOG, empty_log, rewrite
from everthread.stores.sqlite.tables import COMMIT_ONE, Layout, TableSql, stamp_bytes, stamp_number
from everthread.stores.text_index import TextIndex
from everthread.stores.urls import file_identity, quoted

#: Given what this store and a backup hold, returns a batch that is applied to the restored content.
Keep = Callable[["Snapshot", "Snapshot"], Coroutine[Any, Any, Batch]]


class Snapshot:
    """Reads from one connection, as :meth:`SqliteStore.read` and :meth:`SqliteStore.walk` do."""

    def __init__(self, db: apsw.Connection, layout: Layout) -> None:
        self._db, self._tables = db, layout.tables

    async def read(self, queries: Sequence[Query]) -> list[list[Any]]:
        return [self.answer(query) for query in queries]

    async def walk(self, table: int, after: tuple[int, At] | None, limit: int) -> list[tuple[int, At, bytes]]:
        found = self._tables[table]
        rows: Any = self._db.execute(found.sql.walk, (*found.walk_from(after), max(limit, 0)))
        if found.numbered:
            return [(*found.split(id_), _value(value)) for id_, value in rows]
        return [(owner, _name(at), _value(value)) for owner, at, value in rows]

    def get(self, key: Key) -> bytes | None:
        table, owner, at = key
        found = self._tables[table]
        row: Any = self._db.execute(found.sql.get, found.key(owner, at)).fetchone()
        return None if row is None or row[0] is None else _value(row[0])

    def answer(self, query: Query) -> list[Any]:
        if type(query) is Get:
            return [self.get(key) for key in query.keys]
        return self._feed(query) if type(query) is Feed else self._page(query)  # type: ignore[arg-type]

    def _page(self, page: Page) -> list[tuple[At, bytes]]:
        found = self._tables[page.table]
        sql = found.sql.page_back if page.reverse else found.sql.page
        bounds = found.bounds(page.owner, page.start, page.stop)
        rows: Any = self._db.execute(sql, (*bounds, max(page.limit, 0)))
        if found.numbered:
            mask = (1 << found.bits) - 1
            return [(id_ & mask, _value(value)) for id_, value in rows]
        return [(_name(at), _value(value)) for at, value in rows]

    def _feed(self, feed: Feed) -> list[tuple[bytes, bytes, bytes | None]]:
        sql = self._tables[feed.table].sql
        # In reverse, no stamp given means: from the newest one on.
        after = stamp_number(feed.after if feed.after or not feed.reverse else b"\xff" * 8)
        statement = sql.feed_back if feed.reverse else sql.feed
        rows: Any = self._db.execute(statement, (feed.owner, after, max(feed.limit, 0)))
        return [
            (stamp_bytes(stamp), _name(at), None if value is None else _value(value))
            for stamp, at, value in rows
        ]

    def newest_stamp(self, table: int, owner: int) -> int:
        row: Any = self._db.execute(self._tables[table].sql.newest, (owner,)).fetchone()
        return row[0] or 0


def _value(value: Any) -> bytes:
    """Return the value, or no bytes if a damaged page holds something else: no checksum fits these."""
    return value if type(value) is bytes else b""


def _name(at: Any) -> bytes:
    if type(at) is not bytes:
        raise StateCorruptedError("a key in the store is damaged: it holds no bytes; see store.verify()")
    return at


class _Writing:
    """One write transaction."""

    def __init__(self, db: apsw.Connection, layout: Layout) -> None:
        self._db, self._tables = db, layout.tables
        self._present = Snapshot(db, layout)

    def apply(self, batch: Batch, commit: tuple[Any, ...] | None = None) -> Outcome:
        """Apply a batch, or nothing of it if a guard fails."""
        if commit is not None:
            try:
                self._db.execute(COMMIT_ONE, commit)
                return 0
            except apsw.ConstraintError:
                """A guard failed. The following finds out which."""
        for guard in batch.guards:
            value = self._present.get(guard.key)
            if not holds(guard, value):
                return Refused(guard, value)
        for span in batch.deletes:
            self._delete(span)
        for (table, owner, at), value in batch.puts:
            found = self._tables[table]
            self._db.execute(found.sql.put, (*found.key(owner, at), value))
        first = self._append(batch.append) if batch.append is not None else 0
        for trim in batch.trims:
            self._trim(trim)
        return first

    def _delete(self, span: Span) -> None:
        found = self._tables[span.table]
        bounds = found.bounds(span.owner, span.start, span.stop)
        if found.table.followed:
            # One by one: each tombstone gets a stamp of its own.
            ats: list[Any] = self._db.execute(found.sql.live, bounds).fetchall()
            self._db.executemany(found.sql.put, ((span.owner, at, None) for (at,) in ats))
        else:
            self._db.execute(found.sql.delete, bounds)

    def _append(self, append: Append) -> int:
        if not append.values:
            return 0
        found, owner = self._tables[append.table], append.owner
        row: Any = self._db.execute(found.sql.highest, found.bounds(owner, None, None)).fetchone()
        first = 1 if row[0] is None else found.split(row[0])[1] + 1
        check_key(found.table, owner, first + len(append.values) - 1)
        numbers = range(first, first + len(append.values))
        pairs = zip(numbers, append.values, strict=True)
        self._db.executemany(found.sql.put, [(*found.key(owner, at), value) for at, value in pairs])
        if append.names:
            index = self._tables[append.index_table]
            ats = [
                name + number.to_bytes(8, "big")
                for number, names in zip(numbers, append.names, strict=True)
                for name in names
            ]
            for at in ats:
                check_key(index.table, owner, at)
            self._db.executemany(index.sql.put, [(*index.key(owner, at), b"") for at in ats])
        return first

    def _trim(self, trim: Trim) -> None:
        sql = self._tables[trim.table].sql
        highest = self._present.newest_stamp(trim.table, trim.owner)
        self._db.execute(sql.trim, (trim.owner, stamp_number(trim.up_to)))
        self._db.execute(sql.keep_floor, (trim.owner, highest))


class SqliteStore:
    """One database file. Safe for several threads and several processes at once."""

    def __init__(
        self,
        settings: Settings,
        tables: Sequence[Table],
        *,
        clock_us: Callable[[], int] = lambda: time.time_ns() // 1_000,
    ) -> None:
        self._settings, self._clock_us = settings, clock_us
        self._layout = Layout(tables)
        self._connections = Connections(settings, self._layout.schema)
        self._signals = Signals(lambda: _DataVersion(Connections(settings, self._layout.schema)))
        self.text_index = TextIndex(settings.path + "-search")
        self.info = interface.Info(
            url=f"sqlite:///{quoted(settings.path)}",
            kind="sqlite",
            identity=file_identity(settings.path),
            optional=frozenset({"backup", "text_index", "vacuum", "reserve"}),
        )

    # ── reading ──

    async def read(
        self, queries: Sequence[Query], namespace: int = 0, partition: int = 0
    ) -> tuple[list[list[Any]], int]:
        # One statement is a snapshot by itself.
        single = len(queries) == 1 and (type(queries[0]) is not Get or len(queries[0].keys) == 1)
        with Reading(self._connections, together=not single, apart=False) as db:
            snapshot = Snapshot(db, self._layout)
            return [snapshot.answer(query) for query in queries], self._clock_us()

    async def walk(self, table: int, after: tuple[int, At] | None, limit: int) -> list[tuple[int, At, bytes]]:
        with Reading(self._connections, apart=True) as db:
            return await Snapshot(db, self._layout).walk(table, after, limit)

    # ── writing ──

    async def write(self, batches: Sequence[Batch]) -> list[Outcome]:
        # Prepared before other processes are kept from writing.
        for batch in batches:
            self._layout.check(batch)
        commits = [self._layout.commit_one(batch) for batch in batches]
        durable = any(batch.durable for batch in batches)
        with self._connections as db:
            if not durable:
                synchronous(db, "process")
            if len(batches) == 1 and (commit := commits.pop()) and _committed(db, commit):
                outcomes: list[Outcome] = [0]
            else:
                db.execute("BEGIN IMMEDIATE")
                writing = _Writing(db, self._layout)
                outcomes = [writing.apply(*each) for each in zip_longest(batches, commits)]
                db.execute("COMMIT")
            if not durable:
                # After an error, leaving the block restores it.
                synchronous(db, self._settings.durability)
        if self._signals.awaited:
            self._wake(batches)
        return outcomes

    async def flush(self) -> None:
        with self._connections:
            # What left the log was synced before.
            sync_log(self._settings.path)

    def reserve(self) -> bool:
        """Keep other processes from writing until this one has, for 25 ms at most; see :meth:`release`."""
        return self._connections.reserve()

    def release(self) -> None:
        """End :meth:`reserve` without a write."""
        self._connections.release()

    # ── waiting ──

    async def wait(
        self, keys: Mapping[Key, bytes | None], feeds: Mapping[tuple[int, int], bytes], timeout_s: float
    ) -> bool:
        def changed() -> bool:
            with Reading(self._connections, together=True, apart=False) as db:
                present = Snapshot(db, self._layout)
                return any(present.get(key) != value for key, value in keys.items()) or any(
                    present.newest_stamp(*of) > stamp_number(stamp) for of, stamp in feeds.items()
                )

        return self._signals.wait_any((*keys, *feeds), timeout_s, changed)

    def _wake(self, batches: Sequence[Batch]) -> None:
        if any(batch.deletes or batch.append for batch in batches):
            self._signals.ring_all()
        else:
            keys = [key for batch in batches for key, _ in batch.puts]
            self._signals.ring(*keys, *{key[:2] for key in keys})

    # ── the files ──

    async def purge(self, timeout_s: float, progress: Progress | None = None) -> Purged:
        self.text_index.drop()
        if rewrite(self._connections, timeout_s, progress):
            return Purged(done=("database rewritten", "write-ahead log emptied"))
        return Purged(done=("database rewritten",), waiting=(READER_KEEPS_LOG,))

    async def find_residue(self, samples: Sequence[bytes], progress: Progress | None = None) -> Residue:
        # Not in the -shm file: it holds page numbers and checksums, and only SQLite may open it.
        paths = self._files("", "-wal", "-journal", "-search", "-search-wal")
        found = search(paths, samples, progress, RawFile)
        return Residue(found.looked, found.hits)

    async def vacuum(self) -> None:
        """Return free space to the file system."""
        with self._connections as db:
            db.execute("VACUUM")
        empty_log(self._connections)

    async def check(self) -> list[str]:
        with Reading(self._connections, apart=True) as db:
            return [*_damaged_pages(db), *_changed_definitions(db, self._layout)]

    async def usage(self, owner: int | None) -> Mapping[str, tuple[int, int]]:
        with Reading(self._connections, together=True) as db:
            sizes = {each.table.name: _size(db, each, owner) for each in self._layout.tables.values()}
            page_bytes, free = db.pragma("page_size"), db.pragma("freelist_count")
        if owner is None:
            files = [os.stat(path).st_size for path in self._files("", "-wal", "-shm", "-lock")]
            sizes |= {"files": (len(files), sum(files)), "free": (0, free * page_bytes)}
        return sizes

    def _files(self, *endings: str) -> list[str]:
        return [path for end in endings if os.path.exists(path := self._settings.path + end)]

    async def backup(self, path: str) -> None:
        """Write a copy to ``path``, which must not exist: of one moment, complete and synced, or none."""
        from everthread.stores.sqlite.backup import write_backup

        with Reading(self._connections, apart=True) as db:
            write_backup(db, path)

    async def restore(self, path: str, keep: Keep | None = None) -> None:
        """Replace everything by a backup, changed by the batch that ``keep`` returns, in one step.

        All stamps of the restored content are new, so that every reader of a feed sees all of it again, and
        what the backup lacks as deleted. Its guards are ignored. May be called several times for one restore.
        """
        from everthread.stores.sqlite.backup import open_backup, renew_stamps, replace_all

        layout = self._layout
        with (
            open_backup(path, layout.schema) as source,
            Reading(self._connections, apart=True) as observer,
            self._connections as db,
        ):

            def prepare() -> bool:
                renew_stamps(db, source, layout)
                if keep is None:
                    return False
                batch = run(keep(Snapshot(db, layout), Snapshot(source, layout)))
                _Writing(source, layout).apply(batch._replace(guards=()))
                return bool(batch.deletes)

            replace_all(db, source, observer, prepare)
        self._signals.ring_all()

    async def close(self) -> None:
        self.text_index.close()
        self._connections.close()
        self._signals.close()


def _committed(db: apsw.Connection, commit: tuple[Any, ...]) -> bool:
    """Run the hot path: one statement is one transaction. Return False if a guard failed."""
    try:
        db.execute(COMMIT_ONE, commit)
    except apsw.ConstraintError:
        return False
    return True


def _size(db: apsw.Connection, table: TableSql, owner: int | None) -> tuple[int, int]:
    if owner is not None:
        bounds = table.bounds(owner, None, None)
        values = bounds if table.numbered else bounds[:2] if table.named else bounds[:1]
        row: Any = db.execute(table.sql.size, values).fetchone()
    else:
        row = db.execute(table.sql.size_all, (table.table.number,) if table.named else ()).fetchone()
    return row[0], int(row[1])


def _damaged_pages(db: apsw.Connection) -> list[str]:
    try:
        rows: list[Any] = db.execute("PRAGMA integrity_check").fetchall()
    except (apsw.Error, UnicodeDecodeError) as error:
        return [str(error)]
    return [str(text) for (text,) in rows if text != "ok"]


_DEFINITIONS = "SELECT type, name, sql FROM sqlite_schema"


def _changed_definitions(db: apsw.Connection, layout: Layout) -> list[str]:
    """A flipped bit in the definition of a table or index changes what every later statement means."""
    fresh = apsw.Connection(":memory:")
    try:
        fresh.execute("".join(layout.schema.migrations))
        expected = set(fresh.execute(_DEFINITIONS).fetchall())
        changed = expected.symmetric_difference(db.execute(_DEFINITIONS).fetchall())
    except (apsw.Error, UnicodeDecodeError) as error:
        return [f"the definitions of the tables can't be read: {error}"]
    finally:
        fresh.close()
    return sorted({f"the definition of {kind} {name!r} was changed" for kind, name, _ in changed})


class _DataVersion:
    """Notices commits of other connections, with one statement that reads no page."""

    def __init__(self, connections: Connections) -> None:
        self._connections, self._known = connections, None

    def changed(self, awaited: Sequence[Any]) -> tuple[()] | None:
        with Reading(self._connections) as db:
            found: Any = db, db.pragma("data_version")
        # The number means something for one connection only.
        before, self._known = self._known, found
        return () if found == before else None

    def close(self) -> None:
        self._connections.close()
