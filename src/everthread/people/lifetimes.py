"""How long what belongs to a person is kept: when that is over it is erased, as if somebody had asked for it.

The times stand in a thread of their own, which no public name reaches, under the ids of keys; names are
sealed like anything else. No daemon: whoever looks, and ``gc()``, does what is due.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from everthread.errors import SealError
from everthread.model.names import check_name
from everthread.model.values import Personal
from everthread.threads.lifetimes import Lifetime, ttl_us
from everthread.threads.sync.companions import beside
from everthread.threads.sync.thread import Thread

if TYPE_CHECKING:
    from everthread.threads.sync.core import Core

SPACE = NAME = "lifetimes"


class Lifetimes:
    """The times of one store."""

    def __init__(self, core: Core) -> None:
        self._core = beside(core, SPACE)
        self._now_us = core.runtime.now_us

    def _thread(self) -> Thread | None:
        """The thread that holds them, if there is any."""
        if self._core.backend.find(self._core.space, NAME) is None:
            return None
        return Thread(self._core, NAME)

    def set(self, subject: str, ttl: Lifetime) -> None:
        """Let everything of a subject end so long from now; ``None`` for never."""
        key = self._core.vault.key_for(check_name(subject, "subject")).key_id.hex()
        if ttl is None:
            self._forget(key)
            return
        until = self._now_us() + (ttl_us(ttl) or 0)
        told = {"until_us": until, "subject": Personal(subject, subject)}
        Thread(self._core, NAME).update(lambda draft: draft.state.update({key: told}))

    def _forget(self, key: str) -> None:
        thread = self._thread()
        if thread is not None and key in thread.state:
            thread.update(lambda draft: draft.state.pop(key, None))

    def due(self) -> list[str]:
        """The subjects whose time is over."""
        thread = self._thread()
        if thread is None:
            return []
        found: list[str] = []
        for key, told in list(thread.state.items()):
            if told["until_us"] > self._now_us():
                continue
            name = _name(told["subject"])
            if name is None:
                # Erased in the meantime.
                self._forget(key)
            else:
                found.append(name)
        return found

    def done(self, subject: str, keys: list[str]) -> None:
        """A subject was erased: its time needn't be known any more."""
        for key in keys:
            self._forget(key)


def _name(sealed: Any) -> str | None:
    if not isinstance(sealed, Personal):
        return None
    try:
        name = sealed.value
    except SealError:
        return None
    return name if isinstance(name, str) else None
