"""Key/value data of persons, in a key space of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from everthread.errors import ErasedError, LegalHoldError, NotFoundError, ThreadDeletedError
from everthread.model.names import check_name
from everthread.model.values import Erased, Personal
from everthread.people.lifetimes import Lifetimes
from everthread.threads.lifetimes import Lifetime
from everthread.threads.sync.companions import beside
from everthread.threads.sync.thread import Thread
from everthread.working.config import Config
from everthread.working.places import Home

if TYPE_CHECKING:
    from types import TracebackType

    from everthread.threads.reports import Progress
    from everthread.threads.sync.core import Core

SPACE = "users"
#: How long an erasure that is due waits for readers; the next open does the rest.
_PATIENCE_S = 1.0


class UserStore:
    """What is known of each person: ``set``, ``get``, ``keys``, ``delete_user``.

    Every value is sealed under its person's own key. Persons are found through the keyring, so that no name
    of one stands in the store; the keys of their values do, in clear. Apart from all threads: deleting a
    person's data touches no session and no checkpoint, and the other way round.

    ``store`` is an open store, the default one if none is given. Safe to share between threads.
    """

    def __init__(self, store: Any = None) -> None:
        self._home = Home(store, Config())
        self._open = self._home.open()

    def _core(self) -> Core:
        self._open._check()
        return beside(self._open._core, SPACE)

    def _threads(self, user: str) -> list[Thread]:
        """The person's threads, called after their keys, the newest first: one, unless a key was rotated."""
        check_name(user, "user")
        core = self._core()
        found = [Thread(core, key_id.hex()) for key_id in core.vault.keyring.key_ids(user)[::-1]]
        return [thread for thread in found if thread.head is not None]

    def set(self, user: str, key: str, value: Any) -> None:
        """Keep a value, durably. Raises :class:`InvalidValueError` for what can't be stored."""
        check_name(user, "user")
        check_name(key, "key")
        core = self._core()
        while True:
            name = core.vault.key_for(user).key_id.hex()
            try:
                Thread(core, name).update(lambda draft: draft.state.update({key: Personal(user, value)}))
                return
            except (ThreadDeletedError, ErasedError):
                # Somebody deleted or erased the person in between: this comes after it.
                continue

    def get(self, user: str, key: str, default: Any = None) -> Any:
        """The plain value, or ``default`` if there is none, or it was erased."""
        self.sweep()
        for thread in self._threads(user):
            sealed = thread.state.get(check_name(key, "key"))
            if isinstance(sealed, Personal) and not isinstance(sealed, Erased):
                return sealed.value
        return default

    def keys(self, user: str) -> list[str]:
        """What is known of a person, by name, in the order in which it came."""
        return list(dict.fromkeys(key for thread in self._threads(user)[::-1] for key in thread.state))

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
        checkpoints and events, of every version, with the place where it stands. Reads all."""
        from everthread.people.telling import jsonable, told

        key_ids = self._core().vault.keyring.key_ids(check_name(user, "user"))
        values = {key: jsonable(self.get(user, key)) for key in self.keys(user)}
        found = told(self._open._core, key_ids, progress) if key_ids else []
        return {"user": user, "values": values, "found": found}

    def expire(self, user: str, ttl: Lifetime, *, key: str | None = None) -> None:
        """Let everything of a person be erased so long from now (a ``timedelta`` or seconds; ``None``:
        never), in threads and events too; with ``key`` only that one value here. Again sets a new time.

        No daemon: what is due is erased by whoever looks at it, by :meth:`sweep`, and by ``store.gc()``.
        Raises :class:`NotFoundError` if there is no such value.
        """
        if key is None:
            Lifetimes(self._open._core).set(user, ttl)
            return
        if key not in self.keys(user):
            raise NotFoundError(f"there is no value {key!r} of this person")
        # A key of its own, so that destroying that one takes this value and nothing else.
        own = f"value {self._open._core.runtime.random_bytes(16).hex()}"
        value = self.get(user, key)
        for thread in self._threads(user):
            if key in thread.state:
                sealed = Personal([user, own], value)
                thread.update(lambda draft, new=sealed: draft.state.update({key: new}))  # type: ignore[misc]
        Lifetimes(self._open._core).set(own, ttl)

    def sweep(self) -> int:
        """Erase what is due; how many persons, or single values, that were."""
        from everthread.people.sync.erasing import erase

        lifetimes, erased = Lifetimes(self._open._core), 0
        due = lifetimes.due()
        for subject in due:
            keyring = self._core().vault.keyring
            keys = [key_id.hex() for key_id in keyring.key_ids(subject)]
            try:
                erase(self._open._core, subject, _PATIENCE_S)
            except LegalHoldError:
                # Its time is over, and yet it must be kept for now: the attempt is recorded.
                continue
            lifetimes.done(subject, keys)
            erased += 1
        return erased

    def close(self) -> None:
        """Give the default store back. A store that was handed in stays open."""
        self._home.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<users of {self._open.url}>"
