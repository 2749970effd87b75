"""The journal of one line: the truth, in segments of JSON records, one for each version.

A segment begins with a header that says whose it is. When the next segment begins, a last record names it. A
new segment counts from then on: one that no record names was never finished.

    {"everthread":"journal","format":1,"uid":…,"space":…,"name":…,"first":1,"sum":…}
    {"seq":1,"at":…,"kind":"commit","document":[…],"logs":[…],"hash":…,"sum":…}
    …
    {"continues":"journal-0000004097.jsonl","sum":…}      or      {"sealed":true,"sum":…}

Versions that were pruned have one record together: ``{"seq":80,"kind":"pruned","first":5,…}``.
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
from everthread.stores.files.disk import Disk, RecordFile, fields_of, intact, read_at, record_of, write_at
from everthread.stores.files.json_form import Part, read_body

FORMAT = 1
#: A segment that has grown beyond this is followed by a new one, so that git has little to hash again.
SEGMENT_BYTES = 4 * 1024 * 1024
#: How many of the newest records stay in memory until they are asked for.
_RECORDS_KEPT = 192

_NAME = re.compile(r"journal-([0-9]{10})\.jsonl")
_seq = attrgetter("seq")
#: No more versions than this can be missing in a row; a number beyond that is nonsense.
_MISSING_MAX = 100_000

_ITEMS = re.compile(r"items-[0-9]{10}-[0-9a-f]{16}\.jsonl")
_KINDS = {"rewind": REWIND, "pruned": PRUNED}


# ── names and headers ────────────────────────────────────────────────────────────────────────────


def segment_name(first: int) -> str:
    return f"journal-{first:010}.jsonl"


def segments_in(names: Iterable[str]) -> list[int]:
    """The first seqs of the segments among these files."""
    return sorted(int(found[1]) for name in names if (found := _NAME.fullmatch(name)))


def header(line: Line, first: int, *, durable: bool) -> bytes:
    """The first record of a segment."""
    return record_of(
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


# ── records on their way to versions ─────────────────────────────────────────────────────────────


class Spot(Struct, frozen=True, array_like=True):
    """A place in a journal: the segment (by its first seq) and the offset in it."""

    segment: int
    offset: int


class Entry(Struct):
    """A version as the journal has it. ``record`` or ``body`` are set once they were read.

    It is of kind DAMAGED if it can't be read: its seq follows from those around it. Of kind PRUNED it
    stands for ``count`` versions up to ``seq``. ``items`` is the file that holds its ``parts``.
    """

    seq: int
    kind: int
    hash: bytes
    key: bytes | None
    at: Spot
    length: int
    parts: list[Part] = []
    record: bytes | None = None
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
    """The members of a record that say what it is."""

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


class JournalParser:
    """Turns records into versions, also around records that can't be read."""

    def __init__(self, last_seq: int) -> None:
        self.entries: list[Entry] = []
        self.last_seq = last_seq
        self.sealed = False
        #: The segment that the last record names as the next one.
        self.next_segment = ""
        #: How many of the last entries can't be read, and perhaps were no versions.
        self.doubtful = 0
        #: Whether entries are pruned versions, also among those that were forgotten since.
        self.has_pruned = False
        #: Whether entries can't be read, also among those that were forgotten since.
        self.has_damage = False

    def take(self, at: Spot, record: bytes, good: bool) -> None:
        try:
            outline = _outline(record) if good else None
        except (msgspec.MsgspecError, RecursionError):
            outline = None
        seq = None if outline is None else outline.seq
        first = outline.first if outline is not None and outline.kind == "pruned" else seq
        if outline is None or (seq is not None and not (first and first <= seq and self._fits(first))):
            self._add_damaged(at, record)
            self.doubtful += 1
        elif seq is not None and first is not None:
            self._stand_before(first, at)
            self._add(outline, seq, at, record)
        elif outline.first is not None:
            if self._fits(outline.first):
                self._stand_before(outline.first, at)
        else:
            self.next_segment = outline.continues or ""
            self.sealed = self.sealed or outline.sealed

    def _fits(self, seq: int) -> bool:
        """Whether a version with this number can stand here; some may be missing before it."""
        return self.last_seq - self.doubtful < seq <= min(self.last_seq + _MISSING_MAX, SEAL_SEQ - 1)

    def _stand_before(self, seq: int, at: Spot) -> None:
        """The next version is ``seq``: that tells which versions the unreadable records before it were."""
        while self.last_seq >= seq:
            self.entries.pop()
            self.last_seq -= 1
        while self.last_seq < seq - 1:
            self._add_damaged(at, b"")
        self.doubtful = 0

    def _add_damaged(self, at: Spot, record: bytes) -> None:
        self.last_seq += 1
        self.has_damage = True
        # A repair builds the next version on this instead of the hash that was lost.
        digest = sha256(record).digest()
        self.entries.append(Entry(self.last_seq, DAMAGED, digest, None, at, len(record)))

    def _add(self, outline: _Outline, seq: int, at: Spot, record: bytes) -> None:
        kind = outline.row if outline.row is not None else _KINDS.get(outline.kind, DELTA)
        try:
            digest = bytes.fromhex(outline.hash)
            key = None if outline.keyed is None else bytes.fromhex(outline.keyed)
        except ValueError:
            self._add_damaged(at, record)
            return
        entry = Entry(seq, kind, digest, key, at, len(record), outline.apart, record)
        if kind == PRUNED:
            entry.count, entry.items, self.has_pruned = seq - self.last_seq, outline.items, True
        elif entry.parts:
            entry.items = items_name(seq, digest)
        self.entries.append(entry)
        self.last_seq = seq


