# Generated from stores/postgres/aio/store.py by tools/twin.py: change that, then run: make twin
"""The store contract on PostgreSQL, and opening such a store: its tables are made or brought up to date.

Threads are in ``lines``, persons and their erasure in ``erasure``; here is the rest: cells and streams
of events, the index of texts with documents and knowledge, and what no commit waits for.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

import psycopg

from everthread.errors import LimitError, NotFoundError, SchemaVersionError, UnsupportedError
from everthread.history.packs import Chunk, Places, pruned_chunks
from everthread.stores.contract import (
    Capabilities,
    Cell,
    Covered,
    Line,
    NewEvent,
    Prune,
    PutCell,
    Row,
    SealedRow,
    StaleCell,
    StoredEvent,
    TextFound,
    Totals,
    Usage,
    Wanted,
    line_usage,
)
from everthread.stores.postgres import schema
from everthread.stores.postgres.durability import PROCESS, Durability
from everthread.stores.postgres.rows import (
    chunk_columns,
    chunk_fits,
    name_bytes,
    root_of,
    row_sum,
    space_bytes,
    text_query,
    text_vector,
)
from everthread.stores.postgres.settings import Settings, read_settings
from everthread.stores.postgres.sync.erasure import ErasureVerbs, run_sealing
from everthread.stores.postgres.sync.lines import Lines
from everthread.stores.postgres.sync.pool import Link, Pool, Transaction
from everthread.stores.signals import Probe, Signals

# ── waiting, pruning, sizes, checking ──────────────────────────────────────────────────────────────


#: As many findings of one kind are told; more say nothing new.
_TOLD_MAX = 100


class UpkeepVerbs(Lines):
    """What :class:`PostgresBackend` does besides its daily work."""

    # ── waiting ──────────────────────────────────────────────────────────────────────────────

    def newer(self, line: int, seq: int) -> bool:
        if line <= 0:
            return False
        rows = self.pool.read("newer", (root_of(line), line, seq))
        return bool(rows[0][0]) if rows else True

    def wait(self, line: int, seq: int, timeout_s: float) -> bool:
        return self.signals.wait(line, timeout_s, lambda: self.newer(line, seq))

    # ── pruning ──────────────────────────────────────────────────────────────────────────────

    def prune(self, line: Line, prune: Prune) -> bool:
        root = root_of(line.id)
        # What comes back from an archive is deleted there once this is done: it must not be lost then.
        with self.pool.transaction(durable=self.pool.settings.durable) as transaction:
            # Forks, rewinds and folds of this family wait, or were before: what is read now stays so.
            transaction.run("lock_family", (root,))
            fits = _as_seen(transaction, prune) and _standing(transaction, line.id, prune.old)
            fits = fits and _holding(transaction, line.id, prune.held)
            if fits:
                if prune.old:
                    bounds = root, line.id, prune.old[0].seq, prune.old[-1].seq
                    transaction.run("remove_rows", bounds)
                if prune.rows:
                    transaction.run("add_rows", (root, line.id, *_columns(prune.rows)))
                    if _rewritten(prune):
                        transaction.run("remove_documents", (root,))
                for log, start, stop in prune.dropped:
                    _drop(transaction, line.id, log, start, stop)
                _bring_back(transaction, line.id, prune.chunks)
        return fits

    # ── sizes ────────────────────────────────────────────────────────────────────────────────

    def usage(self, line: int) -> Usage:
        place = root_of(line), line
        rows = self.pool.read("line_sizes", place)
        ((chunks,),) = self.pool.read("chunk_sizes", place)
        return line_usage(rows, chunks)

    def totals(self) -> Totals:
        ((sealed, sealed_bytes, cells, cell_bytes, events, event_bytes),) = self.pool.read("totals", ())
        tables = self.pool.read("table_sizes", (self.pool.settings.schema,))
        return Totals(
            sealed=(sealed, sealed_bytes),
            cells=(cells, cell_bytes),
            events=(events, event_bytes),
            files=tuple((f"{self.pool.settings.schema}.{name}", size) for name, size in tables),
        )

    def persist(self) -> None:
        with self.pool.transaction(durable=True) as transaction:
            # It writes to the log, of which everything before is kept as well when this is.
            transaction.run("lock_any", ())

    def compact(self) -> None:
        with self.pool.connection(hurried=False) as link:
            for statement in self.pool.statements["compact"].split(b";\n"):
                link.script(statement)

    # ── checking ─────────────────────────────────────────────────────────────────────────────

    def check(self) -> list[str]:
        found: list[str] = []
        for problem in self._problems():
            if len(found) == _TOLD_MAX:
                return [*found, "… and more of the same"]
            found.append(problem)
        return found

    def _problems(self) -> Iterator[str]:
        read = self.pool.read
        yield from self.unreadable_lines()
        for (line,) in read("wrong_heads", ()):
            yield f"the head of line {line} isn't its newest version, or it is sealed and not deleted"
        for (line,) in read("tags_never_due"):
            yield f"the metadata of line {line} are behind, and nothing says so"
        for line, seq in read("records_without_line", ()):
            yield f"version {seq} belongs to line {line}, which doesn't exist"
        place: tuple[Any, ...] = (0, 0, b"", -1)
        while chunks := read("chunk_places", place):
            for _, line, log, position, count, prints, sum_ in chunks:
                if not all(chunk_fits(log, position, count, prints, sum_)):
                    named = log.decode(errors="replace")
                    yield f"chunk {position} of log {named!r} of line {line} is damaged"
            place = chunks[-1][:4]
        for (name,) in read("wrong_streams", ()):
            yield f"the stream {name.decode(errors='replace')!r} isn't what its events say"
        for name, seq in read("wrong_peaks", ()):
            yield f"event {seq} of the stream {name.decode(errors='replace')!r} isn't found by its time"
        for (value,) in read("sealed_without_key", ()):
            yield f"the sealed value {value.hex()} isn't found by its key"


def _rewritten(prune: Prune) -> bool:
    """Whether the same versions say something else now: something in them was redacted."""
    old, new = ([(row.first, row.seq, row.kind) for row in rows] for rows in (prune.old, prune.rows))
    return old == new


def _as_seen(transaction: Transaction, prune: Prune) -> bool:
    """Whether none of these lines was rewound or forked since."""
    lines = [line for line, _ in prune.seen]
    seen = [root_of(line) for line in lines], lines, [seq for _, seq in prune.seen]
    return not transaction.run("changed_since", seen)


def _standing(transaction: Transaction, line: int, old: tuple[Row, ...]) -> bool:
    """Whether these rows are what stands there."""
    if not old:
        return True
    found = transaction.run("row_digests", (root_of(line), line, old[0].seq, old[-1].seq))
    return found == [
        # By digests, not lengths: what was redacted since may be as long as it was.
        (row.seq, row.first, row.kind, row.hash, *map(_digest, (row.body, row.net, row.keyframe)))
        for row in old
    ]


def _holding(transaction: Transaction, line: int, held: tuple[Chunk, ...]) -> bool:
    """Whether these chunks are there as they were read."""
    for log in dict.fromkeys(chunk.log for chunk in held):
        chunks = sorted((chunk for chunk in held if chunk.log == log), key=lambda chunk: chunk.position)
        place = root_of(line), line, log.encode(), [chunk.position for chunk in chunks]
        if transaction.run("chunk_digests", place) != [
            (chunk.position, chunk.count, _digest(chunk.fingerprints), _digest(chunk.data))
            for chunk in chunks
        ]:
            return False
    return True


def _digest(data: bytes | None) -> bytes | None:
    return None if data is None else sha256(data).digest()


def _columns(rows: tuple[Row, ...]) -> tuple[list[Any], ...]:
    return (
        [row.seq for row in rows],
        [row.kind for row in rows],
        [row.first for row in rows],
        [row_sum(row.seq, row.kind, row.first, row.hash, None) for row in rows],
        [row.hash for row in rows],
        [row.net for row in rows],
        [row.keyframe for row in rows],
        [row.body for row in rows],
    )


def _bring_back(transaction: Transaction, line: int, chunks: tuple[Chunk, ...]) -> None:
    """Put chunks into the place of those that stand for them."""
    place = root_of(line), line
    places = Places(chunks)
    for log in {chunk.log for chunk in chunks}:
        first = min(chunk.position for chunk in chunks if chunk.log == log)
        last = max(chunk.end for chunk in chunks if chunk.log == log)
        found = transaction.run("chunks_within", (*place, log.encode(), first, last))
        stubs = [Chunk(log, position, count, b"", b"") for position, count, size in found if not size]
        gone = [stub.position for stub in stubs if places.within(stub)]
        transaction.run("remove_chunks", (*place, log.encode(), gone))
    if chunks:
        transaction.run("add_chunks", (*place, *chunk_columns(chunks)))


def _drop(transaction: Transaction, line: int, log: str, start: int, stop: int) -> None:
    """Drop the chunks that lie between these positions."""
    place = root_of(line), line
    found = transaction.run("chunks_within", (*place, log.encode(), start, stop))
    if any(size for *_, size in found):
        transaction.run("remove_chunks", (*place, log.encode(), [chunk[0] for chunk in found]))
        stubs = pruned_chunks(log, ((position, count) for position, count, _ in found))
        transaction.run("add_chunks", (*place, *chunk_columns(stubs)))


# ── cells and streams of events ────────────────────────────────────────────────────────────────────


_TIME_MIN, _TIME_MAX = -(1 << 63), (1 << 63) - 1


class CellAndEventVerbs:
    """Cells and streams of :class:`PostgresBackend`. Times of cells are by the server's clock."""

    pool: Pool

    def cell(self, space: str, name: str, now_us: int) -> Cell | None:
        rows = self.pool.read("cell", (space_bytes(space), name_bytes(name)))
        return Cell(*rows[0]) if rows else None

    def swap(
        self,
        space: str,
        name: str,
        expected: int,
        value: bytes | None,
        now_us: int,
        durable: bool = True,
    ) -> int:
        durable = durable and self.pool.settings.durable
        values = space_bytes(space), name_bytes(name), expected, value, durable
        ((swapped, revision, held, held_us, read_us),) = self.pool.run("swap", values)
        if not swapped:
            raise StaleCell(None if held is None else Cell(held, revision, held_us, read_us))
        return 0 if value is None else int(revision)

    def cells(
        self, space: str, prefix: str, after: str | None, limit: int, now_us: int = 0
    ) -> list[tuple[str, Cell]]:
        rows = self.pool.read("cells", _page(space, prefix, after, limit))
        found = [(name.decode(), Cell(*columns)) for name, *columns in rows]
        return [entry for entry in found if entry[0].startswith(prefix)]

    # ── streams ──────────────────────────────────────────────────────────────────────────────

    def emit(
        self, space: str, stream: str, events: Sequence[NewEvent], sealed: Sequence[SealedRow] = ()
    ) -> int:
        assert events, "at least one event"
        values = (
            *(space_bytes(space), name_bytes(stream)),
            [name_bytes(event.type) for event in events],
            [None if event.agent is None else name_bytes(event.agent) for event in events],
            [event.at_us for event in events],
            [event.body for event in events],
            [value_id for value_id, _, _ in sealed],
            [keys for _, keys, _ in sealed],
            [data for _, _, data in sealed],
            self.pool.settings.durable,
        )
        ((first,),) = run_sealing(self.pool, "emit", values, None, sealed)
        if not first:
            raise LimitError(f"the stream {stream!r} is full; go on in another one")
        return int(first)

    def events(
        self,
        space: str,
        stream: str,
        after: int,
        limit: int,
        *,
        type: str | None = None,
        agent: str | None = None,
        since_us: int | None = None,
        until_us: int | None = None,
    ) -> list[StoredEvent]:
        common = (
            *(space_bytes(space), name_bytes(stream), _in_range(after)),
            _TIME_MIN if since_us is None else _in_range(since_us),
            _TIME_MAX if until_us is None else _in_range(until_us),
            limit,
        )
        if type is not None and agent is not None:
            values = (*common, name_bytes(type), name_bytes(agent))
            rows = self.pool.read("events_of_type_and_agent", values)
        elif type is not None:
            rows = self.pool.read("events_of_type", (*common, name_bytes(type)))
        elif agent is not None:
            rows = self.pool.read("events_of_agent", (*common, name_bytes(agent)))
        else:
            rows = self.pool.read("events", common)
        return [
            StoredEvent(seq, at_us, kind.decode(), None if by is None else by.decode(), body)
            for seq, at_us, kind, by, body in rows
        ]

    def streams(self, space: str, prefix: str, after: str | None, limit: int) -> list[tuple[str, int]]:
        rows = self.pool.read("streams", _page(space, prefix, after, limit))
        found = [(name.decode(), last) for name, last in rows]
        return [entry for entry in found if entry[0].startswith(prefix)]

    def trim_stream(self, space: str, stream: str, up_to: int) -> int:
        values = space_bytes(space), name_bytes(stream), _in_range(up_to), self.pool.settings.durable
        ((trimmed,),) = self.pool.run("trim_stream", values)
        return int(trimmed)

    def rewrite_events(self, space: str, stream: str, bodies: Mapping[int, bytes]) -> int:
        if not bodies:
            return 0
        values = space_bytes(space), name_bytes(stream), list(bodies), list(bodies.values())
        return len(self.pool.run("rewrite_events", values))


