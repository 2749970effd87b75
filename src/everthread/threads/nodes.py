"""What the views over a document have in common: their place in the tree, and what changed below them.

The document is one plain lowered tree. A node is a thin view over one of its dicts or lists, made when
that container is first read and kept by the node above it, so that reading twice gives the same node.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from everthread.arguments import format_path
from everthread.errors import InvalidStateError, LimitError
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
