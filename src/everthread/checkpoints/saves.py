"""Objects saved under keys: saving, loading, comparing and rolling back, and the decorator that saves."""

from __future__ import annotations

import functools
import inspect
import itertools
import os
import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager
from hashlib import sha256
from pathlib import Path
from threading import RLock
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeVar

from everthread import process
from everthread.arguments import NAME_BYTES_MAX, check_count, check_name, check_path
from everthread.checkpoints.arrays import register_arrays
from everthread.checkpoints.compare import changes, differences
from everthread.checkpoints.objects import Checkpointable, image_of, load_into
from everthread.checkpoints.states import CLASS, VERSION, ObjectState, from_stored, to_stored, upgrade
from everthread.codec.types import Code
from everthread.codec.values import encode_stored, lower
from everthread.errors import (
    ConflictError,
    InvalidStateError,
    InvalidValueError,
    SchemaVersionError,
    StateCorruptedError,
    StateNotFoundError,
    ThreadDeletedError,
    UsageError,
)
from everthread.history import ops
from everthread.keyring.file import make_directory
from everthread.limits import Limits
from everthread.records.opening import open_backend
from everthread.stores.urls import quoted
from everthread.threads.sync.store import ThreadStore
from everthread.threads.sync.thread import Thread
from everthread.values import Personal, Tagged
from everthread.versions import Version

if TYPE_CHECKING:
    import asyncio

    from everthread.checkpoints.pickles import PickleSigner

# ── the thread behind one key ───────────────────────────────────────────────────────────────────────
# The document of such a thread is ``{"checkpoint": 1, "key": the key, "saves": n}`` and either ``"state"``,
# the object's state as plain data, or ``"pickle"``, the same as a signed pickle.


#: Threads of checkpoints are told from others by how their names begin.
PREFIX: Final = "checkpoint:"
FORMAT: Final = 1

#: Marks a name that stands for a key that is too long, or begins with this mark itself.
_HASHED: Final = "#"

#: For comparing only: the store applies its own limits to what is written.
_NO_LIMITS: Final = Limits(
    payload_bytes_max=2**62,
    depth_max=500,
    nodes_max=2**62,
    integer_digits_max=100_000,
    surrogates="keep",
)


def thread_name(key: str) -> str:
    """The name of the thread behind ``key``. Raises :class:`InvalidNameError` if the key isn't a name."""
    check_name(key, "checkpoint key")
    if key.startswith(_HASHED) or len(f"{PREFIX}{key}".encode()) > NAME_BYTES_MAX:
        return f"{PREFIX}{_HASHED}{sha256(key.encode()).hexdigest()}"
    return PREFIX + key


def key_of(store: ThreadStore, name: str) -> str | None:
    """The key behind which the thread ``name`` stands; ``None`` if it stands for a key and holds none."""
    if name.startswith(PREFIX + _HASHED):
        key = store.thread(name).state.get("key")
        return key if type(key) is str and thread_name(key) == name else None
    return name.removeprefix(PREFIX)


def check_document(state: Any) -> Any:
    """``state``, if it is the document of a checkpoint that this code can read; else raise."""
    found = state.get("checkpoint")
    if type(found) is not int or ("state" in state) == ("pickle" in state):
        raise InvalidStateError(
            f"a thread whose name begins with {PREFIX!r} holds something else than a checkpoint; "
            "it was left as it is: use another key"
        )
    if found > FORMAT:
        raise SchemaVersionError(
            f"the checkpoint has format {found}, this version knows {FORMAT}: upgrade everthread",
            found=found,
            supported=FORMAT,
        )
    return state


