# Generated from src/everthread/sessions/aio/orders.py by tools/twin.py: change that, then run: make twin
"""Giving and taking back standing orders: see ``sessions/orders``."""

from __future__ import annotations

from everthread.errors import NotFoundError
from everthread.sessions.orders import (
    ORDERS,
    SPACE,
    THREAD,
    StandingOrder,
    checked,
    checked_author,
    orders_in,
)
from everthread.threads.sync.core import Core
from everthread.threads.sync.journals import beside
from everthread.threads.sync.thread import Thread
from everthread.threads.sync.update import Draft


class Constraints:
    """The constraints that every briefing of a namespace shows: ``store.constraints``.

    Only Python code and the command line change them; nothing that a model is given does.
    """

    def __init__(self, core: Core) -> None:
        self._core = core

    def add(self, text: str, *, author: str) -> StandingOrder:
        """Give an order to all agents of this namespace, from their next briefing on."""
        text, author = checked(text, "text"), checked_author(author)
        runtime = self._core.runtime
        order = StandingOrder(
            id=runtime.random_bytes(6).hex(), text=text, author=author, at_us=runtime.now_us()
        )

        def put(draft: Draft) -> None:
            orders = draft.state.setdefault(ORDERS, {})
            orders[order.id] = {"text": text, "author": author, "at_us": order.at_us}

        (self._thread()).update(put)
        return order

    def remove(self, id: str) -> StandingOrder:
        """Take an order back; what it was. Raises :class:`NotFoundError`."""
        found: list[StandingOrder] = []

        def take(draft: Draft) -> None:
            found[:] = [each for each in orders_in(draft.state.plain()) if each.id == id]
            if not found:
                raise NotFoundError(f"there is no constraint {id!r} of this namespace; all() lists them")
            del draft.state[ORDERS][id]

        thread = self._thread()
        if thread.head is None:
            raise NotFoundError(f"there is no constraint {id!r} of this namespace: it has none")
        thread.update(take)
        return found[0]

    def all(self) -> list[StandingOrder]:
        """The orders in force, in the order in which they were given."""
        return orders_in((self._thread()).state.plain())

    def _thread(self) -> Thread:
        return Thread(beside(self._core, SPACE), THREAD)
