"""Lines of a journal on their way to becoming versions, also around lines that can't be read."""

from __future__ import annotations

import re
from hashlib import sha256

import msgspec
from msgspec import Struct

from everthread.errors import StateCorruptedError
from everthread.stores.contract import DAMAGED, DELTA, PRUNED, REWIND, SEAL_SEQ
from everthread.stores.files.rendering import Part

#: No more versions than this can be missing in a row; a number beyond that is nonsense.
_MISSING_MAX = 100_000

_ITEMS = re.compile(r"items-[0-9]{10}-[0-9a-f]{16}\.jsonl")
_KINDS = {"rewind": REWIND, "pruned": PRUNED}


class Spot(Struct, frozen=True, array_like=True):
    """A place in a journal: the segment (by its first seq) and the offset in it."""

    segment: int
    offset: int


class Entry(Struct):
    """A version as the journal has it. ``line`` or ``body`` are there where they are known already.

    Of the kind DAMAGED where it can't be read: its seq follows from those around it. Of the kind PRUNED it
    stands for ``count`` versions up to ``seq``. ``items`` is the file that holds its ``parts``.
    """

    seq: int
    kind: int
    hash: bytes
    key: bytes | None
    at: Spot
    length: int
    parts: list[Part] = []
    line: bytes | None = None
    body: bytes | None = None
    count: int = 1
    items: str = ""

    @property
    def first(self) -> int:
        return self.seq - self.count + 1

    @property
    def end(self) -> Spot:
        return Spot(self.at.segment, self.at.offset + self.length)


class _Outline(Struct):
    """What can be said of a line without looking at what it changes."""

    seq: int | None = None
    kind: str = ""
    row: int | None = None
    keyed: str | None = None
    apart: list[Part] = []
    items: str = ""
    hash: str = ""
    first: int | None = None
    continues: str | None = None
    sealed: bool = False


_outline = msgspec.json.Decoder(_Outline).decode


def items_name(seq: int, digest: bytes) -> str:
    """The file for the items of a large commit. The hash keeps an attempt that failed apart."""
    return f"items-{seq:010}-{digest.hex()[:16]}.jsonl"


def check_items_name(name: str) -> str:
    """A name of a file of items as a store records it: never one that leads elsewhere."""
    if _ITEMS.fullmatch(name):
        return name
    raise StateCorruptedError(f"{name!r} isn't the name of a file of items")


class Parsing:
    """Lines on their way to becoming versions."""

    def __init__(self, last_seq: int) -> None:
        self.entries: list[Entry] = []
        self.last_seq = last_seq
        self.sealed = False
        #: The file that the last line names as the next one.
        self.following = ""
        #: How many of the last entries are lines that can't be read, and were no versions perhaps.
        self.doubtful = 0
        #: Whether there are pruned versions among the entries, or were.
        self.pruned = False
        #: Whether there are lines among the entries, or were, that can't be read.
        self.holed = False

    def take(self, at: Spot, line: bytes, good: bool) -> None:
        try:
            outline = _outline(line) if good else None
        except (msgspec.MsgspecError, RecursionError):
            outline = None
        seq = None if outline is None else outline.seq
        first = outline.first if outline is not None and outline.kind == "pruned" else seq
        if outline is None or (seq is not None and not (first and first <= seq and self._fits(first))):
            self._add_damaged(at, line)
            self.doubtful += 1
        elif seq is not None and first is not None:
            self._stand_before(first, at)
            self._add(outline, seq, at, line)
        elif outline.first is not None:
            if self._fits(outline.first):
                self._stand_before(outline.first, at)
        else:
            self.following = outline.continues or ""
            self.sealed = self.sealed or outline.sealed

    def _fits(self, seq: int) -> bool:
        """Whether a version with this number can stand here; some may be missing before it."""
        return self.last_seq - self.doubtful < seq <= min(self.last_seq + _MISSING_MAX, SEAL_SEQ - 1)

    def _stand_before(self, seq: int, at: Spot) -> None:
        """The next version is ``seq``: then it is clear what the lines before it were that can't be read."""
        while self.last_seq >= seq:
            self.entries.pop()
            self.last_seq -= 1
        while self.last_seq < seq - 1:
            self._add_damaged(at, b"")
        self.doubtful = 0

    def _add_damaged(self, at: Spot, line: bytes) -> None:
        self.last_seq += 1
        self.holed = True
        # Whoever goes on over it builds on this instead of the hash that was lost with it.
        digest = sha256(line).digest()
        self.entries.append(Entry(self.last_seq, DAMAGED, digest, None, at, len(line)))

    def _add(self, outline: _Outline, seq: int, at: Spot, line: bytes) -> None:
        kind = outline.row if outline.row is not None else _KINDS.get(outline.kind, DELTA)
        try:
            digest = bytes.fromhex(outline.hash)
            key = None if outline.keyed is None else bytes.fromhex(outline.keyed)
        except ValueError:
            self._add_damaged(at, line)
            return
        entry = Entry(seq, kind, digest, key, at, len(line), outline.apart, line)
        if kind == PRUNED:
            entry.count, entry.items, self.pruned = seq - self.last_seq, outline.items, True
        elif entry.parts:
            entry.items = items_name(seq, digest)
        self.entries.append(entry)
        self.last_seq = seq
