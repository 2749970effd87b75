"""A SQLite file system that remembers every write, and can show the disk as a power loss may leave it.

Open a database through :class:`PowerLossVFS`, work with it, call :meth:`Recording.acknowledge` whenever
a commit has returned, and let :meth:`Recording.states` hand out disks: what could be found in the files
had the power gone at a random moment. Write such a disk into a directory with :meth:`Disk.write_to`,
open it with the ordinary file system, and check that everything acknowledged is there.

The rules of what survives:

- What was written to a file before its last completed sync is there.
- Of what was written later, every 512-byte sector is found independently as it was after any of the
  writes that touched it, or as it was at the last sync. A sector is never torn within itself.
- The size is one of those the file had since its last sync. Sectors that the size covers, but that never
  reached the disk, hold zeros or garbage.
- A sync that fails (:meth:`PowerLossVFS.fail_syncs`) drops what it should have written, as kernels do: it can
  still be read, but no later sync brings it to the disk unless it is written again.
- A file's creation or deletion is certain once its directory was synced: by a deletion that asks for it,
  and by the first sync of a journal or write-ahead log after it was opened, as SQLite's own file system
  does it. Until then, each name shows what it stood for at any moment since.

The shared-memory index (``-shm``) lives in memory only and is never part of a disk.
"""

from __future__ import annotations

import bisect
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import apsw

__all__ = ["SECTOR_BYTES", "Disk", "PowerLossVFS", "Recording"]

SECTOR_BYTES = 512

#: How likely the newest content of a sector, a size or a name is to survive. A disk draws one of them,
#: so that some disks miss a single sector and others nearly everything.
_SURVIVAL = (0.0, 0.02, 0.2, 0.5, 0.8, 0.98, 0.998, 1.0)

_JOURNALS = apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL | apsw.SQLITE_OPEN_WAL
_RECORDED = apsw.SQLITE_OPEN_MAIN_DB | _JOURNALS


class _Write(NamedTuple):
    inode: int
    offset: int
    data: bytes


class _Truncate(NamedTuple):
    inode: int
    size: int


class _Sync(NamedTuple):
    inode: int


class _FailedSync(NamedTuple):
    """What was written since the last sync will not reach the disk."""

    inode: int


class _Enter(NamedTuple):
    """A directory entry now stands for this inode, or for nothing."""

    name: str
    inode: int | None


class _SyncDirectory(NamedTuple):
    pass


_Event = _Write | _Truncate | _Sync | _FailedSync | _Enter | _SyncDirectory


@dataclass(frozen=True)
class Disk:
    """What one power loss left behind.

    ``moment`` counts the recorded events before it, ``acknowledged`` the acknowledgements, and
    ``files`` maps each name in the directory to its content.
    """

    index: int
    moment: int
    acknowledged: int
    files: dict[str, bytes]

    def write_to(self, directory: Path) -> None:
        """Make ``directory`` hold these files and no others."""
        directory.mkdir(parents=True, exist_ok=True)
        for stale in directory.iterdir():
            if stale.name not in self.files:
                stale.unlink()
        for name, content in self.files.items():
            (directory / name).write_bytes(content)


