"""What is found of a damaged line: versions, rows, items of pruned versions."""

from __future__ import annotations

import msgspec

from everthread.codec import records
from everthread.codec.records import Head
from everthread.codec.types import Code
from everthread.codec.values import encode_stored
from everthread.history import packs
from everthread.stores.contract import Line, Row
from everthread.values import Tagged


class Piece(msgspec.Struct, frozen=True):
    """One version as it was found. ``blocks`` is ``None`` where its items stand in chunks.

    ``hash`` is what the store says its hash is, or the beginning of it.
    """

    seq: int
    head: bytes
    change: bytes
    blocks: list[bytes] | None
    hash: bytes

    def told(self) -> Head:
        return records.read_head(self.head)


class Found(msgspec.Struct, frozen=True):
    """A row, taken apart. ``pieces`` is empty if its body is damaged.

    One that isn't ``rooted`` was left lying about, and counts only where the chain vouches for it.
    """

    first: int
    last: int
    pieces: list[Piece]
    hash: bytes
    net: bytes | None
    keyframe: bytes | None
    rooted: bool
    sound: bool
    #: The row itself, if it stands for versions that were pruned.
    tomb: Row | None = None


class Held(msgspec.Struct, frozen=True):
    """Items of pruned versions, in chunks, and (log, start, stop) of those among them that aren't items but
    stand where some were dropped."""

    chunks: list[packs.Chunk]
    dropped: list[tuple[str, int, int]]


def lost_item(line: Line, log: str, position: int) -> bytes:
    """What stands in the place of an item that is lost."""
    reason = f"item {position} of log {log!r} of {line.name!r} was lost"
    return encode_stored(Tagged(Code.CORRUPT, reason.encode()))
