"""What a working state holds, as frozen values, and how these lie in the document of a thread."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

import msgspec

from everthread.codec.schema import CURRENT_SCHEMA_VERSION, VERSION_FIELD
from everthread.codec.types import Code
from everthread.codec.values import lift, lower
from everthread.errors import InvalidStateError, SchemaVersionError, StateCorruptedError
from everthread.threads.document import Document, TrackedDict
from everthread.values import Opaque, Personal, Tagged
from everthread.versions import NO_METADATA


class StateStatus(StrEnum):
    """NEW: never saved, nothing in it. LOADED: as it is saved. DIRTY: with changes that aren't saved yet."""

    NEW = "NEW"
    LOADED = "LOADED"
    DIRTY = "DIRTY"


class TodoStatus(StrEnum):
    """Where a todo stands. Any change from one to another is allowed."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    CANCELLED = "cancelled"


class Priority(StrEnum):
    """How urgent a todo is."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        """0 for low up to 3 for critical, to sort by."""
        return _RANKS[self]


_RANKS = {priority: rank for rank, priority in enumerate(Priority)}


class Todo(msgspec.Struct, frozen=True, kw_only=True):
    """Something to do. ``content`` is text, or a ``Personal`` with text in it.

    Times are aware datetimes in UTC; ``created_at`` and ``updated_at`` are ``None`` where nobody knows them
    (data of an older form, or recovered ones). ``completed_at`` is set while the status is completed.
    """

    id: str
    content: Any
    status: TodoStatus = TodoStatus.PENDING
    priority: Priority = Priority.MEDIUM
    created_at: dt.datetime | None = None
    updated_at: dt.datetime | None = None
    completed_at: dt.datetime | None = None

    @property
    def text(self) -> Any:
        return self.content

    @property
    def open(self) -> bool:
        """Whether it still is to be done."""
        return self.status in (TodoStatus.PENDING, TodoStatus.IN_PROGRESS)

    def __hash__(self) -> int:
        return hash(self.id)


class ContextItem(msgspec.Struct, frozen=True, kw_only=True):
    """Something known: a value under a key.

    ``verify`` says how to find out whether it still holds, as it is stored: the name of a verifier and its
    arguments. ``verified_at`` is when that was last found true.
    """

    key: str
    value: Any
    metadata: Mapping[str, Any] = NO_METADATA
    verify: Mapping[str, Any] | None = None
    created_at: dt.datetime | None = None
    updated_at: dt.datetime | None = None
    verified_at: dt.datetime | None = None

    @property
    def id(self) -> str:
        return self.key

    @property
    def text(self) -> str:
        return self.key

    def __hash__(self) -> int:
        return hash(self.key)


class OpenLoop(msgspec.Struct, frozen=True, kw_only=True):
    """Something that was begun or promised and isn't settled; ``resolved_at`` is set once it is."""

    id: str
    description: Any
    context: Any = None
    created_at: dt.datetime | None = None
    updated_at: dt.datetime | None = None
    resolved_at: dt.datetime | None = None

    @property
    def text(self) -> Any:
        return self.description

    @property
    def open(self) -> bool:
        return self.resolved_at is None

    def __hash__(self) -> int:
        return hash(self.id)


