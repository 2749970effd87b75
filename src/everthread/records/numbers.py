"""Numbers of branches, logs, streams and namespaces: each is given out once, in blocks of 64 per process."""

from __future__ import annotations

from everthread.records.checked import CheckedStore
from everthread.records.keys import decode_number, encode_number
from everthread.records.tables import COUNTER
from everthread.stores.interface import Batch, Guard, Key, Refused

BLOCK = 64
COUNTER_KEY: Key = (COUNTER.number, 0, b"ids")


class Numbers:
    """Gives out numbers. Those left in a block when the process ends are never used."""

    def __init__(self, store: CheckedStore) -> None:
        self._store = store
        self._free: list[int] = []

    async def next(self) -> int:
        """Return a number that was never given out before, from 1."""
        while True:
            try:
                return self._free.pop()
            except IndexError:
                await self._take_block()

    async def _take_block(self) -> None:
        (known,) = await self._store.get(COUNTER_KEY)
        last = decode_number(known or b"")
        # Not durable by itself: the durable write that first uses one of the numbers comes after it.
        batch = Batch(
            [Guard(COUNTER_KEY, known)], [(COUNTER_KEY, encode_number(last + BLOCK))], durable=False
        )
        if not isinstance(await self._store.write_one(batch), Refused):
            self._free.extend(range(last + BLOCK, last, -1))
