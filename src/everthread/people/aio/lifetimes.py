"""How long what belongs to a person is kept: when that is over it is erased, as if somebody had asked for it.

The times stand in a thread of their own, which no public name reaches, under the ids of keys; names are
sealed like anything else. No daemon: from its time on nobody is shown it, and the next write of user data,
``sweep()`` and ``gc()`` erase it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from everthread.errors import SealError
from everthread.model.names import check_name
from everthread.model.values import Personal
from everthread.people.aio.phases import apart
from everthread.threads.aio.companions import beside
from everthread.threads.aio.thread import AsyncThread
from everthread.threads.colours import ASYNC
from everthread.threads.lifetimes import Lifetime, ttl_us

if TYPE_CHECKING:
    from everthread.threads.aio.core import Core

SPACE = NAME = "lifetimes"

#: What was read of each open store: the newest version of the thread, and the time of each key. Reading user
#: data asks for it every time.
_known: weakref.WeakKeyDictionary[Any, tuple[str, dict[str, int]]] = weakref.WeakKeyDictionary()


class Lifetimes:
    """The times of one store."""

    def __init__(self, core: Core) -> None:
        self._core = beside(core, SPACE)
        self._now_us = core.runtime.now_us

    async def _thread(self) -> AsyncThread | None:
        """The thread that holds them, if there is any."""
        if await self._core.backend.find(self._core.space, NAME) is None:
            return None
        return await self._loaded()

    async def _loaded(self) -> AsyncThread:
        thread = AsyncThread(self._core, NAME)
        if ASYNC:
            await thread._load()
        return thread

    async def set(self, subject: str, ttl: Lifetime) -> None:
        """Let everything of a subject end so long from now; ``None`` for never."""
        key = self._core.vault.key_for(check_name(subject, "subject")).key_id.hex()
        if ttl is None:
            await self._forget(key)
            return
        until = self._now_us() + (ttl_us(ttl) or 0)
        told = {"until_us": until, "subject": Personal(subject, subject)}
        await (await self._loaded()).update(lambda draft: draft.state.update({key: told}))

    async def _forget(self, key: str) -> None:
        thread = await self._thread()
        if thread is not None and key in thread.state:
            await thread.update(lambda draft: draft.state.pop(key, None))

    async def over(self) -> frozenset[bytes]:
        """The ids of the keys whose time is over. What needs one of them is shown to nobody."""
        vault = self._core.vault
        thread = await self._thread()
        if thread is None or thread.head is None:
            return frozenset()
        seen, times = _known.get(vault, ("", {}))
        if seen != thread.head.id:
            times = {key: told["until_us"] for key, told in thread.state.items()}
            _known[vault] = (thread.head.id, times)
        now_us = self._now_us()
        return frozenset(bytes.fromhex(key) for key, until_us in times.items() if until_us <= now_us)

    async def due(self) -> list[str]:
        """The subjects whose time is over."""
        thread = await self._thread() if await self.over() else None
        if thread is None:
            return []
        found: list[str] = []
        for key, told in list(thread.state.items()):
            if told["until_us"] > self._now_us():
                continue
            name = await apart(_name, told["subject"])
            if name is None:
                # Erased in the meantime.
                await self._forget(key)
            else:
                found.append(name)
        return found

    async def done(self, keys: Iterable[bytes]) -> None:
        """A subject was erased: its time needn't be known any more."""
        for key in keys:
            await self._forget(key.hex())


def _name(sealed: Any) -> str | None:
    if not isinstance(sealed, Personal):
        return None
    try:
        name = sealed.value
    except SealError:
        return None
    return name if isinstance(name, str) else None
