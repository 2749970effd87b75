"""What a store remembers of erasures, and what it says about the bytes that may be left of somebody.

The *erasure ledger* lists the ids of keys that were destroyed, or are about to be, and how far each erasure
has come. It knows no names. It outlives everything else: a restored backup is merged with it, a phase never
goes back while the content stays, and no entry is ever removed. A store takes nothing that is sealed
under a key of its ledger.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

#: The phases of an erasure, in their order: the key is about to be destroyed, has been, the sealed values are
#: deleted, their bytes are gone from the files as well, and somebody has looked for them in vain.
NOTED, DESTROYED, DELETED, PURGED, FINISHED = 1, 2, 3, 4, 5

#: Told now and then by what takes long: what is being done, and which part of it is done (0 … 1).
Progress = Callable[[str, float], None]


class ErasedKey(msgspec.Struct, frozen=True, kw_only=True):
    """One key in the ledger. ``erasure`` is the same for keys that are erased together; ``note`` belongs to
    who erases, and is of use until it is finished."""

    key_id: bytes
    phase: int
    erasure: bytes = b""
    noted_us: int = 0
    note: bytes = b""


class Purged(msgspec.Struct, frozen=True, kw_only=True):
    """What a purge came to. ``waiting`` says what kept it from being complete and passes by itself, such as
    readers; ``unreached`` which copies it can't get at, such as replicas; ``replaced`` where rows that
    something else took the place of leave their bytes; sealed values never stood there."""

    done: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    unreached: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()


class Residues(msgspec.Struct, frozen=True, kw_only=True):
    """Where a store has looked for bytes (place, how many bytes there are), where it found some (place, how
    often), and where it couldn't look."""

    looked: tuple[tuple[str, int], ...] = ()
    hits: tuple[tuple[str, int], ...] = ()
    unreached: tuple[str, ...] = ()


def merged(known: ErasedKey | None, new: ErasedKey) -> ErasedKey:
    """One entry in the place of two: the later phase with its note, and what was known first of the rest."""
    if known is None:
        return new
    if new.phase < known.phase:
        return known
    return msgspec.structs.replace(known, phase=new.phase, note=new.note)


def brought_back(present: ErasedKey, restored: ErasedKey | None) -> ErasedKey:
    """The entry after a backup took the place of the content: whatever that holds has to be erased again."""
    if restored is not None and restored.phase == FINISHED:
        return restored
    return msgspec.structs.replace(present, phase=min(present.phase, DESTROYED), note=b"")


def split_keys(joined: bytes) -> list[bytes]:
    """The key ids of a sealed row, which stand there one after another."""
    return [joined[at : at + 16] for at in range(0, len(joined), 16)]
