"""The thread behind one key: each save is a version of it, and writes what changed.

The document of such a thread is ``{"checkpoint": 1, "key": the key, "saves": n}`` and either ``"state"``, the
object's state as plain data, or ``"pickle"``, the same as a signed pickle.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from threading import RLock
from typing import TYPE_CHECKING, Any, Final

from everthread.arguments import NAME_BYTES_MAX, check_name
from everthread.checkpoints.comparing import changes
from everthread.codec.types import Code
from everthread.codec.values import encode_stored, lower
from everthread.errors import InvalidStateError, SchemaVersionError, ThreadDeletedError
from everthread.history import ops
from everthread.limits import Limits
from everthread.values import Personal, Tagged

if TYPE_CHECKING:
    from everthread.threads.sync.store import ThreadStore
    from everthread.threads.sync.thread import Thread
    from everthread.versions import Version

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


class Line:
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

    def __init__(self, line: Line, state: dict[str, Any], root: str) -> None:
        self._line = line
        self._state = state
        self._root = root
        self._personals: list[Personal] = []
        self._fresh = False
        self._edits: list[ops.Op] = []
        self._new = lower(state, limits=_NO_LIMITS, seal=self._stand_in, root=root)

    def _stand_in(self, personal: Personal) -> Tagged:
        """The seal that the value has, or one that nothing else has."""
        self._personals.append(personal)
        seal = self._line.seal_of(personal)
        if seal is None:
            self._fresh = True
            return Tagged(Code.SEALED, b"not sealed yet %d" % id(personal))
        return seal

    def __call__(self, document: Any, head: Version | None) -> None:
        _begin(document, head, self._line._key)
        if "state" not in document:
            document.pop("pickle", None)
            document["state"] = self._state
            self._edits = [(ops.SET, ())]
            return
        old = self._line.known_tree(head) if head is not None else None
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
            if (seal := self._line.seal_of(personal)) is not None:
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
