"""Time, ids and randomness, passed in so that every test replays from one seed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from itertools import count

from everthread.codec.records import fingerprint

#: Ids are made so many at a time: code that runs right after a sync is slow the first time only.
_IDS = 32


def _now_us() -> int:
    return time.time_ns() // 1000


class Runtime:
    """What a store takes from the world besides its disk."""

    __slots__ = ("_blocks", "_prefix", "_ready", "now_us", "random_bytes")

    def __init__(
        self,
        now_us: Callable[[], int] = _now_us,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self.now_us = now_us
        self.random_bytes = random_bytes
        self._prefix = ""
        self._blocks = count()
        self._ready: list[tuple[str, bytes]] = []

    def item_id(self) -> tuple[str, bytes]:
        """A new unique id for a log item, and its fingerprint.

        A random beginning, then a counter: as unique as random bytes all through, and it compresses.
        """
        if not self._prefix:
            self._prefix = self.random_bytes(10).hex()
        try:
            return self._ready.pop()
        except IndexError:
            pass
        # Two threads at once make different ones.
        first = next(self._blocks) * _IDS + 1
        ids = [f"{self._prefix}{number:x}" for number in range(first + _IDS - 1, first - 1, -1)]
        ready = [(each, fingerprint(each)) for each in ids]
        found = ready.pop()
        self._ready = ready
        return found
