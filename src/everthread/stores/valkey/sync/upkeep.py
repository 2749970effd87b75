# Generated from src/everthread/stores/valkey/aio/upkeep.py by tools/twin.py: change that, then run: make twin
"""Waiting for commits, what a store takes up, and what its servers have on disk."""

from __future__ import annotations

import time
from itertools import count

from redis.exceptions import ResponseError

from everthread.errors import UnsupportedError
from everthread.stores.contract import COLD, DELTA, PACK, PRUNED, REWIND, Totals, Usage
from everthread.stores.valkey import scripts
from everthread.stores.valkey.errors import Lost, text_of, unavailable
from everthread.stores.valkey.layout import SHARDS, split_id
from everthread.stores.valkey.server_info import NOTHING, Durability, read_info
from everthread.stores.valkey.sync.cells_and_events import CellsAndEvents
from everthread.stores.valkey.sync.client import Request, Server

_PAGE = 256


class Upkeep(CellsAndEvents):
    """The verbs that no commit waits for."""

    #: What the server said, when the store was opened, about how it keeps what it acknowledged.
    keeping: Durability

    def wait(self, line: int, seq: int, timeout_s: float) -> bool:
        return self.signals.wait(line, timeout_s, lambda: self.newer(line, seq))

    # ── sizes ────────────────────────────────────────────────────────────────────────────────

    def usage(self, line: int) -> Usage:
        tag, member = split_id(line)
        given = self._prefix, tag, member
        answer = self._client.script(scripts.USAGE, self._row_keys(tag, member), given)
        if answer is None:
            return Usage()
        by, chunks = answer
        return Usage(
            versions=sum(by[kind][0] for kind in (DELTA, REWIND, PACK, COLD)),
            pruned=by[PRUNED][0],
            records=by[DELTA][1] + by[REWIND][1],
            packs=by[PACK][1] + by[COLD][1],
            tombstones=by[PRUNED][1],
            keyframes=sum(entry[2] for entry in by),
            chunks=chunks,
        )

    def totals(self) -> Totals:
        requests = [Request(scripts.SEALED_USAGE, (self._keys.shard("v", first),), ()) for first in SHARDS]
        sealed = self._client.all(requests)
        spaces = self._client.command(self._keys.spaces, "ZRANGE", self._keys.spaces, 0, -1)
        names = [space.decode() for space in spaces]
        requests = [Request(scripts.CELLS_USAGE, (self._cell_keys(space)[0],), ()) for space in names]
        cells = self._client.all(requests)
        count = size = 0
        for space in names:
            after = None
            while page := self.streams(space, "", after, _PAGE):
                requests = [
                    Request(scripts.STREAM, (self._keys.stream(space, name),), ()) for name, _ in page
                ]
                for _, _, taken, held in self._client.all(requests):
                    count, size = count + held, size + int(taken)
                after = page[-1][0]
        return Totals(
            sealed=(sum(each[0] for each in sealed), sum(each[1] for each in sealed)),
            cells=(sum(each[0] for each in cells), sum(each[1] for each in cells)),
            events=(count, size),
        )

    def persist(self) -> None:
        if self.keeping.level == NOTHING and not self.keeping.replicas:
            # What was taken away can't come back: nothing does.
            return
        for server in self._client.servers:
            self._persisted(server)

    def _persisted(self, server: Server) -> None:
        """Returns once a server's file, and all of its replicas, have everything that it was told before."""
        url, timeout_s = self._settings.url, self._settings.timeout_s
        (info,) = self._client.on_server(server, ("INFO", "replication"))
        replicas = int(read_info(info).get("connected_slaves", "0"))
        patience_ms = int(timeout_s * 400)
        # What a connection has written itself is what it may wait for, with all that came before.
        keys = (self._key(f"p{number}", "p") for number in count())
        mine = next(key for key in keys if self._client.server_of(key) is server)
        commands = (
            ("SET", mine, "1", "PX", 60_000),
            ("WAIT", replicas, patience_ms),
            ("WAITAOF", 1, 0, patience_ms),
        )
        try:
            answers = server.run(commands, time.monotonic() + timeout_s)
        except Lost as lost:
            raise unavailable(lost.why, url) from lost
        for answer in answers:
            if isinstance(answer, ResponseError):
                raise UnsupportedError(f"{url} doesn't say what it has on disk: {text_of(answer)}")
        if answers[1] < replicas or answers[2][0] < 1:
            raise UnsupportedError(f"{url} didn't get everything to its disk, or to its replicas, in time")

    def compact(self) -> None:
        """Let the servers write their append-only files anew, without what was removed. Not waited for."""
        for server in self._client.servers:
            info = read_info((self._client.on_server(server, ("INFO", "persistence")))[0])
            if info.get("aof_enabled") == "1" and info.get("aof_rewrite_in_progress") == "0":
                self._client.on_server(server, ("BGREWRITEAOF",))
