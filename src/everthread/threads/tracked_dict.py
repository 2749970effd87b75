"""A dictionary of the document, as its users see it."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Any, Final

from everthread.arguments import format_path
from everthread.codec.values import LEAVES
from everthread.errors import InvalidValueError
from everthread.history.ops import ADD, DELETE, SET
from everthread.threads.nodes import SHORT_INT, Node, alike, plain_of
from everthread.values import Personal, Tagged

if TYPE_CHECKING:
    from everthread.history.ops import Op

_ABSENT: Final = object()
#: What the keys of a lowered tree may be.
_KEY_TYPES: Final = frozenset({str, int, float, bool, type(None), bytes, Tagged})

# What became of a key since the document was clean.
_CHANGED: Final = "changed"  # it was there, its value is another one
_ADDED: Final = "added"  # it was not there
_DELETED: Final = "deleted"  # it was there and is gone
_MOVED: Final = "moved"  # it was deleted and added again, so it stands at the end now

#: One of the above, or for increments the committed number and what was added to it.
_How = str | tuple[int | float, int | float]


class TrackedDict(Node, MutableMapping[Any, Any]):
    """A dictionary inside the document. Behaves as a ``dict`` does, and knows what changed.

    Assigned values are copied in; what can't be stored raises :class:`InvalidValueError` and changes
    nothing. Dicts and lists are read as nodes, other values as fresh copies: a set or a dataclass that was
    read must be assigned again after changing it.
    """

    __slots__ = ()

    _raw: dict[Any, Any]
    #: In the order of the last change that matters for the order of keys.
    _changes: dict[Any, _How]
    _no_changes = dict

    # Reading

    def __getitem__(self, key: Any) -> Any:
        try:
            value = self._raw[key]
        except KeyError:
            key = self._find(key)
            value = self._raw[key]
        kind = type(value)
        if kind is dict or kind is list:
            child = self._children.get(id(value))
            return self._child(self._find(key), value) if child is None else child
        return self._document.lift(value) if kind is Tagged else value

    def get(self, key: Any, default: Any = None) -> Any:
        if key not in self:
            return default
        return self[key]

    def __contains__(self, key: object) -> bool:
        if key in self._raw:
            return True
        if _is_plain(key):
            return False
        try:
            self._find(key)
        except KeyError:
            return False
        return True

    def __iter__(self) -> Iterator[Any]:
        lift = self._document.lift
        for key in self._raw:
            yield lift(key) if type(key) is Tagged else key

    def __reversed__(self) -> Iterator[Any]:
        lift = self._document.lift
        for key in reversed(self._raw):
            yield lift(key) if type(key) is Tagged else key

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, dict | TrackedDict):
            return NotImplemented
        return self is other or (len(self) == len(other) and bool(self.plain() == plain_of(other)))

    def copy(self) -> dict[Any, Any]:
        """A deep copy as plain data, the same as :meth:`plain`."""
        return dict(self.plain())

    def __or__(self, other: Any) -> dict[Any, Any]:
        if not isinstance(other, dict | TrackedDict):
            return NotImplemented
        return dict(self.plain() | plain_of(other))

    def __ror__(self, other: Any) -> dict[Any, Any]:
        if not isinstance(other, dict):
            return NotImplemented
        return dict(other | self.plain())

    # Changing

    def __setitem__(self, key: Any, value: Any) -> None:
        if self._locked is not None:
            self._check()
        if type(key) is not str or not key.isascii():
            key = self._lower_key(key)
        if type(value) is Personal:
            # As _take_in() does: what is wrong inside of one, and where, is never told.
            self._put(key, self._document.lower(value, "a personal value"))
        elif type(value) in LEAVES or not (isinstance(value, Node) and self._stands_at(key, value)):
            self._put(key, self._take_in(value, key))

    def __delitem__(self, key: Any) -> None:
        self._check()
        self._drop(self._find(key))

    def __ior__(self, other: Any) -> TrackedDict:
        self.update(other)
        return self

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """The value at ``key``, set to ``default`` if there was none. A container comes back as its node."""
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, other: Any = (), /, **more: Any) -> None:
        """Set every item of ``other`` and ``more``: all of them, or none if one can't be stored."""
        self._check()
        items: dict[Any, Any] = dict(other, **more)
        pending = []
        for key, value in items.items():
            lowered = self._lower_key(key)
            if not (isinstance(value, Node) and self._stands_at(lowered, value)):
                pending.append((lowered, self._take_in(value, lowered)))
        for lowered, item in pending:
            self._put(lowered, item)

    def pop(self, key: Any, default: Any = _ABSENT) -> Any:
        """Delete ``key`` and return what was there, containers as plain data."""
        self._check()
        if default is not _ABSENT and key not in self:
            return default
        key = self._find(key)
        value = self._document.lift(self._raw[key])
        self._drop(key)
        return value

    def popitem(self) -> tuple[Any, Any]:
        """Delete the newest key and return it with its value, containers as plain data."""
        self._check()
        if not self._raw:
            raise KeyError("popitem(): dictionary is empty")
        key = next(reversed(self._raw))
        item = (self._document.lift(key), self._document.lift(self._raw[key]))
        self._drop(key)
        return item

    def clear(self) -> None:
        self._check()
        for key in list(self._raw):
            self._drop(key)

    def increment(self, key: Any, by: int | float = 1) -> Any:
        """Add ``by`` to the number at ``key`` and return the sum; a missing key counts as 0.

        Recorded as an addition, not as its result, so that increments made by several writers add up.
        A later assignment overrides it. Raises :class:`InvalidValueError` if either is not an int or float.
        """
        self._check()
        key = self._lower_key(key)
        self._check_number(key, by, "the increment")
        if key not in self._raw:
            self._put(key, self._take_in(by, key))
        else:
            present = self._document.lift(self._raw[key])
            self._check_number(key, present, "the value")
            try:
                self._add(key, present, by)
            except OverflowError:
                # An integer that is beyond all floats, and a float.
                where = format_path((*self._path(), key), "state")
                raise InvalidValueError(f"the sum at {where} is too large", path=where) from None
        return self._document.lift(self._raw[key])

    def _check_number(self, key: Any, value: Any, what: str) -> None:
        if type(value) is not int and type(value) is not float:
            where = format_path((*self._path(), key), "state")
            message = (
                f"{what} at {where} must be an int or a float to be added up, not {type(value).__name__}"
            )
            raise InvalidValueError(message, path=where)

    # Keys

    def _find(self, key: Any) -> Any:
        """The key as it is stored. Raises :class:`KeyError` if the dictionary doesn't have it."""
        if key in self._raw:
            if type(key) in _KEY_TYPES:
                return key
            # Equal to a plain key, as a member of an enumeration of strings is to its text.
            return next(stored for stored in self._raw if stored == key)
        if not _is_plain(key):
            try:
                (lowered,) = self._document.lower({key: None}, "")
            except InvalidValueError:
                raise KeyError(key) from None
            if lowered in self._raw:
                return lowered
        raise KeyError(key)

    def _lower_key(self, key: Any) -> Any:
        """The key as it is to be stored."""
        if _is_plain(key):
            return key
        if key in self:
            return self._find(key)
        # As a key of a dictionary, because the codec has rules for keys that other values are free of.
        (lowered,) = self._document.lower({key: None}, format_path(self._path(), "state"))
        return lowered

    def _stands_at(self, key: Any, node: Node) -> bool:
        """Whether ``node`` is the one at ``key`` already, as in ``state["items"] += [1]``."""
        return node._parent is self and node._raw is self._raw.get(key)

    # Tracking

    def _put(self, key: Any, value: Any) -> None:
        """Set a lowered ``value``."""
        changes = self._changes
        old = self._raw.get(key, _ABSENT)
        if key not in changes and alike(old, value):
            return
        self._document.cut = True
        if old is _ABSENT:
            # Taken out first: an added key is replayed last, as it stands last.
            changes[key] = _ADDED if changes.pop(key, None) is None else _MOVED
        else:
            kind = type(old)
            if kind is dict or kind is list:
                self._release(old)
            how = changes.get(key)
            if how is None or type(how) is tuple:
                changes[key] = _CHANGED
        self._raw[key] = value
        if not self._dirty:
            self._mark()
        self._document.cut = False

    def _drop(self, key: Any) -> None:
        self._document.cut = True
        old = self._raw.pop(key)
        if type(old) is dict or type(old) is list:
            self._release(old)
        if self._changes.pop(key, None) == _ADDED:
            self._settle()
        else:
            self._changes[key] = _DELETED
            self._mark()
        self._document.cut = False

    def _add(self, key: Any, present: int | float, by: int | float) -> None:
        """Add to the number ``present`` at ``key``."""
        how = self._changes.get(key)
        if isinstance(how, str):
            self._put(key, self._take_in(present + by, key))
            return
        base, amount = how or (present, 0)
        amount += by
        # Summed up from the committed number, as replaying does it: floats round differently otherwise.
        value = self._take_in(base + amount, key)
        if Tagged in (type(self._raw[key]), type(value), type(self._take_in(amount, key))):
            # Integers beyond 64 bits are no numbers to the history.
            self._put(key, value)
        elif type(amount) is int and amount == 0:
            self._document.cut = True
            self._raw[key] = base
            self._changes.pop(key, None)
            self._settle()
            self._document.cut = False
        else:
            self._document.cut = True
            self._raw[key] = value
            self._changes[key] = (base, amount)
            self._mark()
            self._document.cut = False

    def _own_ops(self, path: tuple[Any, ...]) -> list[Op]:
        ops: list[Op] = []
        for key, how in self._changes.items():
            place = (*path, key)
            if isinstance(how, tuple):
                ops.append((ADD, place, how[1]))
                continue
            if how in (_DELETED, _MOVED):
                ops.append((DELETE, place))
            if how != _DELETED:
                ops.append((SET, place, self._raw[key]))
        return ops

    def _place(self, child: Node) -> Any:
        return child._key

    def _rewritten(self, place: Any) -> bool:
        return place in self._changes


def _is_plain(key: Any) -> bool:
    """Whether the codec would store ``key`` as it is, for certain."""
    kind = type(key)
    if kind is str:
        return bool(key.isascii())
    return kind is int and -SHORT_INT < key < SHORT_INT