class KeyedSaves:
    """Writes the saves of one key, one at a time, and remembers the last one to compare the next with."""

    def __init__(self, store: ThreadStore, key: str) -> None:
        self._store = store
        self._key = key
        self._name = thread_name(key)
        self._lock = RLock()
        self._thread: Thread | None = None
        #: The state, lowered, at the version with this id.
        self._tree: Any = None
        self._tree_at: str | None = None
        #: id → the personal value itself, so that the id stays taken, and the seal it has in the store.
        self._seals: dict[int, tuple[Personal, Tagged]] = {}
        #: How many bytes the remembered state takes when it is encoded.
        self.size = 0

    def save(self, state: dict[str, Any] | None, pickled: bytes | None, root: str) -> Version:
        """Make a version of ``state`` or of ``pickled``, after whatever others have saved meanwhile.

        ``root`` begins the paths in errors. Raises :class:`InvalidValueError` for what can't be stored.
        """
        with self._lock:
            try:
                return self._save(state, pickled, root)
            except ThreadDeletedError:
                # Deleted since the last save: that was another thread, this is a new one of its name.
                self._thread = None
                return self._save(state, pickled, root)

    def _save(self, state: dict[str, Any] | None, pickled: bytes | None, root: str) -> Version:
        edit = _PickleEdit(self._key, pickled) if state is None else _StateEdit(self, state, root)
        thread = self._thread or self._store.thread(self._name)
        # Taken up again only if all goes well: an interrupt may leave the handle with half a change.
        self._thread = None
        version = thread.update(lambda draft: edit(draft.state, thread.head))
        assert version is not None
        self._tree_at = None
        if isinstance(edit, _StateEdit):
            self._seals = edit.seals_now(thread.state)
            self._tree = edit.tree(self._seals)
            self.size = len(encode_stored(self._tree))
            self._tree_at = version.id
        self._thread = thread
        return version

    def known_tree(self, head: Version) -> Any:
        """The lowered state at ``head``, if it is remembered."""
        return self._tree if self._tree_at == head.id else None

    def seal_of(self, personal: Personal) -> Tagged | None:
        """The seal under which a value stands in the store already."""
        known = self._seals.get(id(personal))
        return personal.sealed if known is None else known[1]


class _PickleEdit:
    def __init__(self, key: str, pickled: bytes | None) -> None:
        self._key = key
        self._pickled = pickled

    def __call__(self, document: Any, head: Version | None) -> None:
        _begin(document, head, self._key)
        document.pop("state", None)
        document["pickle"] = self._pickled


