"""What a store keeps: lines, rows, cells, events; and the signals by which it refuses to.

The words are explained in :mod:`everthread.stores.contract`, which offers all of this too.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from everthread.history.packs import Chunk, Pack

DELTA = 0
PACK = 1
REWIND = 2
SEAL = 3
#: What stands there isn't what was written: no body, and a seq that needn't be true. Never stored.
DAMAGED = 4
#: Stands for versions that were pruned: their digests, and the heads that something still refers to.
PRUNED = 5
#: Stands for versions that are in an archive, and says where: see stores/cold.
COLD = 6

NO_TAGS: Mapping[str, bytes] = MappingProxyType({})

#: The seq of a seal: no version can follow it.
SEAL_SEQ = 0xFFFF_FFFF

#: (value id, the key ids one after another, sealed bytes): a personal value, kept out of line. Without bytes
#: it is in the store already, and only its keys are looked at.
SealedRow = tuple[bytes, bytes, bytes]

#: The largest seq of an event: room for a thousand events a second over two years, in one stream.
EVENT_SEQ_MAX = (1 << 36) - 1


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One incarnation of a thread. Everything but ``id``, ``root`` and ``parent`` survives a copy.

    ``counts`` are the log positions used at the fork point; ``parent_hash`` is the beginning of the hash of
    the version forked from, as packs keep it; ``start_hash`` is what the first own version builds on.
    """

    id: int
    uid: bytes
    space: str
    name: str
    root: int
    parent: int = 0
    parent_seq: int = 0
    parent_segment: int = 0
    parent_hash: bytes = b""
    start_hash: bytes = b""
    counts: dict[str, int] = {}
    deleted: bool = False


class Row(msgspec.Struct, frozen=True):
    """One stored row. For a PACK ``first`` … ``seq`` are folded, for a PRUNED they are gone; ``hash`` belongs
    to ``seq``.

    ``body`` may be empty where a reader asked only for what replaying needs (``net``, ``keyframe``).
    """

    seq: int
    first: int
    kind: int
    hash: bytes
    body: bytes
    net: bytes | None = None
    keyframe: bytes | None = None


class NewRow(msgspec.Struct, frozen=True):
    """A row to append. ``previous`` is the hash of the version before it, ``key`` the hash of its commit or
    step key; ``guard`` is a root, none of whose folded versions may carry that key already; ``source`` is
    (line, seq) of the version that a REWIND goes back to. A large commit comes *detached*: its items in
    chunks, its body without them. ``parts`` are the fields of the head, the change and the blocks in the
    body, for a store that would have to take it apart; they may be missing."""

    seq: int
    kind: int
    previous: bytes
    hash: bytes
    body: bytes
    key: bytes | None = None
    chunks: tuple[Chunk, ...] = ()
    sealed: tuple[SealedRow, ...] = ()
    guard: int = 0
    source: tuple[int, int] | None = None
    parts: tuple[tuple[Any, ...], bytes, list[bytes]] | None = None


class Fold(msgspec.Struct, frozen=True):
    """A pack, the hash of its last version, and a keyframe as of its end, keys (hash, seq) and tags.

    ``beside`` says that the row before it is known to stay as it is, because it can't be read.
    """

    pack: Pack
    hash: bytes
    keyframe: bytes | None = None
    keys: tuple[tuple[bytes, int], ...] = ()
    tags: Mapping[str, bytes] = {}
    beside: bool = False


class Prune(msgspec.Struct, frozen=True):
    """``rows`` take the place of ``old``, rows as they were read, one after another, for the same versions.

    ``dropped`` are (log, start, stop): positions of the line that nobody holds any more. ``chunks`` take the
    place of what was dropped, now or before. ``seen`` are (line, seq): every line from which these versions
    can be reached, and its newest version that was considered. ``records`` are (seq, bytes) of versions whose
    content is another one in ``rows``, items included, for a store that keeps each by itself. ``held`` are
    chunks as they were read: where a store has a cold tier, nothing happens if they aren't those any more.
    """

    old: tuple[Row, ...] = ()
    rows: tuple[Row, ...] = ()
    dropped: tuple[tuple[str, int, int], ...] = ()
    seen: tuple[tuple[int, int], ...] = ()
    chunks: tuple[Chunk, ...] = ()
    records: tuple[tuple[int, bytes], ...] = ()
    held: tuple[Chunk, ...] = ()


class Found(msgspec.Struct, frozen=True):
    """A live thread and its newest row (``None`` for a fork that has no version of its own yet).

    ``before`` is the hash of the row before the newest one, ``None`` if that is the line's first. ``holed``:
    the store has noticed, without being asked to look, that a row below the newest one can't be read.
    """

    line: Line
    newest: Row | None
    before: bytes | None = None
    holed: bool = False


class Cell(msgspec.Struct, frozen=True):
    """A cell as it was read: when it was written and when it was read, both by the store's clock.

    A store without a clock of its own takes the caller's (``now_us``).
    """

    value: bytes
    revision: int
    written_us: int
    read_us: int


class PutCell(msgspec.Struct, frozen=True):
    """A cell that is to stand in a store whatever a restored backup says of it."""

    space: str
    name: str
    value: bytes
    written_us: int


class NewEvent(msgspec.Struct, frozen=True):
    """An event to emit. ``at_us`` is what its writer's clock said: it needn't follow the order of events."""

    at_us: int
    type: str
    agent: str | None
    body: bytes


class StoredEvent(msgspec.Struct, frozen=True):
    """An event of a stream; ``seq`` is its place in it."""

    seq: int
    at_us: int
    type: str
    agent: str | None
    body: bytes


class StaleWrite(Exception):  # noqa: N818 - a signal between layers, callers see ConflictError
    """The line has a row at or after the one to append; ``newest`` is that row, ``sealed`` if deleted."""

    def __init__(self, newest: Row | None, sealed: bool = False) -> None:
        super().__init__("stale")
        self.newest = newest
        self.sealed = sealed


class KeyKnown(Exception):  # noqa: N818 - a signal between layers, callers see the version that has it
    """A folded version in the family that ``guard`` names carries the key already."""


class SourceGone(Exception):  # noqa: N818 - a signal between layers, callers see ThreadDeletedError
    """The thread to fork from was deleted meanwhile."""


class VersionGone(Exception):  # noqa: N818 - a signal between layers, callers see VersionPrunedError
    """The version to fork from, or to rewind to, has been pruned meanwhile."""


class NameTaken(Exception):  # noqa: N818 - a signal between layers, callers see a typed error
    """A live line of this name exists already."""


class StaleCell(Exception):  # noqa: N818 - a signal between layers, callers see a typed error
    """The cell isn't at the expected revision; ``actual`` is what it holds, ``None`` if it is absent."""

    def __init__(self, actual: Cell | None) -> None:
        super().__init__("stale")
        self.actual = actual


class KeyErased(Exception):  # noqa: N818 - a signal between layers, callers see ErasedError
    """A row seals under keys that stand in the erasure ledger; ``key_ids`` are these."""

    def __init__(self, key_ids: frozenset[bytes]) -> None:
        super().__init__("erased")
        self.key_ids = key_ids
