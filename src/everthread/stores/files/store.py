"""The file store: every verb of the contract (:class:`everthread.stores.contract.Backend`) on one folder.

Reads and writes go through :class:`Access`, which gives them the content and takes the lock for writes.
"""

from __future__ import annotations

import fcntl
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from everthread import process
from everthread.errors import (
    EverthreadError,
    StateCorruptedError,
    StoreBusyError,
    StoreClosedError,
    StoreUnavailableError,
    UnsupportedError,
)
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
    KeyErased,
    KeyKnown,
    Line,
    NameTaken,
    NewEvent,
    NewRow,
    Progress,
    Prune,
    Purged,
    PutCell,
    Residues,
    Row,
    SealedRow,
    SourceGone,
    StaleCell,
    StaleWrite,
    StoredEvent,
    Totals,
    Usage,
    VersionGone,
)
from everthread.stores.files import backup as copies
from everthread.stores.files import line_files
from everthread.stores.files.backup import has_others, remove_others
from everthread.stores.files.content import Content, check_content, prepare
from everthread.stores.files.disk import TEMPORARY, Disk, Replaced, translated, write_at
from everthread.stores.files.layout import (
    FORMAT_FILE,
    LOCK_FILE,
    LOCK_TEXT,
    TEXT_INDEX,
    prepare_root,
    read_format,
    set_up,
    write_format,
)
from everthread.stores.files.line_files import LineFiles
from everthread.stores.files.pack_files import DerivedDamage
from everthread.stores.files.sealed import overwrite_and_remove
from everthread.stores.signals import Signals
from everthread.stores.sqlite.files import RawFile
from everthread.stores.text_index import IndexedTexts, TextIndex
from everthread.stores.urls import file_identity, quoted

if TYPE_CHECKING:
    from types import FrameType


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

    def trim_stream(self, space: str, stream: str, up_to: int) -> int:
        return self._access.write(lambda content: content.streams.trim(space, stream, up_to))

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


# ── reading and writing: retries, one writer at a time ─────────────────────────────────────────────


#: How often a call is tried when other processes change files at that very moment.
TRIES = 5
#: How many chores a reader does at a time, if the lock is free.
_CHORES = 64

_SIGNALS = (StaleWrite, StaleCell, KeyErased, KeyKnown, NameTaken, SourceGone, VersionGone)


class _Moved(Exception):  # noqa: N818 - a signal inside this module
    """Journals were rewritten while they were read."""