class _StateEdit:
    """Turns the state in a document into another one by the fewest edits.

    Lowered trees are compared; written are the caller's own values at the places that differ, so that
    personal values are sealed by the thread that keeps them.
    """

    def __init__(self, saves: KeyedSaves, state: dict[str, Any], root: str) -> None:
        self._saves_of = saves
        self._state = state
        self._root = root
        self._personals: list[Personal] = []
        self._fresh = False
        self._edits: list[ops.Op] = []
        self._new = lower(state, limits=_NO_LIMITS, seal=self._stand_in, root=root)

    def _stand_in(self, personal: Personal) -> Tagged:
        """The seal that the value has, or one that nothing else has."""
        self._personals.append(personal)
        seal = self._saves_of.seal_of(personal)
        if seal is None:
            self._fresh = True
            return Tagged(Code.SEALED, b"not sealed yet %d" % id(personal))
        return seal

    def __call__(self, document: Any, head: Version | None) -> None:
        _begin(document, head, self._saves_of._key)
        if "state" not in document:
            document.pop("pickle", None)
            document["state"] = self._state
            self._edits = [(ops.SET, ())]
            return
        old = self._saves_of.known_tree(head) if head is not None else None
        if old is None:
            old = lower(document["state"].plain(), limits=_NO_LIMITS, seal=_own_seal, root=self._root)
        self._edits = changes(old, self._new)
        for edit in self._edits:
            self._apply(document["state"], edit)

    def _apply(self, node: Any, edit: ops.Op) -> None:
        code, path = edit[0], edit[1]
        value: Any = self._state
        for key in path[:-1]:
            node, value = node[key], _follow(value, key)
        last = path[-1]
        if code == ops.DELETE:
            del node[last]
        elif code == ops.SET:
            node[last] = _follow(value, last)
        else:
            at, removed, count = edit[2], edit[3], len(edit[4])
            node[last][at : at + removed] = _follow(value, last)[at : at + count]

    def seals_now(self, document: Any) -> dict[int, tuple[Personal, Tagged]]:
        """The personal values of the state, with the seals that they have since it was written."""
        seals = {}
        for personal in self._personals:
            if (seal := self._saves_of.seal_of(personal)) is not None:
                seals[id(personal)] = (personal, seal)
        if self._fresh:
            for edit in self._edits:
                written, stored = self._written(document["state"], edit)
                pairs = zip(_personals_in(written), _personals_in(stored), strict=False)
                for personal, read in pairs:
                    if read.sealed is not None:
                        seals[id(personal)] = (personal, read.sealed)
        return seals

    def _written(self, node: Any, edit: ops.Op) -> tuple[Any, Any]:
        """What an edit wrote, and the same as it is read now: it holds the same values in the same order."""
        value: Any = self._state
        code, path = edit[0], edit[1]
        if code == ops.DELETE:
            return None, None
        for key in path:
            node, value = node[key], _follow(value, key)
        if code == ops.SPLICE:
            at, count = edit[2], len(edit[4])
            node, value = node[at : at + count], value[at : at + count]
        return value, [_plain(item) for item in node] if type(node) is list else _plain(node)

    def tree(self, seals: dict[int, tuple[Personal, Tagged]]) -> Any:
        """The lowered state as it stands in the store now."""
        if not self._fresh:
            return self._new
        unknown = Tagged(Code.SEALED, b"not sealed yet")
        return lower(
            self._state,
            limits=_NO_LIMITS,
            seal=lambda personal: seals[id(personal)][1] if id(personal) in seals else unknown,
        )


def _begin(document: Any, head: Version | None, key: str) -> None:
    """What every save does: say what this is, and count, so that each save is a version of its own."""
    if head is not None:
        check_document(document)
    document["checkpoint"] = FORMAT
    document["key"] = key
    document.increment("saves")


def _follow(value: Any, key: Any) -> Any:
    """The item of a caller's container at a lowered key."""
    if type(key) is not Tagged:
        return value[key]
    return next(item for own, item in value.items() if lower(own, limits=_NO_LIMITS) == key)


def _plain(value: Any) -> Any:
    return value.plain() if hasattr(value, "plain") else value


def _own_seal(personal: Personal) -> Tagged:
    assert personal.sealed is not None
    return personal.sealed


def _personals_in(value: Any) -> Iterator[Personal]:
    found: list[Personal] = []

    def note(personal: Personal) -> Tagged:
        found.append(personal)
        return Tagged(Code.SEALED, b"")

    lower(value, limits=_NO_LIMITS, seal=note)
    return iter(found)


A = TypeVar("A", bound=Checkpointable)

#: Keys whose last state is remembered, to compare the next one with.
_KEYS_MAX: Final = 256
_BYTES_MAX: Final = 64 * 1024 * 1024
_BACK_TRIES: Final = 20