class Intention(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent is about to do, in its own words. The latest one counts."""

    id: str
    text: Any
    created_at: dt.datetime | None = None
    updated_at: dt.datetime | None = None

    def __hash__(self) -> int:
        return hash(self.id)


class Constraint(msgspec.Struct, frozen=True, kw_only=True):
    """A standing order. Shown verbatim in every briefing."""

    id: str
    text: Any
    created_at: dt.datetime | None = None
    updated_at: dt.datetime | None = None

    def __hash__(self) -> int:
        return hash(self.id)


# ── how items lie in a document ─────────────────────────────────────────────────────────────────────
# In the document every collection is a dictionary from an item's id to its fields, so that a change of one
# item is one small edit however many there are, and so that changes of different items merge.
# ``snapshot()`` shows the same with lists, which is the shape that ``migrate`` and ``SelfHealer`` know.


Item = TypeVar("Item", Todo, ContextItem, OpenLoop, Intention, Constraint)

CONTEXT: Final = "context"
# Looked up rather than called: a state may have many todos.
_STATUSES: Final = {each.value: each for each in TodoStatus}
_PRIORITIES: Final = {each.value: each for each in Priority}
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class Kind(msgspec.Struct, Generic[Item], frozen=True, kw_only=True):
    """One collection: its key in the document, what an item is called, which field holds its text."""

    key: str
    one: str
    many: str
    text: str
    build: Callable[[str, Mapping[str, Any]], Item]
    #: Fields that hold a time, besides those which every item has.
    times: tuple[str, ...] = ()

    def read(self, id: str, fields: Any) -> Item:
        """The item with this id. Raises :class:`StateCorruptedError` if the fields make none."""
        try:
            return self.build(id, fields)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            where = f"{self.key}[{id!r}]"
            raise StateCorruptedError(
                f"state.{where} isn't {self.one} ({type(error).__name__}: {error}); "
                "SelfHealer.recover(state.snapshot()) builds a state of what is sound",
                where=where,
            ) from error


def write_time(at_us: int) -> str:
    """A moment in µs since 1970 as the document holds it."""
    return (_EPOCH + dt.timedelta(microseconds=at_us)).isoformat(timespec="microseconds")


def read_time(value: Any) -> dt.datetime | None:
    """The moment that ``value`` (or None) stands for. Raises :class:`ValueError` or :class:`TypeError`."""
    if value is None:
        return None
    moment = dt.datetime.fromisoformat(value) if type(value) is str else value
    if not isinstance(moment, dt.datetime):
        raise TypeError(f"{type(value).__name__} is no time")
    return moment.replace(tzinfo=dt.UTC) if moment.tzinfo is None else moment


def _todo(id: str, fields: Mapping[str, Any]) -> Todo:
    return Todo(
        id=id,
        content=fields["content"],
        status=_STATUSES[fields.get("status", "pending")],
        priority=_PRIORITIES[fields.get("priority", "medium")],
        created_at=read_time(fields.get("created_at")),
        updated_at=read_time(fields.get("updated_at")),
        completed_at=read_time(fields.get("completed_at")),
    )


def _context_item(key: str, fields: Mapping[str, Any]) -> ContextItem:
    metadata, verify = fields.get("metadata"), fields.get("verify")
    return ContextItem(
        key=key,
        value=fields["value"],
        metadata=MappingProxyType(dict(metadata)) if metadata else NO_METADATA,
        verify=MappingProxyType(dict(verify)) if verify else None,
        created_at=read_time(fields.get("created_at")),
        updated_at=read_time(fields.get("updated_at")),
        verified_at=read_time(fields.get("verified_at")),
    )


def _open_loop(id: str, fields: Mapping[str, Any]) -> OpenLoop:
    return OpenLoop(
        id=id,
        description=fields["description"],
        context=fields.get("context"),
        created_at=read_time(fields.get("created_at")),
        updated_at=read_time(fields.get("updated_at")),
        resolved_at=read_time(fields.get("resolved_at")),
    )


def _intention(id: str, fields: Mapping[str, Any]) -> Intention:
    return Intention(
        id=id,
        text=fields["text"],
        created_at=read_time(fields.get("created_at")),
        updated_at=read_time(fields.get("updated_at")),
    )


def _constraint(id: str, fields: Mapping[str, Any]) -> Constraint:
    return Constraint(
        id=id,
        text=fields["text"],
        created_at=read_time(fields.get("created_at")),
        updated_at=read_time(fields.get("updated_at")),
    )


TODOS: Final = Kind(
    key="todos", one="a todo", many="todos", text="content", build=_todo, times=("completed_at",)
)
CONTEXT_ITEMS: Final = Kind(
    key=CONTEXT,
    one="a context item",
    many="context items",
    text="value",
    build=_context_item,
    times=("verified_at",),
)
OPEN_LOOPS: Final = Kind(
    key="open_loops",
    one="an open loop",
    many="open loops",
    text="description",
    build=_open_loop,
    times=("resolved_at",),
)
INTENTIONS: Final = Kind(
    key="intentions", one="an intention", many="intentions", text="text", build=_intention
)
CONSTRAINTS: Final = Kind(
    key="constraints", one="a constraint", many="constraints", text="text", build=_constraint
)

#: In the order in which they are shown.
KINDS: Final[Mapping[str, Kind[Any]]] = MappingProxyType(
    {kind.key: kind for kind in (TODOS, CONTEXT_ITEMS, OPEN_LOOPS, INTENTIONS, CONSTRAINTS)}
)
COLLECTIONS: Final = tuple(KINDS)
#: Where a readable view says what it is.
VIEW_MARK: Final = "everthread"
#: How many of a program's own migrations have been applied to the document.
APPLIED_FIELD: Final = "migrations_applied"
#: Fields of a snapshot that say which state it is of, not what is in it.
IDENTITY: Final = frozenset({"id", "session_id", VERSION_FIELD, APPLIED_FIELD, VIEW_MARK})


def snapshot_of(document: dict[Any, Any], *, whole: bool = True) -> dict[Any, Any]:
    """A working state's plain form from the plain document, which is used up.

    Other keys of the document are part of it only where ``whole``.
    """
    snapshot: dict[Any, Any] = {VERSION_FIELD: document.pop(VERSION_FIELD, CURRENT_SCHEMA_VERSION)}
    for key in COLLECTIONS:
        items = document.pop(key, None)
        if key == CONTEXT:
            snapshot[key] = {} if items is None else items
        elif items is None:
            snapshot[key] = []
        elif isinstance(items, dict):
            snapshot[key] = [_listed(id, fields) for id, fields in items.items()]
        else:
            snapshot[key] = items
    return {**snapshot, **document} if whole else snapshot


def _listed(id: Any, fields: Any) -> Any:
    return {"id": id, **fields} if isinstance(fields, dict) else fields


def taken(kind: Kind[Any], value: Any) -> InvalidStateError:
    """What is raised where something else stands in a collection's place. Nothing is damaged: it was put."""
    return InvalidStateError(
        f"state[{kind.key!r}] is the place of a working state's {kind.many} (a dictionary by id), and this "
        f"document has {_described(value)} there; keep your own under another key, or use another thread "
        f"for it. The keys of a working state are {', '.join(COLLECTIONS)}, {VERSION_FIELD}"
    )


def _described(value: Any) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return "a list"
    return f"a value of type {type(value).__name__}"


def check_version(found: Any, supported: int) -> None:
    """Raise :class:`SchemaVersionError` if a document is newer than ``supported``; ``found`` may be None."""
    if found is None:
        return
    if type(found) is not int or found < 0:
        raise StateCorruptedError(f"{VERSION_FIELD} is {found!r}, which is no version", where=VERSION_FIELD)
    if found > supported:
        raise SchemaVersionError(
            f"the state has schema version {found}, and {supported} is the newest known here; "
            "upgrade Everthread to open it. Nothing was touched",
            found=found,
            supported=supported,
        )


# ── a document without a store ──────────────────────────────────────────────────────────────────────


class UnsavedDocument:
    """Behaves as a thread's document does, without a store: nothing is opened, read or written.

    Personal values wait here as they are; they are sealed when the document moves into a thread.
    """

    __slots__ = ("_document", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[bytes, Personal] = {}
        self._document = Document({}, lower=self._lower, lift=self._lift)

    @property
    def root(self) -> TrackedDict:
        return self._document.root

    def _lower(self, value: Any, where: str) -> Any:
        return lower(value, seal=self._keep, root=where)

    def _lift(self, node: Any) -> Any:
        return lift(node, self._kept)

    def _keep(self, personal: Personal) -> Tagged:
        token = b"loose %d" % len(self._waiting)
        self._waiting[token] = personal
        return Tagged(Code.SEALED, token)

    def _kept(self, sealed: Tagged) -> Any:
        return self._waiting.get(sealed.data) or Opaque(sealed)
