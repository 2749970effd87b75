"""Keeping of a value what can be stored, whatever the value is, and noting the rest."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from everthread.arguments import format_path
from everthread.codec.scalars import DUMPERS
from everthread.codec.types import shape_of
from everthread.codec.values import lower
from everthread.errors import EverthreadError
from everthread.threads.document import TrackedDict, TrackedList
from everthread.values import Erased, Opaque, Personal, Tagged

#: Nothing of the value could be kept.
LOST: Final = object()
_BASES: Final = (str, int, float, dict, list, bytes, tuple, set, frozenset)
_EXACT: Final = frozenset(_BASES)

#: Of one value, and of all of a payload, in bytes as they are stored, roughly: so that it fits one commit.
VALUE_BYTES_MAX: Final = 16 * 1024 * 1024
PAYLOAD_BYTES_MAX: Final = 48 * 1024 * 1024
_NODE_BYTES: Final = 2
#: Of one value, in values within it.
NODES_MAX: Final = 500_000
#: Of a part that occurs again: a few objects could otherwise stand for more values than any disk holds.
_REPEAT_NODES_MAX: Final = 1_000
#: Levels inside one value; some of the document's 100 are above it.
_DEPTH_MAX: Final = 90
#: An integer of 4,300 digits, the most that is stored, has fewer bits.
_INT_BITS_MAX: Final = 14_284
#: Losses that are told one by one; the others are counted.
TOLD_MAX: Final = 1_000

Path = tuple[Any, ...]


class Loss(msgspec.Struct, frozen=True):
    """Something that couldn't be kept: where it was, and why not."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}" if self.path else self.reason


