"""Key/value data of persons, in a key space of its own."""

from __future__ import annotations

import base64
import datetime
import functools
import re
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Concatenate, NamedTuple, ParamSpec, Self, TypeVar

from everthread.arguments import check_name, format_path
from everthread.codec.seal import read_reference
from everthread.codec.types import Code
from everthread.codec.values import decode
from everthread.errors import (
    ErasedError,
    EverthreadError,
    LegalHoldError,
    NotFoundError,
    SealError,
    ThreadDeletedError,
)
from everthread.history.redaction import Needle, Path
from everthread.people.erase import sealed_values
from everthread.people.holds import Holds
from everthread.people.lifetimes import Lifetimes
from everthread.redaction.scan import Scanner
from everthread.stores.contract import split_keys
from everthread.threads.lifetimes import Lifetime
from everthread.threads.reports import Progress
from everthread.threads.sealing import Vault, erased_meanwhile
from everthread.threads.sync.core import Core
from everthread.threads.sync.journals import beside
from everthread.threads.sync.thread import Thread
from everthread.threads.sync.update import Draft
from everthread.values import Erased, Personal, Tagged
from everthread.working.config import Config
from everthread.working.sync.home import Home

T = TypeVar("T")
P = ParamSpec("P")

SPACE = "users"
#: How long an erasure that is due waits for readers; the next open does the rest.
_PATIENCE_S = 1.0
#: What stands for a single value that has a time of its own, among subjects.
_VALUE = re.compile("value [0-9a-f]{32}")


