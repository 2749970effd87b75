# Generated from stores/valkey/aio/pruning.py by tools/twin.py: change that, then run: make twin
"""Other rows and chunks in the place of some: pruning, redacting, to an archive and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from everthread.history.packs import Chunk, Places, pruned_chunks
from everthread.stores.contract import COLD, Line, Prune, Row
from everthread.stores.valkey import packing, scripts
from everthread.stores.valkey.keys import digest, split_id
from everthread.stores.valkey.sync.calls import Ask
from everthread.stores.valkey.sync.registers import Registers
from everthread.stores.valkey.sync.writing import chunk_fields

_TRIES = 5
#: Bytes of chunks that come back in one script: the server does nothing else meanwhile.
BATCH_BYTES = 4 << 20
#: How many bytes get through in a second, at the least.
_BYTES_PER_S = 1 << 20


class Pruning(Registers):
    """What replaces rows."""

    def prune(self, line: Line, prune: Prune) -> bool:
        *before, last = _in_batches(prune)
        for chunks in before:
            # As long as the row stands there, what it stands for is away, however much of it is back.
            if not self._prune(line, Prune(old=prune.old, chunks=chunks), keep=True):
                return False
        rest = Prune(prune.old, prune.rows, prune.dropped, prune.seen, last)
        return self._prune(line, rest)

    def _prune(self, line: Line, prune: Prune, *, keep: bool = False) -> bool:
        """With ``keep`` the old rows have to be there, and stay."""
        tag, member = split_id(line.id)
        fields = {
            "tag": tag,
            "m": member,
            "keep": keep,
            "grows": _comes_back(prune),
            "old": [_old_fields(tag, row) for row in prune.old],
            "rows": [packing.row_fields(tag, row) for row in prune.rows],
            "seen": [[split_id(other)[1], seq] for other, seq in prune.seen],
        }
        size = sum(map(_size, prune.rows)) + sum(len(chunk.data) for chunk in prune.chunks)
        for _ in range(_TRIES):
            fields["dropped"] = list(self._replaced(line.id, prune))
            ask = Ask(scripts.PRUNE, (self._keys.rows(line.id),), self._packed(dict(fields)))
            answer = self._calls.ask(ask, longer_s=size / _BYTES_PER_S)
            if not isinstance(answer, list):
                return bool(answer)
        return False

    def _replaced(self, line: int, prune: Prune) -> Iterator[list[Any]]:
        """What becomes of chunks, by log: its digest, the entries that go, and what takes their place."""
        tag, _ = split_id(line)
        for log in dict.fromkeys([log for log, *_ in prune.dropped] + [chunk.log for chunk in prune.chunks]):
            back = [chunk for chunk in prune.chunks if chunk.log == log]
            spans = [span for name, *span in prune.dropped if name == log]
            entries, stubs = self._giving_way(line, log, spans, back)
            yield [digest("log", log), entries, chunk_fields(tag, [*stubs, *back])]

    def _giving_way(
        self, line: int, log: str, spans: Sequence[Sequence[int]], back: Sequence[Chunk]
    ) -> tuple[list[bytes], list[Chunk]]:
        """The entries of the chunks of a log that lie in these spans, or that stand for what comes back; and
        the stubs for those of their positions to which nothing comes back."""
        edges = [*spans, *((chunk.position, chunk.end) for chunk in back)]
        start, stop = min(edge[0] for edge in edges), max(edge[1] for edge in edges)
        tag, _ = split_id(line)
        standing = []
        for entry, _ in self._chunks(line, log, start, b"%d" % stop, data=False):
            read = packing.read_chunk(tag, log, entry)
            if read is not None:
                standing.append((entry, Chunk(log, read[0], read[1], b"", b""), read[2] > 0))
        places = Places(back)
        gone: list[bytes] = []
        stubs: list[Chunk] = []
        for begin, end in spans:
            inside = [each for each in standing if each[1].position >= begin and each[1].end <= end]
            if any(held for *_, held in inside):
                entries = {entry for entry, *_ in inside}
                standing = [each for each in standing if each[0] not in entries]
                gone += entries
                stubs += pruned_chunks(log, ((chunk.position, chunk.count) for _, chunk, _ in inside))
        for entry, chunk, held in standing:
            if not held and places.within(chunk):
                gone.append(entry)
                stubs.append(chunk)
        return gone, [piece for stub in stubs for piece in places.beside(stub)]


def _in_batches(prune: Prune) -> list[tuple[Chunk, ...]]:
    """The chunks that come back, as many at once as one script takes; all of them if they don't come from an
    archive: then the rows are what tells that they belong together."""
    if not _comes_back(prune):
        return [prune.chunks]
    batches: list[list[Chunk]] = [[]]
    size = 0
    for chunk in prune.chunks:
        if size + len(chunk.data) > BATCH_BYTES and batches[-1]:
            batches.append([])
            size = 0
        batches[-1].append(chunk)
        size += len(chunk.data)
    return [tuple(batch) for batch in batches]


def _comes_back(prune: Prune) -> bool:
    """Whether this is what was in an archive."""
    return bool(prune.old) and all(row.kind == COLD for row in prune.old)


def _size(row: Row) -> int:
    return len(row.body) + len(row.net or b"") + len(row.keyframe or b"")


def _old_fields(tag: str, row: Row) -> list[Any]:
    """A row as it was read, to be compared: seq, what its value begins with, whether it is folded, the sizes
    of body, net and keyframe, and the body if it says which parcel of an archive is meant."""
    value = packing.row_value(tag, row.seq, row.first, row.kind, row.hash, None)
    begins = value[: 6 + len(row.hash)]
    return [
        row.seq,
        begins,
        row.kind in packing.FOLDED,
        len(row.body),
        False if row.net is None else len(row.net),
        False if row.keyframe is None else len(row.keyframe),
        row.body if row.kind == COLD else False,
    ]