class Sieve:
    """Copies values, leaving out what can't be stored.

    Runs no code of the values' own classes but that of registered ones, and ends on values that contain
    themselves.
    """

    def __init__(self) -> None:
        self.losses: list[Loss] = []
        self.lost_count = 0
        self.warnings: list[str] = []
        self._left = PAYLOAD_BYTES_MAX
        self._bytes = self._nodes = 0
        #: The containers that the present one is in.
        self._above: set[int] = set()
        #: Containers seen, by identity and the levels left below them, what was kept, and what that took.
        self._seen: dict[tuple[int, int], tuple[Any, Any, int, int]] = {}

    def lose(self, path: Path, reason: str) -> Any:
        """Note a loss; gives LOST."""
        self.lost_count += 1
        if len(self.losses) < TOLD_MAX:
            self.losses.append(Loss(where(path), reason))
        return LOST

    def warn(self, path: Path, reason: str) -> None:
        if len(self.warnings) < TOLD_MAX:
            self.warnings.append(f"{where(path)}: {reason}")

    def keep(self, value: Any, path: Path) -> Any:
        """A copy of what is sound in ``value``, or LOST."""
        try:
            return self._keep(value, path, _DEPTH_MAX)
        finally:
            self._left -= self._bytes
            self._bytes = self._nodes = 0
            self._above.clear()

    def _keep(self, value: Any, path: Path, depth: int) -> Any:
        if value is None or value is True or value is False:
            return self._room(value, 0, path)
        base = _base(type(value))
        if base is str:
            return self._text(str.__str__(value), path)
        if base is int:
            number = int.__int__(value)
            if number.bit_length() > _INT_BITS_MAX:
                return self.lose(path, "an integer of more than 4,300 digits")
            return self._room(number, number.bit_length() // 8, path)
        if base is float:
            return self._room(float.__float__(value), 7, path)
        if base is bytes:
            return self._room(bytes(memoryview(value)), len(memoryview(value)), path)
        if base is None:
            return self._other(value, path)
        return self._container(base, value, path, depth)

    def _container(self, base: Any, value: Any, path: Path, depth: int) -> Any:
        """A dict, list, tuple or set; each is gone through once, in how many places it may be."""
        if id(value) in self._above:
            return self.lose(path, "contains itself")
        if not depth:
            return self.lose(path, f"nested deeper than {_DEPTH_MAX} levels")
        seen = self._seen.get((id(value), depth))
        if seen is not None:
            _, kept, size, nodes = seen
            if nodes > _REPEAT_NODES_MAX or self._nodes + nodes > NODES_MAX:
                return self.lose(path, "the same large part once more")
            if kept is not LOST:
                kept = self._room(kept, size, path)
                self._nodes += nodes
            return kept
        before = self._bytes, self._nodes
        self._above.add(id(value))
        try:
            walk = self._dict if base is dict else self._sequence
            kept = self._room(walk(base, value, path, depth - 1), 0, path)
        finally:
            self._above.discard(id(value))
        self._seen[id(value), depth] = (value, kept, self._bytes - before[0], self._nodes - before[1])
        return kept

    def key(self, key: Any, path: Path) -> Any:
        """A key of a mapping as it can be stored, or LOST."""
        kind = type(key)
        if key is None or kind is bool or kind is bytes or (kind is int and key.bit_length() < 64):
            return key
        if kind is float and key == key:
            return key
        if _base(kind) is str:
            return self._text(str.__str__(key), path)
        return self.lose(path, f"has a {kind_of(key)} as a key")

    def entries(self, mapping: Any) -> list[tuple[Any, Any]]:
        """The entries of a dict or of an instance of a subclass, past whatever that overrides."""
        return list(dict.items(mapping))

    def _dict(self, base: Any, value: Any, path: Path, depth: int) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for key, item in dict.items(value):
            at = self.key(key, path)
            if at is not LOST:
                kept = self._keep(item, (*path, at), depth)
                if kept is not LOST:
                    found[at] = kept
        return found

    def _sequence(self, base: Any, value: Any, path: Path, depth: int) -> Any:
        items = []
        for place, item in enumerate(base.__iter__(value)):
            kept = self._keep(item, (*path, place), depth)
            if kept is not LOST:
                items.append(kept)
        try:
            return base(items)
        except TypeError:
            return self.lose(path, "its elements can't be elements of a set")

    def _text(self, text: str, path: Path) -> Any:
        if text.isascii():
            return self._room(text, len(text), path)
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            return self.lose(path, "text that isn't valid Unicode")
        return self._room(text, size, path)

    def _room(self, value: Any, size: int, path: Path) -> Any:
        """``value`` if there is room for that many more bytes, else LOST."""
        size += _NODE_BYTES
        if self._bytes + size > VALUE_BYTES_MAX or self._nodes >= NODES_MAX:
            return self.lose(path, "beyond what one value may hold")
        if self._bytes + size > self._left:
            return self.lose(path, "beyond what a state may hold")
        self._bytes += size
        self._nodes += 1
        return value

    def _other(self, value: Any, path: Path) -> Any:
        """A value of another type: as it is, if the codec has a place for it."""
        kind = type(value)
        try:
            if kind is Personal:
                # One that was read from a store was stored there; another one will have to be.
                fits = value.sealed is not None or lower(value.value) is not LOST
            elif kind is TrackedDict or kind is TrackedList:
                return self._keep(value.plain(), path, _DEPTH_MAX)
            else:
                fits = kind is Erased or kind is Opaque or kind in DUMPERS or shape_of(kind) is not None
            if fits:
                lowered = None if kind is Personal else lower(value)
                return self._room(value, len(lowered.data) if type(lowered) is Tagged else 0, path)
        except EverthreadError as error:
            return self.lose(path, str(error).partition(": ")[2] or str(error))
        except Exception:
            # What a registered class does is its own affair; here it only means that the value is lost.
            return self.lose(path, f"a {kind_of(value)} that can't be read")
        return self.lose(path, f"a {kind_of(value)} can't be stored")


def is_a(value: Any, base: type) -> bool:
    """Whether a value's class derives from ``base``. Unlike isinstance() it asks nobody: values may lie."""
    kind = type(value)
    return kind is base or any(each is base for each in type.__dict__["__mro__"].__get__(kind))


def _base(kind: Any) -> Any:
    """The built-in type that ``kind`` is or derives from, unless it is registered as a type of its own."""
    # A class of another metaclass may have a say in being hashed or compared; these may not.
    if type(kind) is type:
        if kind in _EXACT:
            return kind
        if shape_of(kind) is not None:
            return None
    line = type.__dict__["__mro__"].__get__(kind)
    for base in _BASES:
        if any(each is base for each in line):
            return base
    return bytes if any(each is bytearray for each in line) else None


def kind_of(value: Any) -> str:
    """The name of a value's class, without asking the value or its class."""
    return str(type.__dict__["__name__"].__get__(type(value)))[:80]


def where(path: Path) -> str:
    return format_path(path)
