"""The contract on files."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar
from urllib.parse import quote

from everthread.errors import EverthreadError, StateCorruptedError, StoreClosedError
from everthread.history.packs import Chunk
from everthread.stores.contract import (
    NO_TAGS,
    Capabilities,
    Cell,
    Fold,
    Found,
    Line,
    NameTaken,
    NewEvent,
    NewRow,
    Row,
    SealedRow,
    SourceGone,
    StaleCell,
    StaleWrite,
    StoredEvent,
)
from everthread.stores.files import copies
from everthread.stores.files.checking import check_content
from everthread.stores.files.content import Content, prepare
from everthread.stores.files.disk import Disk, translated
from everthread.stores.files.folds import DerivedDamage
from everthread.stores.files.layout import (
    FORMAT_FILE,
    LOCK_FILE,
    prepare_root,
    read_format,
    set_up,
    write_format,
)
from everthread.stores.files.linefile import Replaced
from everthread.stores.files.locks import Turn

T = TypeVar("T")

#: All of this process, so that a child made by fork(2) can let go of what belongs to its parent.
_EVERY: weakref.WeakSet[FileBackend] = weakref.WeakSet()

#: How often something is looked at again that others changed at that very moment.
_TRIES = 5
#: Chores that nobody waits for are done for so long at a time.
_CHORES = 64


class FileBackend:
    """One folder. Safe for several threads and several processes at once."""

    capabilities = Capabilities(durable=True, multi_process=True, backup=True)

    def __init__(self, path: str, *, durability: str = "full", busy_timeout_ms: int = 10_000) -> None:
        self._root = path
        self._disk = Disk(durable=durability == "full")
        self._turn = Turn(os.path.join(path, LOCK_FILE), busy_timeout_ms)
        #: Held by whoever looks at or changes what is kept in memory.
        self._lock = threading.RLock()
        self._content: Content | None = None
        self._seen: tuple[int, ...] = ()
        self._closed = False
        try:
            if not prepare_root(path, self._disk):
                with self._turn:
                    if not prepare_root(path, self._disk):
                        set_up(path, self._disk)
            self._resolve()
        except OSError as error:
            self._turn.close()
            raise translated(error, path, writing=False) from error
        except BaseException:
            self._turn.close()
            raise
        _EVERY.add(self)

    @property
    def url(self) -> str:
        return f"file://{quote(self._root)}"

    # ── getting to the content ───────────────────────────────────────────────────────────────

    def _resolve(self) -> Content:
        """The content that the store has now: another one after a backup was restored."""
        path = os.path.join(self._root, FORMAT_FILE)
        found = os.stat(path)
        seen = (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        if self._content is None or seen != self._seen:
            folder = os.path.join(self._root, read_format(self._root).content)
            if self._content is None or self._content.folder != folder:
                if self._content is not None:
                    self._content.close()
                self._content = Content(folder, self._disk)
            self._seen = seen
        return self._content

    def _check(self) -> None:
        if self._closed:
            raise StoreClosedError("this store is closed; open it again")

    def _read(self, work: Callable[[Content], T]) -> T:
        """Do something that changes nothing."""
        for last in range(_TRIES):
            with self._lock:
                self._check()
                try:
                    content = self._resolve()
                    content.catalog.refresh()
                    result = work(content)
                    chores = content.has_chores
                    break
                except (FileNotFoundError, Replaced) as error:
                    # Deleted or replaced by somebody at this very moment, or missing.
                    if last == _TRIES - 1:
                        raise self._missing(error) from error
                    self._start_over()
                except DerivedDamage as damage:
                    content.distrust(damage.folder)
                except OSError as error:
                    raise translated(error, self._root, writing=False) from error
        else:
            raise StateCorruptedError(
                f"{self._root} can't be read: it changes all the time", where=self._root
            )
        if chores:
            self._chores()
        return result

    def _write(self, work: Callable[[Content], T]) -> T:
        """Do something that changes the store, in turn."""
        self._check()
        with self._turn, self._lock:
            # Once more: it may have been closed while this thread waited.
            self._check()
            for last in range(_TRIES):
                try:
                    content = self._resolve()
                    content.catalog.refresh()
                    result = work(content)
                    if content.has_chores:
                        content.chore()
                    return result
                except (FileNotFoundError, Replaced) as error:
                    if last == _TRIES - 1:
                        raise self._missing(error) from error
                    self._start_over()
                except DerivedDamage as damage:
                    content.distrust(damage.folder)
                except OSError as error:
                    # After a failed write or sync nothing that is kept in memory can be relied on.
                    self._start_over()
                    raise translated(error, self._root, writing=True) from error
                except (EverthreadError, StaleWrite, StaleCell, NameTaken, SourceGone):
                    raise
                except BaseException:
                    self._start_over()
                    raise
        raise StateCorruptedError(f"{self._root} can't be read: it changes all the time", where=self._root)

    def _missing(self, error: Exception) -> StateCorruptedError:
        where = str(getattr(error, "filename", None) or error)
        return StateCorruptedError(f"{where} is missing; see what store.verify() says", where=where)

    def _start_over(self) -> None:
        content, self._content = self._content, None
        if content is not None:
            content.close()

    def _chores(self) -> None:
        """Write views that are due, make folds again: now, if nobody else is writing."""
        with suppress(EverthreadError):
            if self._turn.at_once():
                try:
                    for _ in range(_CHORES):
                        with self._lock:
                            if self._closed or not self._resolve().chore():
                                break
                except (OSError, Replaced, DerivedDamage):
                    with self._lock:
                        self._start_over()
                finally:
                    self._turn.give()

    # ── reading ──────────────────────────────────────────────────────────────────────────────

    def find(self, space: str, name: str) -> Found | None:
        def work(content: Content) -> Found | None:
            line = content.catalog.find(space, name)
            return None if line is None else content.found(line)

        return self._read(work)

    def line(self, line: int) -> Line | None:
        return self._read(lambda content: content.line(line))

    def line_by_uid(self, uid: bytes) -> Line | None:
        return self._read(lambda content: content.line_by_uid(uid))

    def replay(self, line: int, seq: int, floor: int) -> list[Row]:
        return self._read(lambda content: content.replay(line, seq, floor))

    def scan(self, line: int, seq: int, limit: int) -> list[Row]:
        def work(content: Content) -> list[Row]:
            track = content.track(line)
            if track is None or limit < 1:
                return []
            return [track.row(ref) for ref, _ in zip(track.down(seq), range(limit), strict=False)]

        return self._read(work)

    def tail(self, line: int) -> list[tuple[Row, bytes | None]]:
        def work(content: Content) -> list[tuple[Row, bytes | None]]:
            track = content.track(line)
            return [] if track is None else track.tail()

        return self._read(work)

    def chunks(self, line: int, log: str, start: int, stop: int) -> list[Chunk]:
        def work(content: Content) -> list[Chunk]:
            track = content.track(line)
            return [] if track is None else track.chunks(log, start, stop)

        return self._read(work)

    def fingerprints(self, line: int, log: str, start: int) -> list[tuple[int, bytes]]:
        def work(content: Content) -> list[tuple[int, bytes]]:
            track = content.track(line)
            return [] if track is None else track.fingerprints(log, start)

        return self._read(work)

    def keyed(self, root: int, key: bytes) -> list[tuple[int, int]]:
        return self._read(lambda content: content.keyed(root, key))

    def sealed(self, value_ids: Iterable[bytes]) -> Mapping[bytes, bytes]:
        wanted = list(value_ids)
        return self._read(lambda content: content.sealed.get(wanted))

    # ── writing ──────────────────────────────────────────────────────────────────────────────

    def create(
        self, line: Line, row: NewRow | None, source: int = 0, tags: Mapping[str, bytes] = NO_TAGS
    ) -> Line:
        prepared = None if row is None else prepare(row, durable=self._disk.durable)
        return self._write(lambda content: content.create(line, prepared, source, tags))

    def append(self, line: int, row: NewRow) -> None:
        (problem,) = self.append_all([(line, row)])
        if problem is not None:
            raise problem

    def append_all(self, rows: Sequence[tuple[int, NewRow]]) -> list[Exception | None]:
        durable = self._disk.durable
        # Most of the work is done before anybody has to wait for it.
        prepared = [(line, prepare(row, durable=durable)) for line, row in rows]
        try:
            outcomes = self._write(lambda content: content.append(prepared))
        except Exception as error:
            return [error] * len(rows)
        return [
            translated(each, self._root, writing=True) if isinstance(each, OSError) else each
            for each in outcomes
        ]

    def fold(self, line: Line, fold: Fold) -> bool:
        def work(content: Content) -> bool:
            track = content.track(line.id)
            return track is not None and track.fold(fold)

        return self._write(work)

    def keyframe(self, line: int, seq: int, digest: bytes, keyframe: bytes) -> None:
        def work(content: Content) -> None:
            track = content.track(line)
            if track is not None:
                track.keyframe(seq, digest, keyframe)

        self._write(work)

    def delete(self, line: Line) -> bool:
        return self._write(lambda content: content.delete(line))

    # ── the store as a whole ─────────────────────────────────────────────────────────────────

    def lines(self, space: str, prefix: str, after: str | None, limit: int) -> list[Found]:
        def work(content: Content) -> list[Found]:
            found: list[Found] = []
            for name in content.catalog.names(space, prefix, after):
                if len(found) >= limit:
                    break
                line = content.catalog.find(space, name)
                entry = None if line is None else content.found(line)
                if entry is not None:
                    found.append(entry)
            return found

        return self._read(work)

    def lines_by_tags(self, space: str, tags: Mapping[str, bytes]) -> list[Found]:
        return self._read(lambda content: content.tagged(space, tags))

    def untagged(self, space: str) -> list[tuple[Line, int]]:
        return self._read(lambda content: content.untagged(space))

    def tag(self, line: int, seq: int, tags: Mapping[str, bytes]) -> None:
        def work(content: Content) -> None:
            track = content.track(line)
            if track is not None:
                track.tag(seq, tags)

        self._write(work)

    def every_line(self) -> Iterator[Line]:
        return iter(self._read(lambda content: [line for _, line in sorted(content.catalog.lines.items())]))

    # ── cells and streams ────────────────────────────────────────────────────────────────────

    def cell(self, space: str, name: str, now_us: int) -> Cell | None:
        return self._read(lambda content: content.cells.read(space, name, now_us))

    def swap(
        self,
        space: str,
        name: str,
        expected: int,
        value: bytes | None,
        now_us: int,
        durable: bool = True,
    ) -> int:
        return self._write(lambda content: content.cells.swap(space, name, expected, value, now_us, durable))

    def cells(
        self, space: str, prefix: str, after: str | None, limit: int, now_us: int = 0
    ) -> list[tuple[str, Cell]]:
        return self._read(lambda content: content.cells.list(space, prefix, after, limit, now_us))

    def emit(
        self, space: str, stream: str, events: Sequence[NewEvent], sealed: Sequence[SealedRow] = ()
    ) -> int:
        def work(content: Content) -> int:
            content.sealed.put(sealed)
            return content.streams.emit(space, stream, events)

        return self._write(work)

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
        return self._read(lambda content: content.streams.read(space, stream, after, limit, **query))

    def streams(self, space: str, prefix: str, after: str | None, limit: int) -> list[tuple[str, int]]:
        return self._read(lambda content: content.streams.list(space, prefix, after, limit))

    def drop_stream(self, space: str, stream: str) -> bool:
        return self._write(lambda content: content.streams.drop(space, stream))

    # ── copies, health, end ──────────────────────────────────────────────────────────────────

    def check(self) -> list[str]:
        return self._read(check_content)

    def backup(self, path: str) -> None:
        path = copies.check_target(path)
        for last in range(_TRIES):
            folder, listed = self._write(
                lambda content: (content.folder, copies.list_content(content.folder))
            )
            try:
                copies.write_backup(self._root, folder, listed, path, Disk(durable=True))
                return
            except FileNotFoundError as error:
                # A thread was deleted meanwhile: then the copy would be of no moment at all.
                if last == _TRIES - 1:
                    raise translated(error, self._root, writing=False) from error
            except OSError as error:
                raise translated(error, path, writing=True) from error

    def restore(self, path: str) -> None:
        backup = copies.open_backup(path)

        def work(content: Content) -> None:
            fresh = copies.bring_in(self._root, content.folder, backup, self._disk)
            write_format(self._root, os.path.basename(fresh), self._disk)
            self._start_over()
            copies.remove_others(self._root, fresh)

        self._write(work)

    def close(self) -> None:
        if self._closed:
            return
        with self._lock:
            self._closed = True
            content, self._content = self._content, None
        if content is not None:
            self._flush(content)
            content.close()
        self._turn.close()
        _EVERY.discard(self)

    def _flush(self, content: Content) -> None:
        """Write the views that are waiting, if nobody else is writing: else the next one to open does it."""
        with suppress(OSError, EverthreadError, Replaced, DerivedDamage):
            if self._turn.at_once():
                try:
                    content.catalog.refresh()
                    content.views.flush(all_=True)
                finally:
                    self._turn.give()

    def _after_fork(self) -> None:
        """In a child: files and locks are the parent's; begin anew."""
        self._lock = threading.RLock()
        self._turn.forget()
        with suppress(Exception):
            self._start_over()
        self._content = None


def _renew_all() -> None:
    for backend in list(_EVERY):
        backend._after_fork()


os.register_at_fork(after_in_child=_renew_all)
