"""Packs, chunks, keyframes and keys beside a journal, so that a read touches a bounded number of bytes.

A volume is two files: ``folds-FIRST.packs`` holds frames, ``folds-FIRST.index`` says what each is. Both are
only appended to, the index last, so that readers need no lock. When pruning has rewritten a journal, volumes
with new names replace those of the old one: ``folds-FIRST-EDITION``.

All of it is derived from the journal, may be removed at any time, and is made again. A pack is believed only
if the journal holds its last version, whose hash covers everything before it.
"""

from __future__ import annotations

import bisect
import os
import re
import struct
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress

import msgspec
from msgspec import Struct

from everthread.codec import records
from everthread.errors import StateCorruptedError
from everthread.stores.contract import PACK, PRUNED
from everthread.stores.files.disk import Replaced, read_at, read_file, write_at
from everthread.stores.files.journal import Entry, Journal, Spot, edition_of

#: Packs in a volume. Opening a thread reads the index of its last one.
VOLUME_PACKS = 64

_NAME = re.compile(r"folds-([0-9]{10})(?:-([0-9]{1,9}))?\.(?:index|packs)")
_FRAME = struct.Struct("<II")


class DerivedDamage(Exception):  # noqa: N818 - a signal inside the store
    """The folds in this folder are damaged: do without them, and make them again."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.folder = folder


class Extent(Struct, frozen=True, array_like=True):
    """Where a frame lies in the packs file of a volume."""

    start: int
    length: int


class ChunkEntry(Struct, frozen=True, array_like=True):
    """A chunk of a log: in the packs file, or (``apart``) in a file of items.

    One without data stands for items that were pruned.
    """

    log: str
    position: int
    count: int
    data: Extent
    prints: Extent
    apart: str | None = None


class PackEntry(Struct, frozen=True, array_like=True, tag="pack"):
    """A pack. ``start`` is the place of its first version in the journal, ``at`` and ``length`` of the last.

    ``counts`` are the positions used by each log, ``tags`` the newest metadata, both as of its end. One of
    the kind PRUNED stands for versions that are gone: what is left of them is one line of the journal.
    """

    first: int
    last: int
    hash: bytes
    start: Spot
    at: Spot
    length: int
    body: Extent | None
    net: Extent | None
    keyframe: Extent | None
    chunks: list[ChunkEntry]
    keys: bytes
    counts: dict[str, int]
    tags: dict[str, bytes]
    kind: int = PACK


class KeyframeEntry(Struct, frozen=True, array_like=True, tag="keyframe"):
    """A keyframe for a version that isn't the end of a pack."""

    seq: int
    hash: bytes
    keyframe: Extent


class TagEntry(Struct, frozen=True, array_like=True, tag="tags"):
    """The newest metadata as of a version that isn't folded."""

    seq: int
    hash: bytes
    tags: dict[str, bytes]


AnyEntry = PackEntry | KeyframeEntry | TagEntry

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(AnyEntry).decode


def volumes_in(folder: str, names: Iterable[str], edition: int) -> list[int]:
    """The first seqs of the volumes among these files that belong to an edition of the journal.

    Raises :class:`DerivedDamage` if one of them, other than the newest, is no pair any more.
    """
    matches = (_NAME.fullmatch(name) for name in names)
    found = [int(match[1]) for match in matches if match and int(match[2] or 0) == edition]
    volumes = sorted(set(found))
    if any(found.count(first) < 2 for first in volumes[:-1]):
        raise DerivedDamage(folder)
    return volumes


def remove_folds(folder: str, *, but: int = -1, only: int | None = None) -> None:
    """Remove the folds in a line's folder: of all editions, of all but one, or of one."""
    for name in os.listdir(folder):
        found = _NAME.fullmatch(name)
        edition = int(found[2] or 0) if found else but
        if edition != but and only in (None, edition):
            os.unlink(os.path.join(folder, name))