class CheckpointManager:
    """Keeps the states of :class:`Checkpointable` objects, each key a line of checkpoints.

    ``backend`` is ``"memory"``, ``"file"`` with a ``path`` to a folder, which is made if it isn't there, a
    store URL, or an open store, which stays open when the manager is closed. Whoever opens the same store
    finds the same keys.

    ``fmt="json"``, the default, stores plain data: a save writes what changed since the last one, and loading
    runs no code. ``fmt="pickle"`` stores any object that can be pickled, whole at every save; only pickles
    that carry the signature of this user's key are ever loaded. Safe to share between threads.
    """

    def __init__(
        self,
        backend: str | ThreadStore = "memory",
        path: str | os.PathLike[str] | None = None,
        fmt: Literal["json", "pickle"] = "json",
    ) -> None:
        if fmt not in ("json", "pickle"):
            raise InvalidValueError(f'fmt is "json" or "pickle", not {fmt!r}', path="fmt")
        if (path is not None) != (backend == "file"):
            raise UsageError('a path goes with the backend "file", and with no other: ("file", path=…)')
        if path is not None:
            path = check_path(path)
        self._signer = _signer(path) if fmt == "pickle" else None
        self._own = isinstance(backend, str)
        self._store = _open(backend, path)
        self._open_keys: OrderedDict[str, KeyedSaves] = OrderedDict()
        # A forked child isn't kept waiting, and gets the store's own error.
        self._lock = process.ProcessLock()

    def save(self, key: str, agent: Checkpointable) -> str:
        """Save the state of ``agent`` as the newest checkpoint of ``key``; returns the checkpoint's id.

        Durable when it returns. If several processes save the same key, each save becomes a checkpoint and
        the last one is the newest. Raises :class:`InvalidValueError`, naming the place, for a value that
        can't be stored.
        """
        return self._save_state(key, state_of(agent))

    def _save_state(self, key: str, state: ObjectState) -> str:
        """As :meth:`save`, for what :func:`state_of` gave, perhaps in another thread."""
        register_arrays()
        saves = self._saves_of(key)
        stored = to_stored(state)
        if self._signer is not None:
            return saves.save(None, self._signer.dump(stored), "").id
        return saves.save(stored, None, str(state[CLASS])).id

    def load(self, key: str, agent: A, checkpoint_id: str | None = None) -> A:
        """Load the newest checkpoint of ``key``, or the one named, into ``agent``, and return ``agent``.

        All or nothing: if anything raises, ``agent`` and all it holds are as they were. Raises
        :class:`StateNotFoundError` if nothing was saved under ``key``, :class:`VersionNotFoundError` if it
        has no such checkpoint, and what ``agent.load_state_dict()`` raises.
        """
        _check_agent(agent)
        state = self._read(key, checkpoint_id)
        with image_of(agent):
            load_into(agent, _upgraded(state, agent))
        return agent

    def list_keys(self) -> list[str]:
        """All keys under which something was saved, by name."""
        names = [info.name for info in self._store.threads(prefix=PREFIX)]
        return sorted(key for name in names if (key := key_of(self._store, name)) is not None)

    def history(self, key: str, n: int | None = 5) -> list[dict[str, Any]]:
        """The last ``n`` checkpoints of ``key``, newest first: ``[{"id": …, "ts": …}, …]``; ``None`` for all.

        ``ts`` is when it was saved, in seconds since 1970 by the clock of the process that saved it.
        """
        if n is not None:
            n = check_count(n, "n")
        versions = self._store.thread(thread_name(key)).history(limit=n)
        return [{"id": version.id, "ts": version.at_us / 1_000_000} for version in versions]

    def diff(
        self,
        key: str,
        agent: Checkpointable | None = None,
        *,
        checkpoint_id_a: str | None = None,
        checkpoint_id_b: str | None = None,
    ) -> dict[str, dict[str, Any]]:
        """What changed, field by field: ``{"added", "removed", "changed": {field: (old, new)}}``.

        From the newest checkpoint, or ``checkpoint_id_a``, to ``agent``; or from ``checkpoint_id_a`` to
        ``checkpoint_id_b``, or to the newest. An older state is migrated before it is compared with an
        object; two checkpoints are compared as they were saved.
        """
        if (agent is not None and checkpoint_id_b is not None) or (agent is None and checkpoint_id_a is None):
            raise UsageError("diff() takes agent=…, or checkpoint_id_a=… and checkpoint_id_b=…")
        old = self._read(key, checkpoint_id_a)
        if agent is None:
            return differences(old, self._read(key, checkpoint_id_b))
        new = state_of(agent)
        return differences(_upgraded(old, agent), new)

    def rollback_context(self, key: str, agent: A) -> AbstractContextManager[A]:
        """Save ``agent``; if the block raises, put it back as it was, and let the exception go on.

        Whatever is raised counts, an interrupt too. The object and all it holds get back their content and
        stay the objects they are; attributes added in the block are gone. What the block itself saved under
        ``key`` stays in the history, but the newest checkpoint is again the one from before the block.
        """
        _check_agent(agent)
        return _Rollback(self, key, agent)

    def close(self) -> None:
        """Close the store, unless it was handed in open. May be called twice."""
        if self._own:
            self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<checkpoints in {self._store.url}>"

    def _saves_of(self, key: str) -> KeyedSaves:
        key = check_name(key, "key")
        with self._lock:
            saves = self._open_keys.pop(key, None) or KeyedSaves(self._store, key)
            self._open_keys[key] = saves
            room = _BYTES_MAX - sum(known.size for known in self._open_keys.values())
            while len(self._open_keys) > 1 and (room < 0 or len(self._open_keys) > _KEYS_MAX):
                room += self._open_keys.popitem(last=False)[1].size
            return saves

    def _thread(self, key: str) -> Thread:
        thread = self._store.thread(thread_name(key))
        if thread.head is None:
            raise StateNotFoundError(f"nothing was saved under {key!r}; save() it first")
        return thread

    def _read(self, key: str, checkpoint_id: str | None) -> ObjectState:
        register_arrays()
        thread = self._thread(key)
        found = thread.state if checkpoint_id is None else thread.at(checkpoint_id).state
        document = check_document(found)
        if "state" in document:
            stored = document["state"].plain()
        elif self._signer is None:
            raise InvalidStateError(
                f"{key!r} was saved as a pickle, which runs code when it is loaded; "
                'if that is what you want, open the manager with fmt="pickle"'
            )
        else:
            stored = self._signer.load(document["pickle"])
        state = from_stored(stored)
        if type(state) is not ObjectState:
            raise StateCorruptedError(f"the checkpoint of {key!r} doesn't hold the state of an object")
        return state

    def _go_back(self, key: str, checkpoint_id: str) -> None:
        """Make a former checkpoint the newest one again; what came after it stays in the history."""
        for tries_left in reversed(range(_BACK_TRIES)):
            thread = self._thread(key)
            try:
                if thread.head is not None and thread.head.id != checkpoint_id:
                    thread.rewind(checkpoint_id)
                return
            except ConflictError:
                # Somebody else saved between the look and the rewind.
                if not tries_left:
                    raise


