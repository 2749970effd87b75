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
from everthread.threads.aio.core import Core
from everthread.threads.aio.journals import beside
from everthread.threads.aio.thread import AsyncThread
from everthread.threads.aio.update import AsyncDraft
from everthread.threads.twins import ASYNC


class AsyncConstraints:
    """The constraints that every briefing of a namespace shows: ``store.constraints``.

    Only Python code and the command line change them; nothing that a model is given does.
    """

    def __init__(self, core: Core) -> None:
        self._core = core

    async def add(self, text: str, *, author: str) -> StandingOrder:
        """Give an order to all agents of this namespace, from their next briefing on."""
        text, author = checked(text, "text"), checked_author(author)
        runtime = self._core.runtime
        order = StandingOrder(
            id=runtime.random_bytes(6).hex(), text=text, author=author, at_us=runtime.now_us()
        )

        def put(draft: AsyncDraft) -> None:
            orders = draft.state.setdefault(ORDERS, {})
            orders[order.id] = {"text": text, "author": author, "at_us": order.at_us}

        await (await self._thread()).update(put)
        return order

    async def remove(self, id: str) -> StandingOrder:
        """Take an order back; what it was. Raises :class:`NotFoundError`."""
        found: list[StandingOrder] = []

        def take(draft: AsyncDraft) -> None:
            found[:] = [each for each in orders_in(draft.state.plain()) if each.id == id]
            if not found:
                raise NotFoundError(f"there is no constraint {id!r} of this namespace; all() lists them")
            del draft.state[ORDERS][id]

        thread = await self._thread()
        if thread.head is None:
            raise NotFoundError(f"there is no constraint {id!r} of this namespace: it has none")
        await thread.update(take)
        return found[0]

    async def all(self) -> list[StandingOrder]:
        """The orders in force, in the order in which they were given."""
        return orders_in((await self._thread()).state.plain())

    async def _thread(self) -> AsyncThread:
        thread = AsyncThread(beside(self._core, SPACE), THREAD)
        if ASYNC:
            await thread.refresh()
        return thread
