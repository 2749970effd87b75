"""What the file store needs of the disk: private files, durable writes, append-only files of records.

A record is one JSON object per row of text, with its own checksum.
``"sum"`` is the last member of a record: the CRC-32, in hexadecimal, of everything before it. A record that
was torn in the middle of an append, or altered since, doesn't match its checksum.

The end of such a file may be torn: the writer died in the middle, or the power went. The last record is torn
if it was never finished, or shows the zeros that a file system puts where the disk never got the data. One
further up is torn only if it shows many zeros and no record after it was ever synced, because a sync covers
everything before it. Torn records are never believed; the next append cuts them off. Any other record that
doesn't match its checksum is damage. A last record that lacks nothing but its newline, because one bit of
that was flipped, is whole.
"""

from __future__ import annotations

import errno
import os
import zlib
from contextlib import suppress
from typing import Any

import msgspec

from everthread.arguments import LOOK_ONLY
from everthread.errors import EverthreadError, StateCorruptedError, StorageWriteError, StoreUnavailableError

#: There is no space left.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})

#: What the name of a file begins with while it is being written.
TEMPORARY = ".new-"


class Disk:
    """Writes files that only the owner can read; syncs them if ``durable``."""

    def __init__(self, *, durable: bool) -> None:
        self.durable = durable

    def sync(self, file: int) -> None:
        """Make durable what was written to the file, and how long it is."""
        if self.durable:
            os.fdatasync(file)

    def sync_folder(self, path: str) -> None:
        """Make durable which files the folder holds."""
        if self.durable:
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def make_folder(self, path: str) -> None:
        """Make a folder and its missing parents, and make durable that they exist."""
        if os.path.isdir(path):
            return
        parent = os.path.dirname(path)
        self.make_folder(parent)
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)
        self.sync_folder(parent)

    def write_new(self, path: str, data: bytes) -> None:
        """Write a whole file over whatever was there. A crash before this returns may leave any part."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(path, flags, 0o600)
        try:
            write_at(file, data, 0)
            self.sync(file)
        finally:
            os.close(file)

    def replace(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """Replace the content of ``path``: at any moment the old or the new content is there, whole.

        The caller is the only one to write, so that an unfinished file of before can be written over. What
        isn't ``durable`` is seen by everybody at once and may be gone after a power cut.
        """
        folder, name = os.path.split(path)
        temporary = os.path.join(folder, TEMPORARY + name)
        try:
            if durable:
                self.write_new(temporary, data)
            else:
                _UNSYNCED.write_new(temporary, data)
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        if durable:
            self.sync_folder(folder)


_UNSYNCED = Disk(durable=False)


def write_at(file: int, data: bytes, offset: int) -> None:
    """All of it, however many writes it takes."""
    written = os.pwrite(file, data, offset)
    while written < len(data):
        written += os.pwrite(file, memoryview(data)[written:], offset + written)


def read_at(file: int, offset: int, length: int) -> bytes:
    """The bytes there; fewer than ``length`` where the file ends before."""
    data = os.pread(file, length, offset)
    if len(data) == length or not data:
        return data
    parts = [data]
    while data := os.pread(file, length - sum(map(len, parts)), offset + sum(map(len, parts))):
        parts.append(data)
    return b"".join(parts)


def read_file(path: str) -> bytes:
    """A whole file. Raises :class:`FileNotFoundError` if it isn't there."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return read_at(file, 0, os.fstat(file).st_size)
    finally:
        os.close(file)


def files_in(folder: str, ending: str) -> list[str]:
    """The finished files with this ending, by their names; none if there is no such folder."""
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [
        os.path.join(folder, name)
        for name in sorted(names)
        if name.endswith(ending) and not name.startswith(TEMPORARY)
    ]


def translated(error: OSError, path: str, *, writing: bool) -> EverthreadError:
    """What an error of the operating system means to the caller."""
    where = error.filename if isinstance(error.filename, str) else path
    reason = error.strerror or type(error).__name__
    if error.errno in FULL:
        return StorageWriteError(f"no space left to write {where} ({reason}); free some, then commit again")
    if error.errno in _FORBIDDEN:
        return StoreUnavailableError(f"{where} can't be read and written by this user: {reason}; {LOOK_ONLY}")
    if writing:
        return StorageWriteError(
            f"writing {where} failed ({reason}); its file was given up and will be opened anew. "
            "Commit again: a version that had landed is recognised"
        )
    return StoreUnavailableError(f"reading {where} failed: {reason}; look at the disk and try again")


# ── append-only files of records ───────────────────────────────────────────────────────────────────


