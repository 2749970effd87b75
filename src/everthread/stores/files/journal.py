"""The journal of one line: the truth, in segments of JSON lines, each version a line.

A segment begins with a header that says whose it is, and ends, when the next one begins, with a line that
names it. A new segment counts from then on: one that nobody names was never finished.

    {"everthread":"journal","format":1,"uid":…,"space":…,"name":…,"first":1,"sum":…}
    {"seq":1,"at":…,"kind":"commit","document":[…],"logs":[…],"hash":…,"sum":…}
    …
    {"continues":"journal-0000004097.jsonl","sum":…}      or      {"sealed":true,"sum":…}

Versions that were pruned have one line together: ``{"seq":80,"kind":"pruned","first":5,…}``.
"""

from __future__ import annotations

import bisect
import os
import re
from collections.abc import Iterable
from itertools import islice
from operator import attrgetter

from everthread.errors import StateCorruptedError
from everthread.stores.contract import DAMAGED, PRUNED, Line
from everthread.stores.files.disk import Disk, read_at
from everthread.stores.files.jsonl import fields_of, intact, stamped
from everthread.stores.files.linefile import LineFile
from everthread.stores.files.parsing import Entry, Parsing, Spot
from everthread.stores.files.rendering import read_body

FORMAT = 1
#: A segment that has grown beyond this is followed by a new one, so that git has little to hash again.
SEGMENT_BYTES = 4 * 1024 * 1024
#: So many of the newest lines are kept in memory until they are asked for.
_LINES_KEPT = 192

_NAME = re.compile(r"journal-([0-9]{10})\.jsonl")
_seq = attrgetter("seq")


def segment_name(first: int) -> str:
    return f"journal-{first:010}.jsonl"


def segments_in(names: Iterable[str]) -> list[int]:
    """The first seqs of the segments among these files."""
    return sorted(int(found[1]) for name in names if (found := _NAME.fullmatch(name)))


def header(line: Line, first: int, *, durable: bool) -> bytes:
    """The first line of a segment."""
    return stamped(
        {
            "everthread": "journal",
            "format": FORMAT,
            "uid": line.uid.hex(),
            "space": line.space,
            "name": line.name,
            "first": first,
        },
        durable=durable,
    )


def first_header(folder: str) -> tuple[str, str] | None:
    """The namespace and name in the first header of a thread's folder, if that can be read."""
    try:
        segments = segments_in(os.listdir(folder))
        with open(os.path.join(folder, segment_name(segments[0])), "rb") as file:
            fields = fields_of(file.readline()) or {}
        return fields["space"], fields["name"]
    except (OSError, LookupError):
        return None


def was_used(folder: str) -> bool:
    """Whether a thread's folder holds more than what creating it leaves behind: so it did exist."""
    try:
        names = os.listdir(folder)
        if any(not name.startswith(("journal-", "items-", ".")) for name in names):
            return True
        segments = segments_in(names)
        if len(segments) != 1:
            return bool(segments)
        with open(os.path.join(folder, segment_name(segments[0])), "rb") as file:
            # A header, and the first version.
            return sum(1 for _ in islice(file, 3)) > 2
    except OSError:
        return False


