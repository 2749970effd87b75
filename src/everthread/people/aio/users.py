"""Key/value data of persons, in a key space of its own."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from everthread.arguments import check_name
from everthread.codec.seal import read_reference
from everthread.errors import ErasedError, LegalHoldError, NotFoundError, SealError, ThreadDeletedError
from everthread.people.aio.holding import Holds
from everthread.people.aio.lifetimes import Lifetimes
from everthread.people.aio.owned import sealed_values
from everthread.people.aio.phases import apart
from everthread.stores.contract import split_keys
from everthread.threads.aio.companions import beside
from everthread.threads.aio.thread import AsyncThread
from everthread.threads.colours import ASYNC
from everthread.threads.lifetimes import Lifetime
from everthread.threads.sealing import erased_meanwhile
from everthread.values import Erased, Personal

if TYPE_CHECKING:
    from everthread.threads.aio.core import Core
    from everthread.threads.aio.draft import AsyncDraft
    from everthread.threads.reports import Progress
    from everthread.threads.sealing import Vault

SPACE = "users"
#: How long an erasure that is due waits for readers; the next open does the rest.
_PATIENCE_S = 1.0
#: What stands for a single value that has a time of its own, among subjects.
_VALUE = re.compile("value [0-9a-f]{32}")


class AsyncUserStore:
    """What is known of each person: ``set``, ``get``, ``keys``, ``delete_user``.

    Every value is sealed under its person's own key. Persons are found through the keyring, so that no name
    of one stands in the store; the keys of their values do, in clear. Apart from all threads: deleting a
    person's data touches no session and no checkpoint, and the other way round.

    ``store`` is an open store. Safe to share.
    """

    def __init__(self, store: Any) -> None:
        self._open = store

    def _core(self) -> Core:
        self._open._check()
        return beside(self._open.core, SPACE)

    async def _key_ids(self, user: str) -> list[bytes]:
        """The keys of a person, the oldest first."""
        return await apart(self._core().vault.keyring.key_ids, check_name(user, "user"))

    async def _threads(self, user: str) -> list[AsyncThread]:
        """The person's threads, called after their keys, the newest first: one, unless a key was rotated."""
        core, key_ids = self._core(), await self._key_ids(user)
        found = [await _loaded(core, key_id.hex()) for key_id in key_ids[::-1]]
        return [thread for thread in found if thread.head is not None]

    async def set(self, user: str, key: str, value: Any) -> None:
        """Keep a value, durably. Raises :class:`InvalidValueError` for what can't be stored."""
        check_name(user, "user")
        check_name(key, "key")
        # Before it: what is due is erased under the very key that this would be sealed under.
        await self.sweep()
        core = self._core()
        while True:
            name = core.vault.key_for(user).key_id.hex()
            try:
                thread = await _loaded(core, name)
                await thread.update(lambda draft: draft.state.update({key: Personal(user, value)}))
                return
            except (ThreadDeletedError, ErasedError):
                # Somebody deleted or erased the person in between: this comes after it.
                continue

    async def get(self, user: str, key: str, default: Any = None) -> Any:
        """The plain value, or ``default`` if there is none, it was erased, or its time is over."""
        check_name(key, "key")
        for thread in await self._threads(user):
            sealed = thread.state.get(key)
            if isinstance(sealed, Personal):
                try:
                    return await apart(_value, sealed)
                except ErasedError:
                    return default
        return default

    async def keys(self, user: str) -> list[str]:
        """What is known of a person, by name, in the order in which it came."""
        found: dict[str, None] = {}
        for thread in (await self._threads(user))[::-1]:
            found.update((key, None) for key, value in thread.state.items() if not isinstance(value, Erased))
        return list(found)

    async def remove(self, user: str, key: str) -> bool:
        """Forget one value; whether it was there. Its history goes with :meth:`delete_user`."""
        check_name(key, "key")
        found = False
        for thread in await self._threads(user):
            if key in thread.state:
                found = True
                await thread.update(lambda draft: draft.state.pop(key, None))
        return found

    async def delete_user(self, user: str) -> int:
        """Delete all that is kept of a person here, its history included; how many values there were."""
        keys: set[Any] = set()
        for thread in await self._threads(user):
            await thread.refresh()
            keys.update(thread.state)
            await thread.delete()
        return len(keys)

    async def export_user(self, user: str, *, progress: Progress | None = None) -> dict[str, Any]:
        """Everything that this store holds about a person, in clear, as plain data for JSON: the values kept
        here under ``values``, and under ``found`` every sealed value of theirs in threads, journals,
        checkpoints and events, of every version, with the place where it stands. Reads all. What is to be
        erased because its time is over isn't told any more."""
        from everthread.people.aio.telling import jsonable, told

        over = await Lifetimes(self._open.core).over()
        key_ids = [key_id for key_id in await self._key_ids(user) if key_id not in over]
        values = {key: jsonable(await self.get(user, key)) for key in await self.keys(user)}
        found = await told(self._open.core, key_ids, over, progress) if key_ids else []
        return {"user": user, "values": values, "found": found}

    async def expire(self, user: str, ttl: Lifetime, *, key: str | None = None) -> None:
        """Let everything of a person be erased so long from now (a ``timedelta`` or seconds; ``None``:
        never), in threads and events too; with ``key`` only that one value here. Again sets a new time, also
        if it was another store on the same keyring that set the first one.

        No daemon: from its time on reading it gives :class:`Erased`, everywhere; it is erased when a store
        that was told the time is next opened, by :meth:`set`, :meth:`sweep` and ``store.gc()``. What is over
        doesn't come back, unless a legal hold keeps it. Raises :class:`NotFoundError` if there is no such
        value.
        """
        await self.sweep()
        lifetimes = Lifetimes(self._open.core)
        if key is None:
            await lifetimes.set(user, ttl)
            return
        # A key of its own, so that destroying that one takes this value and nothing else.
        own = f"value {self._open.core.runtime.random_bytes(16).hex()}"
        found = [await self._reseal(thread, user, key, own) for thread in await self._threads(user)]
        if not any(found):
            raise NotFoundError(f"there is no value {key!r} of this person")
        await lifetimes.set(own, ttl, user)

    async def _reseal(self, thread: AsyncThread, user: str, key: str, own: str) -> bool:
        """Seal a value under a subject of its own as well; whether there is one. What a hold keeps beyond its
        time counts, unless the time of the person is over, too."""
        vault, found = self._open.core.vault, False
        theirs = frozenset(await self._key_ids(user))

        async def reseal(draft: AsyncDraft) -> None:
            # In here, where nobody else's newer value is lost.
            nonlocal found
            try:
                value = await apart(_kept_value, vault, theirs, draft.state.get(key))
            except (ErasedError, NotFoundError):
                found = False
                return
            draft.state[key] = Personal([user, own], value)
            found = True

        await thread.update(reseal)
        return found

    async def sweep(self) -> int:
        """Erase what is due; how many persons, or single values, that were."""
        return await self._sweep(_PATIENCE_S)

    async def _sweep(self, timeout_s: float) -> int:
        lifetimes, erased = Lifetimes(self._open.core), 0
        due = await lifetimes.due()
        if lifetimes.told:
            await lifetimes.mark()
        for subject, of in due.items():
            from everthread.people.aio.erasing import erase

            holds, known = Holds(self._open.core), await self._key_ids(subject)
            if await holds.keeps(await self._owners(known, subject, of)):
                continue
            if (await holds.look(known)).refused_last:
                # Once is enough in the record: this comes by at every open.
                continue
            over = await lifetimes.over()
            key_ids = [key_id for key_id in known if key_id in over]
            try:
                # What came since is under a new key, which stays.
                await erase(self._open.core, subject, timeout_s, only=over)
            except LegalHoldError:
                # Its time is over, and yet it must be kept for now: the attempt is recorded.
                continue
            await lifetimes.done(key_ids)
            erased += 1
        return erased

    async def _due(self) -> list[str]:
        """Whom :meth:`sweep` would erase. Changes nothing."""
        holds, due = Holds(self._open.core), await Lifetimes(self._open.core).due(telling=False)
        found = []
        for subject, of in due.items():
            known = await self._key_ids(subject)
            owners = await self._owners(known, subject, of)
            if not ((await holds.look(known)).hold or (await holds.look(owners)).hold):
                found.append(subject)
        return found

    async def _owners(self, key_ids: list[bytes], subject: str, of: str | None) -> list[bytes]:
        """The keys of whoever a single value belongs to, if that is what has these keys."""
        if of is not None:
            return await self._key_ids(of)
        if not _VALUE.fullmatch(subject):
            return []
        # It wasn't noted with older times: who else's keys the value needs tells it.
        found: dict[bytes, None] = {}
        async for _, joined, _ in sealed_values(self._open.core.backend, key_ids):
            found.update(dict.fromkeys(split_keys(joined)))
        return [key_id for key_id in found if key_id not in key_ids]

    def __repr__(self) -> str:
        return f"<users of {self._open.url}>"


async def _loaded(core: Core, name: str) -> AsyncThread:
    thread = AsyncThread(core, name)
    if ASYNC:
        await thread._load()
    return thread


def _value(sealed: Personal) -> Any:
    return sealed.value


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
