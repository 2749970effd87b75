"""Where working states are stored: which store, which thread, and the readable views beside it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import math
import os
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

import msgspec

from everthread.errors import InvalidValueError, StateNotFoundError, StorageWriteError, StoreUnavailableError
from everthread.stores.urls import FILE, FOLDER, default_url, open_backend, quoted, sqlite_url, unquoted
from everthread.versions import Version
from everthread.working.config import Config, StorageBackend
from everthread.working.items import VIEW_MARK

if TYPE_CHECKING:
    from everthread.threads.sync.store import ThreadStore
    from everthread.threads.sync.thread import Thread


#: A state without a name of its own lives in the thread of this name and its id.
PREFIX: Final = "state/"
#: Metadata that a saved state's thread carries, to be found by.
KIND_TAG: Final = "everthread.kind"
ID_TAG: Final = "everthread.state"
SESSION_TAG: Final = "everthread.session"
WORKING_STATE: Final = "working-state"
#: The folder beside readable views with the store that they show.
HISTORY: Final = "history"

_IDS = uuid.UUID("6f0c1f0e-8f7d-5b0a-9a39-6d2f3a6f1c52")


def new_name() -> str:
    """The name of a thread for a state that has none."""
    return PREFIX + str(uuid.uuid4())


def id_of(name: str) -> str:
    """The id of the state in the thread of this name: always the same one, a UUID."""
    if name.startswith(PREFIX) and (known := _uuid(name.removeprefix(PREFIX))) is not None:
        return known
    return str(uuid.uuid5(_IDS, name))


def is_named(name: str) -> bool:
    """Whether a caller chose the name."""
    return not (name.startswith(PREFIX) and _uuid(name.removeprefix(PREFIX)) is not None)


def _uuid(text: str) -> str | None:
    try:
        return text if str(uuid.UUID(text)) == text else None
    except ValueError:
        return None


def tags(name: str, session_id: str | None) -> dict[str, Any]:
    """What to save a state's thread with, so that it is found again."""
    found = {KIND_TAG: WORKING_STATE, ID_TAG: id_of(name)}
    return found if session_id is None else {**found, SESSION_TAG: session_id}


def find_state(store: ThreadStore, id: Any) -> str:
    """The name of the thread that holds the state with this id, else :class:`StateNotFoundError`."""
    try:
        wanted = str(uuid.UUID(id))
    except (TypeError, ValueError, AttributeError):
        raise StateNotFoundError(
            f"no state has the id {str(id)[:80]!r}: ids are the UUIDs that save() returns"
        ) from None
    if store.thread(PREFIX + wanted).head is not None:
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
    newest = max(store.threads(metadata=wanted), key=lambda info: info.updated_at_us, default=None)
    if newest is None:
        of = "" if session_id is None else f" of the session {session_id!r}"
        raise StateNotFoundError(f"no state{of} has been saved in {store.url} yet; save() one first")
    return newest.name


#: A store in memory that the states of this process find under a path. No URL of a caller's begins so.
_IN_MEMORY = "memory:\0"

# ── from a configuration to a store ──────────────────────────────────────────────────────────


class Place(msgspec.Struct, frozen=True):
    """A store's URL, and the folder for readable views if there are to be any."""

    url: str
    views: str | None = None


def place_of(config: Config) -> Place:
    """Where the states of this configuration are; folders that are missing are made."""
    if config.storage_path is None:
        return _default_place(config.storage_backend)
    path = os.fspath(config.storage_path)
    if not path or "\0" in path:
        raise InvalidValueError("storage_path is empty or holds NUL", path="storage_path")
    if config.storage_backend is StorageBackend.MEMORY:
        return Place(f"{_IN_MEMORY}{path}")
    if "://" in path or path == "memory:":
        return Place(path)
    path = os.path.abspath(os.path.expanduser(path))
    if config.storage_backend is StorageBackend.JSON:
        return _json_place(path)
    if os.path.isdir(path):
        path = os.path.join(path, FILE)
    _make(os.path.dirname(path))
    return Place(sqlite_url(path))


