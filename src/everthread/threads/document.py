"""The document of a thread: one plain tree, seen through nodes that know what changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from everthread.arguments import format_path
from everthread.codec import records
from everthread.codec.values import encode, lower
from everthread.errors import InvalidStateError
from everthread.history.diff import diff_documents
from everthread.history.ops import ADD, SET, SPLICE, Op
from everthread.limits import DEFAULT_LIMITS
from everthread.threads.nodes import DETACHED, READ_ONLY, Node, TrackedDict, clone, lock
from everthread.threads.tracked_list import TrackedList

__all__ = ["Document", "TrackedDict", "TrackedList"]


#: What ``cut`` says of a document or log: nothing is amiss, a change is under way (or was interrupted), and
#: nothing has been changed since a write began.
WHOLE, CUT, UNTOUCHED = 0, 1, 2
#: What is said to whoever uses a handle while a commit through it is under way.
SHARED = (
    "another thread, or what a signal handler interrupted, is committing through this handle; "
    "give each thread a handle of its own: store.thread()"
)


class Document:
    """Owns a lowered tree and the nodes over it.

    ``raw`` is taken over, not copied: nobody else may change it. ``lower(value, where)`` validates and
    copies a value into its lowered form, ``lift(value)`` copies a lowered tree back. With
    ``writable=False`` every change raises :class:`InvalidStateError`.
    """

    __slots__ = ("cut", "depth_max", "lift", "lower", "root")

    def __init__(
        self,
        raw: dict[Any, Any],
        *,
        lower: Callable[[Any, str], Any],
        lift: Callable[[Any], Any],
        writable: bool = True,
        depth_max: int = DEFAULT_LIMITS.depth_max,
    ) -> None:
        #: Set while a change is under way; still set afterwards, it was interrupted half done.
        self.cut: int = WHOLE
        self.depth_max = depth_max
        self.lower = lower
        self.lift = lift
        self.root = TrackedDict(self, raw, None, None, None if writable else READ_ONLY)

    @property
    def raw(self) -> dict[Any, Any]:
        """The lowered tree as it stands. To be read, encoded or copied, never changed."""
        return self.root._raw

    @property
    def dirty(self) -> bool:
        """Whether :meth:`take_ops` has anything to say."""
        return self.root._dirty or self.cut == CUT

    def view(self, raw: Any, parent: Node, key: Any, locked: str | None) -> Node:
        """A new node over ``raw``."""
        kind = TrackedDict if type(raw) is dict else TrackedList
        return kind(self, raw, parent, key, locked)

    def take_ops(self) -> list[Op]:
        """The ops that turn the last clean state into the present one. Changes nothing.

        Costs what the changes cost, whatever the size of the document. The values in the ops are parts of
        the live tree: encode or copy them before the document changes again.
        """
        if self.cut == CUT:
            raise InvalidStateError(
                "a change of the document was interrupted half done: discard() what is uncommitted"
            )
        if not self.root._touched:
            return self.root._own_ops(())
        ops: list[Op] = []
        pending: list[tuple[Node, tuple[Any, ...]]] = [(self.root, ())]
        while pending:
            node, path = pending.pop()
            ops.extend(node._own_ops(path))
            for child in reversed(node._touched.values()):
                place = node._place(child)
                if not node._rewritten(place):
                    pending.append((child, (*path, place)))
        return ops

    def increments(self) -> dict[tuple[Any, ...], int | float]:
        """The pending increments: path and amount of each, also inside of dictionaries that are new."""
        found: dict[tuple[Any, ...], int | float] = {}
        pending: list[tuple[Node, tuple[Any, ...]]] = [(self.root, ())]
        while pending:
            node, path = pending.pop()
            found.update((op[1], op[2]) for op in node._own_ops(path) if op[0] == ADD)
            for child in node._touched.values():
                place = node._place(child)
                if not node._rewritten(place) or node._is_new(place):
                    pending.append((child, (*path, place)))
        return found

    def mark_clean(self) -> None:
        """Forget what changed: the present state is the committed one."""
        self.cut = WHOLE
        root = self.root
        if not root._touched:
            root._changes.clear()
            root._dirty = False
            return
        pending: list[Node] = [root]
        while pending:
            node = pending.pop()
            pending.extend(node._touched.values())
            node._touched.clear()
            node._changes.clear()
            node._dirty = False

    def reset(self, raw: dict[Any, Any]) -> None:
        """Show another committed state, and forget what changed.

        The root stays the node it was; nodes below it are detached, they belong to the former state.
        """
        root = self.root
        lock(list(root._children.values()), DETACHED)
        self.mark_clean()
        root._children.clear()
        root._raw = raw

    def lock(self, reason: str) -> None:
        """Refuse every change from now on, for this reason, unless it does already."""
        if self.root._locked is None:
            lock([self.root], reason)

    def apply(self, ops: Iterable[Op]) -> None:
        """Make the changes that ``ops`` describe as a caller would: tracked, values copied in.

        Raises what a plain tree would raise (``KeyError``, ``IndexError`` …) at an op that doesn't fit.
        """
        self.root._check()
        for code, path, *rest in ops:
            if path:
                node: Node = self.root
                for key in path[:-1]:
                    node = node._child(key, node._raw[key])
                _edit(node, code, path[-1], rest)
            else:
                self.root.clear()
                for key, value in rest[0].items():
                    self.root._put(key, clone(value))


def _edit(node: Node, code: int, key: Any, rest: list[Any]) -> None:
    """Do to the item at ``key`` of ``node`` what one op says."""
    if code == SPLICE:
        at, remove, items = rest
        target = node._child(key, node._raw[key])
        if not isinstance(target, TrackedList) or not 0 <= at <= at + remove <= len(target):
            raise IndexError(f"no items {at}..{at + remove} to replace")
        target._splice(at, remove, [clone(item) for item in items])
    elif isinstance(node, TrackedDict):
        if code == SET:
            node._put(key, clone(rest[0]))
        elif code == ADD:
            node._add(key, node._document.lift(node._raw[key]) if key in node._raw else None, rest[0])
        elif key in node._raw:
            node._drop(key)
    elif isinstance(node, TrackedList):
        place = node._index(key)
        node._splice(place, 1, [clone(rest[0]) if code == SET else node._raw[place] + rest[0]])


# ── edits by comparison, for callers that are handed a whole new state ──


def assign(thread: Any, path: tuple[Any, ...], value: Any) -> None:
    """Make the value at a place of the document this one, by the fewest edits.

    ``path`` leads through dictionaries, which are there but for the last key. Raises
    :class:`InvalidValueError` or :class:`LimitError`, naming the place, for what can't be stored.
    """
    document = thread.handle.open_document()
    lowered = thread.handle.lower(value, ".".join(str(key) for key in path))
    node = document.raw
    for key in path[:-1]:
        node = node[key]
    last = path[-1]
    if last in node:
        # Not through the root: a document of many parts is compared only where something is assigned.
        changes = diff_documents({last: node[last]}, {last: lowered}, path[:-1])
        if changes:
            document.apply(changes)
        return
    target = document.root
    for key in path[:-1]:
        target = target[key]
    target[last] = value


def encode_item(thread: Any, log: str, item: Any) -> bytes:
    """An item as a log holds it, byte for byte."""
    handle = thread.handle
    screen = handle.core.screen
    item = item if screen is None else screen(item, log)
    lowered = lower(item, limits=handle.limits, seal=handle.seal, root=log)
    encoded: bytes = encode(lowered, handle.limits)
    return encoded


def splice(log: Any, at: int, remove: int, raws: Sequence[bytes], ids: Sequence[Any]) -> None:
    """Put encoded items in the place of ``remove`` items from index ``at`` on. Ids aren't compared with those
    that the log holds: an id may occur twice, and an item may lack one."""
    log._handle.require_writable()
    prints = [records.NO_FINGERPRINT if each is None else records.fingerprint(each) for each in ids]
    if raws or remove:
        log._splice(at, remove, list(raws), prints)


# ── stores with detectors: texts are screened before they are stored ──
# Classes of their own, so that other stores pay nothing for it.


class ScreenedDict(TrackedDict):
    __slots__ = ()

    def _take_in(self, value: Any, place: Any, prefix: str | None = None) -> Any:
        taken = super()._take_in(value, place, prefix)
        return taken if taken is not value or type(value) is not str else _looked_at(self, value, place)


class ScreenedList(TrackedList):
    __slots__ = ()

    def _take_in(self, value: Any, place: Any, prefix: str | None = None) -> Any:
        taken = super()._take_in(value, place, prefix)
        return taken if taken is not value or type(value) is not str else _looked_at(self, value, place)


def _looked_at(node: Node, text: str, place: Any) -> Any:
    return node._document.lower(text, format_path((*node._path(), place), "state"))


class ScreenedDocument(Document):
    """As :class:`Document`; ``lower`` is what looks at texts."""

    __slots__ = ()

    def __init__(
        self,
        raw: dict[Any, Any],
        *,
        lower: Callable[[Any, str], Any],
        lift: Callable[[Any], Any],
        writable: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(raw, lower=lower, lift=lift, writable=writable, **options)
        self.root = ScreenedDict(self, raw, None, None, None if writable else READ_ONLY)

    def view(self, raw: Any, parent: Node, key: Any, locked: str | None) -> Node:
        kind = ScreenedDict if type(raw) is dict else ScreenedList
        return kind(self, raw, parent, key, locked)
