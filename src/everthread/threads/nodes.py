"""The views over a document: what dictionaries and lists have in common, and the dictionary.

The document is one plain lowered tree. A node is a thin view over one of its dicts or lists, made when
that container is first read and kept by the node above it, so that reading twice gives the same node.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import ItemsView, Iterator, KeysView, MutableMapping, ValuesView
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from everthread.arguments import format_path
from everthread.codec.values import LEAVES
from everthread.errors import InvalidStateError, InvalidValueError, LimitError
from everthread.history.ops import ADD, DELETE, SET
from everthread.values import Personal, Tagged

if TYPE_CHECKING:
    from everthread.history.ops import Op
    from everthread.threads.document import Document


READ_ONLY = "past versions are read only; fork the thread at this version or rewind to it, then edit"
DETACHED = (
    "this part of the state was deleted or replaced, so a change to it would be lost; "
    "read it from the state again and change that"
)

#: Integers below it are stored as they are, whatever the codec's limits.
SHORT_INT = 10**9


class Changes(Protocol):
    """What was done to one container; empty while it is as it was committed."""

    def __len__(self) -> int: ...

    def clear(self) -> None: ...


class Node:
    """A view over one container of the document. Use ``.plain()`` for plain data (JSON, an SDK).

    Not hashable, not a ``dict`` or ``list``. Copying and pickling give plain data. A node whose container
    left the document can still be read; changing it raises :class:`InvalidStateError`.
    """

    __slots__ = (
        "_changes",
        "_children",
        "_dirty",
        "_document",
        "_key",
        "_locked",
        "_parent",
        "_raw",
        "_touched",
    )

    _raw: Any
    #: What was done to this very container since the document was clean.
    _changes: Changes
    #: The class that records it.
    _no_changes: ClassVar[type[Changes]]

    def __init__(
        self, document: Document, raw: Any, parent: Node | None, key: Any, locked: str | None
    ) -> None:
        self._document = document
        self._raw = raw
        self._parent = parent
        #: The key under the parent. Below a list only a hint, the index where it was last seen.
        self._key = key
        #: Why this node refuses changes, or None.
        self._locked = locked
        #: Nodes made so far, by the identity of their container. A container stands in one place only.
        self._children: dict[int, Node] = {}
        #: The children that are dirty, in the order in which they became so.
        self._touched: dict[int, Node] = {}
        #: Something changed here or below. A dirty node is in its parent's ``_touched``.
        self._dirty = False
        self._changes = self._no_changes()

    @abstractmethod
    def _own_ops(self, path: tuple[Any, ...]) -> list[Op]:
        """The ops for what was done to this container itself."""

    @abstractmethod
    def _place(self, child: Node) -> Any:
        """The key or index at which ``child`` stands now."""

    @abstractmethod
    def _rewritten(self, place: Any) -> bool:
        """Whether the own ops carry the whole value at ``place``."""

    def _is_new(self, place: Any) -> bool:
        """Whether the committed state had nothing at ``place``."""
        return False

    def plain(self) -> Any:
        """A deep copy as plain data."""
        return self._document.lift(self._raw)

    def __len__(self) -> int:
        return len(self._raw)

    def __repr__(self) -> str:
        return repr(self.plain())

    def __copy__(self) -> Any:
        return self.plain()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self.plain()

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self._raw), (self.plain(),))

    def _child(self, place: Any, raw: Any) -> Node:
        """The node over ``raw``, a container that stands at ``place``."""
        child = self._children.get(id(raw))
        if child is None:
            child = self._document.view(raw, self, place, self._locked)
            self._children[id(raw)] = child
        else:
            child._key = place
        return child

    def _visible(self, place: Any, value: Any) -> Any:
        """What a caller sees of the lowered ``value`` at ``place``."""
        kind = type(value)
        if kind is dict or kind is list:
            return self._child(place, value)
        return self._document.lift(value) if kind is Tagged else value

    def _take_in(self, value: Any, place: Any, prefix: str | None = None) -> Any:
        """The lowered copy of ``value``, to stand at ``place``; ``prefix`` is this node's path if known."""
        kind = type(value)
        if kind is str:
            if value.isascii():
                return value
        elif kind is int:
            # Longer ones are left to the codec, which has a limit on digits.
            if -SHORT_INT < value < SHORT_INT:
                return value
        elif kind is float:
            # NaN and the infinities are left to the codec, which has a policy for them.
            if value - value == 0.0:
                return value
        elif kind is bool or value is None:
            return value
        elif kind is Personal:
            # What is wrong inside of one, and where, is never told.
            return self._document.lower(value, "a personal value")
        elif isinstance(value, Node) and value._document is self._document and value._locked is None:
            return self._not_too_deep(clone(value._raw), place)
        where = format_path((*self._path(), place), "state") if prefix is None else f"{prefix}[{place}]"
        return self._not_too_deep(self._document.lower(value, where), place)

    def _not_too_deep(self, lowered: Any, place: Any) -> Any:
        """The codec has checked the value by itself; here it counts where in the document it stands."""
        if type(lowered) is dict or type(lowered) is list:
            above, node = 1, self
            while (parent := node._parent) is not None:
                above, node = above + 1, parent
            limit = self._document.depth_max
            if above > 1 and above + depth_of(lowered, limit) > limit:
                where = format_path((*self._path(), place), "state")
                raise LimitError(
                    f"{where}: the document would be nested deeper than depth_max ({limit})", path=where
                )
        return lowered

    def _path(self) -> tuple[Any, ...]:
        path: list[Any] = []
        node = self
        while (parent := node._parent) is not None:
            path.append(parent._place(node))
            node = parent
        return tuple(reversed(path))

    def _check(self) -> None:
        if self._locked is not None:
            raise InvalidStateError(self._locked)

    def _mark(self) -> None:
        """Note up to the root that something changed here."""
        node = self
        while not node._dirty:
            node._dirty = True
            parent = node._parent
            if parent is None:
                return
            parent._touched[id(node)] = node
            node = parent

    def _settle(self) -> None:
        """Undo the marks, as far up as nothing is left of the changes."""
        node = self
        while node._dirty and not node._changes and not node._touched:
            node._dirty = False
            parent = node._parent
            if parent is None:
                return
            del parent._touched[id(node)]
            node = parent

    def _release(self, raw: Any) -> None:
        """``raw`` leaves the document: lock the nodes over it and below it."""
        child = self._children.pop(id(raw), None)
        if child is not None:
            self._touched.pop(id(child), None)
            lock([child], DETACHED)