def _in_range(number: int) -> int:
    return min(max(number, _TIME_MIN), _TIME_MAX)


def _page(space: str, prefix: str, after: str | None, limit: int) -> tuple[bytes, bytes, bytes, int]:
    return space_bytes(space), name_bytes(prefix), name_bytes(after or ""), limit


# ── texts, documents, knowledge ────────────────────────────────────────────────────────────────────


class TextVerbs:
    """What :class:`PostgresBackend` keeps for searching and for queries in SQL."""

    pool: Pool
    _has_vectors = False

    # ── text index ───────────────────────────────────────────────────────────────────────────

    def texts_covered(self, space: str) -> dict[bytes, bytes]:
        rows = self.pool.read("texts_covered", (space_bytes(space),))
        return {uid: mark for uid, mark in rows}  # noqa: C416 - typed

    def text_keys(self, space: str, uid: bytes, kinds: Sequence[str]) -> list[str]:
        rows = self.pool.read("text_keys", (space_bytes(space), uid, _names(kinds)))
        return [key.decode() for (key,) in rows]

    def cover_texts(self, space: str, covered: Covered) -> bool:
        values = (
            *(space_bytes(space), covered.uid, covered.before, covered.mark, _names(covered.gone)),
            [name_bytes(text.key) for text in covered.texts],
            [name_bytes(text.kind) for text in covered.texts],
            [text_vector(text.words) for text in covered.texts],
        )
        ((done,),) = self.pool.run("cover_texts", values)
        return bool(done)

    def forget_texts(self, space: str, uids: Sequence[bytes]) -> None:
        self.pool.read("forget_texts", (space_bytes(space), list(uids)))

    def find_texts(self, space: str, wanted: Wanted) -> list[TextFound]:
        uids = None if wanted.uids is None else list(wanted.uids)
        values = space_bytes(space), text_query(wanted.terms), _names(wanted.kinds), uids, wanted.limit
        rows = self.pool.read("find_texts", values)
        return [TextFound(uid, key.decode(), kind.decode(), score) for uid, key, kind, score in rows]

    def drop_texts(self) -> None:
        sql = self.pool.statements
        with self.pool.connection() as link:
            try:
                link.script(sql["truncate_texts"])
            except psycopg.errors.InsufficientPrivilege:
                # A tenant can remove what is its own.
                link.script(sql["delete_texts"])

    # ── documents and knowledge ──────────────────────────────────────────────────────────────

    def stale_documents(self, space: str, after: str, limit: int) -> list[tuple[int, str]]:
        """Lines whose newest document isn't among those that can be queried, by name."""
        rows = self.pool.read("stale_documents", (name_bytes(space), name_bytes(after), limit))
        return [(line, name.decode()) for line, name in rows]

    def put_document(self, line: int, seq: int, digest: bytes, at_us: int, document: bytes) -> None:
        self.pool.read("put_document", (line, seq, digest, at_us, document.decode()))

    def add_knowledge(self, space: str, key: str, text: str, metadata: str, embedding: str) -> None:
        durable = self.pool.settings.durable
        values = space_bytes(space), name_bytes(key), text, metadata, embedding, durable
        self.pool.read("add_knowledge", values)

    def remove_knowledge(self, space: str, key: str) -> bool:
        ((removed,),) = self.pool.run("remove_knowledge", (space_bytes(space), name_bytes(key)))
        return bool(removed)

    def find_knowledge(
        self, space: str, embedding: str, dimensions: int, where: bytes, limit: int
    ) -> list[tuple[str, str, str, float]]:
        """(key, text, metadata as JSON, distance), nearest first."""
        self._need_vectors()
        values = space_bytes(space), embedding, dimensions, where.decode(), limit
        rows = self.pool.read("find_knowledge", values)
        return [(key.decode(), text, metadata, distance) for key, text, metadata, distance in rows]

    def _need_vectors(self) -> None:
        """Make sure that the extension is there."""
        if self._has_vectors:
            return
        if not self.pool.read("has_vector"):
            with self.pool.connection() as link:
                try:
                    link.script(self.pool.statements["make_vector"])
                except psycopg.Error as error:
                    raise UnsupportedError(
                        "searching by embeddings needs the extension pgvector in this database: install it "
                        "on the server, then let a superuser run CREATE EXTENSION vector "
                        f"({' '.join(str(error).split())})"
                    ) from error
        self._has_vectors = True