def _default_place(backend: StorageBackend) -> Place:
    if backend is StorageBackend.MEMORY:
        return Place("memory:")
    url = default_url()
    if backend is not StorageBackend.JSON:
        return Place(url)
    scheme, _, rest = url.partition(":///")
    if scheme == "sqlite":
        beside = os.path.dirname(os.path.abspath(unquoted(rest.partition("?")[0])))
    else:
        beside = os.path.join(os.path.expanduser("~"), FOLDER)
    return _json_place(os.path.join(beside, "states"))


def _json_place(folder: str) -> Place:
    # A folder of its own, so that nothing but views has a name that ends in .json.
    _make(folder)
    return Place(f"file://{quoted(os.path.join(folder, HISTORY))}", folder)


def _make(folder: str) -> None:
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
    except OSError as error:
        raise StoreUnavailableError(
            f"can't create {folder} ({error.strerror}); choose another storage_path"
        ) from error


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
    # A store can't be used across fork(2): the child opens its own.
    _open.clear()
    global _lock  # noqa: PLW0603 - another thread of the parent may have held it, and isn't here
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_forget_after_fork)


def borrow(url: str) -> _Open:
    """The open store of this URL, opened if it isn't; :func:`give_back` it."""
    while True:
        with _lock:
            entry = _open.get(url)
            if entry is None:
                entry = _open[url] = _Open(url, open_threads(url))
            entry.count += 1
            # Its last user may have been collected between the two lines above.
            if not entry.dead:
                return entry


def give_back(entry: _Open) -> None:
    with _lock:
        entry.count -= 1
        # What is in memory would be gone; it stays as long as the process.
        if entry.count or entry.dead or entry.url.startswith("memory:"):
            return
        entry.dead = True
        if _open.get(entry.url) is entry:
            del _open[entry.url]
    entry.store.close()


def open_threads(url: str) -> ThreadStore:
    """Open the store of this URL, creating it if it isn't there."""
    from everthread.threads.sync.store import ThreadStore

    return ThreadStore(open_backend("memory:" if url.startswith(_IN_MEMORY) else url, "full"))


class Home:
    """The store of one state: somebody else's, or one that is shared and given back in the end.

    The end is :meth:`close`, or else when neither the state nor a handle of its is in use any more.
    """

    def __init__(self, store: Any, config: Config) -> None:
        self._config = config
        self._return: weakref.finalize[[_Open], Home] | None = None
        self._store: ThreadStore | None = None
        self._place: Place | None = None
        if isinstance(store, str):
            self._place = Place(store)
        elif store is not None:
            from everthread.threads.sync.store import ThreadStore

            if not isinstance(store, ThreadStore):
                raise InvalidValueError(
                    f"store is what everthread.open() gives, or a URL, not {type(store).__name__}",
                    path="store",
                )
            self._store = store

    def open(self) -> ThreadStore:
        """The store; opened at the first call."""
        if self._store is None:
            if self._place is None:
                self._place = place_of(self._config)
            entry = borrow(self._place.url)
            self._return = weakref.finalize(self, give_back, entry)
            self._store = entry.store
        return self._store

    def thread(self, name: str) -> Thread:
        """A handle; as long as it is in use, the store stays open."""
        thread = self.open().thread(name)
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
        if self._return is None:
            return Home(self._store, self._config)
        home = Home(None, self._config)
        home._place = self._place
        return home

    def close(self) -> None:
        self._store = None
        if self._return is not None:
            # Does it once, however often it is called.
            self._return()


def _let_go(home: Home) -> None:
    """Does nothing: that it is to be called is what keeps the home alive."""


# ── readable views ──────────────────────────────────────────────────────────────────────────────────
# A view is written after every save, whole: its cost grows with the state. It is never read back. One that
# was edited by hand is moved aside before a new one is written.


_log = logging.getLogger(__name__)
#: Python refuses to write larger ones in decimal.
_INT_BITS_MAX: Final = 14_000


