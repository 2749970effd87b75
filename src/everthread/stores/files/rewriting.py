"""Other content in the place of what was committed: what a redaction makes of a journal.

A version keeps its seq and hash, and gets another line; the head in it tells what the digest of the first one
was. Of pruned versions the line and the items are written anew. As with pruning, segments are replaced whole,
and what was derived is made again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from everthread.codec import records
from everthread.history.packs import Chunk
from everthread.stores.contract import PRUNED, NewRow, Prune, Row
from everthread.stores.files.parsing import Entry
from everthread.stores.files.pruning import Pruning
from everthread.stores.files.rendering import render
from everthread.stores.files.revolving import Edit
from everthread.stores.files.volumes import remove_folds


class Rewriting(Pruning):
    """Rewrites versions, and items that only pruned ones inserted, in one line. The caller has the turn."""

    def run(self, prune: Prune) -> bool:
        """False, and nothing changed, if the rows aren't these any more."""
        refs = self._standing(prune)
        if refs is None:
            return False
        entries = self._entries(refs)
        bodies = dict(prune.records)
        tombs = {row.seq: row for row in prune.rows if row.kind == PRUNED}
        edits = [self._line(entry, bodies[entry.seq]) for entry in entries if entry.seq in bodies]
        edits += self._tombs(tombs, prune.chunks)
        if edits:
            self._carry_out(edits, prune.rows, entries)
        return True

    def _line(self, entry: Entry, body: bytes) -> Edit:
        """A version with all of its items: those that stood in a file of their own come along."""
        row = NewRow(entry.seq, entry.kind, b"", entry.hash, body, entry.key)
        return Edit(
            segment=entry.at.segment,
            start=entry.at.offset,
            stop=entry.end.offset,
            text=render(row, durable=self._disk.durable),
            first=entry.seq,
            last=entry.seq,
            items="",
            content=b"",
            chunks=[],
            freed={entry.items} if entry.items else set(),
        )

    def _tombs(self, rows: dict[int, Row], changed: Iterable[Chunk]) -> Iterator[Edit]:
        """Lines of pruned versions that say something else by now, or hold other items."""
        for ref in self._track.down(self._track.last_seq):
            found = ref[0]
            if found.kind != PRUNED:
                continue
            last = found.seq if isinstance(found, Entry) else found.last
            tomb = self._track.tomb(found)
            before = self._track.kept_chunks(tomb)
            after = [replaced(chunk, changed) for chunk in before]
            row = rows.get(last, tomb.row())
            if row != tomb.row() or after != before:
                line = Entry(last, PRUNED, found.hash, None, found.at, found.length, items=tomb.items)
                chunks = [*after, *tomb.stubs()]
                yield self._render(row, [line], tomb.key_hashes(), tomb.newest_tags(), chunks, Prune())

    def _derive(self, edits: list[Edit], rows: tuple[Row, ...], entries: list[Entry], edition: int) -> None:
        remove_folds(self._track.folder)


def replaced(chunk: Chunk, changed: Iterable[Chunk]) -> Chunk:
    """A chunk with the items that others have for its positions."""
    items: list[bytes] | None = None
    for other in changed:
        start, stop = max(chunk.position, other.position), min(chunk.end, other.end)
        if other.log == chunk.log and start < stop:
            if items is None:
                items = records.split(chunk.block())
            theirs = records.split(other.block())
            items[start - chunk.position : stop - chunk.position] = theirs[
                start - other.position : stop - other.position
            ]
    if items is None or items == records.split(chunk.block()):
        return chunk
    prints = b"".join(map(records.print_of, items))
    return Chunk(chunk.log, chunk.position, chunk.count, prints, records.compress(records.array(items)))
