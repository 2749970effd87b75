"""Saving objects under keys, and loading, listing and comparing what was saved."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeVar

from everthread.arguments import check_count, check_name, check_path
from everthread.checkpoints.arrays import register_arrays
from everthread.checkpoints.comparing import differences
from everthread.checkpoints.lines import PREFIX, Line, check_document, key_of, thread_name
from everthread.checkpoints.migrations import upgrade
from everthread.checkpoints.objects import Checkpointable, image_of, load_into
from everthread.checkpoints.states import CLASS, VERSION, ObjectState, from_stored, to_stored
from everthread.errors import (
    ConflictError,
    InvalidStateError,
    InvalidValueError,
    StateCorruptedError,
    StateNotFoundError,
    UsageError,
)
from everthread.keyring.disk import make_directory
from everthread.stores.urls import open_backend, quoted
from everthread.threads.sync.store import ThreadStore

if TYPE_CHECKING:
    from types import TracebackType

    from everthread.checkpoints.pickles import PickleSigner
    from everthread.threads.sync.thread import Thread

A = TypeVar("A", bound=Checkpointable)

#: Keys whose last state is remembered, to compare the next one with.
_LINES_MAX: Final = 256
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
        self._lines: OrderedDict[str, Line] = OrderedDict()
        self._lock = threading.Lock()
        self._pid = os.getpid()

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
        line = self._line(key)
        stored = to_stored(state)
        if self._signer is not None:
            return line.save(None, self._signer.dump(stored), "").id
        return line.save(stored, None, str(state[CLASS])).id

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

        ``ts`` is when it was saved, in seconds since 1970 by the clock of whoever saved it.
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

    def _line(self, key: str) -> Line:
        if self._pid != os.getpid():
            # After fork(2): a thread that doesn't exist here may have held the locks.
            self._pid, self._lock, self._lines = os.getpid(), threading.Lock(), OrderedDict()
        key = check_name(key, "key")
        with self._lock:
            line = self._lines.pop(key, None) or Line(self._store, key)
            self._lines[key] = line
            room = _BYTES_MAX - sum(known.size for known in self._lines.values())
            while len(self._lines) > 1 and (room < 0 or len(self._lines) > _LINES_MAX):
                room += self._lines.popitem(last=False)[1].size
            return line

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