class _Rollback(AbstractContextManager[A]):
    def __init__(self, manager: CheckpointManager, key: str, agent: A) -> None:
        self._manager = manager
        self._key = key
        self._agent = agent

    def __enter__(self) -> A:
        self._checkpoint_id = self._manager.save(self._key, self._agent)
        self._image = image_of(self._agent)
        return self._agent

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            return
        self._image.__exit__(kind, error, trace)
        try:
            self._manager._go_back(self._key, self._checkpoint_id)
        except Exception as problem:
            # What the caller must hear of is why the block failed.
            error.add_note(f"the newest checkpoint of {self._key!r} may be from within the block: {problem}")


def _open(backend: Any, path: str | os.PathLike[str] | None) -> ThreadStore:
    if isinstance(backend, ThreadStore):
        return backend
    if not isinstance(backend, str):
        raise UsageError(
            'backend is "memory", "file", a store URL, or a store from everthread.open(), '
            f"not {type(backend).__name__}"
        )
    if backend == "memory":
        backend = "memory:"
    elif backend == "file":
        folder = Path(os.path.abspath(path or ""))
        make_directory(folder.parent)
        backend = f"file://{quoted(str(folder))}"
    return ThreadStore(open_backend(backend, "full"))


def _signer(path: str | os.PathLike[str] | None) -> PickleSigner:
    from everthread.checkpoints.pickles import PickleSigner, key_path

    signing = key_path()
    if path is not None and Path(os.path.abspath(signing)).is_relative_to(os.path.abspath(path)):
        raise UsageError(
            f"the folder {os.fspath(path)} holds the key that signs pickles ({signing}), which must stay "
            "apart from the data: choose another folder"
        )
    return PickleSigner(signing)


