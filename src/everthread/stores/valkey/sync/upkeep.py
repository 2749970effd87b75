# Generated from src/everthread/stores/valkey/aio/upkeep.py by tools/twin.py: change that, then run: make twin
"""Waiting, pruning, and what a store takes up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from everthread.history.packs import Chunk, pruned_chunks
from everthread.stores.contract import COLD, DELTA, PACK, PRUNED, REWIND, Line, Prune, Row
from everthread.stores.usage import Totals, Usage
from everthread.stores.valkey import packing, scripts
from everthread.stores.valkey.keys import SHARDS, digest, split_id
from everthread.stores.valkey.lasting import read_info
from everthread.stores.valkey.sync.calls import Ask
from everthread.stores.valkey.sync.registers import Registers
from everthread.stores.valkey.sync.writing import chunk_fields

_PRUNE_TRIES = 5
_PAGE = 256
#: Bytes from which on a script may take longer than a commit may.
_LARGE = 1 << 20


class Upkeep(Registers):
    """The verbs that no commit waits for."""

    def wait(self, line: int, seq: int, timeout_s: float) -> bool:
        return self.signals.wait(line, timeout_s, lambda: self.newer(line, seq))

    # ── pruning ──────────────────────────────────────────────────────────────────────────────

    def prune(self, line: Line, prune: Prune) -> bool:
        tag, member = split_id(line.id)
        ask = Ask(scripts.PRUNE, (self._keys.rows(line.id),), ())
        large = sum(map(_size, prune.rows)) + sum(len(chunk.data) for chunk in prune.chunks) > _LARGE
        for _ in range(_PRUNE_TRIES):
            fields = {
                "tag": tag,
                "m": member,
                "old": [_old_fields(tag, row) for row in prune.old],
                "rows": [packing.row_fields(tag, row) for row in prune.rows],
                "seen": [[split_id(other)[1], seq] for other, seq in prune.seen],
                "dropped": self._dropped(line.id, prune),
            }
            ask = ask._replace(arguments=self._packed(fields))
            # What comes back from an archive may be more than goes through within the time of a commit.
            answer = self._calls.patiently(ask) if large else self._calls.ask(ask)
            if not isinstance(answer, list):
                return bool(answer)
        return False

    def _dropped(self, line: int, prune: Prune) -> list[list[Any]]:
        """What becomes of chunks, by log: its digest, the entries that go, and what takes their place."""
        tag, _ = split_id(line)
        found = []
        for log in dict.fromkeys([log for log, *_ in prune.dropped] + [chunk.log for chunk in prune.chunks]):
            back = [chunk for chunk in prune.chunks if chunk.log == log]
            spans = [span for name, *span in prune.dropped if name == log]
            entries, stubs = self._giving_way(line, log, spans, back)
            found.append([digest("log", log), entries, chunk_fields(tag, [*stubs, *back])])
        return found

    def _giving_way(
        self, line: int, log: str, spans: Sequence[Sequence[int]], back: Sequence[Chunk]
    ) -> tuple[list[bytes], list[Chunk]]:
        """The entries of the chunks of a log that lie in these spans, or that stand for what comes back; and
        the stubs that take the place of those for which nothing does."""
        edges = [*spans, *((chunk.position, chunk.end) for chunk in back)]
        start, stop = min(edge[0] for edge in edges), max(edge[1] for edge in edges)
        tag, _ = split_id(line)
        standing = []
        for entry, _ in self._chunks(line, log, start, b"%d" % stop, data=False):
            read = packing.read_chunk(tag, log, entry)
            if read is not None:
                standing.append((entry, Chunk(log, read[0], read[1], b"", b""), read[2] > 0))
        gone: list[bytes] = []
        stubs: list[Chunk] = []
        for begin, end in spans:
            inside = [each for each in standing if each[1].position >= begin and each[1].end <= end]
            if any(held for *_, held in inside):
                entries = {entry for entry, *_ in inside}
                standing = [each for each in standing if each[0] not in entries]
                gone += entries
                stubs += pruned_chunks(log, ((chunk.position, chunk.count) for _, chunk, _ in inside))
        gone += [entry for entry, chunk, held in standing if not held and chunk.meets(back)]
        return gone, [stub for stub in stubs if not stub.meets(back)]

    # ── sizes ────────────────────────────────────────────────────────────────────────────────

    def usage(self, line: int) -> Usage:
        tag, member = split_id(line)
        given = self._prefix, tag, member
        answer = self._calls.script(scripts.USAGE, self._row_keys(tag, member), given)
        if answer is None:
            return Usage()
        by, chunks = answer
        return Usage(
            versions=sum(by[kind][0] for kind in (DELTA, REWIND, PACK, COLD)),
            pruned=by[PRUNED][0],
            records=by[DELTA][1] + by[REWIND][1],
            packs=by[PACK][1],
            tombstones=by[PRUNED][1],
            keyframes=sum(entry[2] for entry in by),
            chunks=chunks,
        )

    def totals(self) -> Totals:
        asks = [Ask(scripts.SEALED_TAKE, (self._keys.shard("v", first),), ()) for first in SHARDS]
        sealed = self._calls.all(asks)
        spaces = self._calls.command(self._keys.spaces, "ZRANGE", self._keys.spaces, 0, -1)
        names = [space.decode() for space in spaces]
        asks = [Ask(scripts.CELLS_TAKE, (self._cell_keys(space)[0],), ()) for space in names]
        cells = self._calls.all(asks)
        count = size = 0
        for space in names:
            after = None
            while page := self.streams(space, "", after, _PAGE):
                asks = [Ask(scripts.STREAM, (self._keys.stream(space, name),), ()) for name, _ in page]
                for _, _, taken, held in self._calls.all(asks):
                    count, size = count + held, size + int(taken)
                after = page[-1][0]
        return Totals(
            sealed=(sum(each[0] for each in sealed), sum(each[1] for each in sealed)),
            cells=(sum(each[0] for each in cells), sum(each[1] for each in cells)),
            events=(count, size),
        )

    def compact(self) -> None:
        """Let the servers write their append-only files anew, without what was removed. Not waited for."""
        for server in self._calls.servers:
            info = read_info((self._calls.on_server(server, ("INFO", "persistence")))[0])
            if info.get("aof_enabled") == "1" and info.get("aof_rewrite_in_progress") == "0":
                self._calls.on_server(server, ("BGREWRITEAOF",))


def _size(row: Row) -> int:
    return len(row.body) + len(row.net or b"") + len(row.keyframe or b"")


def _old_fields(tag: str, row: Row) -> list[Any]:
    """A row as it was read, to be compared: seq, what its value begins with, whether it is folded, the sizes
    of body, net and keyframe."""
    value = packing.row_value(tag, row.seq, row.first, row.kind, row.hash, None)
    begins = value[: 6 + len(row.hash)]
    return [
        row.seq,
        begins,
        row.kind in packing.FOLDED,
        len(row.body),
        False if row.net is None else len(row.net),
        False if row.keyframe is None else len(row.keyframe),
    ]