@dataclass
class _File:
    """One inode during the replay: what is certain, and what isn't yet."""

    synced: bytearray = field(default_factory=bytearray)
    pending: list[_Write | _Truncate] = field(default_factory=list)

    def sync(self) -> None:
        for event in self.pending:
            if isinstance(event, _Write):
                _put(self.synced, event.offset, event.data)
            elif event.size < len(self.synced):
                del self.synced[event.size :]
            else:
                self.synced.extend(bytes(event.size - len(self.synced)))
        self.pending.clear()

    def drop(self) -> None:
        """Forget what was written, except that the file has grown or shrunk."""
        size = _pending_size(self.pending, len(self.synced))
        self.pending.clear()
        if size < len(self.synced):
            del self.synced[size:]
        else:
            self.synced.extend(bytes(size - len(self.synced)))

    def survivor(self, rng: random.Random, survival: float) -> bytes:
        """The content after a power loss, by the rules in this module's docstring."""
        if not self.pending:
            return bytes(self.synced)
        pieces, sizes = self._pieces()
        content = bytearray(self.synced)
        content.extend(bytes(max(sizes) - len(content)))
        garbage = rng.random() < 0.25
        for sector, written in pieces.items():
            kept = len(written)
            if rng.random() >= survival:
                kept = rng.randrange(kept)
            if kept == 0 and garbage and sector * SECTOR_BYTES >= len(self.synced):
                written, kept = [(sector * SECTOR_BYTES, rng.randbytes(SECTOR_BYTES))], 1
            for offset, data in written[:kept]:
                content[offset : offset + len(data)] = data
        size = sizes[-1] if rng.random() < survival else rng.choice(sizes)
        return bytes(content[:size])

    def _pieces(self) -> tuple[dict[int, list[tuple[int, bytes]]], list[int]]:
        """What was written to each sector since the last sync, in order, and the sizes in between."""
        pieces: dict[int, list[tuple[int, bytes]]] = {}
        sizes = [len(self.synced)]
        for event in self.pending:
            if isinstance(event, _Write):
                offset, data = event.offset, event.data
                sizes.append(max(sizes[-1], offset + len(data)))
            else:
                # Seen from a sector, cutting the file means that zeros follow if it grows again.
                offset, data = event.size, bytes(max(0, sizes[-1] - event.size))
                sizes.append(event.size)
            end = offset + len(data)
            start = offset
            while start < end:
                sector = start // SECTOR_BYTES
                stop = min(end, (sector + 1) * SECTOR_BYTES)
                pieces.setdefault(sector, []).append((start, data[start - offset : stop - offset]))
                start = stop
        return pieces, sizes


@dataclass
class _Directory:
    synced: dict[str, int] = field(default_factory=dict)
    pending: list[_Enter] = field(default_factory=list)

    def sync(self) -> None:
        for entry in self.pending:
            if entry.inode is None:
                self.synced.pop(entry.name, None)
            else:
                self.synced[entry.name] = entry.inode
        self.pending.clear()

    def survivor(self, rng: random.Random, survival: float) -> dict[str, int]:
        found: dict[str, int | None] = dict(self.synced)
        histories: dict[str, list[int | None]] = {}
        for entry in self.pending:
            histories.setdefault(entry.name, [self.synced.get(entry.name)]).append(entry.inode)
        for name, history in histories.items():
            found[name] = history[-1] if rng.random() < survival else rng.choice(history)
        return {name: inode for name, inode in found.items() if inode is not None}


class Recording:
    """Everything that reached the file system, in one order. Not thread-safe."""

    def __init__(self) -> None:
        self._events: list[_Event] = []
        self._acknowledged: list[int] = []
        self._syncs: list[int] = []
        self._names: dict[str, int] = {}
        self._inodes = 0

    def __len__(self) -> int:
        return len(self._events)

    @property
    def acknowledged(self) -> int:
        """How often :meth:`acknowledge` was called."""
        return len(self._acknowledged)

    def acknowledge(self) -> None:
        """Say that what was done so far was promised to be durable."""
        self._acknowledged.append(len(self._events))

    def states(self, seed: int, count: int, *, only: int | None = None) -> Iterator[Disk]:
        """Yield ``count`` disks in the order of their moments; the same seed yields the same ones.

        ``only`` yields a single one of them, by its index.
        """
        chooser = random.Random(seed)
        moments = sorted(self._moment(chooser) for _ in range(count))
        files: dict[int, _File] = {}
        directory = _Directory()
        done = 0
        for index, moment in enumerate(moments):
            for event in self._events[done:moment]:
                _replay(event, files, directory)
            done = max(done, moment)
            if only is not None and index != only:
                continue
            rng = random.Random(seed * 1_000_003 + index)
            survival = rng.choice(_SURVIVAL)
            names = directory.survivor(rng, survival)
            yield Disk(
                index=index,
                moment=moment,
                acknowledged=bisect.bisect_right(self._acknowledged, moment),
                files={name: files[inode].survivor(rng, survival) for name, inode in names.items()},
            )

    def _moment(self, rng: random.Random) -> int:
        # Just before a sync completes most is at stake, just after an acknowledgement most was promised.
        choice = rng.random()
        if choice < 0.4 and self._syncs:
            return rng.choice(self._syncs)
        if choice < 0.6 and self._acknowledged:
            return rng.choice(self._acknowledged)
        return rng.randint(0, len(self._events))

    # What the file system reports.

    def opened(self, path: str) -> int:
        name = os.path.basename(path)
        known = self._names.get(name)
        if known is not None:
            return known
        inode = self._inodes
        self._inodes += 1
        self._names[name] = inode
        self._events.append(_Enter(name, inode))
        before = Path(path).read_bytes()
        if before:
            # It was there, whole, before the recording began. An empty file may as well be missing.
            self._events.extend((_Write(inode, 0, before), _Sync(inode), _SyncDirectory()))
        return inode

    def deleted(self, path: str, *, sync_directory: bool) -> None:
        name = os.path.basename(path)
        if self._names.pop(name, None) is not None:
            self._events.append(_Enter(name, None))
        if sync_directory:
            self._events.append(_SyncDirectory())

    def written(self, inode: int, offset: int, data: bytes) -> None:
        self._events.append(_Write(inode, offset, data))

    def truncated(self, inode: int, size: int) -> None:
        self._events.append(_Truncate(inode, size))

    def sync_failed(self, inode: int) -> None:
        self._events.append(_FailedSync(inode))

    def synced(self, inode: int, *, sync_directory: bool) -> None:
        self._syncs.append(len(self._events))
        self._events.append(_Sync(inode))
        if sync_directory:
            self._events.append(_SyncDirectory())


