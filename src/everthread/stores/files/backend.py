"""The contract on files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from everthread.history.packs import Chunk
from everthread.stores.contract import (
    NO_TAGS,
    Capabilities,
    Cell,
    Fold,
    Found,
    Line,
    NewEvent,
    NewRow,
    PutCell,
    Row,
    SealedRow,
    StoredEvent,
)
from everthread.stores.files import copies, packing
from everthread.stores.files.access import TRIES, Access
from everthread.stores.files.appending import prepare
from everthread.stores.files.checking import check_content
from everthread.stores.files.content import Content
from everthread.stores.files.disk import Disk, translated
from everthread.stores.files.erasing import Erasing
from everthread.stores.files.layout import TEXT_INDEX, write_format
from everthread.stores.files.upkeep import Upkeep
from everthread.stores.text_index import IndexedTexts, TextIndex
from everthread.stores.urls import quoted


class FileBackend(Upkeep, Erasing, IndexedTexts):
    """One folder. Safe for several threads and several processes at once."""

    capabilities = Capabilities(
        durable=True, multi_process=True, backup=True, texts=True, rewrites_lines=True
    )

    def __init__(self, path: str, *, durability: str = "full", busy_timeout_ms: int = 10_000) -> None:
        durable = durability == "full"
        super().__init__(Access(path, durable=durable, busy_timeout_ms=busy_timeout_ms))
        self._texts = TextIndex(os.path.join(path, TEXT_INDEX))

    @property
    def url(self) -> str:
        return f"file://{quoted(self._access.root)}"

    # ── reading ──────────────────────────────────────────────────────────────────────────────

    def find(self, space: str, name: str) -> Found | None:
        def work(content: Content) -> Found | None:
            line = content.catalog.find(space, name)
            return None if line is None else content.found(line)

        return self._access.read(work)

    def line(self, line: int) -> Line | None:
        return self._access.read(lambda content: content.line(line))

    def line_by_uid(self, uid: bytes) -> Line | None:
        return self._access.read(lambda content: content.line_by_uid(uid))

    def replay(self, line: int, seq: int, floor: int) -> list[Row]:
        return self._access.read(lambda content: content.replay(line, seq, floor))

    def scan(self, line: int, seq: int, limit: int) -> list[Row]:
        def work(content: Content) -> list[Row]:
            track = content.track(line)
            if track is None or limit < 1:
                return []
            return [track.row(ref) for ref, _ in zip(track.down(seq), range(limit), strict=False)]

        return self._access.read(work)

    def tail(self, line: int) -> list[tuple[Row, bytes | None]]:
        def work(content: Content) -> list[tuple[Row, bytes | None]]:
            track = content.track(line)
            return [] if track is None else track.tail()

        return self._access.read(work)

    def chunks(self, line: int, log: str, start: int, stop: int) -> list[Chunk]:
        def work(content: Content) -> list[Chunk]:
            track = content.track(line)
            return [] if track is None else track.chunks(log, start, stop)

        return self._access.read(work)

    def fingerprints(self, line: int, log: str, start: int) -> list[tuple[int, bytes]]:
        def work(content: Content) -> list[tuple[int, bytes]]:
            track = content.track(line)
            return [] if track is None else track.fingerprints(log, start)

        return self._access.read(work)

    def keyed(self, root: int, key: bytes) -> list[tuple[int, int]]:
        return self._access.read(lambda content: content.keyed(root, key))

    def sealed(self, value_ids: Iterable[bytes]) -> Mapping[bytes, bytes]:
        wanted = list(value_ids)
        return self._access.read(lambda content: content.sealed.get(wanted))

    # ── writing ──────────────────────────────────────────────────────────────────────────────

    def create(
        self, line: Line, row: NewRow | None, source: int = 0, tags: Mapping[str, bytes] = NO_TAGS
    ) -> Line:
        prepared = None if row is None else prepare(row, durable=self._access.disk.durable)
        created = self._access.write(lambda content: content.create(line, prepared, source, tags))
        self.signals.ring(0)
        return created

    def append(self, line: int, row: NewRow) -> None:
        (problem,) = self.append_all([(line, row)])
        if problem is not None:
            raise problem

    def append_all(self, rows: Sequence[tuple[int, NewRow]]) -> list[Exception | None]:
        durable = self._access.disk.durable
        try:
            # Rendering is most of the work: it is done before the lock is taken.
            prepared = [(line, prepare(row, durable=durable)) for line, row in rows]
            outcomes = self._access.write(lambda content: content.append(prepared), refresh=False)
        except Exception as error:
            return [error] * len(rows)
        self.signals.ring(*(line for line, _ in rows))
        return [
            translated(each, self._access.root, writing=True) if isinstance(each, OSError) else each
            for each in outcomes
        ]

    def fold(self, line: Line, fold: Fold) -> bool:
        def work(content: Content) -> bool:
            track = content.track(line.id)
            return track is not None and packing.fold(track, fold)

        return self._access.write(work)

    def keyframe(self, line: int, seq: int, digest: bytes, keyframe: bytes) -> None:
        def work(content: Content) -> None:
            track = content.track(line)
            if track is not None:
                packing.add_keyframe(track, seq, digest, keyframe)

        self._access.write(work)

    def delete(self, line: Line, newest: bytes | None = None) -> bool:
        deleted = self._access.write(lambda content: content.delete(line, newest))
        self.signals.ring(line.id)
        return deleted

    # ── the store as a whole ─────────────────────────────────────────────────────────────────

    def lines(self, space: str, prefix: str, after: str | None, limit: int) -> list[Found]:
        def work(content: Content) -> list[Found]:
            if content.catalog.hides(space, prefix):
                raise content.catalog.damage()
            found: list[Found] = []
            for name in content.catalog.names(space, prefix, after):
                if len(found) >= limit:
                    break
                line = content.catalog.find(space, name)
                entry = None if line is None else content.found(line)
                if entry is not None:
                    found.append(entry)
            return found

        return self._access.read(work)

    def lines_by_tags(self, space: str, tags: Mapping[str, bytes]) -> list[Found]:
        return self._access.read(lambda content: content.tagged(space, tags))

    def untagged(self, space: str) -> list[tuple[Line, int]]:
        return self._access.read(lambda content: content.untagged(space))

    def tag(self, line: int, seq: int, tags: Mapping[str, bytes]) -> None:
        def work(content: Content) -> None:
            track = content.track(line)
            if track is not None:
                packing.add_tags(track, seq, tags)

        self._access.write(work)

    def every_line(self) -> Iterator[Line]:
        return iter(
            self._access.read(lambda content: [line for _, line in sorted(content.catalog.lines.items())])
        )

    def unreadable_lines(self) -> list[str]:
        return self._access.read(lambda content: content.catalog.unreadable())

    # ── cells and streams ────────────────────────────────────────────────────────────────────

    def cell(self, space: str, name: str, now_us: int) -> Cell | None:
        return self._access.read(lambda content: content.cells.read(space, name, now_us))

    def swap(
        self,
        space: str,
        name: str,
        expected: int,
        value: bytes | None,
        now_us: int,
        durable: bool = True,
    ) -> int:
        return self._access.write(
            lambda content: content.cells.swap(space, name, expected, value, now_us, durable)
        )

    def cells(
        self, space: str, prefix: str, after: str | None, limit: int, now_us: int = 0
    ) -> list[tuple[str, Cell]]:
        return self._access.read(lambda content: content.cells.list(space, prefix, after, limit, now_us))

    def emit(
        self, space: str, stream: str, events: Sequence[NewEvent], sealed: Sequence[SealedRow] = ()
    ) -> int:
        def work(content: Content) -> int:
            content.check_keys(sealed)
            content.sealed.put(sealed)
            return content.streams.emit(space, stream, events)

        return self._access.write(work)

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
        query = {"type_": type, "agent": agent, "since_us": since_us, "until_us": until_us}
        return self._access.read(lambda content: content.streams.read(space, stream, after, limit, **query))

    def streams(self, space: str, prefix: str, after: str | None, limit: int) -> list[tuple[str, int]]:
        return self._access.read(lambda content: content.streams.list(space, prefix, after, limit))

    def drop_stream(self, space: str, stream: str) -> bool:
        return self._access.write(lambda content: content.streams.drop(space, stream))

    def rewrite_events(self, space: str, stream: str, bodies: Mapping[int, bytes]) -> int:
        return self._access.write(lambda content: content.streams.rewrite(space, stream, bodies))

    # ── copies, health, end ──────────────────────────────────────────────────────────────────

    def check(self) -> list[str]:
        return self._access.read(check_content)

    def backup(self, path: str) -> None:
        path = copies.check_target(path)

        def listed(content: Content) -> tuple[str, copies.Listed]:
            return content.folder, copies.list_content(content.folder)

        def copy(folder: str, files: copies.Listed) -> None:
            try:
                copies.write_backup(self._access.root, folder, files, path, Disk(durable=True))
            except FileNotFoundError:
                # Something was deleted meanwhile: then the copy would be of no moment at all.
                raise
            except OSError as error:
                raise translated(error, path, writing=True) from error

        for _ in range(TRIES):
            with suppress(FileNotFoundError):
                return copy(*self._access.write(listed))
        # Somebody deletes faster than this copies: then nobody writes meanwhile.
        return self._access.write(lambda content: copy(*listed(content)))

    def restore(self, path: str, cells: Sequence[PutCell] = ()) -> None:
        backup = copies.open_backup(path)

        def work(content: Content) -> None:
            fresh = copies.bring_in(self._access.root, content.folder, backup, self._access.disk, cells)
            write_format(self._access.root, os.path.basename(fresh), self._access.disk)
            self._access.start_over()
            copies.remove_others(self._access.root, fresh)

        self._access.write(work)
        self.signals.ring_all()

    def close(self) -> None:
        self._texts.close()
        self._access.close()
        self.signals.close()
