# Generated from src/everthread/stores/contract.py by tools/twin.py: change that, then run: make twin
"""The async contract on a blocking driver: each verb on a thread of the store's own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice

from everthread.history.packs import Chunk
from everthread.stores.contract import (
    NO_TAGS,
    Capabilities,
    Cell,
    Covered,
    ErasedKey,
    Fold,
    Found,
    Line,
    NewEvent,
    NewRow,
    Progress,
    Prune,
    Purged,
    PutCell,
    Residues,
    Row,
    SealedRow,
    StoredEvent,
    TextFound,
    Totals,
    Usage,
    Wanted,
)
from everthread.stores.offload import Offload
from everthread.stores.signals import Signals


class Offloaded(Offload):
    """Offers a blocking driver to async callers."""

    @property
    def capabilities(self) -> Capabilities:
        return self.blocking.capabilities

    @property
    def url(self) -> str:
        return self.blocking.url

    @property
    def signals(self) -> Signals:
        return self.blocking.signals

    async def wait(self, line: int, seq: int, timeout_s: float) -> bool:
        return await self.signals.wait_async(line, timeout_s, lambda: self.newer(line, seq))

    async def every_line(self) -> AsyncIterator[Line]:
        lines = self.blocking.every_line()
        while batch := await self._readers.run(lambda: list(islice(lines, 256))):
            for line in batch:
                yield line

    async def close(self) -> None:
        await self._close(self.blocking.close)

    async def identity(self) -> str:
        return await self._readers.run(self.blocking.identity)

    async def find(self, space: str, name: str) -> Found | None:
        return await self._readers.run(self.blocking.find, space, name)

    async def line(self, line: int) -> Line | None:
        return await self._readers.run(self.blocking.line, line)

    async def line_by_uid(self, uid: bytes) -> Line | None:
        return await self._readers.run(self.blocking.line_by_uid, uid)

    async def replay(self, line: int, seq: int, floor: int) -> list[Row]:
        return await self._readers.run(self.blocking.replay, line, seq, floor)

    async def scan(self, line: int, seq: int, limit: int) -> list[Row]:
        return await self._readers.run(self.blocking.scan, line, seq, limit)

    async def tail(self, line: int) -> list[tuple[Row, bytes | None]]:
        return await self._readers.run(self.blocking.tail, line)

    async def chunks(self, line: int, log: str, start: int, stop: int) -> list[Chunk]:
        return await self._readers.run(self.blocking.chunks, line, log, start, stop)

    async def fingerprints(self, line: int, log: str, start: int) -> list[tuple[int, bytes]]:
        return await self._readers.run(self.blocking.fingerprints, line, log, start)

    async def keyed(self, root: int, key: bytes) -> list[tuple[int, int]]:
        return await self._readers.run(self.blocking.keyed, root, key)

    async def sealed(self, value_ids: Iterable[bytes]) -> Mapping[bytes, bytes]:
        return await self._readers.run(self.blocking.sealed, value_ids)

    async def create(
        self, line: Line, row: NewRow | None, source: int = 0, tags: Mapping[str, bytes] = NO_TAGS
    ) -> Line:
        return await self._writer.run(self.blocking.create, line, row, source, tags)

    async def append_all(self, rows: Sequence[tuple[int, NewRow]]) -> list[Exception | None]:
        return await self._writer.run(self.blocking.append_all, rows)

    async def fold(self, line: Line, fold: Fold) -> bool:
        return await self._writer.run(self.blocking.fold, line, fold)

    async def keyframe(self, line: int, seq: int, digest: bytes, keyframe: bytes) -> None:
        return await self._writer.run(self.blocking.keyframe, line, seq, digest, keyframe)

    async def delete(self, line: Line, newest: bytes | None = None) -> bool:
        return await self._writer.run(self.blocking.delete, line, newest)

    async def prune(self, line: Line, prune: Prune) -> bool:
        return await self._writer.run(self.blocking.prune, line, prune)

    async def newer(self, line: int, seq: int) -> bool:
        return await self._writer.run(self.blocking.newer, line, seq)

    async def lines(self, space: str, prefix: str, after: str | None, limit: int) -> list[Found]:
        return await self._readers.run(self.blocking.lines, space, prefix, after, limit)

    async def lines_by_tags(self, space: str, tags: Mapping[str, bytes]) -> list[Found]:
        return await self._readers.run(self.blocking.lines_by_tags, space, tags)

    async def untagged(self, space: str) -> list[tuple[Line, int]]:
        return await self._readers.run(self.blocking.untagged, space)

    async def tag(self, line: int, seq: int, tags: Mapping[str, bytes]) -> None:
        return await self._writer.run(self.blocking.tag, line, seq, tags)

    async def cell(self, space: str, name: str, now_us: int) -> Cell | None:
        return await self._readers.run(self.blocking.cell, space, name, now_us)

    async def swap(
        self, space: str, name: str, expected: int, value: bytes | None, now_us: int, durable: bool = True
    ) -> int:
        return await self._writer.run(self.blocking.swap, space, name, expected, value, now_us, durable)

    async def cells(
        self, space: str, prefix: str, after: str | None, limit: int, now_us: int = 0
    ) -> list[tuple[str, Cell]]:
        return await self._readers.run(self.blocking.cells, space, prefix, after, limit, now_us)

    async def emit(
        self, space: str, stream: str, events: Sequence[NewEvent], sealed: Sequence[SealedRow] = ()
    ) -> int:
        return await self._writer.run(self.blocking.emit, space, stream, events, sealed)

    async def events(
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
        return await self._readers.run(
            partial(self.blocking.events, type=type, agent=agent, since_us=since_us, until_us=until_us),
            space,
            stream,
            after,
            limit,
        )

    async def streams(self, space: str, prefix: str, after: str | None, limit: int) -> list[tuple[str, int]]:
        return await self._readers.run(self.blocking.streams, space, prefix, after, limit)

    async def trim_stream(self, space: str, stream: str, up_to: int) -> int:
        return await self._writer.run(self.blocking.trim_stream, space, stream, up_to)

    async def rewrite_events(self, space: str, stream: str, bodies: Mapping[int, bytes]) -> int:
        return await self._writer.run(self.blocking.rewrite_events, space, stream, bodies)

    async def note_erasures(self, keys: Sequence[ErasedKey]) -> None:
        return await self._writer.run(self.blocking.note_erasures, keys)

    async def erasures(self, unfinished: bool = False) -> list[ErasedKey]:
        return await self._readers.run(self.blocking.erasures, unfinished)

    async def erased(self, key_ids: Iterable[bytes]) -> set[bytes]:
        return await self._readers.run(self.blocking.erased, key_ids)

    async def sealed_under(
        self, key_ids: Sequence[bytes] | None, after: bytes, limit: int
    ) -> list[SealedRow]:
        return await self._readers.run(self.blocking.sealed_under, key_ids, after, limit)

    async def drop_sealed(self, key_ids: Sequence[bytes]) -> int:
        return await self._writer.run(self.blocking.drop_sealed, key_ids)

    async def purge(self, timeout_s: float, progress: Progress | None = None) -> Purged:
        return await self._readers.run(self.blocking.purge, timeout_s, progress)

    async def residues(self, needles: Sequence[bytes], progress: Progress | None = None) -> Residues:
        return await self._readers.run(self.blocking.residues, needles, progress)

    async def texts_covered(self, space: str) -> dict[bytes, bytes]:
        return await self._readers.run(self.blocking.texts_covered, space)

    async def text_keys(self, space: str, uid: bytes, kinds: Sequence[str]) -> list[str]:
        return await self._readers.run(self.blocking.text_keys, space, uid, kinds)

    async def cover_texts(self, space: str, covered: Covered) -> bool:
        return await self._writer.run(self.blocking.cover_texts, space, covered)

    async def forget_texts(self, space: str, uids: Sequence[bytes]) -> None:
        return await self._writer.run(self.blocking.forget_texts, space, uids)

    async def find_texts(self, space: str, wanted: Wanted) -> list[TextFound]:
        return await self._readers.run(self.blocking.find_texts, space, wanted)

    async def drop_texts(self) -> None:
        return await self._writer.run(self.blocking.drop_texts)

    async def unreadable_lines(self) -> list[str]:
        return await self._writer.run(self.blocking.unreadable_lines)

    async def check(self) -> list[str]:
        return await self._readers.run(self.blocking.check)

    async def usage(self, line: int) -> Usage:
        return await self._writer.run(self.blocking.usage, line)

    async def totals(self) -> Totals:
        return await self._writer.run(self.blocking.totals)

    async def persist(self) -> None:
        return await self._writer.run(self.blocking.persist)

    async def compact(self) -> None:
        return await self._writer.run(self.blocking.compact)

    async def backup(self, path: str) -> None:
        return await self._readers.run(self.blocking.backup, path)

    async def restore(self, path: str, cells: Sequence[PutCell] = ()) -> None:
        return await self._writer.run(self.blocking.restore, path, cells)