class View:
    """The view of one state; written when it is due. Most places have no folder for views, and so none."""

    def __init__(self, home: Home | None) -> None:
        self._home = home
        self.due = False

    @property
    def _folder(self) -> str | None:
        return None if self._home is None else self._home.views

    def write(self, id: str, snapshot: Callable[[], dict[Any, Any]], version: Version | None) -> None:
        """Write it if it is due; it stays due if that fails. Raises :class:`StorageWriteError`."""
        if self.due and self._folder is not None and version is not None:
            write_view(self._folder, id, snapshot(), version)
        self.due = False

    def mend(self, id: str, snapshot: Callable[[], dict[Any, Any]], version: Version | None) -> None:
        """Write it if it is of another version: the process that saved last may have died before it did."""
        if self._folder is not None and version is not None and not is_current(self._folder, id, version):
            self.due = True
            with contextlib.suppress(StorageWriteError):
                self.write(id, snapshot, version)


def view_path(folder: str, id: str) -> str:
    return os.path.join(folder, f"{id}.json")


def write_view(folder: str, id: str, snapshot: dict[Any, Any], version: Version) -> None:
    """Write the view of a state at ``version``, unless there is one of a later version.

    Atomic: a reader sees the old file or the new one. Raises :class:`StorageWriteError`.
    """
    body = readable(snapshot)
    body.pop(VIEW_MARK, None)
    mark = {"note": "A view. Changes made here are not read.", "version": version.id, "seq": version.seq}
    text = _text({VIEW_MARK: {**mark, "digest": _digest(body)}, **body})
    path = view_path(folder, id)
    try:
        with _locked(folder):
            if _replaceable(path, version):
                _replace(folder, path, text)
    except OSError as error:
        raise StorageWriteError(
            f"the state is saved, but its view {path} can't be written ({error.strerror}); "
            "save() again writes it"
        ) from error


def is_current(folder: str, id: str, version: Version) -> bool:
    """Whether the view is of this version."""
    mark = _read(view_path(folder, id))[0]
    return mark is not None and mark.get("version") == version.id


def _replaceable(path: str, version: Version) -> bool:
    if not os.path.exists(path):
        return True
    mark, body = _read(path)
    if mark is None or mark.get("digest") != _digest(body):
        aside = _free(f"{path}.edited")
        os.rename(path, aside)
        _log.warning("%s was edited by hand; the edited file is now %s", path, aside)
        return True
    seq = mark.get("seq")
    return not isinstance(seq, int) or seq <= version.seq


def _free(path: str) -> str:
    number = 1
    while os.path.exists(f"{path}-{number}"):
        number += 1
    return f"{path}-{number}"


def _read(path: str) -> tuple[dict[str, Any] | None, Any]:
    """The mark of a view and the rest of it; no mark if it isn't one."""
    try:
        with open(path, encoding="utf-8", errors="surrogatepass") as file:
            content = json.load(file)
        mark = content.pop(VIEW_MARK)
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return None, None
    return (mark if isinstance(mark, dict) else None), content


def _replace(folder: str, path: str, text: str) -> None:
    temporary = f"{path}.{os.getpid()}.tmp"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="surrogatepass") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


@contextlib.contextmanager
def _locked(folder: str) -> Iterator[None]:
    # The folder itself: no file that would only be a lock.
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        # Closing alone would not free it while a child, forked meanwhile, still has the descriptor.
        fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


def _text(content: Any) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _digest(body: Any) -> str:
    # Over the meaning, not the text: a change of white space or of the order of keys is no edit.
    encoded = json.dumps(body, sort_keys=True, allow_nan=False).encode("utf-8", "surrogatepass")
    return sha256(encoded).hexdigest()


def readable(value: Any) -> Any:
    """JSON-like data for people: what JSON doesn't know becomes text, personal values a mask."""
    if value is None or type(value) in (bool, str):
        return value
    if type(value) is int:
        return value if value.bit_length() <= _INT_BITS_MAX else f"an integer of {value.bit_length():,} bits"
    if type(value) is float:
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): readable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [readable(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((readable(item) for item in value), key=str)
    return str(value)
