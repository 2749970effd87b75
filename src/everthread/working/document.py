"""The document of a working state, its items, and how changes of two sides come together. No I/O."""

from __future__ import annotations

import functools
import hashlib
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

from everthread.arguments import check_name
from everthread.codec.schema import CURRENT_SCHEMA_VERSION, VERSION_FIELD
from everthread.errors import (
    InvalidStateError,
    InvalidValueError,
    LimitError,
    MergeConflictError,
)
from everthread.history.merge import ABSENT, Conflict
from everthread.threads.document import TrackedDict
from everthread.working.home import new_name
from everthread.working.items import (
    COLLECTIONS,
    CONTEXT_ITEMS,
    KINDS,
    OPEN_LOOPS,
    TODOS,
    Item,
    Kind,
    UnsavedDocument,
    taken,
    write_time,
)

if TYPE_CHECKING:
    from everthread.threads.aio.past import AsyncPast
    from everthread.threads.aio.thread import AsyncThread
    from everthread.threads.sync.past import Past
    from everthread.threads.sync.thread import Thread
    from everthread.versions import Version


Lock = AbstractContextManager[Any]
_P = ParamSpec("_P")
_R = TypeVar("_R")


class _Backed(Protocol):
    _backing: Backing


_G = TypeVar("_G", bound=_Backed)


def locked(method: Callable[Concatenate[_G, _P], _R]) -> Callable[Concatenate[_G, _P], _R]:
    """Let one thread at a time into the methods of everything that shares one document."""

    @functools.wraps(method)
    def inside(self: _G, /, *args: _P.args, **kw: _P.kwargs) -> _R:
        with self._backing.lock:
            return method(self, *args, **kw)

    return inside


class Backing:
    """Finds the document to read and to change. A loose one moves into a thread when one is asked for."""

    def __init__(self, name: str, lock: Lock) -> None:
        #: Held while the document is read or changed; taken again by the thread that has it.
        self.lock = lock
        self.name = name
        #: Of either colour; an async one has been read when it comes here.
        self.thread: Thread | AsyncThread | None = None
        self.past: Past | AsyncPast | None = None
        self.unsaved = UnsavedDocument()
        #: Whether there is a thread that has to be read first, by somebody who can wait for it.
        self.unread = False
        self.closed = False

    @property
    def version(self) -> Version | None:
        """The version that the document is of, but for changes since."""
        self.check_read()
        if self.past is not None:
            return self.past.version
        return None if self.thread is None else self.thread.head

    @property
    def dirty(self) -> bool:
        return self.past is None and self.thread is not None and self.thread.dirty

    def root(self) -> TrackedDict:
        """The document to read. Raises :class:`InvalidStateError` once closed."""
        self.check_read()
        if self.past is not None:
            return self.past.state
        return self.unsaved.root if self.thread is None else self.thread.state

    def check_open(self) -> None:
        if self.closed:
            raise InvalidStateError("this state is closed; WorkingState.load(id) opens it again")

    def check_read(self) -> None:
        self.check_open()
        if self.unread:
            raise InvalidStateError(
                "this state hasn't been read yet: state = await AsyncWorkingState(…), or: "
                "async with AsyncWorkingState(…) as state"
            )

    def check_writable(self) -> None:
        self.check_open()
        if self.past is not None:
            raise InvalidStateError(
                "this is a state of the past and read only; fork() at this version or rewind() to it, "
                "then change that"
            )

    def writable(self) -> TrackedDict:
        """The document to change. Raises :class:`InvalidStateError` if it can't be changed."""
        self.check_writable()
        return self.root()

    def adopt(self, thread: Thread | AsyncThread, past: Past | AsyncPast | None = None) -> None:
        """Stand on this handle, or in its past; what was loose is given up."""
        self.thread, self.past, self.name, self.unread = thread, past, thread.name, False
        self.unsaved = UnsavedDocument()

    def start_over(self) -> None:
        """Become another, empty state that nobody has saved."""
        self.name, self.unread = new_name(), False
        self.thread = None
        self.unsaved = UnsavedDocument()

    def close(self) -> None:
        self.closed = True
        self.thread = self.past = None
        self.unsaved = UnsavedDocument()


# ── reading and changing items ──────────────────────────────────────────────────────────────────────


#: A collection or None for the document itself, an id, and what is to stand there, or ABSENT.
Edit = tuple[str | None, Any, Any]


def now_us() -> int:
    return time.time_ns() // 1000


def new_item_id() -> str:
    # Short, since agents read and write it; long enough for the items of one state.
    return uuid.uuid4().hex[:12]