_SUM = b',"sum":"'
#: `,"sum":"01234567"}` and the newline.
_SUFFIX = len(_SUM) + 8 + 3
#: Stands before the checksum of a record that was acknowledged without waiting for the disk.
_WEAK = b',"durable":false'

#: An append relies on what was read before only if these last bytes of it are still there.
_KNOWN_BYTES = 96
#: What a file system shows where the disk never got the data. No record holds a zero.
_HOLE = bytes(64)
#: How much is read at a time.
_STRETCH_BYTES = 8 * 1024 * 1024

#: Offset, record, and whether it matches its checksum.
At = tuple[int, bytes, bool]

encode_json = msgspec.json.Encoder().encode
decode_json = msgspec.json.Decoder().decode


# ── one record ───────────────────────────────────────────────────────────────────────────────────


def with_sum(text: bytes, *, durable: bool = True) -> bytes:
    """The record of a JSON object that isn't empty. ``durable``: it is synced before it is acknowledged."""
    body = text[:-1] if durable else text[:-1] + _WEAK
    return b"".join((body, b',"sum":"%08x"}\n' % zlib.crc32(body)))


def record_of(fields: dict[str, Any], *, durable: bool = True) -> bytes:
    """The record of these fields."""
    return with_sum(encode_json(fields), durable=durable)


def intact(record: bytes) -> bool:
    """Whether this is a whole record that matches its checksum."""
    at = len(record) - _SUFFIX
    return (
        at > 1
        and record.startswith(_SUM, at)
        and record.endswith(b'"}\n')
        and record[at + 8 : at + 16] == b"%08x" % zlib.crc32(record[:at])
    )


def was_synced(record: bytes) -> bool:
    """Whether an intact record was on disk, and all before it, when it was acknowledged."""
    return not record.startswith(_WEAK, len(record) - _SUFFIX - len(_WEAK))


def fields_of(record: bytes) -> dict[str, Any] | None:
    """The fields of a record, or ``None`` if it isn't intact."""
    if not intact(record):
        return None
    try:
        fields = decode_json(record)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    return fields if type(fields) is dict else None


def first_torn(records: list[bytes], good: list[bool]) -> int:
    """Where the torn end begins among the last records of a file; their number if nothing is torn."""
    synced = max((i for i, record in enumerate(records) if good[i] and was_synced(record)), default=-1)
    for index, record in enumerate(records):
        if not good[index]:
            # One zero is a flipped bit: where data never arrived there are many, up to the end at least.
            last = index == len(records) - 1 and (not record.endswith(b"\n") or bytes(2) in record)
            # No flipped bit makes a record begin with a zero.
            if last or (index > synced and (_HOLE in record or record.startswith(b"\0"))):
                return index
    return len(records)


# ── a file of them ───────────────────────────────────────────────────────────────────────────────


class Replaced(Exception):  # noqa: N818 - a signal inside the store
    """The file isn't the one that was read before: read everything anew."""


