"""The document of a working state: where it is, its items, and how changes are committed."""

from __future__ import annotations

import functools
import random
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

from everthread import process
from everthread.codec.schema import CURRENT_SCHEMA_VERSION, VERSION_FIELD
from everthread.errors import (
    ConflictError,
    InvalidStateError,
    InvalidValueError,
    LimitError,
    MergeConflictError,
    UsageError,
)
from everthread.history.merge import ABSENT, Conflict
from everthread.threads.document import TrackedDict
from everthread.working.home import Home, new_name, tags
from everthread.working.items import (
    COLLECTIONS,
    CONTEXT_ITEMS,
    KINDS,
    Item,
    Kind,
    UnsavedDocument,
    taken,
    write_time,
)

if TYPE_CHECKING:
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

    def __init__(self, home: Home | None, name: str, lock: Lock | None = None) -> None:
        self.home = home
        #: Taken again by the thread that has it.
        self.lock: Lock = process.ProcessLock() if lock is None else lock
        self.name = name
        self.thread: Thread | None = None
        self.past: Past | None = None
        self.unsaved = UnsavedDocument()
        self.closed = False

    @property
    def version(self) -> Version | None:
        """The version that the document is of, but for changes since."""
        self.check_open()
        if self.past is not None:
            return self.past.version
        return None if self.thread is None else self.thread.head

    @property
    def dirty(self) -> bool:
        return self.past is None and self.thread is not None and self.thread.dirty

    def root(self) -> TrackedDict:
        """The document to read. Raises :class:`InvalidStateError` once closed."""
        self.check_open()
        if self.past is not None:
            return self.past.state
        return self.unsaved.root if self.thread is None else self.thread.state

    def check_open(self) -> None:
        if self.closed:
            raise InvalidStateError("this state is closed; WorkingState.load(id) opens it again")

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

    def open_thread(self) -> Thread:
        """The handle of the thread, into which the document has moved by then."""
        self.check_open()
        if self.thread is None:
            if self.home is None:
                raise UsageError("this state has no store to be saved in")
            thread = self.home.thread(self.name)
            thread.state.update(self.unsaved.root.plain())
            self.adopt(thread)
        assert self.thread is not None
        return self.thread

    def adopt(self, thread: Thread, past: Past | None = None) -> None:
        """Stand on this handle, or in its past; what was loose is given up."""
        self.thread, self.past, self.name = thread, past, thread.name
        self.unsaved = UnsavedDocument()

    def start_over(self) -> None:
        """Become another, empty state that nobody has saved."""
        self.name = new_name()
        self.thread = None
        self.unsaved = UnsavedDocument()

    def close(self) -> None:
        self.closed = True
        self.thread = self.past = None
        self.unsaved = UnsavedDocument()
        if self.home is not None:
            self.home.close()


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
    def add(self, kind: Kind[Item], fields: dict[str, Any]) -> Item:
        """A new item with a new id and the present time."""
        root = self._backing.writable()
        items = self.items(root, kind)
        id = self.ids()
        while items is not None and id in items:
            id = self.ids()
        now = self.now()
        return self._put_one(root, kind, id, {**fields, "created_at": now, "updated_at": now})

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


# ── committing what others may be saving as well ────────────────────────────────────────────────────


#: How often somebody else may come first before it is given up.
TRIES: Final = 100

#: Times that both sides may have set without contradicting each other, and which of the two stands.
_SETTLED: Final[Mapping[str, Callable[[str, str], str]]] = {
    "created_at": min,
    "completed_at": min,
    "resolved_at": min,
    "updated_at": max,
    "verified_at": max,
}

#: Where conflicts are that ``resolve`` may settle.
_OURS: Final = frozenset((key,) for key in COLLECTIONS)

Place = tuple[Any, ...]