class Collections:
    """Items by kind and id. A change is checked first and then made whole, or raises and changes nothing."""

    def __init__(
        self,
        backing: Backing,
        *,
        context_max: int,
        clock: Callable[[], int] | None = None,
        ids: Callable[[], str] | None = None,
    ) -> None:
        self._backing = backing
        self._context_max = context_max
        self.clock = clock or now_us
        self.ids = ids or new_item_id
        #: Shown as empty, whatever the document holds, until the next change or save.
        self.blank = False

    def now(self) -> str:
        return write_time(self.clock())

    # ── reading ──────────────────────────────────────────────────────────────────────────────

    def items(self, root: TrackedDict, kind: Kind[Any]) -> TrackedDict | None:
        """A collection in the document, or ``None`` if there is none.

        Raises :class:`InvalidStateError` where something of the caller's stands in its place.
        """
        items = None if self.blank else root.get(kind.key)
        if items is not None and not isinstance(items, TrackedDict):
            raise taken(kind, items)
        return items

    def fields(self, root: TrackedDict, kind: Kind[Any], id: Any) -> TrackedDict | None:
        """The fields of an item, or ``None`` if there is none with this id."""
        items = self.items(root, kind)
        if items is None or not isinstance(id, str) or id not in items:
            return None
        fields = items[id]
        if not isinstance(fields, TrackedDict):
            kind.read(id, fields)
        assert isinstance(fields, TrackedDict)
        return fields

    def known(self, root: TrackedDict, kind: Kind[Any], id: Any) -> TrackedDict:
        """The fields of an item. Raises :class:`InvalidStateError` if there is none with this id."""
        fields = self.fields(root, kind, id)
        if fields is None:
            raise InvalidStateError(
                f"there is no {kind.one.split(' ', 1)[1]} {id!r} in this state; "
                f"state.{kind.key} has those there are"
            )
        return fields

    @locked
    def all(self, kind: Kind[Item]) -> list[Item]:
        items = self.items(self._backing.root(), kind)
        return [] if items is None else [kind.read(id, fields) for id, fields in items.plain().items()]

    @locked
    def one(self, kind: Kind[Item], id: Any) -> Item:
        return kind.read(id, self.known(self._backing.root(), kind, id).plain())

    @locked
    def find(self, kind: Kind[Item], id: Any) -> Item | None:
        fields = self.fields(self._backing.root(), kind, id)
        return None if fields is None else kind.read(id, fields.plain())

    @locked
    def last(self, kind: Kind[Item]) -> Item | None:
        """The newest item, without looking at the others."""
        items = self.items(self._backing.root(), kind)
        return self.one(kind, next(reversed(items))) if items else None

    # ── changing ─────────────────────────────────────────────────────────────────────────────

    @locked
    def add(self, kind: Kind[Item], fields: dict[str, Any], key: str | None = None) -> Item:
        """Add an item with a new id, or the id that ``key`` gives it, and the present time."""
        root = self._backing.writable()
        items = self.items(root, kind)
        id = self.ids() if key is None else id_of(kind, key)
        while items is not None and id in items:
            id = self.ids()
        now = self.now()
        return self._put_one(root, kind, id, {**fields, "created_at": now, "updated_at": now})

    @locked
    def under(self, kind: Kind[Item], key: str | None) -> Item | None:
        """Return the item that was added under ``key``, or None."""
        root = self._backing.writable()
        if key is None or self.fields(root, kind, id_of(kind, key)) is None:
            return None
        return self.one(kind, id_of(kind, key))

    @locked
    def put(self, kind: Kind[Item], id: str, fields: dict[str, Any], optional: tuple[str, ...]) -> Item:
        """An item under a given id, new or in place of the one there.

        Of that one stay ``created_at`` and what isn't among ``fields`` and ``optional``.
        """
        root = self._backing.writable()
        known = self.fields(root, kind, id)
        now = self.now()
        if known is None:
            self._make_room(root, kind, 1)
            return self._put_one(root, kind, id, {**fields, "created_at": now, "updated_at": now})
        known.update({**fields, "updated_at": now})
        for name in optional:
            if name not in fields and name in known:
                del known[name]
        return self.one(kind, id)

    @locked
    def change(
        self, kind: Kind[Item], id: str, fields: dict[str, Any], *stamps: str, touch: bool = True
    ) -> Item:
        """Set fields of an item, and the present time in ``stamps`` and, if ``touch``, ``updated_at``."""
        known = self.known(self._backing.writable(), kind, id)
        times = dict.fromkeys((*stamps, "updated_at") if touch else stamps, self.now())
        known.update({**fields, **times})
        return self.one(kind, id)

    @locked
    def remove(self, kind: Kind[Item], id: Any) -> Item:
        root = self._backing.writable()
        item = kind.read(id, self.known(root, kind, id).plain())
        del root[kind.key][id]
        return item

    @locked
    def apply(self, edits: Sequence[Edit]) -> None:
        """Make many edits as one change."""
        root = self._backing.writable()
        context = self.items(root, CONTEXT_ITEMS)
        fresh = [
            id
            for key, id, value in edits
            if key == CONTEXT_ITEMS.key and value is not ABSENT and (context is None or id not in context)
        ]
        self._make_room(root, CONTEXT_ITEMS, len(fresh))
        # Whatever can't be stored is refused here, before the first edit.
        UnsavedDocument().root["edits"] = [value for _, _, value in edits if value is not ABSENT]
        for key, id, value in edits:
            if key is not None and value is not ABSENT:
                self._put(root, KINDS[key], id if isinstance(id, str) else self.ids(), value)
                continue
            holder = root if key is None else self.items(root, KINDS[key])
            if value is not ABSENT:
                root[id] = value
            elif holder is not None and id in holder:
                del holder[id]

    def clear(self, root: TrackedDict, *but: str) -> None:
        """If the state was discarded, let the document show it."""
        if self.blank:
            self.blank = False
            for key in COLLECTIONS:
                if key in root and key not in but:
                    root[key] = {}

    def _put_one(self, root: TrackedDict, kind: Kind[Item], id: str, fields: dict[str, Any]) -> Item:
        self._put(root, kind, id, fields)
        return self.one(kind, id)

    def _put(self, root: TrackedDict, kind: Kind[Any], id: str, fields: dict[str, Any]) -> None:
        # What may be refused comes first, so that nothing is changed by halves.
        items = self.items(root, kind)
        if items is None:
            root[kind.key] = {id: fields}
        else:
            items[id] = fields
        self.clear(root, kind.key)
        root.setdefault(VERSION_FIELD, CURRENT_SCHEMA_VERSION)

    def _make_room(self, root: TrackedDict, kind: Kind[Any], count: int) -> None:
        if kind.key != CONTEXT_ITEMS.key or not count:
            return
        total = len(self.items(root, kind) or ()) + count
        if total > self._context_max:
            raise LimitError(
                f"nothing was set: the context would have {total:,} entries, and max_context_entries is "
                f"{self._context_max:,}; remove_context() what is no longer needed, or raise the limit",
                path=kind.key,
            )


