"""Time, ids and randomness, passed in so that every test replays from one seed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from everthread.model import process


def _now_us() -> int:
    return time.time_ns() // 1000


class Runtime:
    """What a store takes from the world besides its disk."""

    __slots__ = ("_counter", "_generation", "_prefix", "now_us", "random_bytes")

    def __init__(
        self,
        now_us: Callable[[], int] = _now_us,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self.now_us = now_us
        self.random_bytes = random_bytes
        self._generation = -1
        self._prefix = ""
        self._counter = 0

    def item_id(self) -> str:
        """A new unique id for a log item.

        A random beginning, then a counter: as unique as random bytes all through, and it compresses.
        """
        if self._generation != process.generation:
            # Also after fork(2): parent and child must not hand out the same ids.
            self._generation = process.generation
            self._prefix = self.random_bytes(10).hex()
            self._counter = 0
        self._counter += 1
        return f"{self._prefix}{self._counter:x}"
