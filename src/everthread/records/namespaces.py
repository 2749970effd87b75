"""Namespaces: names that threads, registers and streams of one store are kept apart by."""

from __future__ import annotations

from everthread.records.checked import CheckedStore
from everthread.records.keys import decode_name, decode_number, encode_name, encode_number, end_of_prefix
from everthread.records.numbers import Numbers
from everthread.records.tables import NAMESPACE
from everthread.stores.interface import Batch, Guard, Key

_PREFIX = b"="


def namespace_key(namespace: str) -> Key:
    return NAMESPACE.number, 0, _PREFIX + encode_name(namespace)


class Namespaces:
    """The number of each namespace, assigned when something is first written to it and never changed."""

    def __init__(self, store: CheckedStore, numbers: Numbers) -> None:
        self._store = store
        self._numbers = numbers
        self._known: dict[str, int] = {}

    def forget(self) -> None:
        """Forget what was read, because the whole content has been replaced."""
        self._known.clear()

    async def find(self, namespace: str) -> int:
        """Return the number of a namespace, or 0, which owns nothing of a namespace, if it has none."""
        number = self._known.get(namespace, 0)
        if not number:
            (value,) = await self._store.get(namespace_key(namespace))
            if value is not None:
                number = self._known[namespace] = decode_number(value)
        return number

    async def make(self, namespace: str) -> int:
        """Return the number of a namespace; assign one if it has none."""
        while not (number := await self.find(namespace)):
            key = namespace_key(namespace)
            value = encode_number(await self._numbers.next())
            await self._store.write_one(Batch([Guard(key, None)], [(key, value)], durable=False))
        return number

    async def names(self) -> list[str]:
        """Return all namespaces that were ever written to, by name."""
        found = await self._store.page_all(NAMESPACE.number, 0, _PREFIX, end_of_prefix(_PREFIX))
        return [decode_name(at[1:]) for at, _ in found]