def _names(names: Iterable[str]) -> list[bytes]:
    return [name_bytes(name) for name in names]


# ── the whole store ────────────────────────────────────────────────────────────────────────────────


#: The oldest server that all of this was written for.
_SERVER_MIN = 150_000


class PostgresBackend(UpkeepVerbs, CellAndEventVerbs, ErasureVerbs, TextVerbs):
    """Tables in one schema of a database. Safe for any number of tasks, processes and hosts at once.

    Making one connects to nothing: that happens when something is asked.
    """

    capabilities = Capabilities(durable=True, multi_process=True, backup=False, texts=True, cold=True)

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        self.pool = Pool(settings)
        self.signals = Signals(lambda: _watcher(settings))
        #: What the server said about how it keeps what it acknowledges, when the store was opened.
        self.keeping: Durability | None = None

    @property
    def url(self) -> str:
        return self.settings.shown

    def backup(self, path: str) -> None:
        raise _no_backups(self.settings)

    def restore(self, path: str, cells: Sequence[PutCell] = ()) -> None:
        raise _no_backups(self.settings)

    def close(self) -> None:
        self.pool.close()
        self.signals.close()


def _watcher(settings: Settings) -> Probe:
    # Only a store that waits for others pays for the import.
    from everthread.stores.postgres.notifications import Watcher

    return Watcher(settings)


