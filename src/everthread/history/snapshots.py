"""The whole state at one version: document, logs, and what it takes to go on from there."""

from __future__ import annotations

from typing import Any

import msgspec

from everthread.codec.records import UNPACKED_BYTES_MAX, Change, compress, expand, is_merged
from everthread.codec.values import decode, encode_stored
from everthread.errors import StateCorruptedError
from everthread.history import ops
from everthread.history.logs import EMPTY_LOG, LogState

#: Replaying more than this many packs, single records or bytes to read a head calls for a keyframe.
KEYFRAME_PACKS = 8
KEYFRAME_ROWS = 192
KEYFRAME_WASTE_BYTES = 16 * 1024


class Snapshot(msgspec.Struct):
    """Mutable: built by replaying changes onto a keyframe.

    ``segment`` is the seq of the rewind that began the present stretch of the line (0: its beginning);
    ``merged`` maps line uids to [seq, segment] of the newest version of them that has been merged in.
    """

    document: Any
    logs: dict[str, LogState]
    segment: int = 0
    merged: dict[bytes, list[int]] = {}

    @classmethod
    def empty(cls) -> Snapshot:
        return cls({}, {})

    def advance(self, change: Change) -> None:
        """Apply what one version, or the net of a pack, changes."""
        if change.ops:
            self.document = ops.apply(self.document, change.ops)
        try:
            for splice in change.logs:
                log, at, remove, insert = splice[:4]
                self.logs[log] = self.logs.get(log, EMPTY_LOG).splice(at, remove, insert)
            if change.merged:
                self.merged = {**self.merged, **change.merged}
        except (TypeError, ValueError) as error:
            raise StateCorruptedError("a recorded log change makes no sense") from error

    def jump(self, seq: int, counts: dict[str, int]) -> None:
        """Go on from here as version ``seq``, a rewind, whose line has used ``counts`` positions."""
        self.segment = seq
        for log in {*self.logs, *counts}:
            state = self.logs.get(log, EMPTY_LOG)
            used = counts.get(log, state.count)
            if used != state.count:
                self.logs[log] = LogState(used, state.pieces, state.length)

    def branch(self) -> None:
        """Go on from here as the first version of a new line."""
        self.segment = 0


def write_keyframe(snapshot: Snapshot) -> bytes | None:
    """The document and where its logs are, but not their items. ``None`` if that is too large to be one."""
    logs = {name: log.pack() for name, log in snapshot.logs.items()}
    encoded = encode_stored([snapshot.document, logs, snapshot.segment, snapshot.merged])
    return compress(encoded) if len(encoded) < UNPACKED_BYTES_MAX else None


def read_keyframe(data: bytes) -> Snapshot:
    parts = decode(expand(data, "a keyframe"))
    try:
        document, logs, segment, merged = parts[:4]
        states = {name: LogState.unpack(packed) for name, packed in logs.items()}
        if type(segment) is not int or not is_merged(merged) or not all(type(name) is str for name in states):
            raise ValueError(segment)
    except (TypeError, ValueError, AttributeError) as error:
        raise StateCorruptedError("a keyframe can't be decoded") from error
    return Snapshot(document, states, segment, merged)


def keyframe_due(*, rows: int, packs: int, replay_bytes: int, keyframe_bytes: int) -> bool:
    """Whether reading this head costs enough to write a keyframe.

    Waste-driven: a document that only grows by small edits gets few keyframes, one that is rewritten
    again and again gets them as often as the rewriting pays for; the bounds on rows and packs keep the
    number of reads constant.
    """
    return (
        packs >= KEYFRAME_PACKS
        or rows >= KEYFRAME_ROWS
        or replay_bytes > 2 * keyframe_bytes + KEYFRAME_WASTE_BYTES
    )
