"""A store some of whose lines are in an archive: whoever reads one brings it back."""

from __future__ import annotations

from typing import Any

from everthread.errors import StateCorruptedError, StoreBusyError
from everthread.history.packs import Chunk
from everthread.stores.cold import archive as archives
from everthread.stores.cold.archive import Archive
from everthread.stores.cold.parcels import Parcel, read_label, unwrap
from everthread.stores.colours import ASYNC
from everthread.stores.contract import COLD, Prune, Row

_TRIES = 20


def _restless(line: int) -> StoreBusyError:
    return StoreBusyError(f"line {line} goes to the cold archive whenever it has come back; try again later")


class AsyncThawing:
    """The store contract on a backend and an archive. What isn't told here is the backend's own."""

    def __init__(self, backend: Any, archive: Archive) -> None:
        self._backend = backend
        self.archive = archive

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._backend, name)
        if callable(member):
            # Found without this detour from now on; what isn't a verb may change.
            self.__dict__[name] = member
        return member

    @property
    def capabilities(self) -> Any:
        return self._backend.capabilities

    async def replay(self, line: int, seq: int, floor: int) -> list[Row]:
        for _ in range(_TRIES):
            rows: list[Row] = await self._backend.replay(line, seq, floor)
            # Its keyframe is enough for who only reads on from there.
            if not any(row.kind == COLD and (row.keyframe is None or row.seq > seq) for row in rows):
                return rows
            await self.thaw(line)
        raise _restless(line)

    async def scan(self, line: int, seq: int, limit: int) -> list[Row]:
        for _ in range(_TRIES):
            rows: list[Row] = await self._backend.scan(line, seq, limit)
            if not any(row.kind == COLD for row in rows):
                return rows
            await self.thaw(line)
        raise _restless(line)

    async def tail(self, line: int) -> list[tuple[Row, bytes | None]]:
        rows: list[tuple[Row, bytes | None]] = await self._backend.tail(line)
        # Everything in it was folded, keys and all, before it went.
        return [entry for entry in rows if entry[0].kind != COLD]

    async def chunks(self, line: int, log: str, start: int, stop: int) -> list[Chunk]:
        for _ in range(_TRIES):
            chunks: list[Chunk] = await self._backend.chunks(line, log, start, stop)
            if not any(chunk.pruned for chunk in chunks):
                return chunks
            # Those of what is away still have their fingerprints; of what was pruned nothing is left.
            away = any(chunk.pruned and chunk.fingerprints for chunk in chunks)
            if not await self.thaw(line) and not away:
                return chunks
        raise _restless(line)

    async def thaw(self, line: int) -> bool:
        """Bring a line back, whole; whether it was away. The parcel stays where it is: an older backup of the
        store may still need it."""
        for attempt in range(_TRIES):
            found = await self._backend.line(line)
            row = None if found is None else await self._stand_in(line, found.parent_seq)
            if found is None or row is None:
                return attempt > 0
            label = read_label(row)
            parcel = await self._fetch(label, found.uid)
            prune = Prune(old=(row,), rows=parcel.rows, chunks=parcel.chunks)
            if await self._backend.prune(found, prune):
                return True
            # Somebody else has brought it back, or moved it away again.
        raise StateCorruptedError(f"line {line} can't be brought back from the cold archive")

    async def _stand_in(self, line: int, parent_seq: int) -> Row | None:
        rows: list[Row] = await self._backend.scan(line, parent_seq + 1, 1)
        return rows[0] if rows and rows[0].kind == COLD else None

    async def _fetch(self, label: Any, uid: bytes) -> Parcel:
        if ASYNC:
            import asyncio

            data = await asyncio.to_thread(archives.get, self.archive, label.key)
        else:
            data = archives.get(self.archive, label.key)
        return unwrap(data, label, uid)
