"""Lines of JSON that carry their own checksum.

A line is one JSON object, ``"sum"`` its last member: the CRC-32, in hexadecimal, of everything before it. A
line that was torn in the middle of an append, or altered since, doesn't fit its sum.
"""

from __future__ import annotations

import os
import zlib
from contextlib import suppress
from typing import Any

import msgspec

from everthread.errors import StateCorruptedError
from everthread.stores.files.disk import Disk, read_at, write_at

_SUM = b',"sum":"'
#: `,"sum":"01234567"}` and the newline.
_SUFFIX = len(_SUM) + 8 + 3
#: Stands before the sum of a line that was acknowledged without waiting for the disk.
_WEAK = b',"durable":false'

encode_json = msgspec.json.Encoder().encode
decode_json = msgspec.json.Decoder().decode


def stamp(text: bytes, *, durable: bool = True) -> bytes:
    """The line of a JSON object that isn't empty. ``durable``: it is synced before it is acknowledged."""
    body = text[:-1] if durable else text[:-1] + _WEAK
    return b"".join((body, b',"sum":"%08x"}\n' % zlib.crc32(body)))


def stamped(fields: dict[str, Any], *, durable: bool = True) -> bytes:
    """The line of these fields."""
    return stamp(encode_json(fields), durable=durable)


def intact(line: bytes) -> bool:
    """Whether this is a whole line that fits its sum."""
    at = len(line) - _SUFFIX
    return (
        at > 1
        and line.startswith(_SUM, at)
        and line.endswith(b'"}\n')
        and line[at + 8 : at + 16] == b"%08x" % zlib.crc32(line[:at])
    )


def was_synced(line: bytes) -> bool:
    """Whether an intact line was on disk, and all before it, when it was acknowledged."""
    return not line.startswith(_WEAK, len(line) - _SUFFIX - len(_WEAK))


def fields_of(line: bytes) -> dict[str, Any] | None:
    """The fields of a line, or ``None`` if it isn't intact."""
    if not intact(line):
        return None
    try:
        fields = decode_json(line)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    return fields if type(fields) is dict else None


# ── linefile ────────────────────────────────────────
# An append-only file of lines: reading on from where one was, and appending so that a crash shows.
#
# The end of such a file may be torn: whoever wrote it died in the middle, or the power went. The last line
# is torn if it was never finished, or shows the zeros that a file system puts where the disk never got the
# data. One further up is torn only if it shows a good many of them and if nothing after it was ever synced,
# because a sync covers all that is before it. What is torn is never believed, and cut off by the next
# append. Any other line that doesn't fit its sum is damage. A last line that lacks nothing but its newline,
# because one bit of that was flipped, is whole.


#: So much of what was read last is compared before an append relies on it.
_KNOWN_BYTES = 96
#: What a file system shows where the disk never got the data. No line holds a zero.
_HOLE = bytes(64)
#: How much is read at a time.
_STRETCH_BYTES = 8 * 1024 * 1024

#: Offset, line, and whether it fits its sum.
At = tuple[int, bytes, bool]


class Replaced(Exception):  # noqa: N818 - a signal inside the store
    """The file isn't the one that was read before: read everything anew."""


def first_torn(lines: list[bytes], good: list[bool]) -> int:
    """Where the torn end begins in the last lines of a file; their number if there is none."""
    synced = max((i for i, line in enumerate(lines) if good[i] and was_synced(line)), default=-1)
    for index, line in enumerate(lines):
        if not good[index]:
            # One zero is a flipped bit: where data never arrived there are many, up to the end at least.
            last = index == len(lines) - 1 and (not line.endswith(b"\n") or bytes(2) in line)
            # No flipped bit makes a line begin with a zero.
            if last or (index > synced and (_HOLE in line or line.startswith(b"\0"))):
                return index
    return len(lines)