class UserStore:
    """What is known of each person: ``set``, ``get``, ``keys``, ``delete_user``.

    Every value is sealed under its person's own key. Persons are found through the keyring, so that no name
    of one stands in the store; the keys of their values do, in clear. Apart from all threads: deleting a
    person's data touches no session and no checkpoint, and the other way round.

    ``store`` is an open store, the default one if none is given. Safe to share between threads.
    """

    def __init__(self, store: Any = None) -> None:
        self._home = Home(store, Config())
        self._open: Any = self._home.open()

    def close(self) -> None:
        """Give the default store back. A store that was handed in stays open."""
        self._home.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _core(self) -> Core:
        self._open._check()
        return beside(self._open.core, SPACE)

    def _key_ids(self, user: str) -> list[bytes]:
        """The keys of a person, the oldest first."""
        return self._core().vault.keyring.key_ids(check_name(user, "user"))

    def _threads(self, user: str) -> list[Thread]:
        """The person's threads, called after their keys, the newest first: one, unless a key was rotated."""
        core, key_ids = self._core(), self._key_ids(user)
        found = [Thread(core, key_id.hex()) for key_id in key_ids[::-1]]
        return [thread for thread in found if thread.head is not None]

    def set(self, user: str, key: str, value: Any) -> None:
        """Keep a value, durably. Raises :class:`InvalidValueError` for what can't be stored."""
        check_name(user, "user")
        check_name(key, "key")
        # Before it: what is due is erased under the very key that this would be sealed under.
        self.sweep()
        core = self._core()
        while True:
            name = core.vault.key_for(user).key_id.hex()
            try:
                thread = Thread(core, name)
                thread.update(lambda draft: draft.state.update({key: Personal(user, value)}))
                return
            except (ThreadDeletedError, ErasedError):
                # Somebody deleted or erased the person in between: this comes after it.
                continue

    def get(self, user: str, key: str, default: Any = None) -> Any:
        """The plain value, or ``default`` if there is none, it was erased, or its time is over."""
        check_name(key, "key")
        for thread in self._threads(user):
            sealed = thread.state.get(key)
            if isinstance(sealed, Personal):
                try:
                    return sealed.value
                except ErasedError:
                    return default
        return default

    def keys(self, user: str) -> list[str]:
        """What is known of a person, by name, in the order in which it came."""
        found: dict[str, None] = {}
        for thread in (self._threads(user))[::-1]:
            found.update((key, None) for key, value in thread.state.items() if not isinstance(value, Erased))
        return list(found)

    def remove(self, user: str, key: str) -> bool:
        """Forget one value; whether it was there. Its history goes with :meth:`delete_user`."""
        check_name(key, "key")
        found = False
        for thread in self._threads(user):
            if key in thread.state:
                found = True
                thread.update(lambda draft: draft.state.pop(key, None))
        return found

    def delete_user(self, user: str) -> int:
        """Delete all that is kept of a person here, its history included; how many values there were."""
        keys: set[Any] = set()
        for thread in self._threads(user):
            thread.refresh()
            keys.update(thread.state)
            thread.delete()
        return len(keys)

    def export_user(self, user: str, *, progress: Progress | None = None) -> dict[str, Any]:
        """Everything that this store holds about a person, in clear, as plain data for JSON: the values kept
        here under ``values``, and under ``found`` every sealed value of theirs in threads, journals,
        checkpoints and events, of every version, with the place where it stands. Reads all. What is to be
        erased because its time is over isn't shown any more."""

        over = Lifetimes(self._open.core).over()
        key_ids = [key_id for key_id in self._key_ids(user) if key_id not in over]
        values = {key: jsonable(self.get(user, key)) for key in self.keys(user)}
        found = values_in_place(self._open.core, key_ids, over, progress) if key_ids else []
        return {"user": user, "values": values, "found": found}

    def expire(self, user: str, ttl: Lifetime, *, key: str | None = None) -> None:
        """Let everything of a person be erased so long from now (a ``timedelta`` or seconds; ``None``:
        never), in threads and events too; with ``key`` only that one value here. Again sets a new time, also
        if it was another store on the same keyring that set the first one.

        No daemon: from its time on reading it gives :class:`Erased`, everywhere; it is erased when a store
        that was told the time is next opened, by :meth:`set`, :meth:`sweep` and ``store.gc()``. What is over
        doesn't come back, unless a legal hold keeps it. Raises :class:`NotFoundError` if there is no such
        value.
        """
        self.sweep()
        lifetimes = Lifetimes(self._open.core)
        if key is None:
            lifetimes.set(user, ttl)
            return
        # A key of its own, so that destroying that one takes this value and nothing else.
        own = f"value {self._open.core.runtime.random_bytes(16).hex()}"
        found = [self._reseal(thread, user, key, own) for thread in self._threads(user)]
        if not any(found):
            raise NotFoundError(f"there is no value {key!r} of this person")
        lifetimes.set(own, ttl, user)

    def _reseal(self, thread: Thread, user: str, key: str, own: str) -> bool:
        """Seal a value under a subject of its own as well; whether there is one. What a hold keeps beyond its
        time counts, unless the time of the person is over, too."""
        vault, found = self._open.core.vault, False
        theirs = frozenset(self._key_ids(user))

        def reseal(draft: Draft) -> None:
            # In here, where nobody else's newer value is lost.
            nonlocal found
            try:
                value = _kept_value(vault, theirs, draft.state.get(key))
            except (ErasedError, NotFoundError):
                found = False
                return
            draft.state[key] = Personal([user, own], value)
            found = True

        thread.update(reseal)
        return found

    def sweep(self) -> int:
        """Erase what is due; how many persons, or single values, that were."""
        return self._sweep(_PATIENCE_S)

    def _sweep(self, timeout_s: float) -> int:
        lifetimes, erased = Lifetimes(self._open.core), 0
        due = lifetimes.due()
        if lifetimes.told:
            lifetimes.mark()
        for subject, of in due.items():
            from everthread.people.erase import erase

            holds, known = Holds(self._open.core), self._key_ids(subject)
            if holds.keeps(self._owners(known, subject, of)):
                continue
            if (holds.look(known)).refused_last:
                # Once is enough in the record: this comes by at every open.
                continue
            over = lifetimes.over()
            key_ids = [key_id for key_id in known if key_id in over]
            try:
                # What came since is under a new key, which stays.
                erase(self._open.core, subject, timeout_s, only=over)
            except LegalHoldError:
                # Its time is over, and yet it must be kept for now: the attempt is recorded.
                continue
            lifetimes.done(key_ids)
            erased += 1
        return erased

    def _due(self) -> list[str]:
        """Whom :meth:`sweep` would erase. Changes nothing."""
        holds, due = Holds(self._open.core), Lifetimes(self._open.core).due(repair=False)
        found = []
        for subject, of in due.items():
            known = self._key_ids(subject)
            owners = self._owners(known, subject, of)
            if not ((holds.look(known)).hold or (holds.look(owners)).hold):
                found.append(subject)
        return found

    def _owners(self, key_ids: list[bytes], subject: str, of: str | None) -> list[bytes]:
        """The keys of whoever a single value belongs to, if that is what has these keys."""
        if of is not None:
            return self._key_ids(of)
        if not _VALUE.fullmatch(subject):
            return []
        # It wasn't noted with older times: who else's keys the value needs tells it.
        found: dict[bytes, None] = {}
        for _, joined, _ in sealed_values(self._open.core.backend, key_ids):
            found.update(dict.fromkeys(split_keys(joined)))
        return [key_id for key_id in found if key_id not in key_ids]

    def __repr__(self) -> str:
        return f"<users of {self._open.url}>"


def _kept_value(vault: Vault, theirs: frozenset[bytes], sealed: Any) -> Any:
    """What a value says, also after its own time if a hold keeps it; not after that of the person, who has
    ``theirs`` as keys. Raises :class:`NotFoundError` or :class:`ErasedError`."""
    if isinstance(sealed, Personal):
        return sealed.value
    if not isinstance(sealed, Erased) or sealed.sealed is None:
        raise NotFoundError("there is no such value")
    if vault.is_erased(theirs.intersection(read_reference(sealed.sealed).key_ids)):
        raise erased_meanwhile()
    try:
        return vault.open_due(sealed.sealed)
    except SealError:
        raise erased_meanwhile() from None