class Volume:
    """One pair of files, as far as its index has been read."""

    def __init__(self, folder: str, first: int, edition: int) -> None:
        self.first = first
        self._folder = folder
        self._edition = edition
        self.packs: list[PackEntry] = []
        self.keyframes: dict[int, KeyframeEntry] = {}
        self.tags: TagEntry | None = None
        #: How much of the index is sound.
        self.size = 0
        self._entries: list[tuple[int, AnyEntry]] = []
        self._stem = os.path.join(folder, f"folds-{first:010}" + (f"-{edition}" if edition else ""))
        self._file = -1

    @property
    def entries(self) -> list[AnyEntry]:
        """All of them, in the order in which they were written."""
        return [entry for _, entry in self._entries]

    def grow(self) -> None:
        """Read the entries that were added since."""
        path = f"{self._stem}.index"
        with suppress(FileNotFoundError):
            if os.stat(path).st_size > self.size:
                data = memoryview(read_file(path))
                while found := _entry_in(data, self.size):
                    self._note(*found)

    def _note(self, entry: AnyEntry, size: int) -> None:
        self._entries.append((self.size, entry))
        self.size = size
        if isinstance(entry, PackEntry):
            self.packs.append(entry)
        elif isinstance(entry, KeyframeEntry):
            self.keyframes[entry.seq] = entry
        else:
            self.tags = entry

    def forget(self, pack: PackEntry) -> None:
        """Drop this pack and every entry after it."""
        kept, self._entries = self._entries, []
        self.packs, self.keyframes, self.tags = [], {}, None
        ends = [start for start, _ in kept[1:]]
        for (start, entry), end in zip(kept, [*ends, self.size], strict=True):
            self.size = start
            if entry is pack:
                return
            self._note(entry, end)

    def frame(self, place: Extent) -> bytes:
        """A frame, which is sound. Raises :class:`DerivedDamage`."""
        try:
            if self._file < 0:
                self._file = os.open(f"{self._stem}.packs", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            data = read_at(self._file, place.start, place.length)
            records.unframe(data, "a frame")
        except (OSError, StateCorruptedError) as error:
            if edition_of(self._folder) != self._edition:
                raise Replaced(self._stem) from error
            raise DerivedDamage(self._folder) from error
        return data

    # ── writing: the caller holds the store's lock ───────────────────────────────────────────

    def put(self, frames: list[bytes]) -> list[Extent]:
        """Append frames to the packs file; not durable."""
        if self._file < 0:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._file = os.open(f"{self._stem}.packs", flags, 0o600)
        start = os.fstat(self._file).st_size
        write_at(self._file, b"".join(frames), start)
        places = []
        for frame in frames:
            places.append(Extent(start, len(frame)))
            start += len(frame)
        return places

    def add(self, entry: AnyEntry) -> None:
        """Append an entry to the index, over whatever was torn there."""
        payload = _encode(entry)
        data = _FRAME.pack(len(payload), zlib.crc32(payload)) + payload
        file = os.open(f"{self._stem}.index", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(file).st_size < self.size:
                raise Replaced(self._stem)
            os.ftruncate(file, self.size)
            write_at(file, data, self.size)
        finally:
            os.close(file)
        self._note(entry, self.size + len(data))

    def move(self, edition: int) -> None:
        """Rename its files for another edition. Nothing in them changes; this object is done."""
        moved = Volume(self._folder, self.first, edition)
        self.close()
        for ending in (".packs", ".index"):
            with suppress(FileNotFoundError):
                os.rename(self._stem + ending, moved._stem + ending)

    def close(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)


def _entry_in(data: memoryview, at: int) -> tuple[AnyEntry, int] | None:
    """The entry there and where it ends, or ``None`` where the index ends or is torn."""
    if len(data) < at + _FRAME.size:
        return None
    length, checksum = _FRAME.unpack_from(data, at)
    end = at + _FRAME.size + length
    payload = data[at + _FRAME.size : end]
    if not length or len(payload) != length or zlib.crc32(payload) != checksum:
        return None
    try:
        return _decode(payload), end
    except msgspec.MsgspecError:
        return None


# ── all volumes of a line ──────────────────────────────────────────────────────────────────────────


KEY_BYTES = 20


class Keys:
    """The key hashes of folded versions: 20 bytes each, in buckets by their first byte."""

    def __init__(self) -> None:
        self._buckets = [bytearray() for _ in range(256)]
        #: How many volumes were added, and how many packs of the last of them.
        self.volumes = 0
        self._packs = 0

    def take(self, number: int, volume: Volume) -> None:
        """Add the keys of the packs of volume ``number`` that weren't there the last time."""
        if number != self.volumes:
            self._packs = 0
        packs = volume.packs
        for pack in packs[self._packs :] if self._packs < len(packs) else ():
            for at in range(0, len(pack.keys), KEY_BYTES):
                self._buckets[pack.keys[at]] += pack.keys[at : at + KEY_BYTES]
        self.volumes, self._packs = number, len(packs)

    def find(self, key: bytes) -> list[int]:
        """The versions that carry a key."""
        bucket, found = self._buckets[key[0]], []
        at = bucket.find(key)
        while at >= 0:
            if at % KEY_BYTES == 0:
                found.append(int.from_bytes(bucket[at + len(key) : at + KEY_BYTES], "big"))
            at = bucket.find(key, at + 1)
        return found


class Folds:
    """The volumes of one line. Not for two threads at once."""

    def __init__(self, folder: str, volumes: list[int], edition: int) -> None:
        self._folder = folder
        self._edition = edition
        self._volumes = [Volume(folder, first, edition) for first in volumes]
        #: The one volume whose packs file is open.
        self._open: Volume | None = None
        self._keys = Keys()

    def bind(self, journal: Journal) -> Entry | None:
        """Drop packs that the journal doesn't confirm; the last version of the last pack, if there is one."""
        for volume in reversed(self._volumes):
            volume.grow()
            while volume.packs:
                last = volume.packs[-1]
                first = last.first if last.kind == PRUNED else last.last
                found = journal.entry_at(last.at, last.length, first, last.last, last.hash)
                if found is not None:
                    return found
                volume.forget(last)
        return None

    def refresh(self, volumes: list[int]) -> None:
        """Read what others added; ``volumes`` are those in the folder now. :meth:`bind` must follow."""
        known = self._volumes[-1].first if self._volumes else -1
        if self._volumes:
            self._volumes[-1].grow()
        for first in volumes:
            if first > known:
                self._volumes.append(Volume(self._folder, first, self._edition))
                self._volumes[-1].grow()

    def _volume(self, index: int) -> Volume:
        volume = self._volumes[index]
        if not volume.size:
            volume.grow()
        return volume

    @property
    def last(self) -> PackEntry | None:
        """The newest pack."""
        for index in range(len(self._volumes) - 1, -1, -1):
            if packs := self._volume(index).packs:
                return packs[-1]
        return None

    # ── finding ──────────────────────────────────────────────────────────────────────────────

    @property
    def volumes(self) -> list[Volume]:
        """All of them, each read as far as it goes."""
        return [self._volume(index) for index in range(len(self._volumes))]

    def down(self, seq: int) -> Iterator[tuple[PackEntry, int]]:
        """The packs from the first one that ends at or above ``seq`` downwards, each with its volume."""
        count = len(self._volumes)
        start = count - 1
        if count and not ((packs := self._volume(start).packs) and packs[0].first <= seq):
            start = min(bisect.bisect_left(range(count), seq, key=self._end), start)
        for index in range(start, -1, -1):
            packs = self._volume(index).packs
            at = bisect.bisect_left(packs, seq, key=lambda pack: pack.last)
            for pack in reversed(packs[: at + 1]):
                yield pack, index

    def _end(self, index: int) -> int:
        """The last version up to the end of a volume that is folded."""
        while index >= 0:
            if packs := self._volume(index).packs:
                return packs[-1].last
            index -= 1
        return 0

    def _used(self, index: int, log: str) -> int:
        """The positions of a log that are used up to the end of a volume."""
        while index >= 0:
            if packs := self._volume(index).packs:
                return packs[-1].counts.get(log, 0)
            index -= 1
        return 0

    def chunks(self, log: str, start: int, stop: int | None) -> Iterator[tuple[ChunkEntry, int]]:
        """The chunks that hold positions of ``[start, stop)``, in order, each with its volume."""
        count = len(self._volumes)
        first = bisect.bisect_right(range(count), start, key=lambda index: self._used(index, log))
        for index in range(first, count):
            for pack in self._volume(index).packs:
                if pack.counts.get(log, 0) > start:
                    for chunk in pack.chunks:
                        if chunk.log == log and chunk.position + chunk.count > start:
                            if stop is not None and chunk.position >= stop:
                                return
                            yield chunk, index

    def keyframe(self, seq: int, digest: bytes, below: int | None = None) -> tuple[Extent, int] | None:
        """The keyframe of a single version that comes before the packs of volume ``below``."""
        top = len(self._volumes) - 1 if below is None else min(below, len(self._volumes) - 1)
        for index in (top, top - 1):
            entry = self._volume(index).keyframes.get(seq) if index >= 0 else None
            if entry is not None and entry.hash == digest:
                return entry.keyframe, index
        return None

    def keyed(self, key: bytes) -> list[int]:
        """The folded versions that carry a key. Reads every index once."""
        for number in range(max(self._keys.volumes, 1), len(self._volumes) + 1):
            self._keys.take(number, self._volume(number - 1))
        return self._keys.find(key)

    def tags(self) -> TagEntry | None:
        """The newest metadata that was noted for a version that wasn't folded then."""
        for index in range(len(self._volumes) - 1, -1, -1):
            volume = self._volume(index)
            if volume.tags is not None:
                return volume.tags
            if volume.packs:
                break
        return None

    def frame(self, place: Extent, index: int) -> bytes:
        """Raises :class:`DerivedDamage`."""
        volume = self._volumes[index]
        if self._open is not volume:
            self.close()
            self._open = volume
        return volume.frame(place)

    # ── writing: the caller holds the store's lock ───────────────────────────────────────────

    def volume_for(self, seq: int) -> Volume:
        """Where the next entry goes."""
        if not self._volumes or len(self._volume(-1).packs) >= VOLUME_PACKS:
            first = max(seq, self._volumes[-1].first + 1) if self._volumes else seq
            self._volumes.append(Volume(self._folder, first, self._edition))
        volume = self._volumes[-1]
        if self._open is not volume:
            self.close()
            self._open = volume
        return volume

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None
