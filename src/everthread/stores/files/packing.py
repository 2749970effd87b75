"""Writing what is derived from a journal into its volumes: packs, chunks, keyframes, keys, tags.

The caller has the turn. Nothing here is synced: what is lost is made again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from everthread.codec import records
from everthread.history.packs import Chunk
from everthread.stores.contract import DELTA, PRUNED, Fold
from everthread.stores.files.journal import SEGMENT_BYTES, Journal
from everthread.stores.files.parsing import Entry, Spot
from everthread.stores.files.tombstones import Tomb
from everthread.stores.files.track import Track, part_prints
from everthread.stores.files.volumes import ChunkPlace, KeyframeEntry, PackEntry, Place, TagEntry, Volume

_NOWHERE = Place(0, 0)

Shift = Callable[[Spot], Spot]


def fold(track: Track, fold: Fold) -> bool:
    """Fold the single versions that a pack holds; False, and nothing changed, if they aren't these."""
    if track.halfway:
        return False
    pack = fold.pack
    track.refresh_folds()
    entries = track.journal.entries
    first = track.journal.index(pack.first)
    singles = entries[first : first + pack.last - pack.first + 1]
    if [entry.seq for entry in singles if entry.kind == DELTA] != list(range(pack.first, pack.last + 1)):
        return False
    # Nothing before it may be left behind: a version that isn't folded is looked for in the tail alone.
    if singles[-1].hash != fold.hash or any(entry.kind == DELTA for entry in entries[:first]):
        return False
    for entry in entries[:first]:
        if entry.kind == PRUNED:
            _fold_pruned(track, entry)
    volume, last = track.folds.volume_for(pack.first), track.folds.last
    tags, covered = track.tags()
    add_pack(
        volume,
        track.journal,
        fold,
        singles,
        {} if last is None else last.counts,
        {**tags, **fold.tags} if covered < pack.last else tags,
    )
    track.journal.forget(pack.last)
    if track.journal.end.offset > SEGMENT_BYTES:
        track.journal.rotate()
    return True


def _fold_pruned(track: Track, entry: Entry) -> None:
    """Note a line of pruned versions that isn't in any volume: this is a clone, or derived anew."""
    tomb, last = track.tomb(entry), track.folds.last
    volume = track.folds.volume_for(entry.first)
    chunks = [*track.kept_chunks(tomb), *tomb.stubs()]
    add_tomb(volume, tomb, chunks, entry.at, entry.length, {} if last is None else last.counts)


def add_pack(
    volume: Volume,
    journal: Journal,
    fold: Fold,
    singles: Sequence[Entry],
    counts: Mapping[str, int],
    tags: dict[str, bytes],
    shift: Shift = lambda spot: spot,
) -> PackEntry:
    """Put a pack of single versions into a volume. ``shift`` tells where these stand by now."""
    pack = fold.pack
    parts = [(single, part) for single in singles for part in single.parts]
    frames = [pack.body, pack.net, *([] if fold.keyframe is None else [fold.keyframe])]
    for chunk in pack.chunks:
        frames += (chunk.data, records.frame(chunk.fingerprints))
    frames += (records.frame(part_prints(journal.body(single), part)) for single, part in parts)
    body, net, *rest = volume.put(frames)
    keyframe = rest.pop(0) if fold.keyframe is not None else None
    places = [
        ChunkPlace(chunk.log, chunk.position, chunk.count, rest.pop(0), rest.pop(0)) for chunk in pack.chunks
    ]
    for single, part in parts:
        place = Place(part.start, part.length)
        places.append(ChunkPlace(part.log, part.position, part.count, place, rest.pop(0), single.items))
    entry = PackEntry(
        first=pack.first,
        last=pack.last,
        hash=fold.hash,
        start=shift(singles[0].at),
        at=shift(singles[-1].at),
        length=singles[-1].length,
        body=body,
        net=net,
        keyframe=keyframe,
        chunks=sorted(places, key=lambda place: place.position),
        keys=b"".join(key + seq.to_bytes(4, "big") for key, seq in fold.keys),
        counts=_used(counts, places),
        tags=tags,
    )
    volume.add(entry)
    return entry


def add_tomb(
    volume: Volume, tomb: Tomb, chunks: Sequence[Chunk], at: Spot, length: int, counts: Mapping[str, int]
) -> PackEntry:
    """Put into a volume where the line of pruned versions is, and which items are left of them."""
    kept = {(chunk.log, chunk.position): chunk for chunk in chunks if not chunk.pruned}
    prints = volume.put([records.frame(kept[part.log, part.position].fingerprints) for part in tomb.apart])
    places = [
        ChunkPlace(part.log, part.position, part.count, Place(part.start, part.length), found, tomb.items)
        for part, found in zip(tomb.apart, prints, strict=True)
    ]
    places += [ChunkPlace(log, position, count, _NOWHERE, _NOWHERE) for log, position, count in tomb.gone]
    entry = PackEntry(
        first=tomb.first,
        last=tomb.seq,
        hash=bytes.fromhex(tomb.hash),
        start=at,
        at=at,
        length=length,
        body=None,
        net=None,
        keyframe=None,
        chunks=sorted(places, key=lambda place: place.position),
        keys=b"".join(key + seq.to_bytes(4, "big") for key, seq in tomb.key_hashes()),
        counts=_used(counts, places),
        tags=tomb.newest_tags(),
        kind=PRUNED,
    )
    volume.add(entry)
    return entry


def _used(counts: Mapping[str, int], places: Sequence[ChunkPlace]) -> dict[str, int]:
    """The positions that logs have used, after these chunks."""
    found = dict(counts)
    for place in places:
        found[place.log] = max(found.get(place.log, 0), place.position + place.count)
    return found


def add_keyframe(track: Track, seq: int, digest: bytes, keyframe: bytes) -> None:
    """Attach a keyframe to a version that isn't folded."""
    track.refresh_folds()
    found = track.single(seq)
    if found is not None and found.hash == digest and not track.halfway:
        volume = track.folds.volume_for(seq)
        (place,) = volume.put([keyframe])
        volume.add(KeyframeEntry(seq, digest, place))


def add_tags(track: Track, seq: int, tags: Mapping[str, bytes]) -> None:
    """Note the newest metadata as of a version that isn't folded."""
    track.refresh_folds()
    known, covered = track.tags()
    found = track.single(seq)
    if seq > covered and found is not None and not track.halfway:
        track.folds.volume_for(seq).add(TagEntry(seq, found.hash, {**known, **tags}))