class RecordFile:
    """One file, as far as it has been read. Not for two threads at once."""

    def __init__(self, path: str, disk: Disk, start: int = 0, before: bytes = b"") -> None:
        """``start`` skips what the caller needn't read; ``before`` is the record that ends there."""
        self.path = path
        self._disk = disk
        #: Up to here it has been read and believed.
        self.end = start
        self._known = before[-_KNOWN_BYTES:]
        self._size_read = 0
        self._file = -1
        self._links = 0

    # ── reading ──────────────────────────────────────────────────────────────────────────────

    def grow(self) -> list[At]:
        """Records that were appended since the last time; call again until there are none.

        Raises :class:`Replaced` and :class:`FileNotFoundError`.
        """
        size = self._size_read = self._size()
        if size == self.end:
            return []
        if size < self.end:
            raise Replaced(self.path)
        self._compare()
        records = self._stretch(size).splitlines(keepends=True)
        good = list(map(intact, records))
        if not all(good):
            # Rare: what comes later decides whether a bad record is torn or damaged.
            records = self.read(self.end, size - self.end).splitlines(keepends=True)
            good = list(map(intact, records))
        if records and not good[-1] and (records[-1][-1] ^ 10).bit_count() == 1:
            mended = records[-1][:-1] + b"\n"
            if intact(mended):
                found = self._believe([*records[:-1], mended], [*good[:-1], True])
                # The next append compares with the bytes as they are on disk.
                self._known = records[-1][-_KNOWN_BYTES:] if self.end == size else self._known
                return found
        return self._believe(records, good)

    def read(self, offset: int, length: int) -> bytes:
        return read_at(self._opened(), offset, length)

    def record_at(self, offset: int, length: int) -> bytes:
        """One record, checked."""
        record = self.read(offset, length)
        if not intact(record):
            raise self.damage(offset)
        return record

    def _stretch(self, size: int) -> bytes:
        """What comes next: all of it, or a good part that ends with a record."""
        length = _STRETCH_BYTES
        while self.end + length < size:
            data = self.read(self.end, length)
            stop = data.rfind(b"\n") + 1
            if stop:
                return data[:stop]
            length *= 2
        return self.read(self.end, size - self.end)

    def _believe(self, records: list[bytes], good: list[bool]) -> list[At]:
        found: list[At] = []
        for record, is_good in zip(records[: first_torn(records, good)], good, strict=False):
            found.append((self.end, record, is_good))
            self._known = record[-_KNOWN_BYTES:]
            self.end += len(record)
        return found

    def damage(self, offset: int) -> StateCorruptedError:
        """What to raise for the record there."""
        number = read_at(self._opened(), 0, offset).count(b"\n") + 1
        where = f"{self.path}:{number}"
        return StateCorruptedError(
            f"{where} doesn't fit its checksum; keep a copy of the file, and see what store.verify() says",
            where=where,
        )

    # ── writing: the caller holds the store's lock ───────────────────────────────────────────

    def append(self, data: bytes) -> None:
        """Append records, durably. After a failure they aren't there, as far as the disk can be believed."""
        self.write(data)
        self.sync(data)

    def prepare(self) -> None:
        """Make the end fit for an append, after :meth:`grow`. Raises :class:`Replaced`.

        Nobody else writes meanwhile, so whatever is behind the end is torn.
        """
        self._compare()
        if self._size_read > self.end:
            self._cut(self._size_read)
        if self._known and not self._known.endswith(b"\n"):
            self._end_record()

    def write(self, data: bytes) -> None:
        """The first half of an append. :meth:`sync` must follow before anybody reads."""
        try:
            write_at(self._opened(), data, self.end)
        except OSError:
            self._take_back()
            raise

    def sync(self, data: bytes) -> None:
        """The second half: make what was written durable."""
        try:
            self._disk.sync(self._opened())
        except OSError:
            self._take_back()
            raise
        self.end += len(data)
        self._known = data[-_KNOWN_BYTES:]

    def _take_back(self) -> None:
        """Let go of the file: after an error the kernel may have dropped what it said it had."""
        with suppress(OSError):
            os.ftruncate(self._file, self.end)
        self.close()

    @property
    def torn_bytes(self) -> int:
        """How much is behind the end that isn't believed."""
        return max(self._size_read - self.end, 0)

    def keep_torn(self) -> None:
        """Keep what is behind the end, although it can't be read: it counted."""
        self._known = self.read(self.end, self._size_read - self.end)[-_KNOWN_BYTES:]
        self.end = self._size_read

    def _cut(self, size: int) -> None:
        torn = self.read(self.end, size - self.end)
        if b"\n" in torn:
            # More than one unfinished record: somebody may want to look at it.
            number = 1
            while os.path.lexists(f"{self.path}.cut-{number}"):
                number += 1
            self._disk.write_new(f"{self.path}.cut-{number}", torn)
        os.ftruncate(self._opened(), self.end)

    def _end_record(self) -> None:
        """Write the newline that the last record lacks: another byte is in its place, or it has none."""
        start = self.end - 1
        while start and self.read(start - 1, 1) != b"\n":
            start -= 1
        mended = self.read(start, self.end - 1 - start) + b"\n"
        if not intact(mended):
            self.end += 1
        write_at(self._opened(), b"\n", self.end - 1)
        self._known = self.read(max(self.end - _KNOWN_BYTES, 0), min(self.end, _KNOWN_BYTES))

    # ── the file itself ──────────────────────────────────────────────────────────────────────

    def _size(self) -> int:
        found = os.fstat(self._opened())
        if found.st_nlink != self._links:
            # Somebody removed or replaced the file, or merely made a link to it.
            there = os.stat(self.path)
            if (there.st_dev, there.st_ino) != (found.st_dev, found.st_ino):
                raise Replaced(self.path)
            self._links = found.st_nlink
        return found.st_size

    def _compare(self) -> None:
        """Raise :class:`Replaced` unless what was read last is still there."""
        known = self._known
        if known and self.read(self.end - len(known), len(known)) != known:
            raise Replaced(self.path)

    def _opened(self) -> int:
        if self._file < 0:
            self._file = os.open(self.path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            self._links = os.fstat(self._file).st_nlink
        return self._file

    def close(self) -> None:
        """Let go of the file; it is opened again when it is needed."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)