def _on_worker(
    verb: Callable[Concatenate[UserStore, P], T],
) -> Callable[Concatenate[AsyncUserStore, P], Coroutine[Any, Any, T]]:
    """A verb, awaited: the async store runs it on a worker thread."""

    @functools.wraps(verb)
    async def call(self: AsyncUserStore, /, *args: P.args, **options: P.kwargs) -> T:
        def work(store: Any, **options: Any) -> T:
            return verb(UserStore(store), *args, **options)

        result: T = await self._store._run(work, **options)
        return result

    return call


class AsyncUserStore:
    """What ``store.users`` is in an async store: the verbs of :class:`UserStore`, awaited."""

    def __init__(self, store: Any) -> None:
        self._store = store

    set = _on_worker(UserStore.set)
    get = _on_worker(UserStore.get)
    keys = _on_worker(UserStore.keys)
    remove = _on_worker(UserStore.remove)
    delete_user = _on_worker(UserStore.delete_user)
    export_user = _on_worker(UserStore.export_user)
    expire = _on_worker(UserStore.expire)
    sweep = _on_worker(UserStore.sweep)

    def __repr__(self) -> str:
        return f"<users of {self._store.url}>"


# ── everything that a store holds about a person ─────────────────────────────────────────────

#: What threads with user data are called in places.
_USERS = "users"


class _Keys(Needle):
    """Looks for what is sealed under some keys, as other needles look for a text."""

    def __init__(self, key_ids: Sequence[bytes]) -> None:
        super().__init__("\0")
        self._key_ids = frozenset(key_ids)

    def within(self, data: bytes) -> bool:
        return any(key_id in data for key_id in self._key_ids)

    def sealed(self, node: Any, path: Path = ()) -> Iterator[tuple[Path, Tagged]]:
        if type(node) is dict:
            for key, value in node.items():
                yield from self.sealed(value, (*path, key))
        elif type(node) is list:
            for index, value in enumerate(node):
                yield from self.sealed(value, (*path, index))
        elif type(node) is Tagged and node.code == Code.SEALED:
            if not self._key_ids.isdisjoint(read_reference(node).key_ids):
                yield path, node
        elif type(node) is Tagged and self.within(node.data):
            yield from self.sealed(decode(node.data), path)


def keys_needle(key_ids: Collection[bytes]) -> _Keys:
    """Looks for what is sealed under these keys."""
    return _Keys(list(key_ids))


class _Found(NamedTuple):
    """A value: the description of its place, what stands there, and of which user value it is a version."""

    place: dict[str, Any]
    tagged: Tagged
    version_of: tuple[str, Any] | None


class PersonScanner(Scanner):
    """Finds the values of a person wherever they stand."""

    def __init__(self, core: Core, keys: _Keys, progress: Progress | None = None) -> None:
        super().__init__(core, keys, progress)
        self._keys = keys
        #: Of each thread the oldest ones first.
        self.found: list[_Found] = []

    def _look(self, what: Any, node: Any, at: Path | None, root: str, **where: Any) -> Any:
        for path, tagged in self._keys.sealed(node):
            place = {
                name: each for name, each in where.items() if each not in ("", None) and name != "redactable"
            }
            version_of = None
            if where.get("beside") == _USERS and what in ("document", "state"):
                # The key of the document under which it stands.
                version_of = where["thread"], (*(at or ()), *path)[0]
            self.found.append(
                _Found({"what": what, **place, "path": format_path(path, root)}, tagged, version_of)
            )
        return ()


def values_in_place(
    core: Core, key_ids: Sequence[bytes], over: frozenset[bytes], progress: Progress | None
) -> list[dict[str, Any]]:
    """Every place where something of these keys stands, with its value; nothing that needs a key of ``over``,
    whose time is over."""
    scanner = PersonScanner(core, _Keys(key_ids), progress)
    for _ in scanner.run():
        pass
    return _opened_values(core, scanner.found, over)


def _opened_values(core: Core, found: list[_Found], over: frozenset[bytes]) -> list[dict[str, Any]]:
    values, ended = [], set[tuple[str, Any]]()
    # The newest first: a user value that ended by itself was under the key of its person alone before it was
    # given a time, and its end holds for those versions, too.
    for place, tagged, version_of in reversed(found):
        needed = read_reference(tagged).key_ids
        if version_of is not None and core.vault.is_erased(needed):
            ended.add(version_of)
        if version_of not in ended and over.isdisjoint(needed):
            values.append(_opened(core, place, tagged))
    return values[::-1]


def _opened(core: Core, place: dict[str, Any], tagged: Tagged) -> dict[str, Any]:
    try:
        value = core.vault.open(tagged, {})
        return {**place, "value": jsonable(value.value) if isinstance(value, Personal) else None}
    except EverthreadError as error:
        return {**place, "unreadable": type(error).__name__, "value": None}


def jsonable(value: Any) -> Any:
    """A value with nothing in it but what JSON has."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Personal):
        return jsonable(value.value)
    if isinstance(value, Erased):
        return None
    if isinstance(value, Mapping):
        return {str(key): jsonable(each) for key, each in value.items()}
    if isinstance(value, bytes | bytearray):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, Sequence | set | frozenset):
        return [jsonable(each) for each in value]
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    return str(value)
