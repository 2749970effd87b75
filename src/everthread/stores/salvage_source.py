"""What can still be read of a damaged store, for whoever brings it into a new one.

Nothing here is to be trusted before it has been checked: by the checksums of frames, by the chain of hashes,
by what other parts say. A store that can be salvaged offers a class that reads its files in this way, without
changing them and without the machinery that refuses what is damaged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec

from everthread.stores.contract import ErasedKey, Line, Row, SealedRow, StoredEvent


class FoundRow(msgspec.Struct, frozen=True):
    """A row as it was found. ``rooted``: where the store itself would have found it, not just left lying.
    ``sound``: its own checksum says that it is where it belongs."""

    row: Row
    rooted: bool = True
    sound: bool = True


class LineHint(msgspec.Struct, frozen=True):
    """What is known of a line whose entry is damaged: possible uids, names with their space, and parents."""

    id: int
    uids: tuple[bytes, ...] = ()
    names: tuple[tuple[str, str], ...] = ()
    parents: tuple[int, ...] = ()
    deleted: bool = False


class ChunkPlace(msgspec.Struct, frozen=True):
    """Where items of a log are: ``place`` is what :meth:`Remains.chunk` takes.

    A ``stub`` stands for items that were pruned.
    """

    log: str
    position: int
    count: int
    place: object
    stub: bool = False


class FoundStream(msgspec.Struct, frozen=True):
    """The events of a stream that were found, in order; its first seq, as far as that is known."""

    space: str
    name: str
    first: int
    events: list[StoredEvent]


class SalvageSource(Protocol):
    """A damaged store, opened for reading only."""

    #: What couldn't be read at all, in words.
    problems: list[str]

    def lines(self) -> Sequence[Line | LineHint]:
        """All lines by id, those that were deleted included."""

    def rows(self, line: int) -> Sequence[tuple[int, object]]:
        """(the last seq it holds, its place) of every row that was found of a line, by seq."""

    def relic(self, place: object) -> FoundRow | None:
        """A row; ``None`` if it makes no sense at all."""

    def chunks(self, line: int) -> Sequence[ChunkPlace]:
        """The chunks of a line that say of themselves where they belong."""

    def chunk(self, place: object) -> bytes:
        """The data of a chunk, a compressed frame."""

    def erasures(self) -> Sequence[ErasedKey]:
        """What can be read of the erasure ledger."""

    def sealed(self) -> Iterator[SealedRow]:
        """Personal values."""

    def cells(self) -> Iterator[tuple[str, str, bytes, int]]:
        """Space, name, value and time of writing of each cell."""

    def streams(self) -> Iterator[FoundStream]: ...

    @property
    def outdated(self) -> bool:
        """Whether older content may stand where newer is lost."""

    def unaccounted(self, line: int) -> bool:
        """Whether rows of a line may be missing that nothing tells of; for 0 all of one that isn't known."""

    def close(self) -> None: ...
