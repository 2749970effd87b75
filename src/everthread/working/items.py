"""What a working state holds, as frozen values that are safe to share between threads."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

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
