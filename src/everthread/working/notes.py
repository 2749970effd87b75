"""What can be written into a working state and read from it, wherever its document is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeVar

from everthread.arguments import check_name
from everthread.errors import InvalidValueError
from everthread.values import check_text
from everthread.working.items import (
    Constraint,
    ContextItem,
    Intention,
    OpenLoop,
    Priority,
    Todo,
    TodoStatus,
)
from everthread.working.layout import CONSTRAINTS, CONTEXT_ITEMS, INTENTIONS, OPEN_LOOPS, TODOS, Item
from everthread.working.shelves import Shelves

Choice = TypeVar("Choice", bound=StrEnum)


class Notes(ABC):
    """Todos, context, open loops, intentions and constraints.

    Reading gives frozen values made at that moment. Where an id is asked for, the item itself does as well.
    What isn't there raises :class:`InvalidStateError`, what can't be stored :class:`InvalidValueError`; then
    nothing is changed.
    """

    _shelves: Shelves

    @abstractmethod
    def _changed(self) -> None:
        """Called after every change."""

    def _told(self, item: Item) -> Item:
        self._changed()
        return item

    # ── todos ────────────────────────────────────────────────────────────────────────────────

    @property
    def todos(self) -> list[Todo]:
        """All todos, in the order in which they were added."""
        return self._shelves.all(TODOS)

    def add_todo(self, content: Any, priority: str = Priority.MEDIUM) -> Todo:
        """Add a pending todo. ``priority``: low, medium, high or critical."""
        fields = {
            "content": check_text(content, "a todo's content"),
            "status": TodoStatus.PENDING.value,
            "priority": _choice(Priority, priority, "priority").value,
        }
        return self._told(self._shelves.add(TODOS, fields))

    def get_todo(self, id: str | Todo) -> Todo:
        """The todo with this id."""
        return self._shelves.one(TODOS, _id(id))

    def start_todo(self, id: str | Todo) -> Todo:
        """Set it in progress."""
        return self._move(id, TodoStatus.IN_PROGRESS)

    def complete_todo(self, id: str | Todo) -> Todo:
        """Set it completed, and stamp ``completed_at`` unless it is completed already."""
        return self._move(id, TodoStatus.COMPLETED)

    def cancel_todo(self, id: str | Todo) -> Todo:
        """Set it cancelled, whatever it was."""
        return self._move(id, TodoStatus.CANCELLED)

    def reopen_todo(self, id: str | Todo) -> Todo:
        """Set it pending again."""
        return self._move(id, TodoStatus.PENDING)

    def update_todo(self, id: str | Todo, *, content: Any = None, priority: str | None = None) -> Todo:
        """Change its content or priority; what isn't given stays."""
        changes: dict[str, Any] = {}
        if content is not None:
            changes["content"] = check_text(content, "a todo's content")
        if priority is not None:
            changes["priority"] = _choice(Priority, priority, "priority").value
        return self._told(self._shelves.change(TODOS, _id(id), changes))

    def remove_todo(self, id: str | Todo) -> Todo:
        """Take it out; the todo as it was."""
        return self._told(self._shelves.remove(TODOS, _id(id)))

    def _move(self, id: str | Todo, status: TodoStatus) -> Todo:
        known = self._shelves.one(TODOS, _id(id))
        changes: dict[str, Any] = {"status": status.value}
        if status is not TodoStatus.COMPLETED:
            if known.completed_at is not None:
                changes["completed_at"] = None
        elif known.completed_at is None or known.status is not status:
            return self._told(self._shelves.change(TODOS, known.id, changes, "completed_at"))
        return self._told(self._shelves.change(TODOS, known.id, changes))

    # ── context ──────────────────────────────────────────────────────────────────────────────

    @property
    def context(self) -> dict[str, ContextItem]:
        """All context items by key, in the order in which the keys were first set."""
        return {item.key: item for item in self._shelves.all(CONTEXT_ITEMS)}

    def set_context(
        self, key: str, value: Any, metadata: Mapping[str, Any] | None = None, verify: Any = None
    ) -> ContextItem:
        """Keep ``value`` under ``key``, in place of what was there.

        ``verify`` says how to find out later whether it still holds: a check of ``everthread.verifiers``, the
        name of a registered one, or a registered function; its expectation is taken now. Raises
        :class:`LimitError` if the key is new and ``max_context_entries`` are there already.
        """
        key = check_name(key, "context key")
        if metadata is not None and not isinstance(metadata, Mapping):
            raise InvalidValueError("metadata must be a mapping", path="metadata")
        fields: dict[str, Any] = {"value": value}
        if metadata:
            fields["metadata"] = dict(metadata)
        if verify is not None:
            from everthread.verifiers import capture

            fields["verify"] = capture(verify, value)
        return self._told(
            self._shelves.put(CONTEXT_ITEMS, key, fields, ("metadata", "verify", "verified_at"))
        )

    def get_context(self, key: str, default: Any = None) -> Any:
        """The value under ``key``, or ``default``."""
        item = self._shelves.find(CONTEXT_ITEMS, key)
        return default if item is None else item.value

    def remove_context(self, key: str) -> ContextItem:
        """Take it out; the item as it was."""
        return self._told(self._shelves.remove(CONTEXT_ITEMS, key))

    def mark_verified(self, key: str) -> ContextItem:
        """Note that the value under ``key`` was just found to hold still."""
        return self._told(self._shelves.change(CONTEXT_ITEMS, key, {}, "verified_at", touch=False))

    # ── open loops ───────────────────────────────────────────────────────────────────────────

    @property
    def open_loops(self) -> list[OpenLoop]:
        """All loops, the resolved ones too: ``loop.open`` tells."""
        return self._shelves.all(OPEN_LOOPS)

    def add_open_loop(self, description: Any, context: Any = None) -> OpenLoop:
        """Note something that must be come back to; ``context`` is whatever will help then."""
        fields = {"description": check_text(description, "an open loop's description")}
        if context is not None:
            fields["context"] = context
        return self._told(self._shelves.add(OPEN_LOOPS, fields))

    def resolve_open_loop(self, id: str | OpenLoop) -> OpenLoop:
        """Stamp ``resolved_at``; one that is resolved keeps its stamp."""
        known = self._shelves.one(OPEN_LOOPS, _id(id))
        return (
            self._told(self._shelves.change(OPEN_LOOPS, known.id, {}, "resolved_at")) if known.open else known
        )

    # ── intentions and constraints ───────────────────────────────────────────────────────────

    @property
    def intentions(self) -> list[Intention]:
        """All intentions, the latest last."""
        return self._shelves.all(INTENTIONS)

    def set_intention(self, text: Any) -> Intention:
        """Say what is about to be done; earlier intentions are kept."""
        return self._told(self._shelves.add(INTENTIONS, {"text": check_text(text, "an intention")}))

    def get_intention(self) -> Any:
        """The latest intention's text, or ``None``."""
        latest = self._shelves.last(INTENTIONS)
        return None if latest is None else latest.text

    @property
    def constraints(self) -> list[Constraint]:
        """All standing orders."""
        return self._shelves.all(CONSTRAINTS)

    def add_constraint(self, text: Any) -> Constraint:
        """Add a standing order."""
        return self._told(self._shelves.add(CONSTRAINTS, {"text": check_text(text, "a constraint")}))

    def remove_constraint(self, id: str | Constraint) -> Constraint:
        """Lift a standing order; the constraint as it was."""
        return self._told(self._shelves.remove(CONSTRAINTS, _id(id)))


def _id(item: Any) -> Any:
    return item if isinstance(item, str) else getattr(item, "id", item)


def _choice(kind: type[Choice], value: Any, name: str) -> Choice:
    try:
        return kind(value)
    except ValueError:
        names = ", ".join(each.value for each in kind)
        raise InvalidValueError(f"{name} is one of {names}, not {value!r}", path=name) from None
