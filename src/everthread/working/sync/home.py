# Generated from src/everthread/working/aio/home.py by tools/twin.py: change that, then run: make twin
"""The stores of working states: opened when they are needed, shared in a process; states found by id."""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

from everthread.errors import InvalidValueError, StateNotFoundError
from everthread.records.opening import open_backend
from everthread.stores.colours import aside
from everthread.working.config import Config
from everthread.working.home import (
    ID_TAG,
    IN_MEMORY,
    KIND_TAG,
    PREFIX,
    SESSION_TAG,
    WORKING_STATE,
    Place,
    checked_id,
    id_of,
    place_of,
)

if TYPE_CHECKING:
    from everthread.threads.sync.store import ThreadStore
    from everthread.threads.sync.thread import Thread


def find_state(store: ThreadStore, id: Any) -> str:
    """The name of the thread that holds the state with this id, else :class:`StateNotFoundError`."""
    wanted = checked_id(id)
    if (store.thread(PREFIX + wanted)).head is not None:
        return PREFIX + wanted
    for info in store.threads(metadata={ID_TAG: wanted}):
        # A fork made on the thread itself carries its source's mark until it is saved as a state.
        if id_of(info.name) == wanted:
            return info.name
    raise StateNotFoundError(f"no state with the id {wanted} has been saved in {store.url}")


def latest_state(store: ThreadStore, session_id: str | None) -> str:
    """The name of the thread of the state saved most recently, by the clocks of those who saved.

    Reads the newest version's head of every state, no documents. Raises :class:`StateNotFoundError`.
    """
    wanted = {KIND_TAG: WORKING_STATE}
    if session_id is not None:
        wanted[SESSION_TAG] = session_id
    found = list(store.threads(metadata=wanted))
    if not found:
        of = "" if session_id is None else f" of the session {session_id!r}"
        raise StateNotFoundError(f"no state{of} has been saved in {store.url} yet; save() one first")
    return max(found, key=lambda info: info.updated_at_us).name


# ── stores that are open in this process ─────────────────────────────────────────────────────


class _Open:
    """A store that states of this process share; closed when the last one gave it back."""

    __slots__ = ("count", "dead", "store", "url")

    def __init__(self, url: str, store: ThreadStore) -> None:
        self.url = url
        self.store = store
        self.count = 0
        self.dead = False


_open: dict[str, _Open] = {}
# May be taken again by the thread that holds it: a state that is collected as garbage gives its store back.
_lock = threading.RLock()


def _forget_after_fork() -> None:
    # A store can't be used across fork(2): the child opens its own. What is in memory goes along.
    for url in [url for url in _open if not url.startswith("memory:")]:
        del _open[url]
    global _lock  # noqa: PLW0603 - another thread of the parent may have held it, and isn't here
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_forget_after_fork)


def borrow(url: str) -> _Open:
    """The open store of this URL, opened if it isn't; :func:`give_back` it."""
    while True:
        with _lock:
            entry = _open.get(url)
            if entry is not None:
                entry.count += 1
                # Its last user may have been collected between the two lines above.
                if not entry.dead:
                    return entry
                continue
        made = open_threads(url)
        with _lock:
            if url not in _open:
                entry = _open[url] = _Open(url, made)
                entry.count = 1
                return entry
        # Somebody else has opened it meanwhile. What is in memory may be shared by both.
        if not url.startswith("memory:"):
            made.close()


def _leave(entry: _Open) -> bool:
    """Use it no longer; whether nobody does any more."""
    with _lock:
        entry.count -= 1
        # What is in memory would be gone; it stays as long as the process.
        if entry.count or entry.dead or entry.url.startswith("memory:"):
            return False
        entry.dead = True
        if _open.get(entry.url) is entry:
            del _open[entry.url]
    return True


def give_back(entry: _Open) -> None:
    if _leave(entry):
        entry.store.close()


_drop = give_back


def open_threads(url: str) -> ThreadStore:
    """Open the store of this URL, creating it if it isn't there."""
    from everthread.threads.sync.store import ThreadStore

    return ThreadStore(open_backend("memory:" if url.startswith(IN_MEMORY) else url, "full"))


class Home:
    """The store of one state: somebody else's, or one that is shared and given back in the end.

    The end is :meth:`close`, or else when neither the state nor a handle of its is in use any more.
    """

    def __init__(self, store: Any, config: Config) -> None:
        self._config = config
        self._entry: _Open | None = None
        self._return: weakref.finalize[[_Open], Home] | None = None
        self._store: ThreadStore | None = None
        self._place: Place | None = None
        if isinstance(store, str):
            self._place = Place(store)
        elif store is not None:
            from everthread.threads.sync.store import ThreadStore

            if not isinstance(store, ThreadStore):
                opener = "everthread.open()"
                raise InvalidValueError(
                    f"store is what {opener} gives, or a URL, not {type(store).__name__}", path="store"
                )
            self._store = store

    def open(self) -> ThreadStore:
        """The store; opened at the first call."""
        if self._store is None:
            if self._place is None:
                self._place = aside(place_of, self._config)
            entry = borrow(self._place.url)
            if self._store is None:
                self._entry, self._store = entry, entry.store
                self._return = weakref.finalize(self, _drop, entry)
        assert self._store is not None
        return self._store

    def thread(self, name: str) -> Thread:
        """A handle; as long as it is in use, the store stays open."""
        thread = (self.open()).thread(name)
        self.hold(thread)
        return thread

    def hold(self, thread: Thread) -> None:
        weakref.finalize(thread, _let_go, self)

    @property
    def views(self) -> str | None:
        """The folder for readable views, if there are any. Known once the store is open."""
        return self._place.views if self._place is not None else None

    def another(self) -> Home:
        """The same place for another state."""
        home = Home(self._store if self._entry is None else None, self._config)
        home._place = self._place
        return home

    def close(self) -> None:
        self._store = None
        # Given back once, however often this is called.
        if self._return is not None and self._return.detach() is not None:
            assert self._entry is not None
            give_back(self._entry)


def _let_go(home: Home) -> None:
    """Does nothing: that it is to be called is what keeps the home alive."""
