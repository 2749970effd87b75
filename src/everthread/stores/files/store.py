"""The file store: every verb of the contract (:class:`everthread.stores.contract.Backend`) on one folder.

Reads and writes go through :class:`Access`, which gives them the content and takes the lock for writes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import TypeVar

from everthread.errors import UnsupportedError
from everthread.history.packs import Chunk
from everthread.stores.byte_scan import Bytes, PlainFile, base64_forms, search
from everthread.stores.contract import (
    FINISHED,
    NO_TAGS,
    Capabilities,
    Cell,
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
    Totals,
    Usage,
)
from everthread.stores.files import backup as copies
from everthread.stores.files import line_files
from everthread.stores.files.access import TRIES, Access
from everthread.stores.files.check import check_content
from everthread.stores.files.content import Content, prepare
from everthread.stores.files.disk import TEMPORARY, Disk, translated
from everthread.stores.files.layout import TEXT_INDEX, write_format
from everthread.stores.files.line_files import LineFiles
from everthread.stores.files.sealed import overwrite_and_remove
from everthread.stores.signals import Signals
from everthread.stores.sqlite.files import RawFile
from everthread.stores.text_index import IndexedTexts, TextIndex
from everthread.stores.urls import file_identity, quoted

T = TypeVar("T")


class FileBackend(IndexedTexts):
    """One folder. Safe for several threads and several processes at once."""

    capabilities = Capabilities(
        durable=True, multi_process=True, backup=True, texts=True, rewrites_lines=True
    )

    def __init__(self, path: str, *, durability: str = "full", busy_timeout_ms: int = 10_000) -> None:
        durable = durability == "full"
        self._access = Access(path, durable=durable, busy_timeout_ms=busy_timeout_ms)
        self.signals = Signals(lambda: JournalProbe(self._access))
        self._texts = TextIndex(os.path.join(path, TEXT_INDEX))

    @property
    def url(self) -> str:
        return f"file://{quoted(self._access.root)}"

    def identity(self) -> str:
        return file_identity(self._access.root)

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
        def work(files: LineFiles) -> list[Row]:
            return [files.row(ref) for ref in islice(files.down(seq), max(limit, 0))]

        return self._read_line(line, work, [])

    def tail(self, line: int) -> list[tuple[Row, bytes | None]]:
        return self._read_line(line, LineFiles.tail, [])

    def chunks(self, line: int, log: str, start: int, stop: int) -> list[Chunk]:
        return self._read_line(line, lambda files: files.chunks(log, start, stop), [])

    def fingerprints(self, line: int, log: str, start: int) -> list[tuple[int, bytes]]:
        return self._read_line(line, lambda files: files.fingerprints(log, start), [])

    def _read_line(self, line: int, work: Callable[[LineFiles], T], otherwise: T) -> T:
        """What ``work`` makes of the files of a line; ``otherwise`` if there are none."""

        def reading(content: Content) -> T:
            files = content.files(line)
            return otherwise if files is None else work(files)

        return self._access.read(reading)

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
            files = content.files(line.id)
            return files is not None and line_files.fold(files, fold)

        return self._access.write(work)

    def keyframe(self, line: int, seq: int, digest: bytes, keyframe: bytes) -> None:
        def work(content: Content) -> None:
            files = content.files(line)
            if files is not None:
                line_files.add_keyframe(files, seq, digest, keyframe)

        self._access.write(work)

    def prune(self, line: Line, prune: Prune) -> bool:
        return self._access.write(lambda content: content.prune(line, prune))

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
            files = content.files(line)
            if files is not None:
                line_files.add_tags(files, seq, tags)

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

    # ── waiting ──────────────────────────────────────────────────────────────────────────────

    def newer(self, line: int, seq: int) -> bool:
        last, deleted = self._access.read(lambda content: _progress_of(content, [line])).get(
            line, (seq, True)
        )
        return deleted or last > seq

    def wait(self, line: int, seq: int, timeout_s: float) -> bool:
        return self.signals.wait(line, timeout_s, lambda: line > 0 and self.newer(line, seq))

    # ── sizes ────────────────────────────────────────────────────────────────────────────────

    def usage(self, line: int) -> Usage:
        def work(files: LineFiles) -> Usage:
            sizes = _sizes(files.folder)
            pruned, tombstones = files.pruned_totals()
            return Usage(
                versions=files.last_seq - files.line.parent_seq - pruned,
                pruned=pruned,
                tombstones=tombstones,
                records=sum(size for name, size in sizes.items() if name.startswith("journal-")) - tombstones,
                chunks=sum(size for name, size in sizes.items() if name.startswith("items-")),
                packs=sum(size for name, size in sizes.items() if name.startswith("folds-")),
            )

        return self._read_line(line, work, Usage())

    def totals(self) -> Totals:
        def work(content: Content) -> Totals:
            counted = []
            for part in ("sealed", "cells", "events"):
                sizes = _tree(os.path.join(content.folder, part), finished=True)
                counted.append((len(sizes), sum(sizes)))
            files = ((self._access.root, sum(_tree(self._access.root))),)
            return Totals(sealed=counted[0], cells=counted[1], events=counted[2], files=files)

        return self._access.read(work)

    def persist(self) -> None:
        """Raises :class:`UnsupportedError` unless every write is synced anyway."""
        self._access.check_open()
        if not self._access.disk.durable:
            raise UnsupportedError('open the store with durability="full": each write is synced then')

    def compact(self) -> None:
        self._access.check_open()

    # ── erasure ──────────────────────────────────────────────────────────────────────────────

    def note_erasures(self, keys: Sequence[ErasedKey]) -> None:
        self._access.write(lambda content: content.ledger.note(keys))

    def erasures(self, unfinished: bool = False) -> list[ErasedKey]:
        def work(content: Content) -> list[ErasedKey]:
            found = [entry for _, entry in sorted(content.ledger.read().items())]
            return [entry for entry in found if entry.phase < FINISHED] if unfinished else found

        return self._access.read(work)

    def erased(self, key_ids: Iterable[bytes]) -> set[bytes]:
        wanted = set(key_ids)
        return self._access.read(lambda content: wanted & content.ledger.read().keys())

    def sealed_under(self, key_ids: Sequence[bytes] | None, after: bytes, limit: int) -> list[SealedRow]:
        return self._access.read(lambda content: content.sealed.under(key_ids, after, limit))

    def drop_sealed(self, key_ids: Sequence[bytes]) -> int:
        return self._access.write(lambda content: content.sealed.drop(key_ids))

    def purge(self, timeout_s: float, progress: Progress | None = None) -> Purged:
        def work(content: Content) -> int:
            left = [path for path in _files(self._access.root) if _is_unfinished(path)]
            for number, path in enumerate(left, 1):
                overwrite_and_remove(path)
                if progress is not None:
                    progress("removing unfinished files", number / len(left))
            content.views.flush(all_=True)
            return len(left)

        self._texts.drop()
        removed = self._access.write(work)
        done: tuple[str, ...] = ("files of sealed values overwritten and removed",)
        if removed:
            done += (f"{removed} unfinished files removed",)
        return Purged(done=done, unreached=("what a version control system or a file system keeps of them",))

    def residues(self, needles: Sequence[bytes], progress: Progress | None = None) -> Residues:
        forms = [form for needle in needles for form in (needle, *base64_forms(needle))]
        index = os.path.join(self._access.root, TEXT_INDEX)
        # Nobody but SQLite may open its shared memory, which holds numbers and checksums only.
        paths = [path for path in _files(self._access.root) if path != f"{index}-shm"]

        def opened(path: str) -> Bytes:
            return RawFile(path) if path.startswith(index) else PlainFile(path)

        found = search(paths, forms, progress, opened)
        looked = ((self._access.root, sum(size for _, size in found.looked)),)
        return Residues(looked=looked, hits=found.hits, unreached=found.unreached)

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
                # Something was deleted meanwhile, so the copy would mix two moments: start again.
                raise
            except OSError as error:
                raise translated(error, path, writing=True) from error

        for _ in range(TRIES):
            with suppress(FileNotFoundError):
                return copy(*self._access.write(listed))
        # Others delete faster than this copies: hold the lock while copying.
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


class JournalProbe:
    """Looks whether the journals of some lines have grown."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._known: dict[int, tuple[int, bool]] = {}

    def changed(self, lines: Sequence[int]) -> Collection[int] | None:
        before, self._known = self._known, self._access.read(lambda content: _progress_of(content, lines))
        # Line 0 stands for all lines.
        return [line for line in lines if line == 0 or self._known.get(line) != before.get(line, ())]

    def close(self) -> None:
        """Nothing to let go of."""