def _replay(event: _Event, files: dict[int, _File], directory: _Directory) -> None:
    if isinstance(event, _Write | _Truncate):
        files[event.inode].pending.append(event)
    elif isinstance(event, _Sync):
        files[event.inode].sync()
    elif isinstance(event, _FailedSync):
        files[event.inode].drop()
    elif isinstance(event, _Enter):
        directory.pending.append(event)
        if event.inode is not None:
            files[event.inode] = _File()
    else:
        directory.sync()


def _pending_size(pending: list[_Write | _Truncate], size: int) -> int:
    for event in pending:
        size = max(size, event.offset + len(event.data)) if isinstance(event, _Write) else event.size
    return size


def _put(content: bytearray, offset: int, data: bytes) -> None:
    if offset > len(content):
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


class PowerLossVFS(apsw.VFS):
    """A SQLite VFS over the default one that notes into ``recording`` what would be at stake.

    It is registered under ``name`` until :meth:`unregister` is called or the object is dropped. All
    databases opened through it must lie in one directory.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name, "")
        self.recording = Recording()
        self._syncs_to_fail = 0

    def fail_syncs(self, count: int = 1) -> None:
        """Let the next syncs fail, as they do on a disk that reports an error late."""
        self._syncs_to_fail = count

    def sync_fails(self) -> bool:
        """Whether the sync that is under way must fail."""
        fails = self._syncs_to_fail > 0
        self._syncs_to_fail -= fails
        return fails

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        if name is None or not flags[0] & _RECORDED:
            return apsw.VFSFile("", name, flags)
        return _RecordedFile(name, flags, self)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        super().xDelete(filename, syncdir)
        self.recording.deleted(filename, sync_directory=bool(syncdir))


class _RecordedFile(apsw.VFSFile):
    def __init__(self, name: str | apsw.URIFilename, flags: list[int], vfs: PowerLossVFS) -> None:
        super().__init__("", name, flags)
        self._vfs = vfs
        self._recording = vfs.recording
        self._inode = self._recording.opened(name.filename() if isinstance(name, apsw.URIFilename) else name)
        self._syncs_directory = bool(flags[0] & _JOURNALS)

    def xWrite(self, data: Any, offset: int) -> None:
        super().xWrite(data, offset)
        self._recording.written(self._inode, offset, bytes(data))

    def xTruncate(self, newsize: int) -> None:
        super().xTruncate(newsize)
        self._recording.truncated(self._inode, newsize)

    def xSync(self, flags: int) -> None:
        if self._vfs.sync_fails():
            self._recording.sync_failed(self._inode)
            error = apsw.IOError("the disk failed to sync")
            # The stubs of apsw don't know of it; SQLite is told by this which call failed.
            error.extendedresult = apsw.SQLITE_IOERR_FSYNC  # type: ignore[attr-defined]
            raise error
        super().xSync(flags)
        self._recording.synced(self._inode, sync_directory=self._syncs_directory)
        self._syncs_directory = False
