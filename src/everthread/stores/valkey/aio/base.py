"""What the parts of the driver share."""

from __future__ import annotations

import os
from typing import Any

from everthread.stores.signals import Signals
from everthread.stores.valkey.aio.calls import AsyncCalls
from everthread.stores.valkey.keys import Keys
from everthread.stores.valkey.waking import Listener


class Base:
    def __init__(self, calls: AsyncCalls) -> None:
        self._calls = calls
        self._settings = calls.settings
        self._keys = Keys(calls.settings.prefix)
        self._prefix = self._keys.prefix
        #: Spaces that the store's list of them is known to have.
        self._spaces: set[str] = set()
        #: Streams that the list of their space is known to have.
        self._streams: set[tuple[str, str]] = set()
        self.signals = Signals(lambda: Listener(calls.settings, cluster=not calls.whole))

    @property
    def _whole(self) -> bool:
        """Whether one script may reach everything."""
        return self._calls.whole

    @property
    def _publish(self) -> str:
        # In a cluster a message shall not travel to every node.
        return "PUBLISH" if self._whole else "SPUBLISH"

    @property
    def round_trips(self) -> int:
        """How often this driver has asked a server and waited for the answer."""
        return self._calls.round_trips

    async def _know_space(self, space: str) -> None:
        """Before anything is put into a space: the list of spaces may have too many, never too few."""
        if space not in self._spaces:
            await self._calls.command(self._keys.spaces, "ZADD", self._keys.spaces, 0, space)
            self._spaces.add(space)


def token() -> bytes:
    """What tells one write from every other."""
    return os.urandom(8).hex().encode()


def flag(value: Any) -> bytes:
    return b"1" if value else b"0"
