"""A store that a test opens in one colour or the other."""

from __future__ import annotations

from typing import Any, Self

import everthread
from everthread import Store
from everthread.testing.driver import DrivenStore, open_driven


def behind(store: Store) -> Any:
    """What an adapter is given: the blocking store, or the async one behind a driven face."""
    return store._real if isinstance(store, DrivenStore) else store


class Url(str):
    """Where a store is, and in which colour the test itself opens it."""

    __slots__ = ("colour",)
    colour: str

    def __new__(cls, where: str, colour: str = "") -> Self:
        made = super().__new__(cls, where)
        made.colour = colour
        return made

    def open(self, **options: Any) -> Store:
        opened: Store = (open_driven if self.colour else everthread.open)(str(self), **options)
        return opened