def _check_agent(agent: Any) -> None:
    if not isinstance(agent, Checkpointable):
        raise UsageError(
            f"only objects of a class that inherits from Checkpointable, not {type(agent).__name__}"
        )


def state_of(agent: Checkpointable) -> ObjectState:
    _check_agent(agent)
    state = agent.state_dict()
    if not isinstance(state, dict):
        raise UsageError(f"{type(agent).__name__}.state_dict() must return a dictionary")
    # An override may leave out what tells the state from others.
    return ObjectState({VERSION: str(agent._checkpoint_version()), CLASS: type(agent).__name__, **state})


def _upgraded(state: ObjectState, agent: Checkpointable) -> Any:
    """Migrated here as well, so that an overridden ``load_state_dict()`` gets a current state."""
    return upgrade(state, type(agent).__name__, str(agent._checkpoint_version()))


# ── the decorator ───────────────────────────────────────────────────────────────────────────────────


F = TypeVar("F", bound=Callable[..., Any])

Key = str | Callable[[Any], str]


def checkpoint(manager: CheckpointManager, key: Key, every: int = 1) -> Callable[[F], F]:
    """Let every ``every``-th call of a function end with ``manager.save(key, object)``.

    The object is the first argument that is a :class:`Checkpointable`, ``self`` of a method included; a call
    without one raises :class:`UsageError`. ``key`` may be a function from that object to the key. All calls
    of the function count, those that raise too, but these save nothing. An async function is awaited and the
    write then made in a worker thread, so that the event loop goes on.
    """
    if type(every) is not int or every < 1:
        raise InvalidValueError(f"every must be a whole number from 1 on, not {every!r}", path="every")
    if not hasattr(manager, "save"):
        raise InvalidValueError(
            f"checkpoint() takes a CheckpointManager first, not {type(manager).__name__}", path="manager"
        )
    if not callable(key):
        check_name(key, "key")
    # The counter may be asked by several threads at once: next() of it is atomic.
    return lambda function: _wrap(function, manager, key, every, itertools.count(1))


def _wrap(
    function: Any, manager: CheckpointManager, key: Key, every: int, calls: itertools.count[int]
) -> Any:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError("a generator can't be checkpointed: when a call of it ends isn't known")
    if inspect.iscoroutinefunction(function):
        turns = _Turns()

        @functools.wraps(function)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            agent = _subject(function, args, kwargs)
            due = next(calls) % every == 0
            result = await function(*args, **kwargs)
            if due:
                await turns.take(lambda: _save_apart(manager, _key_for(key, agent), agent))
            return result

        return awaited

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        agent = _subject(function, args, kwargs)
        due = next(calls) % every == 0
        result = function(*args, **kwargs)
        if due:
            manager.save(_key_for(key, agent), agent)
        return result

    return called


def _subject(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Checkpointable:
    for value in itertools.chain(args, kwargs.values()):
        if isinstance(value, Checkpointable):
            return value
    raise UsageError(f"{function.__qualname__}() was called without a Checkpointable to save")


def _key_for(key: Key, agent: Checkpointable) -> str:
    return key if isinstance(key, str) else key(agent)


async def _save_apart(manager: CheckpointManager, key: str, agent: Checkpointable) -> None:
    import asyncio

    # Taken here, where nothing else of the loop can run meanwhile; only the write goes elsewhere.
    await asyncio.to_thread(manager._save_state, key, state_of(agent))


class _Turns:
    """Lets the saves of one function follow each other in the order of their states."""

    def __init__(self) -> None:
        # A lock belongs to one event loop, and the function may be called in several, one after another.
        self._locks: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]
        self._locks = weakref.WeakKeyDictionary()

    async def take(self, save: Callable[[], Awaitable[None]]) -> None:
        import asyncio

        async with self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            await save()
