"""The working state of an agent: a typed view of a thread that is saved, loaded, forked and rewound."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self, TypeVar

from everthread.arguments import check_name
from everthread.codec.schema import CURRENT_SCHEMA_VERSION, VERSION_FIELD
from everthread.errors import InvalidStateError, InvalidValueError
from everthread.hooks import Notifier, SessionLifecycle
from everthread.values import check_text
from everthread.working.config import CONTEXT_ENTRIES_MAX, Config, check_hooks, checked_config
from everthread.working.document import Backing, Collections, Lock, Saver, check_resolve, locked
from everthread.working.home import Home, View, find_state, id_of, is_named, latest_state, new_name
from everthread.working.items import (
    CONSTRAINTS,
    CONTEXT_ITEMS,
    INTENTIONS,
    OPEN_LOOPS,
    TODOS,
    Constraint,
    ContextItem,
    Intention,
    Item,
    OpenLoop,
    Priority,
    StateStatus,
    Todo,
    TodoStatus,
    check_version,
    snapshot_of,
)

if TYPE_CHECKING:
    import datetime as dt
    from types import TracebackType

    from everthread.history.merge import Merge
    from everthread.threads.sync.thread import AnyVersion, Thread
    from everthread.versions import Version


# ── what a state holds ──────────────────────────────────────────────────────────────────────────────


Choice = TypeVar("Choice", bound=StrEnum)


class Notes(ABC):
    """Todos, context, open loops, intentions and constraints.

    Reading gives frozen values made at that moment. Where an id is asked for, the item itself does as well.
    What isn't there raises :class:`InvalidStateError`, what can't be stored :class:`InvalidValueError`; then
    nothing is changed.
    """

    _collections: Collections

    @abstractmethod
    def _changed(self) -> None:
        """Called after every change."""

    def _notified(self, item: Item) -> Item:
        """The item, after saying that something changed."""
        self._changed()
        return item

    # ── todos ────────────────────────────────────────────────────────────────────────────────

    @property
    def todos(self) -> list[Todo]:
        """All todos, in the order in which they were added."""
        return self._collections.all(TODOS)

    def add_todo(self, content: Any, priority: str = Priority.MEDIUM) -> Todo:
        """Add a pending todo. ``priority``: low, medium, high or critical."""
        fields = {
            "content": check_text(content, "a todo's content"),
            "status": TodoStatus.PENDING.value,
            "priority": _choice(Priority, priority, "priority").value,
        }
        return self._notified(self._collections.add(TODOS, fields))

    def get_todo(self, id: str | Todo) -> Todo:
        """The todo with this id."""
        return self._collections.one(TODOS, _id(id))

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
        return self._notified(self._collections.change(TODOS, _id(id), changes))

    def remove_todo(self, id: str | Todo) -> Todo:
        """Take it out; the todo as it was."""
        return self._notified(self._collections.remove(TODOS, _id(id)))

    def _move(self, id: str | Todo, status: TodoStatus) -> Todo:
        known = self._collections.one(TODOS, _id(id))
        changes: dict[str, Any] = {"status": status.value}
        if status is not TodoStatus.COMPLETED:
            if known.completed_at is not None:
                changes["completed_at"] = None
        elif known.completed_at is None or known.status is not status:
            return self._notified(self._collections.change(TODOS, known.id, changes, "completed_at"))
        return self._notified(self._collections.change(TODOS, known.id, changes))

    # ── context ──────────────────────────────────────────────────────────────────────────────

    @property
    def context(self) -> dict[str, ContextItem]:
        """All context items by key, in the order in which the keys were first set."""
        return {item.key: item for item in self._collections.all(CONTEXT_ITEMS)}

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
        return self._notified(
            self._collections.put(CONTEXT_ITEMS, key, fields, ("metadata", "verify", "verified_at"))
        )

    def get_context(self, key: str, default: Any = None) -> Any:
        """The value under ``key``, or ``default``."""
        item = self._collections.find(CONTEXT_ITEMS, key)
        return default if item is None else item.value

    def remove_context(self, key: str) -> ContextItem:
        """Take it out; the item as it was."""
        return self._notified(self._collections.remove(CONTEXT_ITEMS, key))

    def mark_verified(self, key: str) -> ContextItem:
        """Note that the value under ``key`` was just found to hold still."""
        return self._notified(self._collections.change(CONTEXT_ITEMS, key, {}, "verified_at", touch=False))

    # ── open loops ───────────────────────────────────────────────────────────────────────────

    @property
    def open_loops(self) -> list[OpenLoop]:
        """All loops, the resolved ones too: ``loop.open`` tells."""
        return self._collections.all(OPEN_LOOPS)

    def add_open_loop(self, description: Any, context: Any = None) -> OpenLoop:
        """Note something that must be come back to; ``context`` is whatever will help then."""
        fields = {"description": check_text(description, "an open loop's description")}
        if context is not None:
            fields["context"] = context
        return self._notified(self._collections.add(OPEN_LOOPS, fields))

    def resolve_open_loop(self, id: str | OpenLoop) -> OpenLoop:
        """Stamp ``resolved_at``; one that is resolved keeps its stamp."""
        known = self._collections.one(OPEN_LOOPS, _id(id))
        if not known.open:
            return known
        return self._notified(self._collections.change(OPEN_LOOPS, known.id, {}, "resolved_at"))

    # ── intentions and constraints ───────────────────────────────────────────────────────────

    @property
    def intentions(self) -> list[Intention]:
        """All intentions, the latest last."""
        return self._collections.all(INTENTIONS)

    def set_intention(self, text: Any) -> Intention:
        """Say what is about to be done; earlier intentions are kept."""
        return self._notified(self._collections.add(INTENTIONS, {"text": check_text(text, "an intention")}))

    def get_intention(self) -> Any:
        """The latest intention's text, or ``None``."""
        latest = self._collections.last(INTENTIONS)
        return None if latest is None else latest.text

    @property
    def constraints(self) -> list[Constraint]:
        """All standing orders."""
        return self._collections.all(CONSTRAINTS)

    def add_constraint(self, text: Any) -> Constraint:
        """Add a standing order."""
        return self._notified(self._collections.add(CONSTRAINTS, {"text": check_text(text, "a constraint")}))

    def remove_constraint(self, id: str | Constraint) -> Constraint:
        """Lift a standing order; the constraint as it was."""
        return self._notified(self._collections.remove(CONSTRAINTS, _id(id)))


