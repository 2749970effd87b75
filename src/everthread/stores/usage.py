"""What a store says about the room that it takes up."""

from __future__ import annotations

import msgspec


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What a line takes up: its own versions, those that are left and those that were pruned, and bytes."""

    versions: int = 0
    pruned: int = 0
    records: int = 0
    packs: int = 0
    keyframes: int = 0
    chunks: int = 0
    tombstones: int = 0


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