def lock(nodes: list[Node], reason: str) -> None:
    """Let ``nodes`` and all nodes below them refuse changes."""
    while nodes:
        node = nodes.pop()
        node._locked = reason
        nodes.extend(node._children.values())


def depth_of(tree: Any, enough: int) -> int:
    """How many containers lie within each other; counted no further than ``enough``."""
    level, depth = [tree], 0
    while level and depth <= enough:
        depth += 1
        level = [
            child
            for node in level
            for child in (node.values() if type(node) is dict else node)
            if type(child) is dict or type(child) is list
        ]
    return depth


def clone(raw: Any) -> Any:
    """A deep copy of a lowered tree."""
    kind = type(raw)
    if kind is dict:
        return {key: clone(value) for key, value in raw.items()}
    if kind is list:
        return [clone(value) for value in raw]
    return raw


def alike(old: Any, new: Any) -> bool:
    """Whether two lowered values are the same scalar. 1 and 1.0 are not, nor are 0.0 and -0.0."""
    kind = type(old)
    if kind is dict or kind is list or kind is not type(new):
        return False
    if kind is Tagged:
        # What a comparison of the two would say, without asking for it.
        return bool(old.data == new.data and old.code == new.code)
    return old is new or (kind is not float and bool(old == new))


def plain_of(value: Any) -> Any:
    """``value`` itself, or plain data if it is a node."""
    return value.plain() if isinstance(value, Node) else value


_ABSENT: Final = object()
#: What the keys of a lowered tree may be.
_KEY_TYPES: Final = frozenset({str, int, float, bool, type(None), bytes, Tagged})

# What became of a key since the document was clean.
_CHANGED: Final = "changed"  # it was there, its value is another one
_ADDED: Final = "added"  # it was not there
_DELETED: Final = "deleted"  # it was there and is gone
_MOVED: Final = "moved"  # it was deleted and added again, so it stands at the end now

#: One of the above, or for increments the committed number (None: it was not there) and what was added to it.
_How = str | tuple[int | float | None, int | float]


class _Keys(KeysView[Any]):
    _mapping: TrackedDict

    def __reversed__(self) -> Iterator[Any]:
        return reversed(self._mapping)


class _Values(ValuesView[Any]):
    _mapping: TrackedDict

    def __reversed__(self) -> Iterator[Any]:
        return (self._mapping[key] for key in reversed(self._mapping))


class _Items(ItemsView[Any, Any]):
    _mapping: TrackedDict

    def __reversed__(self) -> Iterator[tuple[Any, Any]]:
        return ((key, self._mapping[key]) for key in reversed(self._mapping))


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

    def keys(self) -> KeysView[Any]:
        return _Keys(self)

    def values(self) -> ValuesView[Any]:
        return _Values(self)

    def items(self) -> ItemsView[Any, Any]:
        return _Items(self)

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
        present = None
        if key in self._raw:
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
                changes[key] = _ADDED if how is not None and how[0] is None else _CHANGED
        self._raw[key] = value
        if not self._dirty:
            self._mark()
        self._document.cut = False

    def _drop(self, key: Any) -> None:
        self._document.cut = True
        old = self._raw.pop(key)
        if type(old) is dict or type(old) is list:
            self._release(old)
        how = self._changes.pop(key, None)
        if how == _ADDED or (type(how) is tuple and how[0] is None):
            self._settle()
        else:
            self._changes[key] = _DELETED
            self._mark()
        self._document.cut = False

    def _add(self, key: Any, present: int | float | None, by: int | float) -> None:
        """Add to the number ``present`` at ``key``, which is ``None`` where there is none."""
        how = self._changes.get(key)
        if isinstance(how, str):
            self._put(key, self._take_in(by if present is None else present + by, key))
            return
        base, amount = how or (present, 0)
        amount += by
        # Summed up from the committed number, as replaying does it: floats round differently otherwise.
        value = self._take_in((0 if base is None else base) + amount, key)
        if Tagged in (type(self._raw.get(key)), type(value), type(self._take_in(amount, key))):
            # Integers beyond 64 bits are no numbers to the history.
            self._put(key, value)
        elif base is not None and type(amount) is int and amount == 0:
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

    def _is_new(self, place: Any) -> bool:
        return self._changes.get(place) == _ADDED


def _is_plain(key: Any) -> bool:
    """Whether the codec would store ``key`` as it is, for certain."""
    kind = type(key)
    if kind is str:
        return bool(key.isascii())
    return kind is int and -SHORT_INT < key < SHORT_INT