class LineFile:
    """One file, as far as it has been read. Not for two threads at once."""

    def __init__(self, path: str, disk: Disk, start: int = 0, before: bytes = b"") -> None:
        """``before`` is the line that ends at ``start``, for who needn't read what comes before."""
        self.path = path
        self._disk = disk
        #: Up to here it has been read and believed.
        self.end = start
        self._known = before[-_KNOWN_BYTES:]
        self._seen = 0
        self._file = -1
        self._links = 0

    # ── reading ──────────────────────────────────────────────────────────────────────────────

    def grow(self) -> list[At]:
        """Lines that were appended since the last time; call again until there are none.

        Raises :class:`Replaced` and :class:`FileNotFoundError`.
        """
        size = self._seen = self._size()
        if size == self.end:
            return []
        if size < self.end:
            raise Replaced(self.path)
        self._compare()
        lines = self._stretch(size).splitlines(keepends=True)
        good = list(map(intact, lines))
        if not all(good):
            # Rare: what comes later decides what a bad line is.
            lines = self.read(self.end, size - self.end).splitlines(keepends=True)
            good = list(map(intact, lines))
        if lines and not good[-1] and (lines[-1][-1] ^ 10).bit_count() == 1:
            mended = lines[-1][:-1] + b"\n"
            if intact(mended):
                found = self._believe([*lines[:-1], mended], [*good[:-1], True])
                # What is compared is what stands there.
                self._known = lines[-1][-_KNOWN_BYTES:] if self.end == size else self._known
                return found
        return self._believe(lines, good)

    def read(self, offset: int, length: int) -> bytes:
        return read_at(self._opened(), offset, length)

    def line_at(self, offset: int, length: int) -> bytes:
        """One line, checked."""
        line = self.read(offset, length)
        if not intact(line):
            raise self.damage(offset)
        return line

    def _stretch(self, size: int) -> bytes:
        """What comes next: all of it, or a good part that ends with a line."""
        length = _STRETCH_BYTES
        while self.end + length < size:
            data = self.read(self.end, length)
            stop = data.rfind(b"\n") + 1
            if stop:
                return data[:stop]
            length *= 2
        return self.read(self.end, size - self.end)

    def _believe(self, lines: list[bytes], good: list[bool]) -> list[At]:
        found: list[At] = []
        for line, sound in zip(lines[: first_torn(lines, good)], good, strict=False):
            found.append((self.end, line, sound))
            self._known = line[-_KNOWN_BYTES:]
            self.end += len(line)
        return found

    def damage(self, offset: int) -> StateCorruptedError:
        """What to raise for the line there."""
        number = read_at(self._opened(), 0, offset).count(b"\n") + 1
        where = f"{self.path}:{number}"
        return StateCorruptedError(
            f"{where} doesn't fit its checksum; keep a copy of the file, and see what store.verify() says",
            where=where,
        )

    # ── writing ──────────────────────────────────────────────────────────────────────────────

    def prepare(self) -> None:
        """Before an append, after :meth:`grow`: what was read is still there. Raises :class:`Replaced`.

        The caller has the turn, so that whatever stands behind the end is torn.
        """
        self._compare()
        if self._seen > self.end:
            self._cut(self._seen)
        if self._known and not self._known.endswith(b"\n"):
            self._end_line()

    @property
    def torn(self) -> int:
        """How much stands behind the end that isn't believed."""
        return max(self._seen - self.end, 0)

    def believe_torn(self) -> None:
        """What stands behind the end isn't torn after all, though it can't be read: it stays."""
        self._known = self.read(self.end, self._seen - self.end)[-_KNOWN_BYTES:]
        self.end = self._seen

    def _end_line(self) -> None:
        """The last line has no end: where that was is another byte, or the line is no line at all."""
        start = self.end - 1
        while start and self.read(start - 1, 1) != b"\n":
            start -= 1
        mended = self.read(start, self.end - 1 - start) + b"\n"
        if not intact(mended):
            self.end += 1
        write_at(self._opened(), b"\n", self.end - 1)
        self._known = self.read(max(self.end - _KNOWN_BYTES, 0), min(self.end, _KNOWN_BYTES))

    def append(self, data: bytes) -> None:
        """Append lines, durably. After a failure they aren't there, as far as the disk can be believed."""
        self.write(data)
        self.sync(data)

    def write(self, data: bytes) -> None:
        """The first half: in the file, but not durable. :meth:`sync` must follow before anybody reads."""
        try:
            write_at(self._opened(), data, self.end)
        except OSError:
            self._take_back()
            raise

    def sync(self, data: bytes) -> None:
        """The second half, for what was written."""
        try:
            self._disk.sync(self._opened())
        except OSError:
            self._take_back()
            raise
        self.end += len(data)
        self._known = data[-_KNOWN_BYTES:]

    def _take_back(self) -> None:
        """After an error the kernel may have dropped what it said it had: let go of the file."""
        with suppress(OSError):
            os.ftruncate(self._file, self.end)
        self.close()

    def _cut(self, size: int) -> None:
        torn = self.read(self.end, size - self.end)
        if b"\n" in torn:
            # Not just a line that was never finished: whatever it is, somebody may want to look at it.
            number = 1
            while os.path.lexists(f"{self.path}.cut-{number}"):
                number += 1
            self._disk.write_new(f"{self.path}.cut-{number}", torn)
        os.ftruncate(self._opened(), self.end)

    # ── the file itself ──────────────────────────────────────────────────────────────────────

    def _size(self) -> int:
        if self._file < 0:
            self._opened()
        found = os.fstat(self._file)
        if found.st_nlink != self._links:
            # Somebody removed the file, or put another one in its place; or merely made a link to it.
            there = os.stat(self.path)
            if (there.st_dev, there.st_ino) != (found.st_dev, found.st_ino):
                raise Replaced(self.path)
            self._links = found.st_nlink
        return found.st_size

    def _compare(self) -> None:
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