# ── the journal ──────────────────────────────────────────────────────────────────────────────────


class Journal:
    """The segments of one line, and the versions after a given place. Not for two threads at once."""

    def __init__(self, folder: str, line: Line, segments: list[int], disk: Disk) -> None:
        self._folder = folder
        self._line = line
        self._disk = disk
        self.segments = segments
        #: Segments that were begun, but that the one before doesn't name: they never counted.
        self._unfinished: list[int] = []
        self._parser = JournalParser(line.parent_seq)
        self._segment = segments[0] if segments else 0
        self._file = RecordFile(self.path(self._segment), disk)

    def path(self, segment: int) -> str:
        return os.path.join(self._folder, segment_name(segment))

    @property
    def file(self) -> RecordFile:
        """The segment that grows."""
        return self._file

    @property
    def end(self) -> Spot:
        return Spot(self._segment, self._file.end)

    @property
    def has_damage(self) -> bool:
        """Whether any record that was parsed can't be read."""
        return self._parser.has_damage

    @property
    def entries(self) -> list[Entry]:
        """The versions after the place that reading began with."""
        return self._parser.entries

    @property
    def sealed(self) -> bool:
        return self._parser.sealed

    @property
    def hidden(self) -> int:
        """How many of the entries stand below pruned versions, or are these."""
        entries = self._parser.entries
        if not self._parser.has_pruned:
            return 0
        pruned = (index for index in range(len(entries) - 1, -1, -1) if entries[index].kind == PRUNED)
        return next(pruned, -1) + 1

    def index(self, seq: int) -> int:
        """Which of the entries holds a version; their number if it comes after all of them."""
        return bisect.bisect_left(self._parser.entries, seq, key=_seq)

    # ── reading on ───────────────────────────────────────────────────────────────────────────

    def begin(self, after: Entry | None) -> None:
        """Read everything that comes after a version, or simply everything."""
        if not self.segments:
            raise FileNotFoundError(self.path(1))
        if after is None:
            self._open(self.segments[0])
        else:
            self._parser = JournalParser(after.seq)
            self._open(after.end.segment, after.end.offset, after.record or b"")
        self.grow()
        while self.segments[-1] > self._segment:
            self._unfinished.append(self.segments.pop())

    def _open(self, segment: int, start: int = 0, before: bytes = b"") -> None:
        self._file.close()
        self._segment = segment
        self._file = RecordFile(self.path(segment), self._disk, start, before)

    def grow(self) -> bool:
        """Read what was appended since; whether there was anything. Raises like :meth:`RecordFile.grow`."""
        parser, grown = self._parser, False
        while found := self._file.grow():
            grown = True
            for offset, record, good in found:
                parser.take(Spot(self._segment, offset), record, good)
            if parser.next_segment:
                self._follow(parser.next_segment)
            elif parser.doubtful and self.segments[-1] > self._segment:
                # The record that can't be read is the one that named the next segment.
                self._open(next(segment for segment in self.segments if segment > self._segment))
        if grown:
            for entry in reversed(parser.entries[:-_RECORDS_KEPT]):
                if entry.record is None:
                    break
                entry.record = None
        return grown

    def _follow(self, name: str) -> None:
        self._parser.next_segment = ""
        found = _NAME.fullmatch(name)
        if found is None or int(found[1]) <= self._segment:
            raise StateCorruptedError(f"{self._file.path} goes on in no segment", where=self._file.path)
        self._open(int(found[1]))
        if self.segments[-1] < self._segment:
            self.segments.append(self._segment)

    # ── reading back ─────────────────────────────────────────────────────────────────────────

    def between(self, start: Spot, stop: Spot, last_seq: int) -> list[Entry]:
        """The versions in a stretch of the journal; ``last_seq`` comes just before it."""
        parser = JournalParser(last_seq)
        for segment in self.segments:
            if start.segment <= segment <= stop.segment:
                offset = start.offset if segment == start.segment else 0
                data = self.read(Spot(segment, offset), stop.offset if segment == stop.segment else None)
                for record in data.splitlines(keepends=True):
                    parser.take(Spot(segment, offset), record, intact(record))
                    offset += len(record)
        return parser.entries

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
        """The version there, or the record of pruned ones, if it is the one with this seq and hash."""
        try:
            record = self.read(at, at.offset + length)
        except FileNotFoundError:
            return None
        parser = JournalParser(first - 1)
        parser.take(at, record, intact(record))
        found = parser.entries[-1] if parser.entries else None
        return found if found is not None and (found.seq, found.hash) == (seq, digest) else None

    def body(self, entry: Entry) -> bytes:
        """The bytes of a version. Raises :class:`StateCorruptedError`, which names the file and place."""
        if entry.body is None:
            record = entry.record
            if record is None:
                record = self.read(entry.at, entry.at.offset + entry.length)
            if entry.kind == DAMAGED or not intact(record):
                raise self.damage(entry)
            entry.body = read_body(record, self.path(entry.at.segment))
            entry.record = None
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

    # ── writing: the caller holds the store's lock ───────────────────────────────────────────

    def add(self, entry: Entry) -> None:
        """Note a version that was just appended."""
        self._parser.entries.append(entry)
        self._parser.last_seq = entry.seq

    def forget(self, seq: int) -> None:
        """Drop versions up to ``seq`` from memory: packs hold them."""
        del self._parser.entries[: self.index(seq + 1)]

    def seal(self) -> None:
        """Nothing ever follows."""
        self._file.prepare()
        self._file.append(record_of({"sealed": True}, durable=self._disk.durable))
        self._parser.sealed = True

    def rotate(self) -> None:
        """Go on in a new segment."""
        durable = self._disk.durable
        while self._unfinished:
            os.unlink(self.path(self._unfinished.pop()))
        first = self._parser.last_seq + 1
        self._disk.write_new(self.path(first), header(self._line, first, durable=durable))
        self._disk.sync_folder(self._folder)
        self._file.prepare()
        self._file.append(record_of({"continues": segment_name(first)}, durable=durable))
        self._open(first)
        self.segments.append(first)
        self.grow()

    def close(self) -> None:
        self._file.close()