def _no_backups(settings: Settings) -> UnsupportedError:
    return UnsupportedError(
        f"backup() and restore() don't serve {settings.shown}: use the server's own tools (pg_dump and "
        "pg_restore, continuous archiving), or export(), whose archives any store can import"
    )


# ── opening ──────────────────────────────────────────────────────────────────────────────────────


def connect(url: str, durability: str, create: bool = True) -> PostgresBackend:
    """The store behind a URL. Its tables are made if they aren't there and the role may do so.

    Without ``create`` none are made: raises :class:`NotFoundError`. Warns if ``durability`` is ``"full"`` and
    the server's settings are known to keep less.
    """
    settings = read_settings(url, durability)
    backend = PostgresBackend(settings)
    try:
        with backend.pool.connection() as link:
            backend.keeping = _check_server(link, settings)
            _bring_up_to_date(link, settings, create)
    except BaseException:
        backend.close()
        raise
    return backend


def _check_server(link: Link, settings: Settings) -> Durability:
    sql = schema.statements(settings.quoted_schema)
    ((number, said, fsync, pages, waiting, standbys),) = link.run(sql["server"])
    if number < _SERVER_MIN:
        raise UnsupportedError(f"{settings.shown} is PostgreSQL {said}; version 15 or newer is needed")
    keeping = Durability(
        fsync=fsync,
        full_page_writes=pages,
        synchronous_commit=waiting,
        standbys=standbys,
        durable=settings.durable,
    )
    if settings.durable and keeping.level == PROCESS:
        warnings.warn(
            f'{settings.shown} can\'t keep what durability="full" promises: {keeping}. {keeping.advice}',
            stacklevel=2,
        )
    return keeping


