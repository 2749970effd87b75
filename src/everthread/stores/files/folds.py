"""What folding wrote: packs, chunks, keyframes and keys beside the journal, so that reading stays bounded.

All of it is derived. The journal keeps every version; what is here can be removed at any time and is made
again. It is bound to the journal by the hash of each pack's last version, which covers everything before it,
and by the journal's edition: what doesn't fit is not believed.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from everthread.stores.contract import PRUNED
from everthread.stores.files.journal import Journal
from everthread.stores.files.parsing import Entry
from everthread.stores.files.volumes import (
    VOLUME_PACKS,
    ChunkPlace,
    PackEntry,
    Place,
    TagEntry,
    Volume,
)

KEY_BYTES = 20


class Keys:
    """The key hashes of folded versions, in buckets by their first byte: 20 bytes each, found at once."""

    def __init__(self) -> None:
        self._buckets = [bytearray() for _ in range(256)]
        #: How many volumes were taken, and how many packs of the last one of them.
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
        """Give up whatever the journal doesn't hold; the last version of the last pack, if there is any."""
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
        """Take in what others added; ``volumes`` are those in the folder now. :meth:`bind` must follow."""
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

    def chunks(self, log: str, start: int, stop: int | None) -> Iterator[tuple[ChunkPlace, int]]:
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

    def keyframe(self, seq: int, digest: bytes, below: int | None = None) -> tuple[Place, int] | None:
        """The keyframe of a version that isn't the end of a pack, which stands below that volume's packs."""
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

    def frame(self, place: Place, index: int) -> bytes:
        """Raises :class:`DerivedDamage`."""
        volume = self._volumes[index]
        if self._open is not volume:
            self.close()
            self._open = volume
        return volume.frame(place)

    # ── writing: the caller has the turn ─────────────────────────────────────────────────────

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