# ── editions ─────────────────────────────────────────────────────────────────────────────────────
# Journals only grow, except when versions are pruned: then segments are replaced, and offsets that other
# processes remember mean nothing any more. The size of ``prunes.index`` counts editions: it grows by a byte
# before the first segment is replaced, and by a byte when all is done. An even size names an edition. An odd
# one says that a writer is pruning, or was interrupted: then only the journal itself is believed, and the
# next writer cleans up.

#: Its ending keeps it out of git, like everything that is derived.
EDITION_FILE = "prunes.index"


def edition_of(folder: str) -> int:
    """The edition that the folder holds; odd while it is being changed."""
    try:
        return os.stat(os.path.join(folder, EDITION_FILE)).st_size
    except FileNotFoundError:
        return 0


def begin_edition(folder: str, disk: Disk) -> int:
    """From now on the folder changes; the edition that it will hold afterwards. Durable."""
    size = edition_of(folder)
    if size % 2 == 0:
        _write_edition(folder, size, disk)
        disk.sync_folder(folder)
        size += 1
    return size + 1


def end_edition(folder: str, edition: int) -> None:
    """The change is done. If this byte is lost, the next writer cleans up once more, which does no harm."""
    _write_edition(folder, edition - 1, Disk(durable=False))


def _write_edition(folder: str, size: int, disk: Disk) -> None:
    file = os.open(
        os.path.join(folder, EDITION_FILE), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
    )
    try:
        write_at(file, b".", size)
        disk.sync(file)
    finally:
        os.close(file)
