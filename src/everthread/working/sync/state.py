# Generated from src/everthread/working/aio/state.py by tools/twin.py: change that, then run: make twin
"""The working state of an agent: a typed view of a thread that is saved, loaded, forked and rewound."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import StrEnum
from types import TracebackType
from typing import Any, Self, TypeVar

from everthread import process
from everthread.arguments import check_name
from everthread.codec.schema import CURRENT_SCHEMA_VERSION, VERSION_FIELD
from everthread.errors import InvalidStateError, InvalidValueError, StateNotFoundError, UsageError
from everthread.history.merge import Merge
from everthread.hooks import Notifier, SessionLifecycle
from everthread.stores.colours import aside
from everthread.threads.sync.thread import AnyVersion, Thread
from everthread.threads.twins import BlockingFace, iterated
from everthread.values import check_text
from everthread.versions import Version
from everthread.working.compare import StateDiff
from everthread.working.config import CONTEXT_ENTRIES_MAX, Config, check_hooks, checked_config
from everthread.working.document import Backing, Collections, Edit, check_resolve
from everthread.working.home import View, is_named, new_name, path_in
from everthread.working.items import (
    APPLIED_FIELD,
    CONSTRAINTS,
    CONTEXT_ITEMS,
    INTENTIONS,
    OPEN_LOOPS,
    TODOS,
    Constraint,
    ContextItem,
    Intention,
    Item,
    Kind,
    OpenLoop,
    Priority,
    StateStatus,
    Todo,
    TodoStatus,
    check_version,
)
from everthread.working.reads import StateReads, id_in
from everthread.working.sync.home import Home, find_state, latest_state
from everthread.working.sync.saver import Saver

Choice = TypeVar("Choice", bound=StrEnum)


class Notes(StateReads, ABC):
    """Changes of todos, context, open loops, intentions and constraints.

    What isn't there raises :class:`InvalidStateError`, what can't be stored :class:`InvalidValueError`; then
    nothing is changed. What is so already changes nothing, and makes no version.
    """

    @abstractmethod
    def _editing(self) -> Any:
        """Entered while the document is changed: nobody else changes or commits it meanwhile."""

    @abstractmethod
    def _changed(self) -> None:
        """Called after every change."""

    @abstractmethod
    def _save_the_rest(self) -> None:
        """Save what an earlier change could not, where every change is saved."""

    def _notified(self, item: Item) -> Item:
        """The item, after saying that something changed."""
        self._changed()
        return item

    def _added(self, kind: Kind[Item], fields: dict[str, Any], key: str | None) -> Item:
        """Add an item unless there is one of this key."""
        with self._editing():
            item = self._collections.under(kind, key)
            is_new = item is None
            if item is None:
                item = self._collections.add(kind, fields, key)
        (self._changed if is_new else self._save_the_rest)()
        # Saving it may have found that another process was first.
        return item if key is None else self._collections.one(kind, item.id)

    # ── todos ────────────────────────────────────────────────────────────────────────────────

    def add_todo(self, content: Any, priority: str = Priority.MEDIUM, *, key: str | None = None) -> Todo:
        """Add a pending todo. ``priority``: low, medium, high or critical. If a todo was added under the same
        ``key`` before, by any process, return that one as it is now and add nothing."""
        fields = {
            "content": check_text(content, "a todo's content"),
            "status": TodoStatus.PENDING.value,
            "priority": _choice(Priority, priority, "priority").value,
        }
        return self._added(TODOS, fields, key)

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
        with self._editing():
            known = self._collections.one(TODOS, id_in(id))
            self._backing.check_writable()
            if all(getattr(known, name) == value for name, value in changes.items()):
                return known
            todo = self._collections.change(TODOS, known.id, changes)
        return self._notified(todo)

    def remove_todo(self, id: str | Todo) -> Todo:
        """Take it out; the todo as it was."""
        with self._editing():
            todo = self._collections.remove(TODOS, id_in(id))
        return self._notified(todo)

    def _move(self, id: str | Todo, status: TodoStatus) -> Todo:
        is_done = status is TodoStatus.COMPLETED
        with self._editing():
            known = self._collections.one(TODOS, id_in(id))
            self._backing.check_writable()
            if known.status is status and is_done == (known.completed_at is not None):
                return known
            changes: dict[str, Any] = {"status": status.value}
            if not is_done and known.completed_at is not None:
                changes["completed_at"] = None
            stamps = ("completed_at",) if is_done else ()
            todo = self._collections.change(TODOS, known.id, changes, *stamps)
        return self._notified(todo)

    # ── context ──────────────────────────────────────────────────────────────────────────────

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

            # It may look at files, or ask a server.
            fields["verify"] = aside(capture, verify, value)
        with self._editing():
            item = self._collections.put(CONTEXT_ITEMS, key, fields, ("metadata", "verify", "verified_at"))
        return self._notified(item)

    def remove_context(self, key: str) -> ContextItem:
        """Take it out; the item as it was."""
        with self._editing():
            item = self._collections.remove(CONTEXT_ITEMS, key)
        return self._notified(item)

    def mark_verified(self, key: str) -> ContextItem:
        """Note that the value under ``key`` was just found to hold still."""
        with self._editing():
            item = self._collections.change(CONTEXT_ITEMS, key, {}, "verified_at", touch=False)
        return self._notified(item)

    # ── open loops ───────────────────────────────────────────────────────────────────────────

    def add_open_loop(self, description: Any, context: Any = None, *, key: str | None = None) -> OpenLoop:
        """Note something that must be come back to; ``context`` is whatever will help then. If one was added
        under the same ``key`` before, by any process, return that one as it is now and add nothing."""
        fields = {"description": check_text(description, "an open loop's description")}
        if context is not None:
            fields["context"] = context
        return self._added(OPEN_LOOPS, fields, key)

    def resolve_open_loop(self, id: str | OpenLoop) -> OpenLoop:
        """Stamp ``resolved_at``; one that is resolved keeps its stamp."""
        with self._editing():
            known = self._collections.one(OPEN_LOOPS, id_in(id))
            if not known.open:
                return known
            loop = self._collections.change(OPEN_LOOPS, known.id, {}, "resolved_at")
        return self._notified(loop)

    # ── intentions and constraints ───────────────────────────────────────────────────────────

    def set_intention(self, text: Any) -> Intention:
        """Say what is about to be done; earlier intentions are kept."""
        fields = {"text": check_text(text, "an intention")}
        with self._editing():
            intention = self._collections.add(INTENTIONS, fields)
        return self._notified(intention)

    def add_constraint(self, text: Any) -> Constraint:
        """Add a standing order."""
        fields = {"text": check_text(text, "a constraint")}
        with self._editing():
            constraint = self._collections.add(CONSTRAINTS, fields)
        return self._notified(constraint)

    def remove_constraint(self, id: str | Constraint) -> Constraint:
        """Lift a standing order; the constraint as it was."""
        with self._editing():
            constraint = self._collections.remove(CONSTRAINTS, id_in(id))
        return self._notified(constraint)

    # ── many at once ─────────────────────────────────────────────────────────────────────────

    def apply(self, diff: StateDiff, *, resolve: str | None = None) -> None:
        """Make the changes of a ``StateDiffer.diff(…)`` here, as far as they aren't there already.

        Where this state has been changed in another way at the same place, ``resolve`` says what stands:
        ``"ours"`` that of the state, ``"theirs"`` that of the diff; without it :class:`MergeConflictError`
        lists these places and nothing is changed.
        """
        from everthread.working.compare import edits_of

        check_resolve(resolve)
        with self._editing():
            edits = edits_of(self, diff, resolve)
            if not edits:
                return
            self._collections.apply(edits)
        self._changed()


def _choice(kind: type[Choice], value: Any, name: str) -> Choice:
    try:
        return kind(value)
    except ValueError:
        names = ", ".join(each.value for each in kind)
        raise InvalidValueError(f"{name} is one of {names}, not {value!r}", path=name) from None


class WorkingState(Notes, BlockingFace):
    """What an agent has in mind: todos, context, open loops, intentions, constraints.

    Without arguments: a new state that :meth:`save` keeps in the default store. ``config`` says otherwise;
    ``store`` is an open store or the URL of one; with ``thread`` the state is that of the thread of this
    name, which other parts of the program may use as well. A new state opens nothing before it is saved.

    Several objects, also in several processes, may be on the same thread: at saving, their changes are
    brought together. One object may be used by several threads of execution, or tasks of an event loop, but
    not the handle beneath it.
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
        self._set_up(Home(store, config), name, config, hooks, auto_save, clock, ids)
        if thread is not None:
            self._open()
            self._check_schema()

    def _set_up(
        self,
        home: Home | None,
        name: str,
        config: Config,
        hooks: SessionLifecycle | None = None,
        auto_save: bool | None = None,
        clock: Callable[[], int] | None = None,
        ids: Callable[[], str] | None = None,
        lock: Any = None,
    ) -> None:
        check_hooks(hooks)
        self._turn = process.ProcessLock() if lock is None else lock
        backing = Backing(name, self._turn)
        self._collections = Collections(backing, context_max=config.max_context_entries, clock=clock, ids=ids)
        self._config = config
        self._notifier = Notifier(hooks if hooks is not None else config.hooks)
        self._auto = config.auto_save if auto_save is None else auto_save
        self._backing = backing
        self._home = home
        self._view = View(home)
        self._saver = Saver(config.session_id)
        self._touched = self._is_owned = False
        #: What a recovery found, if this state came from one.
        self.recovery: Any = None

    # ── other ways to get one ────────────────────────────────────────────────────────────────

    @classmethod
    def load(
        cls,
        id: str | os.PathLike[str],
        config: Config | None = None,
        *,
        store: Any = None,
        hooks: SessionLifecycle | None = None,
    ) -> Self:
        """The state with the id that ``save()`` returned. Raises :class:`StateNotFoundError`.

        A path of a ``<uuid>.json`` gives the state in that file, with its id, as one that :meth:`save` has
        yet to keep. Raises :class:`StateCorruptedError` if something in the file can't be read, and
        :class:`InvalidStateError` if the store has a state with this id already.
        """
        path = path_in(id)
        if path is None:
            state = cls._found(str(id), config, store, hooks)
        else:
            state = cls._from_file(path, checked_config(config), store, hooks)
        state._notifier.notify("on_load", state)
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
        state._notifier.notify("on_resume", state)
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
            state._set_up(home, name, config, hooks)
            state._open()
            state._check_schema()
        except BaseException:
            home.close()
            raise
        # It was found by its marks, at least by those without a session.
        state._saver.marked = id is None or config.session_id is None
        state._mend_view()
        return state

    @classmethod
    def _from_file(cls, path: str, config: Config, store: Any, hooks: SessionLifecycle | None) -> Self:
        from everthread.working.repair import fill_whole, read_file

        saved = aside(read_file, path)
        config = saved.belonging(config)
        home = Home(store, config)
        try:
            known: str | None = None
            with suppress(StateNotFoundError):
                known = find_state(home.open(), saved.id)
            if known is not None:
                raise InvalidStateError(
                    f"a state with the id {saved.id} is in this store already: load({saved.id!r}) opens it; "
                    "SelfHealer.recover() makes another state of the file"
                )
            state = cls.__new__(cls)
            state._set_up(home, saved.name, config, hooks)
            state._open()
            fill_whole(state, saved)
        except BaseException:
            home.close()
            raise
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
        lock: Any = None,
    ) -> Self:
        """The state in the document of a handle that somebody else owns. Reads nothing yet.

        With ``save``, every change calls it, and so does :meth:`save`: it must commit the handle. If it
        raises, the change stays uncommitted in the handle; if it raises :class:`ConflictError`, the changes
        are moved onto the newest version and it is called again. Without it, :meth:`save` commits. ``lock``
        is held while the handle is changed or committed; a blocking state takes it again while it has it.
        """
        state = cls.__new__(cls)
        config = Config(max_context_entries=max_context_entries)
        state._set_up(None, thread.name, config, hooks, save is not None, clock, ids, lock)
        state._backing.adopt(thread)
        state._saver = Saver(None, save)
        state._is_owned = save is not None
        return state

    @classmethod
    def past(cls, thread: Thread, version: AnyVersion) -> Self:
        """The state in a thread's document as it was at a version. Read only."""
        state = cls.__new__(cls)
        state._set_up(None, thread.name, Config())
        state._backing.adopt(thread, thread.at(version))
        return state

    @property
    def thread(self) -> Thread:
        """The handle beneath: its logs, commit, watch and all the rest. Opens the store."""
        return self._open()

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
        with self._turn:
            is_new = self._commit(label, metadata, resolve)
        if is_new:
            self._written("on_save")
        else:
            self._show()
        return self.id

    def _commit(self, label: str | None, metadata: Mapping[str, Any] | None, resolve: str | None) -> bool:
        """Commit what there is; whether there was anything. In one's turn."""
        self._backing.check_writable()
        thread = self._open()
        self._collections.clear(thread.state)
        if thread.head is not None and not (self._touched or thread.dirty or label or metadata):
            return False
        thread.state.setdefault(VERSION_FIELD, CURRENT_SCHEMA_VERSION)
        if thread.head is None and self._config.migrations:
            thread.state.setdefault(APPLIED_FIELD, len(self._config.migrations))
        self._saver.commit(thread, label, metadata, resolve)
        self._touched = False
        self._view.due = True
        return True

    def _show(self) -> None:
        """Bring the readable view up to date, if there is one and it isn't."""
        with self._turn:
            # Closed meanwhile, its next load mends the view.
            if self._backing.closed or self._backing.dirty:
                return
            if self._view.due and self._view.exists:
                snapshot, version = self.snapshot(), self.version
                aside(self._view.write, self.id, lambda: snapshot, version)
            self._view.due = False

    def _mend_view(self) -> None:
        if self._view.exists:
            snapshot, version = self.snapshot(), self.version
            aside(self._view.mend, self.id, lambda: snapshot, version)

    def _written(self, event: str) -> None:
        """There is a new version: show it, and tell of it even if that fails."""
        try:
            self._show()
        finally:
            self._notifier.notify(event, self)

    def reload(self) -> None:
        """Give up what isn't saved, and show the newest saved version."""
        with self._turn:
            self._backing.check_writable()
            thread: Any = self._backing.thread
            if thread is None:
                self._backing.start_over()
            else:
                if not self._is_owned:
                    thread.discard()
                thread.refresh()
            self._touched = self._collections.blank = False
            if thread is not None:
                self._check_schema()

    def discard(self) -> None:
        """Forget what isn't saved and start over, empty and NEW; nothing is deleted from the store.

        A state without a thread name becomes another state with an id of its own. One on a named thread stays
        on it: the next save makes an empty version, and :meth:`rewind` brings the old contents back.
        """
        with self._turn:
            self._backing.check_writable()
            if self._is_owned:
                self._collections.blank = True
            elif is_named(self._backing.name):
                (self._open()).discard()
                self._collections.blank = True
            else:
                self._backing.start_over()
                self._saver.marked = False
                self._view.due = False
            self._touched = False
            self.recovery = None
        self._notifier.notify("on_discard", self)

    # ── the past, and other lines ────────────────────────────────────────────────────────────

    @iterated
    def history(self, limit: int | None = 20, before: AnyVersion | None = None) -> Iterator[Version]:
        """The versions that were saved, newest first, lazily."""
        self._backing.check_open()
        return self._versions(limit, before)

    def _versions(self, limit: int | None, before: AnyVersion | None) -> Iterator[Version]:
        thread: Any = self._backing.thread
        if thread is not None:
            yield from thread.history(limit, before)

    def at(self, version: AnyVersion) -> Self:
        """The state as it was at a version, read only."""
        past = self.past(self._open(), version)
        # Where a state that is made of it may be saved.
        past._home = None if self._home is None else self._home.another()
        return past

    def rewind(self, version: AnyVersion) -> Version:
        """Go back to a version, with everything else that is in the thread. Itself a version, so undoable."""
        with self._turn:
            made = (self._own_thread("rewind")).rewind(version)
            self._collections.blank = False
            self._view.due = True
        self._written("on_rewind")
        return made

    def fork(self, name: str | None = None, at: AnyVersion | None = None) -> Self:
        """Another state that starts from this one, or from a version of it, and goes its own way.

        Its thread is called ``name``. Refuses while there are unsaved changes.
        """
        with self._turn:
            self._backing.check_writable()
            forked = (self._open()).fork(new_name() if name is None else name, at=at)
        state = self._another(forked.name)
        if state._home is not None:
            # Held open for the fork, also when this state is closed.
            state._home.open()
            state._home.hold(forked)
        state._backing.adopt(forked)
        state._saver.mark(forked)
        state._migrate()
        state._view.due = True
        state._written("on_fork")
        return state

    def _another(self, name: str) -> Self:
        """A state in the same place, on the thread of this name."""
        state = type(self).__new__(type(self))
        home = None if self._home is None else self._home.another()
        auto, own = self._auto and not self._is_owned, self._collections
        state._set_up(home, name, self._config, self._notifier.lifecycle, auto, own.clock, own.ids)
        return state

    def merge(self, other: WorkingState, *, resolve: Any = None) -> Merge:
        """Bring in what ``other`` did since both went apart: see :meth:`Thread.merge`."""
        theirs = other.thread
        with self._turn:
            merged = (self._own_thread("merge")).merge(theirs, resolve=resolve)
            self._view.due = bool(merged)
        if merged:
            self._written("on_save")
        return merged

    # ── its end ──────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Release the store; what isn't saved is given up. May be called twice."""
        if not self.closed:
            self._notifier.notify("on_close", self)
            # After a save that is under way.
            with self._turn:
                self._backing.close()
                if self._home is not None:
                    self._home.close()

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

    # ── inside ───────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def _editing(self) -> Iterator[None]:
        with self._turn:
            yield

    def _changed(self) -> None:
        self._touched = True
        self._notifier.notify("on_change", self)
        if self._auto:
            self.save()

    def _save_the_rest(self) -> None:
        if self._auto and self._backing.dirty:
            self.save()

    def _patch(self, edits: list[Edit]) -> None:
        """Make many edits, as any other change."""
        self._collections.apply(edits)
        self._changed()

    def _open(self) -> Thread:
        """The handle of the thread, into which the document has moved by then. In one's turn."""
        backing = self._backing
        backing.check_open()
        if backing.thread is None:
            if self._home is None:
                raise UsageError("this state has no store to be saved in")
            opened = self._home.thread(backing.name)
            opened.state.update(backing.unsaved.root.plain())
            backing.adopt(opened)
        thread: Any = backing.thread
        found: Thread = thread
        return found

    def _check_schema(self) -> None:
        check_version(self._backing.root().get(VERSION_FIELD), self._config.schema_version)
        if self._backing.version is not None:
            self._migrate()

    def _migrate(self) -> None:
        """Make the changes of the config's own migrations that haven't been applied; saved with the next
        save, so that the stored state stays as it is until then."""
        from everthread.working.migrations import pending_edits

        edits = pending_edits(self, self._config.migrations)
        if edits:
            self._collections.apply(edits)
            self._touched = True

    def _own_thread(self, verb: str) -> Thread:
        self._backing.check_writable()
        if self._is_owned:
            raise InvalidStateError(f"this thread belongs to a session or another owner: {verb} it there")
        return self._open()
