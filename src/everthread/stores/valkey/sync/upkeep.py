# Generated from src/everthread/stores/valkey/aio/upkeep.py by tools/twin.py: change that, then run: make twin
"""Waiting, pruning, and what a store takes up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from everthread.history.packs import Chunk, pruned_chunks
from everthread.stores.contract import DELTA, PACK, PRUNED, REWIND, Line, Prune, Row
from everthread.stores.usage import Totals, Usage
from everthread.stores.valkey import packing, scripts
from everthread.stores.valkey.keys import SHARDS, digest, split_id
from everthread.stores.valkey.lasting import read_info
from everthread.stores.valkey.sync.calls import Ask
from everthread.stores.valkey.sync.registers import Registers
from everthread.stores.valkey.sync.writing import chunk_fields

_PRUNE_TRIES = 5
_PAGE = 256


class Upkeep(Registers):
    """The verbs that no commit waits for."""

    def wait(self, line: int, seq: int, timeout_s: float) -> bool:
        return self.signals.wait(line, timeout_s, lambda: self.newer(line, seq))

    # ── pruning ──────────────────────────────────────────────────────────────────────────────

    def prune(self, line: Line, prune: Prune) -> bool:
        tag, member = split_id(line.id)
        keys = (self._keys.rows(line.id),)
        for _ in range(_PRUNE_TRIES):
            fields = {
                "tag": tag,
                "m": member,
                "old": [_old_fields(tag, row) for row in prune.old],
                "rows": [packing.row_fields(tag, row) for row in prune.rows],
                "seen": [[split_id(other)[1], seq] for other, seq in prune.seen],
                "dropped": [self._dropped(line.id, *span, prune.chunks) for span in prune.dropped],
            }
            answer = self._calls.script(scripts.PRUNE, keys, (self._prefix, packing.pack(fields)))
            if not isinstance(answer, list):
                return bool(answer)
        return False

    def _dropped(self, line: int, log: str, start: int, stop: int, instead: Sequence[Chunk]) -> list[Any]:
        """What becomes of the chunks between two positions: digest of the log, their entries, and what takes
        their place, stubs if nothing else does."""
        tag, _ = split_id(line)
        entries, spans = [], []
        held = False
        for entry, _ in self._chunks(line, log, start, b"%d" % stop, data=False):
            read = packing.read_chunk(tag, log, entry)
            if read is not None and read[0] >= start and read[0] + read[1] <= stop:
                entries.append(entry)
                spans.append((read[0], read[1]))
                held = held or read[2] > 0
        if not held:
            return [digest("log", log), [], []]
        chunks = [each for each in instead if each.log == log and start <= each.position < stop]
        return [digest("log", log), entries, chunk_fields(tag, chunks or pruned_chunks(log, spans))]

    # ── sizes ────────────────────────────────────────────────────────────────────────────────

    def usage(self, line: int) -> Usage:
        tag, member = split_id(line)
        given = self._prefix, tag, member
        answer = self._calls.script(scripts.USAGE, self._row_keys(tag, member), given)
        if answer is None:
            return Usage()
        by, chunks = answer
        return Usage(
            versions=sum(by[kind][0] for kind in (DELTA, REWIND, PACK)),
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


def _old_fields(tag: str, row: Row) -> list[Any]:
    """A row as it was read, to be compared: seq, what its value begins with, whether it is folded, the sizes
    of body, net and keyframe."""
    value = packing.row_value(tag, row.seq, row.first, row.kind, row.hash, None)
    begins = value[: 6 + len(row.hash)]
    return [
        row.seq,
        begins,
        row.kind in (PACK, PRUNED),
        len(row.body),
        False if row.net is None else len(row.net),
        False if row.keyframe is None else len(row.keyframe),
    ]
