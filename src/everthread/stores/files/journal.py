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
from hashlib import sha256
from itertools import islice
from operator import attrgetter

import msgspec
from msgspec import Struct

from everthread.errors import StateCorruptedError
from everthread.stores.contract import DAMAGED, DELTA, PRUNED, REWIND, SEAL_SEQ, Line
from everthread.stores.files.disk import Disk, read_at, write_at
from everthread.stores.files.json_form import Part, read_body
from everthread.stores.files.record_file import LineFile, fields_of, intact, stamped

# ── editions ────────────────────────────────────────
# Which edition of a thread's journal the folder holds: pruning is what makes a new one.
#
# Journals only grow, except when versions are pruned: then segments are replaced, and places in them that
# others remember mean nothing any more. The size of ``prunes.index`` counts: a byte before the first
# segment is replaced, a byte when all is done. So a size that is even names an edition, and one that is odd
# says that somebody is at it, or was interrupted: then only what the journal itself says is to be believed,
# and whoever has the turn next tidies up.


#: The ending keeps it out of git, as all that is derived.
FILE = "prunes.index"


def edition_of(folder: str) -> int:
    """The edition that the folder holds; odd while it is being changed."""
    try:
        return os.stat(os.path.join(folder, FILE)).st_size
    except FileNotFoundError:
        return 0


def begin(folder: str, disk: Disk) -> int:
    """From now on the folder changes; the edition that it will hold afterwards. Durable."""
    size = edition_of(folder)
    if size % 2 == 0:
        _grow(folder, size, disk)
        disk.sync_folder(folder)
        size += 1
    return size + 1


def end(folder: str, edition: int) -> None:
    """The change is done. If that is lost, somebody tidies up for nothing."""
    _grow(folder, edition - 1, Disk(durable=False))


def _grow(folder: str, size: int, disk: Disk) -> None:
    file = os.open(os.path.join(folder, FILE), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        write_at(file, b".", size)
        disk.sync(file)
    finally:
        os.close(file)


# ── parsing ────────────────────────────────────────
# Lines of a journal on their way to becoming versions, also around lines that can't be read.


#: No more versions than this can be missing in a row; a number beyond that is nonsense.
_MISSING_MAX = 100_000

_ITEMS = re.compile(r"items-[0-9]{10}-[0-9a-f]{16}\.jsonl")
_KINDS = {"rewind": REWIND, "pruned": PRUNED}


class Spot(Struct, frozen=True, array_like=True):
    """A place in a journal: the segment (by its first seq) and the offset in it."""

    segment: int
    offset: int


class Entry(Struct):
    """A version as the journal has it. ``line`` or ``body`` are there where they are known already.

    Of the kind DAMAGED where it can't be read: its seq follows from those around it. Of the kind PRUNED it
    stands for ``count`` versions up to ``seq``. ``items`` is the file that holds its ``parts``.
    """

    seq: int
    kind: int
    hash: bytes
    key: bytes | None
    at: Spot
    length: int
    parts: list[Part] = []
    line: bytes | None = None
    body: bytes | None = None
    count: int = 1
    items: str = ""

    @property
    def first(self) -> int:
        return self.seq - self.count + 1

    @property
    def end(self) -> Spot:
        return Spot(self.at.segment, self.at.offset + self.length)


class _Outline(Struct):
    """What can be said of a line without looking at what it changes."""

    seq: int | None = None
    kind: str = ""
    row: int | None = None
    keyed: str | None = None
    apart: list[Part] = []
    items: str = ""
    hash: str = ""
    first: int | None = None
    continues: str | None = None
    sealed: bool = False


_outline = msgspec.json.Decoder(_Outline).decode


def items_name(seq: int, digest: bytes) -> str:
    """The file for the items of a large commit. The hash keeps an attempt that failed apart."""
    return f"items-{seq:010}-{digest.hex()[:16]}.jsonl"


def check_items_name(name: str) -> str:
    """A name of a file of items as a store records it: never one that leads elsewhere."""
    if _ITEMS.fullmatch(name):
        return name
    raise StateCorruptedError(f"{name!r} isn't the name of a file of items")


class Parsing:
    """Lines on their way to becoming versions."""

    def __init__(self, last_seq: int) -> None:
        self.entries: list[Entry] = []
        self.last_seq = last_seq
        self.sealed = False
        #: The file that the last line names as the next one.
        self.following = ""
        #: How many of the last entries are lines that can't be read, and were no versions perhaps.
        self.doubtful = 0
        #: Whether there are pruned versions among the entries, or were.
        self.pruned = False
        #: Whether there are lines among the entries, or were, that can't be read.
        self.holed = False

    def take(self, at: Spot, line: bytes, good: bool) -> None:
        try:
            outline = _outline(line) if good else None
        except (msgspec.MsgspecError, RecursionError):
            outline = None
        seq = None if outline is None else outline.seq
        first = outline.first if outline is not None and outline.kind == "pruned" else seq
        if outline is None or (seq is not None and not (first and first <= seq and self._fits(first))):
            self._add_damaged(at, line)
            self.doubtful += 1
        elif seq is not None and first is not None:
            self._stand_before(first, at)
            self._add(outline, seq, at, line)
        elif outline.first is not None:
            if self._fits(outline.first):
                self._stand_before(outline.first, at)
        else:
            self.following = outline.continues or ""
            self.sealed = self.sealed or outline.sealed

    def _fits(self, seq: int) -> bool:
        """Whether a version with this number can stand here; some may be missing before it."""
        return self.last_seq - self.doubtful < seq <= min(self.last_seq + _MISSING_MAX, SEAL_SEQ - 1)

    def _stand_before(self, seq: int, at: Spot) -> None:
        """The next version is ``seq``: then it is clear what the lines before it were that can't be read."""
        while self.last_seq >= seq:
            self.entries.pop()
            self.last_seq -= 1
        while self.last_seq < seq - 1:
            self._add_damaged(at, b"")
        self.doubtful = 0

    def _add_damaged(self, at: Spot, line: bytes) -> None:
        self.last_seq += 1
        self.holed = True
        # Whoever goes on over it builds on this instead of the hash that was lost with it.
        digest = sha256(line).digest()
        self.entries.append(Entry(self.last_seq, DAMAGED, digest, None, at, len(line)))

    def _add(self, outline: _Outline, seq: int, at: Spot, line: bytes) -> None:
        kind = outline.row if outline.row is not None else _KINDS.get(outline.kind, DELTA)
        try:
            digest = bytes.fromhex(outline.hash)
            key = None if outline.keyed is None else bytes.fromhex(outline.keyed)
        except ValueError:
            self._add_damaged(at, line)
            return
        entry = Entry(seq, kind, digest, key, at, len(line), outline.apart, line)
        if kind == PRUNED:
            entry.count, entry.items, self.pruned = seq - self.last_seq, outline.items, True
        elif entry.parts:
            entry.items = items_name(seq, digest)
        self.entries.append(entry)
        self.last_seq = seq


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
