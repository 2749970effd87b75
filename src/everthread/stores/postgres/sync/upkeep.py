# Generated from stores/postgres/aio/upkeep.py by tools/twin.py: change that, then run: make twin
"""Waiting for others, pruning, sizes, checking: the contract's verbs that no commit waits for."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Any

from everthread.history.packs import Chunk, Places, pruned_chunks
from everthread.stores.contract import Line, Prune, Row, Totals, Usage, line_usage
from everthread.stores.postgres.rows import chunk_columns, chunk_fits, root_of, row_sum
from everthread.stores.postgres.sync.lines import Lines
from everthread.stores.postgres.sync.pool import Transaction

#: As many findings of one kind are told; more say nothing new.
_TOLD_MAX = 100


class Upkeep(Lines):
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