class Access:
    """An open folder. Its content is reached through :meth:`read` and :meth:`write` only."""

    def __init__(self, path: str, *, durable: bool, busy_timeout_ms: int) -> None:
        self.root = path
        self._write_lock = WriteLock(os.path.join(path, LOCK_FILE), busy_timeout_ms)
        self.disk = Disk(durable=durable)
        #: Guards what this process keeps in memory.
        self._lock = threading.RLock()
        self._content: Content | None = None
        #: The file that names the content. It stays open, so that no other file gets its inode number.
        self._format_path = os.path.join(path, FORMAT_FILE)
        self._format = -1
        self._format_inode = (0, 0)
        self._closed = False
        self._generation = process.generation
        try:
            self._begin()
        except OSError as error:
            self._write_lock.close()
            raise translated(error, path, writing=False) from error
        except BaseException:
            self._write_lock.close()
            raise

    def _begin(self) -> None:
        if not prepare_root(self.root, self.disk):
            with self._write_lock:
                if not prepare_root(self.root, self.disk):
                    set_up(self.root, self.disk)
        content = self._resolve()
        if has_others(self.root, content.folder) and self._write_lock.try_acquire():
            # Left by a restore that was interrupted.
            try:
                remove_others(self.root, self._resolve().folder)
            finally:
                self._write_lock.release()

    def _resolve(self) -> Content:
        """The content that the store has now: a restored backup brings another one."""
        if self._content is not None and self._is_current():
            return self._content
        self.start_over()
        self._format = os.open(self._format_path, os.O_RDONLY | os.O_CLOEXEC)
        found = os.fstat(self._format)
        self._format_inode = found.st_dev, found.st_ino
        self._content = Content(os.path.join(self.root, read_format(self.root).content), self.disk)
        return self._content

    def _is_current(self) -> bool:
        """Whether the file that names the content is the one that was read.

        A restored backup replaces it, and no commit may go into a folder that was moved or removed.
        """
        try:
            found = os.stat(self._format_path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return (found.st_dev, found.st_ino) == self._format_inode

    def check_open(self) -> None:
        # A child shares the open lock file with its parent, and so the lock itself.
        process.check_not_forked(self._generation)
        if self._closed:
            raise StoreClosedError("this store is closed; open it again")

    def read(self, work: Callable[[Content], T]) -> T:
        """Do something that changes nothing."""
        self.check_open()
        try:
            result, chores = self._read(work)
        except _Moved:
            # Others prune faster than this reads, or were interrupted: hold the lock while reading.
            with self._write_lock:
                result, chores = self._read(work, alone=True)
        if chores:
            self._chores()
        return result

    def _read(self, work: Callable[[Content], T], *, alone: bool = False) -> tuple[T, bool]:
        """The result, and whether there are chores to do. ``alone``: the caller holds the lock."""
        moved = 0
        for last in range(TRIES):
            with self._lock:
                self.check_open()
                try:
                    content = self._resolve()
                    content.catalog.refresh()
                    content.visited.clear()
                    result = work(content)
                    if alone or not content.moved:
                        return result, content.has_chores
                    moved += 1
                except (FileNotFoundError, Replaced) as error:
                    # Deleted or replaced at this very moment, or missing.
                    if last == TRIES - 1:
                        raise self._missing(error) from error
                    self.start_over()
                except StateCorruptedError:
                    # If the journal was rewritten meanwhile, this read at the wrong offset.
                    if alone or not content.moved:
                        raise
                    moved += 1
                except DerivedDamage as damage:
                    content.distrust(damage.folder)
                except OSError as error:
                    raise translated(error, self.root, writing=False) from error
        raise _Moved if moved else self._unsteady()

    def write(self, work: Callable[[Content], T], *, refresh: bool = True) -> T:
        """Do something that changes the store, while holding its lock.

        Appends go without ``refresh``: the journal itself says whether a row may be appended.
        """
        self.check_open()
        with self._write_lock, self._lock:
            # Another thread may have closed the store while this one waited.
            self.check_open()
            for last in range(TRIES):
                try:
                    content = self._resolve()
                    content.visited.clear()
                    if refresh:
                        content.catalog.refresh()
                    result = work(content)
                    if content.has_chores:
                        content.chore()
                    return result
                except (FileNotFoundError, Replaced) as error:
                    if last == TRIES - 1:
                        raise self._missing(error) from error
                    self.start_over()
                except DerivedDamage as damage:
                    content.distrust(damage.folder)
                except OSError as error:
                    # After a failed write or sync nothing that is kept in memory can be relied on.
                    self.start_over()
                    raise translated(error, self.root, writing=True) from error
                except (EverthreadError, *_SIGNALS):
                    raise
                except BaseException:
                    self.start_over()
                    raise
        raise self._unsteady()

    def _unsteady(self) -> StateCorruptedError:
        return StateCorruptedError(f"{self.root} can't be read: it changes all the time", where=self.root)

    def start_over(self) -> None:
        """Forget everything that was read."""
        content, self._content = self._content, None
        file, self._format = self._format, -1
        if file >= 0:
            os.close(file)
        if content is not None:
            content.close()

    def _chores(self) -> None:
        """Write views that are due, make folds again: now, if nobody else is writing."""
        with suppress(EverthreadError):
            if self._write_lock.try_acquire():
                try:
                    for _ in range(_CHORES):
                        with self._lock:
                            if self._closed or not self._resolve().chore():
                                break
                except (OSError, Replaced, DerivedDamage):
                    with self._lock:
                        self.start_over()
                finally:
                    self._write_lock.release()

    # ── end of life ──────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Release everything. Calling it again does nothing."""
        if self._generation != process.generation:
            # What is due, and the lock, are the parent's.
            self._closed = True
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            content = self._content
        if content is not None:
            self._flush(content)
        self.start_over()
        self._write_lock.close()

    def _flush(self, content: Content) -> None:
        """Write the views that are due, if the lock is free: otherwise the next process to open does it."""
        with suppress(OSError, EverthreadError, Replaced, DerivedDamage):
            if self._write_lock.try_acquire():
                try:
                    content.catalog.refresh()
                    content.views.flush(all_=True)
                finally:
                    self._write_lock.release()

    def _missing(self, error: Exception) -> EverthreadError:
        """The error for a file that should be there."""
        if not os.path.lexists(os.path.join(self.root, FORMAT_FILE)):
            return StoreUnavailableError(
                f"{self.root} was moved or removed while it was open; nothing was written. Put it back, from "
                "a backup if need be, then open the store again"
            )
        where = str(getattr(error, "filename", None) or error)
        return StateCorruptedError(f"{where} is missing; see what store.verify() says", where=where)


# ── the lock of writers ──────────────────────────────────────────────────────────────────────────


class WriteLock:
    """The right to write, held for the length of a ``with`` block.

    ``flock`` can't wait with a time-out, so it is polled; short random pauses keep waiting processes even. A
    thread that holds the lock and asks for it again (in a signal handler, say) gets an error.
    """

    def __init__(self, path: str, timeout_ms: int) -> None:
        self._path = path
        self._timeout_ms = timeout_ms
        # ``RLock`` knows its owner, which typeshed doesn't tell.
        self._mutex: Any = threading.RLock()
        self._file = -1
        #: The frame of the block that holds the lock.
        self._holder: FrameType | None = None

    def __enter__(self) -> None:
        if self._mutex._is_owned():
            self._check_leftover()
        if not self._mutex.acquire(timeout=self._timeout_ms / 1000):
            raise StoreBusyError("another thread of this process kept the store for the whole waiting time")
        try:
            self._holder = sys._getframe(1)
            self._open()
            self._flock()
            while not os.fstat(self._file).st_nlink and self._has_store():
                # Somebody removed the lock file: the one that other processes see counts.
                os.close(self._file)
                self._file = -1
                self._open()
                self._flock()
        except BaseException:
            self.release()
            raise

    def __exit__(self, *_: object) -> None:
        self.release()

    def try_acquire(self) -> bool:
        """Take the lock if it is free. Whoever gets it must :meth:`release` it."""
        if self._mutex._is_owned() or not self._mutex.acquire(blocking=False):
            return False
        try:
            self._holder = sys._getframe(1)
            self._open()
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(self._file).st_nlink:
                return True
            self.release()
        except BlockingIOError:
            self.release()
        except BaseException:
            self.release()
            raise
        return False

    def release(self) -> None:
        try:
            self._holder = None
            if self._file >= 0:
                fcntl.flock(self._file, fcntl.LOCK_UN)
        finally:
            while self._mutex._is_owned():
                self._mutex.release()

    def _check_leftover(self) -> None:
        """This thread holds the lock: it is inside a block, or an interrupt kept it from releasing."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and self._holder is not None:
            if frame is self._holder:
                raise StoreBusyError("this thread is in the middle of a write; commit after it")
            frame = frame.f_back
        self.release()

    def _has_store(self) -> bool:
        return os.path.lexists(os.path.join(os.path.dirname(self._path), FORMAT_FILE))

    def _flock(self) -> None:
        deadline = time.monotonic() + self._timeout_ms / 1000
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    break
            time.sleep(random.uniform(0.00005, 0.0004))  # noqa: S311 - no secret
        raise StoreBusyError(
            f"another process kept {self._path} locked for {self._timeout_ms / 1000:g} s; try again later"
        )

    def _open(self) -> None:
        if self._file >= 0:
            return
        try:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if not os.fstat(self._file).st_size:
                write_at(self._file, LOCK_TEXT, 0)
        except OSError as error:
            raise StoreUnavailableError(
                f"can't create {self._path}: {error.strerror}; make that possible, then try again"
            ) from error

    def close(self) -> None:
        """Let go of the file. Waits for whoever of this process holds the lock."""
        with self._mutex:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1
