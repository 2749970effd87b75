"""What of an entry may refer to personal values."""

from __future__ import annotations

from collections.abc import Iterable

from everthread.codec import records
from everthread.codec.archive import Parts, PrunedEntry
from everthread.history.retention import read_tombstone


def of_version(parts: Parts) -> list[bytes]:
    """Of one version: its change, its items, and what is told of it."""
    head, change, blocks = parts
    return [change, *blocks, *_metadata([head])]


def of_tombstone(body: bytes, net: bytes | None, keyframe: bytes | None) -> list[bytes]:
    """Of a row for versions that are gone, without their items."""
    held = [(net, "the net of a row"), (keyframe, "a keyframe")]
    parts = [records.expand(data, what) for data, what in held if data is not None]
    return [*parts, *_metadata(read_tombstone(body).heads.values())]


def of_pruned(entry: PrunedEntry) -> list[bytes]:
    """Of such a row, with what is left of the items."""
    items = [records.expand(data, "items of the archive") for *_, data in entry.items if data]
    return [*of_tombstone(entry.body, entry.net, entry.keyframe), *items]


def _metadata(heads: Iterable[bytes]) -> list[bytes]:
    told = (records.read_head(head).metadata for head in heads)
    return [each for each in told if each is not None]
