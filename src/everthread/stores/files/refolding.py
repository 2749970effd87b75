"""Making what folding derives again, from the journal alone: after a clone, or when it was damaged."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Any

from everthread.codec import records
from everthread.codec.values import decode, encode
from everthread.history import packs
from everthread.stores.contract import DELTA, Fold
from everthread.stores.files.parsing import Entry
from everthread.stores.files.track import Track

#: A tail of more foldable versions than this means that what was folded is gone.
LONG_TAIL = 4 * packs.FOLD_RECORDS
_TAG_BYTES_MAX = 64


def is_due(track: Track) -> bool:
    """Whether the line has a tail that nobody would leave unfolded: long, or below pruned versions."""
    entries = track.journal.entries
    if any(entry.kind == DELTA for entry in entries[: track.journal.hidden]):
        return True
    return len(entries) > LONG_TAIL and sum(entry.kind == DELTA for entry in entries) > LONG_TAIL


def next_fold(track: Track) -> Fold | None:
    """The fold of the oldest versions of a long tail; ``None`` when it is short again."""
    if not is_due(track):
        return None
    run = next(_runs(track.journal.entries[:-1]), None)
    if run is None:
        return None
    bodies = [track.journal.body(entry) for entry in run]
    pack = packs.fold(run[0].seq, bodies, [entry.hash for entry in run])
    tags: dict[str, bytes] = {}
    for body in bodies:
        tags.update(tags_of(body))
    keys = tuple((entry.key, entry.seq) for entry in run if entry.key is not None)
    return Fold(pack, run[-1].hash, None, keys, tags)


def _runs(entries: list[Entry]) -> Iterator[list[Entry]]:
    """What becomes one pack each. Rewinds, and what can't be read, stay as they are."""
    run: list[Entry] = []
    for entry in entries:
        if run and (entry.kind != DELTA or len(run) >= packs.FOLD_RECORDS):
            yield run
            run = []
        if entry.kind == DELTA:
            run.append(entry)
    if run:
        yield run


def tags_of(body: bytes) -> dict[str, bytes]:
    """The metadata of a version as the index of metadata keeps it (docs/internals/format.md, "tag")."""
    metadata = records.read_head(records.read_record(body)[0]).metadata
    if metadata is None:
        return {}
    return {name: tag_value(value) for name, value in decode(metadata).items() if isinstance(name, str)}


def tag_value(lowered: Any) -> bytes:
    """What the index compares instead of a value; the order of keys doesn't count."""
    encoded = encode(_sorted(lowered))
    return encoded if len(encoded) <= _TAG_BYTES_MAX else b"\xc1" + sha256(encoded).digest()


def _sorted(node: Any) -> Any:
    if type(node) is dict:
        return {key: _sorted(value) for key, value in sorted(node.items(), key=lambda item: encode(item[0]))}
    return [_sorted(value) for value in node] if type(node) is list else node
