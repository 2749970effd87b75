"""What can be read of a working state without waiting: the same for both colours."""

from __future__ import annotations

import datetime as dt
from typing import Any

from everthread.errors import UsageError
from everthread.versions import Version
from everthread.working.config import Config
from everthread.working.document import Backing, Collections, locked
from everthread.working.home import id_of
from everthread.working.items import (
    CONSTRAINTS,
    CONTEXT_ITEMS,
    INTENTIONS,
    OPEN_LOOPS,
    TODOS,
    Constraint,
    ContextItem,
    Intention,
    OpenLoop,
    StateStatus,
    Todo,
    snapshot_of,
)


class StateReads:
    """Todos, context, open loops, intentions and constraints, as frozen values made at that moment.

    Where an id is asked for, the item itself does as well. What isn't there raises
    :class:`InvalidStateError`, and so does every use after :meth:`close`.
    """

    _backing: Backing
    _collections: Collections
    _config: Config
    _touched: bool
    #: Whether somebody else commits the thread: then only the collections are the state's.
    _is_owned: bool

    # ── what it holds ────────────────────────────────────────────────────────────────────────

    @property
    def todos(self) -> list[Todo]:
        """All todos, in the order in which they were added."""
        return self._collections.all(TODOS)

    def get_todo(self, id: str | Todo) -> Todo:
        """The todo with this id."""
        return self._collections.one(TODOS, id_in(id))

    @property
    def context(self) -> dict[str, ContextItem]:
        """All context items by key, in the order in which the keys were first set."""
        return {item.key: item for item in self._collections.all(CONTEXT_ITEMS)}

    def get_context(self, key: str, default: Any = None) -> Any:
        """The value under ``key``, or ``default``."""
        item = self._collections.find(CONTEXT_ITEMS, key)
        return default if item is None else item.value

    @property
    def open_loops(self) -> list[OpenLoop]:
        """All loops, the resolved ones too: ``loop.open`` tells."""
        return self._collections.all(OPEN_LOOPS)

    @property
    def intentions(self) -> list[Intention]:
        """All intentions, the latest last."""
        return self._collections.all(INTENTIONS)

    def get_intention(self) -> Any:
        """The latest intention's text, or ``None``."""
        latest = self._collections.last(INTENTIONS)
        return None if latest is None else latest.text

    @property
    def constraints(self) -> list[Constraint]:
        """All standing orders."""
        return self._collections.all(CONSTRAINTS)

    @locked
    def snapshot(self) -> dict[str, Any]:
        """Everything as one plain dict: ``todos``, ``context``, ``open_loops``, ``intentions``,
        ``constraints``, ``schema_version``, ``id``, and what else is in the document. Writes nothing."""
        document = {} if self._collections.blank else self._backing.root().plain()
        found = {"id": self.id, **snapshot_of(document, whole=not self._is_owned)}
        return found if self._config.session_id is None else {"session_id": self._config.session_id, **found}

    # ── what it is ───────────────────────────────────────────────────────────────────────────

    @property
    def id(self) -> str:
        """A UUID; the same over saves, and in every process."""
        return id_of(self._backing.name)

    @property
    def status(self) -> StateStatus:
        """NEW, LOADED or DIRTY."""
        version = self._backing.version
        if self._touched or self._backing.dirty:
            return StateStatus.DIRTY
        return StateStatus.NEW if self._collections.blank or version is None else StateStatus.LOADED

    @property
    def version(self) -> Version | None:
        """The version this state stands on; ``None`` before the first save."""
        return self._backing.version

    @property
    def updated_at(self) -> dt.datetime | None:
        """When the version it stands on was saved, by the clock of the process that saved it."""
        version = self.version
        return None if version is None else version.at

    @property
    def read_only(self) -> bool:
        return self._backing.past is not None

    @property
    def closed(self) -> bool:
        return self._backing.closed

    def __repr__(self) -> str:
        if self.closed or self._backing.unread:
            return f"<working state {self.id}: {'closed' if self.closed else 'not read yet'}>"
        past = f", {self.version}" if self.read_only else ""
        return f"<working state {self.id}: {self.status.value}{past}>"

    @property
    def _hooks(self) -> Any:
        raise AttributeError("_hooks")

    @_hooks.setter
    def _hooks(self, hooks: object) -> None:
        # Programs that come from elsewhere attach hooks in this way, and none of them would ever be called.
        raise UsageError(
            "hooks are attached when the state is made: hooks=… is an argument of the constructor, of load() "
            "and of resume(), and a field of Config"
        )


def id_in(item: Any) -> Any:
    """The id of an item; an id itself as it is."""
    return item if isinstance(item, str) else getattr(item, "id", item)