def _bring_up_to_date(link: Link, settings: Settings, create: bool) -> None:
    version = _version(link, settings)
    if version == 0 and not create:
        raise NotFoundError(
            f"there is no store at {settings.shown}: the schema {settings.schema} isn't there or is empty. "
            "An agent makes it when it opens it; nothing was made now"
        )
    if version < schema.SCHEMA_VERSION:
        _migrate(link, settings)
    elif version > schema.SCHEMA_VERSION:
        raise _newer(version, settings)


def _newer(version: int, settings: Settings) -> SchemaVersionError:
    return SchemaVersionError(
        f"the store at {settings.shown} has schema version {version}, this release knows up to "
        f"{schema.SCHEMA_VERSION}; upgrade everthread. Nothing was changed"
    )


def _version(link: Link, settings: Settings) -> int:
    try:
        ((version,),) = link.run(schema.statements(settings.quoted_schema)["version"])
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        return 0
    return int(version)


def _migrate(link: Link, settings: Settings) -> None:
    """One instance at a time, in one transaction: it is seen whole or not at all.

    It waits for locks only shortly, so that writers never queue behind it for long.
    """
    sql = schema.statements(settings.quoted_schema)
    with link.transaction():
        link.run(sql["lock_schema"], (schema.MIGRATION_LOCK, settings.schema))
        link.script(sql["impatient"])
        if not link.run(sql["schema_exists"], (settings.schema,)):
            link.script(sql["make_schema"])
        link.script(sql["make_format"])
        ((version,),) = link.run(sql["version"])
        if version > schema.SCHEMA_VERSION:
            raise _newer(version, settings)
        for number in range(version, schema.SCHEMA_VERSION):
            link.run(sql["set_partitions"], (str(settings.partitions),))
            for text in schema.migration(number, settings.quoted_schema, settings.partitions):
                link.script(text)
            link.run(sql["note_version"], (number + 1,))