class Journal:
    """The segments of one line, and the versions after a given place. Not for two threads at once."""

    def __init__(self, folder: str, line: Line, segments: list[int], disk: Disk) -> None:
        self._folder = folder
        self._line = line
        self._disk = disk
        self.segments = segments
        #: Segments that were begun, but that the one before doesn't name: they never counted.
        self._unfinished: list[int] = []
        self._parsing = Parsing(line.parent_seq)
        self._segment = segments[0] if segments else 0
        self._file = LineFile(self.path(self._segment), disk)

    def path(self, segment: int) -> str:
        return os.path.join(self._folder, segment_name(segment))

    @property
    def file(self) -> LineFile:
        """The segment that grows."""
        return self._file

    @property
    def end(self) -> Spot:
        return Spot(self._segment, self._file.end)

    @property
    def holed(self) -> bool:
        """Whether a line can't be read, of those that were parsed into entries."""
        return self._parsing.holed

    @property
    def entries(self) -> list[Entry]:
        """The versions after the place that reading began with."""
        return self._parsing.entries

    @property
    def sealed(self) -> bool:
        return self._parsing.sealed

    @property
    def hidden(self) -> int:
        """How many of the entries stand below pruned versions, or are these."""
        entries = self._parsing.entries
        if not self._parsing.pruned:
            return 0
        pruned = (index for index in range(len(entries) - 1, -1, -1) if entries[index].kind == PRUNED)
        return next(pruned, -1) + 1

    def index(self, seq: int) -> int:
        """Which of the entries holds a version; their number if it comes after all of them."""
        return bisect.bisect_left(self._parsing.entries, seq, key=_seq)

    # ── reading on ───────────────────────────────────────────────────────────────────────────

    def begin(self, after: Entry | None) -> None:
        """Read everything that comes after a version, or simply everything."""
        if not self.segments:
            raise FileNotFoundError(self.path(1))
        if after is None:
            self._open(self.segments[0])
        else:
            self._parsing = Parsing(after.seq)
            self._open(after.end.segment, after.end.offset, after.line or b"")
        self.grow()
        while self.segments[-1] > self._segment:
            self._unfinished.append(self.segments.pop())

    def _open(self, segment: int, start: int = 0, before: bytes = b"") -> None:
        self._file.close()
        self._segment = segment
        self._file = LineFile(self.path(segment), self._disk, start, before)

    def grow(self) -> bool:
        """Read what was appended since; whether there was anything. Raises as :meth:`LineFile.grow` does."""
        parsing, grown = self._parsing, False
        while found := self._file.grow():
            grown = True
            for offset, line, good in found:
                parsing.take(Spot(self._segment, offset), line, good)
            if parsing.following:
                self._follow(parsing.following)
            elif parsing.doubtful and self.segments[-1] > self._segment:
                # The line that can't be read is the one that named the next segment.
                self._open(next(segment for segment in self.segments if segment > self._segment))
        if grown:
            for entry in reversed(parsing.entries[:-_LINES_KEPT]):
                if entry.line is None:
                    break
                entry.line = None
        return grown

    def _follow(self, name: str) -> None:
        self._parsing.following = ""
        found = _NAME.fullmatch(name)
        if found is None or int(found[1]) <= self._segment:
            raise StateCorruptedError(f"{self._file.path} goes on in no segment", where=self._file.path)
        self._open(int(found[1]))
        if self.segments[-1] < self._segment:
            self.segments.append(self._segment)

    # ── reading back ─────────────────────────────────────────────────────────────────────────

    def between(self, start: Spot, stop: Spot, last_seq: int) -> list[Entry]:
        """The versions in a stretch that was passed over; ``last_seq`` stands just before it."""
        parsing = Parsing(last_seq)
        for segment in self.segments:
            if start.segment <= segment <= stop.segment:
                offset = start.offset if segment == start.segment else 0
                data = self.read(Spot(segment, offset), stop.offset if segment == stop.segment else None)
                for line in data.splitlines(keepends=True):
                    parsing.take(Spot(segment, offset), line, intact(line))
                    offset += len(line)
        return parsing.entries

    def read(self, at: Spot, stop: int | None) -> bytes:
        """What stands in a segment from there up to ``stop``, or to its end."""
        if at.segment == self._segment:
            return self._file.read(at.offset, (self._file.end if stop is None else stop) - at.offset)
        file = os.open(self.path(at.segment), os.O_RDONLY | os.O_CLOEXEC)
        try:
            return read_at(file, at.offset, (os.fstat(file).st_size if stop is None else stop) - at.offset)
        finally:
            os.close(file)

    def entry_at(self, at: Spot, length: int, first: int, seq: int, digest: bytes) -> Entry | None:
        """The version there, or the line of those that were pruned, if it is this one, to begin after it."""
        try:
            line = self.read(at, at.offset + length)
        except FileNotFoundError:
            return None
        parsing = Parsing(first - 1)
        parsing.take(at, line, intact(line))
        found = parsing.entries[-1] if parsing.entries else None
        return found if found is not None and (found.seq, found.hash) == (seq, digest) else None

    def body(self, entry: Entry) -> bytes:
        """The bytes of a version. Raises :class:`StateCorruptedError`, naming file and line."""
        if entry.body is None:
            line = entry.line
            if line is None:
                line = self.read(entry.at, entry.at.offset + entry.length)
            if entry.kind == DAMAGED or not intact(line):
                raise self.damage(entry)
            entry.body = read_body(line, self.path(entry.at.segment))
            entry.line = None
        return entry.body

    def damage(self, entry: Entry) -> StateCorruptedError:
        """What to raise for a version that can't be read."""
        number = self.read(Spot(entry.at.segment, 0), entry.at.offset).count(b"\n") + 1
        where = f"{self.path(entry.at.segment)}:{number}"
        return StateCorruptedError(
            f"version {entry.seq} of {self._line.name!r} is damaged: {where} doesn't fit its checksum; "
            "keep a copy of the file, and see what store.verify() says",
            where=where,
        )

    # ── writing: the caller has the turn ─────────────────────────────────────────────────────

    def add(self, entry: Entry) -> None:
        """Note a version that was just appended."""
        self._parsing.entries.append(entry)
        self._parsing.last_seq = entry.seq

    def forget(self, seq: int) -> None:
        """Versions up to ``seq`` are known otherwise."""
        del self._parsing.entries[: self.index(seq + 1)]

    def seal(self) -> None:
        """Nothing ever follows."""
        self._file.prepare()
        self._file.append(stamped({"sealed": True}, durable=self._disk.durable))
        self._parsing.sealed = True

    def rotate(self) -> None:
        """Go on in a new segment."""
        durable = self._disk.durable
        while self._unfinished:
            os.unlink(self.path(self._unfinished.pop()))
        first = self._parsing.last_seq + 1
        self._disk.write_new(self.path(first), header(self._line, first, durable=durable))
        self._disk.sync_folder(self._folder)
        self._file.prepare()
        self._file.append(stamped({"continues": segment_name(first)}, durable=durable))
        self._open(first)
        self.segments.append(first)
        self.grow()

    def close(self) -> None:
        self._file.close()