class Saver:
    """Commits a thread as a state: marked, so that it is found again; or through its owner, who commits."""

    def __init__(self, session_id: str | None, owner: Callable[[], Any] | None = None) -> None:
        self._session_id = session_id
        self._owner = owner
        #: Whether a commit of ours has marked the thread. Metadata stay until they are given anew.
        self.marked = False

    @property
    def owned(self) -> bool:
        return self._owner is not None

    def commit(
        self,
        thread: Thread,
        label: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        resolve: str | None = None,
    ) -> None:
        """Commit what is pending; changes that others have made in between are brought together with it."""
        if self._owner is not None:
            if label or metadata:
                raise UsageError("the owner of this thread commits it: give label and metadata there")
            commit_after_others(self._owner, thread, resolve)
            return
        if metadata is not None and not isinstance(metadata, Mapping):
            raise InvalidValueError("metadata must be a mapping", path="metadata")
        if not self.marked:
            metadata = {**(metadata or {}), **self._missing(thread)}
        commit_after_others(lambda: thread.commit(label=label, metadata=metadata), thread, resolve)
        self.marked = True

    def mark(self, thread: Thread) -> None:
        """Mark a thread that has just been forked: it carries its source's marks."""
        thread.commit(metadata=tags(thread.name, self._session_id))
        self.marked = True

    def _missing(self, thread: Thread) -> dict[str, Any]:
        """The marks, unless the head at hand has them."""
        known = {} if thread.head is None else thread.head.metadata
        wanted = tags(thread.name, self._session_id)
        return {} if all(known.get(name) == value for name, value in wanted.items()) else wanted


def check_resolve(resolve: str | None) -> None:
    if resolve not in (None, "ours", "theirs"):
        raise InvalidValueError('resolve is "ours" or "theirs"', path="resolve")


def commit_after_others(commit: Callable[[], Any], thread: Thread, resolve: str | None = None) -> None:
    """Commit; where somebody else was first, move the changes onto theirs and commit again.

    Raises :class:`MergeConflictError`, a :class:`ConflictError`, where both changed the same thing in
    different ways; the changes are still in the handle then.
    """
    for attempt in range(TRIES):
        try:
            commit()
            return
        except MergeConflictError:
            raise
        except ConflictError:
            if attempt + 1 == TRIES:
                raise
        rebase(thread, resolve)
        if attempt > 1:
            time.sleep(random.uniform(0, min(0.001 * 2**attempt, 0.05)))  # noqa: S311 - no secret


def rebase(thread: Thread, resolve: str | None = None) -> None:
    """Move a handle's uncommitted changes onto the newest version.

    Changes of different items, or of different fields of one, come together; two times for the same event are
    settled by the rule. ``resolve`` says whose change stands in all other cases, in the fields of items;
    without it these raise :class:`MergeConflictError` and nothing is moved.
    """
    for attempt in range(TRIES):
        try:
            thread.rebase()
            return
        except MergeConflictError as error:
            conflicts = list(error.conflicts)
            if attempt + 1 == TRIES or not all(_may_settle(each, resolve) for each in conflicts):
                raise _explained(error) from error
        if _settle(thread, conflicts, resolve):
            return


def _may_settle(conflict: Conflict, resolve: str | None) -> bool:
    return _rule(conflict) is not None or (resolve is not None and conflict.path[:1] in _OURS)


def _rule(conflict: Conflict) -> Callable[[str, str], str] | None:
    """How to settle it without asking: only two times in the same field of an item are that clear."""
    path = conflict.path
    if len(path) != 3 or path[0] not in COLLECTIONS:
        return None
    both = isinstance(conflict.ours, str) and isinstance(conflict.theirs, str)
    return _SETTLED.get(path[2]) if both else None


def _settle(thread: Thread, conflicts: list[Conflict], resolve: str | None) -> bool:
    """Take our side of the conflicts back, rebase, and put it on top of theirs where it stands.

    False if there are new conflicts, since somebody else has committed again; then all is as it was.
    """
    head = thread.head
    base = thread.at(head).state if head is not None else None
    ours: dict[Place, Any] = {}
    for conflict in conflicts:
        # The whole field of an item: inside a value, places in lists may have moved.
        place = conflict.path[:3]
        if place not in ours:
            ours[place] = _get(thread.state, place)
            _put(thread.state, place, ABSENT if base is None else _get(base, place))
    try:
        thread.rebase()
    except BaseException as error:
        for place, value in ours.items():
            _put(thread.state, place, value)
        if isinstance(error, MergeConflictError):
            return False
        raise
    for conflict in conflicts:
        rule = _rule(conflict)
        place = conflict.path[:3]
        if rule is not None:
            _put(thread.state, place, rule(conflict.ours, conflict.theirs))
        elif resolve == "ours":
            _put(thread.state, place, ours[place])
    return True


def _get(root: Any, place: Place) -> Any:
    """What stands at a place, as plain data, or ABSENT."""
    node = root
    for key in place:
        if not isinstance(node, TrackedDict) or key not in node:
            return ABSENT
        node = node[key]
    return node.plain() if hasattr(node, "plain") else node


def _put(root: TrackedDict, place: Place, value: Any) -> None:
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


def _explained(error: MergeConflictError) -> MergeConflictError:
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