def _progress_of(content: Content, lines: Sequence[int]) -> dict[int, tuple[int, bool]]:
    """How far each line has come, and whether it was deleted."""
    found = {}
    for line in lines:
        files = content.files(line)
        if files is not None:
            found[line] = (files.last_seq, files.line.deleted or files.journal.sealed)
    return found


def _sizes(folder: str) -> dict[str, int]:
    """The files in a folder, with their sizes."""
    with os.scandir(folder) as found:
        return {each.name: each.stat().st_size for each in found if each.is_file(follow_symlinks=False)}


def _tree(folder: str, *, finished: bool = False) -> list[int]:
    """The sizes of all files below a folder, or of the finished ones; without those that go meanwhile."""
    sizes = []
    for path, _, names in os.walk(folder):
        for name in names:
            if finished and name.startswith(TEMPORARY):
                continue
            with suppress(FileNotFoundError):
                sizes.append(os.lstat(os.path.join(path, name)).st_size)
    return sizes


def _files(root: str) -> list[str]:
    """Every file below a folder, leaving out what belongs to a version control system."""
    found = []
    for folder, inside, names in os.walk(root):
        inside[:] = [name for name in inside if name != ".git"]
        found += [os.path.join(folder, name) for name in names]
    return [path for path in found if os.path.isfile(path) and not os.path.islink(path)]


def _is_unfinished(path: str) -> bool:
    """Whether its writer was interrupted. The caller holds the lock, so nobody is writing it now."""
    return os.path.basename(path).startswith(TEMPORARY)