# ── bringing together what others have saved as well ────────────────────────────────────────────────────


#: Times that both sides may have set without contradicting each other, and which of the two stands.
_SETTLED: Final[Mapping[str, Callable[[str, str], str]]] = {
    "created_at": min,
    "completed_at": min,
    "resolved_at": min,
    "updated_at": max,
    "verified_at": max,
}

#: Collections in which two sides add the same item only if both did so under one key.
_ADDED_UNDER_KEYS: Final = frozenset({TODOS.key, OPEN_LOOPS.key})

#: Where conflicts are that ``resolve`` may settle.
_OURS: Final = frozenset((key,) for key in COLLECTIONS)

Place = tuple[Any, ...]


def check_resolve(resolve: str | None) -> None:
    if resolve not in (None, "ours", "theirs"):
        raise InvalidValueError('resolve is "ours" or "theirs"', path="resolve")


def may_settle(conflict: Conflict, resolve: str | None) -> bool:
    return rule_of(conflict) is not None or (resolve is not None and conflict.path[:1] in _OURS)


def rule_of(conflict: Conflict) -> Callable[[str, str], str] | None:
    """Return how to settle the conflict without asking: two times in the same field of an item, or an item
    that both sides added under one key, of which the first stands."""
    path = conflict.path
    if len(path) != 3 or path[0] not in COLLECTIONS:
        return None
    both = isinstance(conflict.ours, str) and isinstance(conflict.theirs, str)
    rule = _SETTLED.get(path[2]) if both else None
    if rule is None and path[0] in _ADDED_UNDER_KEYS and conflict.base is ABSENT:
        return lambda ours, theirs: theirs
    return rule


def id_of(kind: Kind[Any], key: str) -> str:
    """Return the id of the item of this kind that is added under ``key``: the same in every process."""
    key = check_name(key, "key")
    return hashlib.sha256(f"{kind.key}\0{key}".encode()).hexdigest()[:12]


def get_place(root: Any, place: Place) -> Any:
    """What stands at a place, as plain data, or ABSENT."""
    node = root
    for key in place:
        if not isinstance(node, TrackedDict) or key not in node:
            return ABSENT
        node = node[key]
    return node.plain() if hasattr(node, "plain") else node


def put_place(root: TrackedDict, place: Place, value: Any) -> None:
    """Make ``value`` stand at a place, or nothing if it is ABSENT."""
    *above, last = place
    node: Any = root
    for key in above:
        if key not in node:
            if value is ABSENT:
                return
            node[key] = {}
        node = node[key]
    if value is not ABSENT:
        node[last] = value
    elif last in node:
        del node[last]


def explained(error: MergeConflictError) -> MergeConflictError:
    places = ", ".join(conflict.where for conflict in error.conflicts[:5])
    more = len(error.conflicts) - 5
    return MergeConflictError(
        f"somebody else changed the same as you since you read it: {places}"
        + (f" and {more} more" if more > 0 else "")
        + '; your changes are kept. save(resolve="ours") or save(resolve="theirs") settles it, '
        "reload() gives yours up",
        conflicts=error.conflicts,
        expected=error.expected,
        actual=error.actual,
    )
