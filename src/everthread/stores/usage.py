"""What a store says about the room that it takes up."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from everthread.stores.kept import COLD, DELTA, PACK, PRUNED, REWIND, SEAL


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What a line takes up: its own versions, those that are left and those that were pruned, and bytes."""

    versions: int = 0
    pruned: int = 0
    records: int = 0
    packs: int = 0
    keyframes: int = 0
    chunks: int = 0
    tombstones: int = 0


def line_usage(rows: Sequence[tuple[int, int, int, int]], chunks: int) -> Usage:
    """What a line takes up, of the rows of each kind (versions, bytes, bytes of keyframes) and its chunks."""
    by_kind = {kind: (versions, size) for kind, versions, size, _ in rows}
    nothing = (0, 0)
    singles = [by_kind.get(kind, nothing) for kind in (DELTA, REWIND)]
    packs, pruned = by_kind.get(PACK, nothing), by_kind.get(PRUNED, nothing)
    cold = by_kind.get(COLD, nothing)
    return Usage(
        versions=packs[0] + cold[0] + sum(versions for versions, _ in singles),
        pruned=pruned[0],
        records=sum(size for _, size in singles),
        packs=packs[1] + cold[1],
        tombstones=pruned[1],
        keyframes=sum(keyframes for kind, _, _, keyframes in rows if kind != SEAL),
        chunks=chunks,
    )


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """What a store takes up besides its lines: (number, payload bytes) of each kind; its files with their
    sizes, and how many bytes of these are free to be used again. ``data``: what the store itself takes up,
    where its files are longer by room that is only kept ready; 0 if they aren't."""

    sealed: tuple[int, int] = (0, 0)
    cells: tuple[int, int] = (0, 0)
    events: tuple[int, int] = (0, 0)
    files: tuple[tuple[str, int], ...] = ()
    free: int = 0
    data: int = 0