def _id(item: Any) -> Any:
    return item if isinstance(item, str) else getattr(item, "id", item)


def _choice(kind: type[Choice], value: Any, name: str) -> Choice:
    try:
        return kind(value)
    except ValueError:
        names = ", ".join(each.value for each in kind)
        raise InvalidValueError(f"{name} is one of {names}, not {value!r}", path=name) from None


class WorkingState(Notes):
    """What an agent has in mind: todos, context, open loops, intentions, constraints.

    Without arguments: a new state that :meth:`save` keeps in the default store. ``config`` says otherwise;
    ``store`` is an open store or the URL of one; with ``thread`` the state is that of the thread of this
    name, which other parts of the program may use as well. A new state opens nothing before it is saved.

    Several objects, also in several processes, may be on the same thread: at saving, their changes are
    brought together. One object may be used by several threads of execution, but not the handle beneath it.
    Close it, or use it as a context manager: leaving the block without an exception saves what isn't saved.
    """

    def __init__(
        self,
        config: Config | None = None,
        *,
        store: Any = None,
        thread: str | None = None,
        hooks: SessionLifecycle | None = None,
        auto_save: bool | None = None,
        clock: Callable[[], int] | None = None,
        ids: Callable[[], str] | None = None,
    ) -> None:
        name = new_name() if thread is None else check_name(thread, "thread name")
        config = checked_config(config)
        self._set_up(Backing(Home(store, config), name), config, hooks, auto_save, clock, ids)
        if thread is not None:
            self._backing.open_thread()
            self._check_schema()

    def _set_up(
        self,
        backing: Backing,
        config: Config,
        hooks: SessionLifecycle | None = None,
        auto_save: bool | None = None,
        clock: Callable[[], int] | None = None,
        ids: Callable[[], str] | None = None,
    ) -> None:
        check_hooks(hooks)
        self._collections = Collections(backing, context_max=config.max_context_entries, clock=clock, ids=ids)
        self._config = config
        self._hooks = Notifier(hooks if hooks is not None else config.hooks)
        self._auto = config.auto_save if auto_save is None else auto_save
        self._backing = backing
        self._view = View(backing.home)
        self._saver = Saver(config.session_id)
        self._touched = False
        #: What a recovery found, if this state came from one.
        self.recovery: Any = None

    # ── other ways to get one ────────────────────────────────────────────────────────────────

    @classmethod
    def load(
        cls,
        id: str,
        config: Config | None = None,
        *,
        store: Any = None,
        hooks: SessionLifecycle | None = None,
    ) -> Self:
        """The state with the id that ``save()`` returned. Raises :class:`StateNotFoundError`."""
        state = cls._found(id, config, store, hooks)
        state._hooks.notify("on_load", state)
        return state

    @classmethod
    def resume(
        cls,
        id: str | None = None,
        config: Config | None = None,
        *,
        store: Any = None,
        hooks: SessionLifecycle | None = None,
    ) -> Self:
        """The state saved most recently, by the clocks of those who saved; or the one with this id.

        With a ``session_id`` in the config: the most recent one of that session. Raises
        :class:`StateNotFoundError` if there is none.
        """
        state = cls._found(id, config, store, hooks)
        state._hooks.notify("on_resume", state)
        return state

    @classmethod
    def _found(
        cls, id: str | None, config: Config | None, store: Any, hooks: SessionLifecycle | None
    ) -> Self:
        config = checked_config(config)
        home = Home(store, config)
        try:
            opened = home.open()
            name = latest_state(opened, config.session_id) if id is None else find_state(opened, id)
            state = cls.__new__(cls)
            state._set_up(Backing(home, name), config, hooks)
            state._backing.open_thread()
            state._check_schema()
        except BaseException:
            home.close()
            raise
        # It was found by its marks, at least by those without a session.
        state._saver.marked = id is None or config.session_id is None
        state._view.mend(state.id, state.snapshot, state.version)
        return state

    @classmethod
    def on(
        cls,
        thread: Thread,
        *,
        save: Callable[[], Any] | None = None,
        hooks: SessionLifecycle | None = None,
        max_context_entries: int = CONTEXT_ENTRIES_MAX,
        clock: Callable[[], int] | None = None,
        ids: Callable[[], str] | None = None,
        lock: Lock | None = None,
    ) -> Self:
        """The state in the document of a handle that somebody else owns. Reads nothing yet.

        With ``save``, every change calls it, and so does :meth:`save`: it must commit the handle. If it
        raises, the change stays uncommitted in the handle; if it raises :class:`ConflictError`, the changes
        are moved onto the newest version and it is called again. Without it, :meth:`save` commits. ``lock``,
        a re-entrant one, is held while the handle is read or changed.
        """
        state = cls.__new__(cls)
        config = Config(max_context_entries=max_context_entries)
        state._set_up(Backing(None, thread.name, lock), config, hooks, save is not None, clock, ids)
        state._backing.adopt(thread)
        state._saver = Saver(None, save)
        return state

    @classmethod
    def past(cls, thread: Thread, version: AnyVersion) -> Self:
        """The state in a thread's document as it was at a version. Read only."""
        state = cls.__new__(cls)
        state._set_up(Backing(None, thread.name), Config())
        state._backing.adopt(thread, thread.at(version))
        return state

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
    def thread(self) -> Thread:
        """The handle beneath: its logs, commit, watch and all the rest. Opens the store."""
        return self._backing.open_thread()

    @property
    def read_only(self) -> bool:
        return self._backing.past is not None

    @property
    def closed(self) -> bool:
        return self._backing.closed

    @locked
    def snapshot(self) -> dict[str, Any]:
        """Everything as one plain dict: ``todos``, ``context``, ``open_loops``, ``intentions``,
        ``constraints``, ``schema_version``, ``id``, and what else is in the document. Writes nothing."""
        document = {} if self._collections.blank else self._backing.root().plain()
        found = {"id": self.id, **snapshot_of(document, whole=not self._saver.owned)}
        return found if self._config.session_id is None else {"session_id": self._config.session_id, **found}

    # ── saving ───────────────────────────────────────────────────────────────────────────────

    def save(
        self,
        label: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        *,
        resolve: str | None = None,
    ) -> str:
        """Make what changed durable; the id, also if nothing changed.

        Where others have saved in between, changes of different things are brought together. Raises
        :class:`ConflictError` where both changed the same thing; then ``resolve="ours"`` or ``"theirs"`` says
        whose change stands, or :meth:`reload` gives the own ones up. Raises :class:`StorageWriteError` if the
        disk refused: the changes are kept, save again.
        """
        check_resolve(resolve)
        if self._commit(label, metadata, resolve):
            self._written("on_save")
        else:
            self._show()
        return self.id

    @locked
    def _commit(self, label: str | None, metadata: Mapping[str, Any] | None, resolve: str | None) -> bool:
        """Commit what there is; whether there was anything."""
        self._backing.check_writable()
        thread = self._backing.open_thread()
        self._collections.clear(thread.state)
        if thread.head is not None and not (self._touched or thread.dirty or label or metadata):
            return False
        thread.state.setdefault(VERSION_FIELD, CURRENT_SCHEMA_VERSION)
        self._saver.commit(thread, label, metadata, resolve)
        self._touched = False
        self._view.due = True
        return True

    @locked
    def _show(self) -> None:
        """Bring the readable view up to date, if there is one and it isn't."""
        if not self._backing.dirty:
            self._view.write(self.id, self.snapshot, self.version)

    def _written(self, event: str) -> None:
        """There is a new version: show it, and tell of it even if that fails."""
        try:
            self._show()
        finally:
            self._hooks.notify(event, self)

    @locked
    def reload(self) -> None:
        """Give up what isn't saved, and show the newest saved version."""
        self._backing.check_writable()
        thread = self._backing.thread
        if thread is None:
            self._backing.start_over()
        else:
            if not self._saver.owned:
                thread.discard()
            thread.refresh()
            self._check_schema()
        self._touched = self._collections.blank = False

    def discard(self) -> None:
        """Forget what isn't saved and start over, empty and NEW; nothing is deleted from the store.

        A state without a thread name becomes another state with an id of its own. One on a named thread stays
        on it: the next save makes an empty version, and :meth:`rewind` brings the old contents back.
        """
        self._start_over()
        self._hooks.notify("on_discard", self)

    @locked
    def _start_over(self) -> None:
        self._backing.check_writable()
        if self._saver.owned:
            self._collections.blank = True
        elif is_named(self._backing.name):
            self._backing.open_thread().discard()
            self._collections.blank = True
        else:
            self._backing.start_over()
            self._saver.marked = False
            self._view.due = False
        self._touched = False
        self.recovery = None

    # ── the past, and other lines ────────────────────────────────────────────────────────────

    def history(self, limit: int | None = 20, before: AnyVersion | None = None) -> Iterator[Version]:
        """The versions that were saved, newest first, lazily."""
        self._backing.check_open()
        return iter(()) if self._backing.thread is None else self._backing.thread.history(limit, before)

    def at(self, version: AnyVersion) -> Self:
        """The state as it was at a version, read only."""
        return self.past(self._backing.open_thread(), version)

    def rewind(self, version: AnyVersion) -> Version:
        """Go back to a version, with everything else that is in the thread. Itself a version, so undoable."""
        with self._backing.lock:
            made = self._own_thread("rewind").rewind(version)
            self._collections.blank = False
            self._view.due = True
        self._written("on_rewind")
        return made

    def fork(self, name: str | None = None, at: AnyVersion | None = None) -> Self:
        """Another state that starts from this one, or from a version of it, and goes its own way.

        Its thread is called ``name``. Refuses while there are unsaved changes.
        """
        with self._backing.lock:
            self._backing.check_writable()
            forked = self._backing.open_thread().fork(new_name() if name is None else name, at=at)
        home = self._backing.home
        state = type(self).__new__(type(self))
        backing = Backing(None if home is None else home.another(), forked.name)
        if backing.home is not None:
            # Held open for the fork, also when this state is closed.
            backing.home.open()
            backing.home.hold(forked)
        auto = self._auto and not self._saver.owned
        state._set_up(
            backing, self._config, self._hooks.lifecycle, auto, self._collections.clock, self._collections.ids
        )
        backing.adopt(forked)
        state._saver.mark(forked)
        state._view.due = True
        state._written("on_fork")
        return state

    def merge(self, other: WorkingState, *, resolve: Any = None, unrelated: bool = False) -> Merge:
        """Bring in what ``other`` did since both went apart: see :meth:`Thread.merge`."""
        with self._backing.lock:
            merged = self._own_thread("merge").merge(other.thread, resolve=resolve, unrelated=unrelated)
            self._view.due = bool(merged)
        if merged:
            self._written("on_save")
        return merged

    # ── its end ──────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Release the store; what isn't saved is given up. May be called twice."""
        if not self.closed:
            self._hooks.notify("on_close", self)
            self._backing.close()

    def __enter__(self) -> Self:
        self._backing.check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None and not self.closed and self.status is StateStatus.DIRTY:
                self.save()
        finally:
            self.close()

    def __repr__(self) -> str:
        if self.closed:
            return f"<working state {self.id}: closed>"
        past = f", {self.version}" if self.read_only else ""
        return f"<working state {self.id}: {self.status.value}{past}>"

    # ── inside ───────────────────────────────────────────────────────────────────────────────

    def _changed(self) -> None:
        self._touched = True
        self._hooks.notify("on_change", self)
        if self._auto:
            self.save()

    def _check_schema(self) -> None:
        check_version(self._backing.root().get(VERSION_FIELD), self._config.schema_version)

    def _own_thread(self, verb: str) -> Thread:
        self._backing.check_writable()
        if self._saver.owned:
            raise InvalidStateError(f"this thread belongs to a session or another owner: {verb} it there")
        return self._backing.open_thread()
