"""Reading, modifying and writing a thread, again where somebody else was first."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, ItemsView, Iterator, KeysView, MutableMapping, ValuesView
from contextlib import suppress
from inspect import isawaitable
from time import monotonic
from typing import TYPE_CHECKING, Any, Self

from everthread.arguments import check_count, check_function
from everthread.errors import ConflictError
from everthread.threads.twins import ASYNC, pause_async, refuse_coroutine
from everthread.versions import Version

if TYPE_CHECKING:
    from concurrent.futures import Future

    from everthread.threads.aio.log import AsyncLog
    from everthread.threads.aio.thread import AsyncThread
    from everthread.threads.document import TrackedDict


# ── the queue ──
# Within a process, updates to a thread are served first come, first served, so fast ones can't starve a slow
# one. Compare-and-set keeps the data right; the queue only keeps it fair. So an update that was interrupted
# can't block the others: each waits for a second at most, then goes ahead of the one in front.


#: The longest wait in the queue.
_PATIENCE_S = 1.0

if ASYNC:
    import asyncio


class Ticket:
    """Somebody's place in the queue of a thread."""

    def __init__(self, name: str, owner: int) -> None:
        # Only who meets others pays for the import.
        from concurrent.futures import Future

        self.name = name
        self.owner = owner
        #: Done when its owner has left; says whom to wait for instead, if it left before its turn.
        self.left: Future[Ticket | None] = Future()


class UpdateQueue:
    """Who updates the threads of one store, by name: each waits for the one that came before."""

    def __init__(self) -> None:
        # A signal handler may come in between: it mustn't wait for what it interrupted.
        self._lock = threading.RLock()
        self._last: dict[str, Ticket] = {}
        self._owners: set[tuple[str, int]] = set()

    def busy(self, name: str) -> bool:
        return name in self._last

    async def enter(self, name: str) -> Ticket | None:
        """Wait for those who came before. ``None`` for who has a ticket already: nobody waits for itself."""
        ticket = Ticket(name, id(asyncio.current_task()) if ASYNC else threading.get_ident())
        with self._lock:
            if (name, ticket.owner) in self._owners:
                return None
            self._owners.add((name, ticket.owner))
            before = self._last.get(name)
            self._last[name] = ticket
        until_s = monotonic() + _PATIENCE_S
        try:
            while before is not None and (rest_s := until_s - monotonic()) > 0:
                if ASYNC:
                    await asyncio.wait((asyncio.wrap_future(before.left),), timeout=rest_s)
                else:
                    with suppress(TimeoutError):
                        before.left.result(rest_s)
                if before.left.done():
                    before = before.left.result()
        except BaseException:
            self.leave(ticket, before)
            raise
        return ticket

    def leave(self, ticket: Ticket, instead: Ticket | None = None) -> None:
        """Let the next one go ahead, or wait for another one instead."""
        while instead is not None and instead.left.done():
            instead = instead.left.result()
        with self._lock:
            self._owners.discard((ticket.name, ticket.owner))
            if self._last.get(ticket.name) is ticket:
                if instead is None:
                    del self._last[ticket.name]
                else:
                    self._last[ticket.name] = instead
        ticket.left.set_result(instead)


# ── the draft ──


class AsyncDraft(MutableMapping[Any, Any]):
    """Document and logs of one attempt.

    Most updates touch the document only, so a draft is the document as well: ``draft["n"] += 1`` and
    ``draft.state["n"] += 1`` are the same, and so is every other method of a dictionary.
    """

    def __init__(self, thread: AsyncThread) -> None:
        self._thread = thread

    @property
    def state(self) -> TrackedDict:
        return self._thread.state

    @property
    def messages(self) -> AsyncLog:
        return self._thread.messages

    def log(self, name: str) -> AsyncLog:
        return self._thread.log(name)

    def plain(self) -> Any:
        return self.state.plain()

    def increment(self, key: Any, by: int | float = 1) -> Any:
        return self.state.increment(key, by)

    # The mixin of MutableMapping would hand out the caller's own values (setdefault) or do a part of an
    # update that is refused: each method is the document's.

    def __getitem__(self, key: Any) -> Any:
        return self.state[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.state[key] = value

    def __delitem__(self, key: Any) -> None:
        del self.state[key]

    def __contains__(self, key: object) -> bool:
        return key in self.state

    def __iter__(self) -> Iterator[Any]:
        return iter(self.state)

    def __reversed__(self) -> Iterator[Any]:
        return reversed(self.state)

    def __len__(self) -> int:
        return len(self.state)

    def __eq__(self, other: object) -> bool:
        return bool(self.state == _document_of(other))

    def __or__(self, other: Any) -> dict[Any, Any]:
        return dict(self.state | _document_of(other))

    def __ror__(self, other: Any) -> dict[Any, Any]:
        return dict(other | self.state)

    def __ior__(self, other: Any) -> Self:
        self.state.update(_document_of(other))
        return self

    def get(self, key: Any, default: Any = None) -> Any:
        return self.state.get(key, default)

    def keys(self) -> KeysView[Any]:
        return self.state.keys()

    def values(self) -> ValuesView[Any]:
        return self.state.values()

    def items(self) -> ItemsView[Any, Any]:
        return self.state.items()

    def setdefault(self, key: Any, default: Any = None) -> Any:
        return self.state.setdefault(key, default)

    def update(self, other: Any = (), /, **more: Any) -> None:
        self.state.update(_document_of(other), **more)

    def pop(self, key: Any, *default: Any) -> Any:
        return self.state.pop(key, *default)

    def popitem(self) -> tuple[Any, Any]:
        return self.state.popitem()

    def clear(self) -> None:
        self.state.clear()

    def copy(self) -> dict[Any, Any]:
        """Return a deep copy as plain data, the same as :meth:`plain`."""
        return self.state.copy()

    def __repr__(self) -> str:
        return f"<draft of {self._thread.name!r}: {self.state!r}>"


def _document_of(value: Any) -> Any:
    return value.state if isinstance(value, AsyncDraft) else value


#: How often update() tries, and how long it pauses at most before it tries again.
TRIES = 1000
_PAUSE_S = 0.002
#: After a conflict so many updates of a handle ask the store to keep others from writing, where it can.
_WARY = 16


async def update(thread: AsyncThread, fn: Callable[[AsyncDraft], Any], tries: int) -> Version:
    """See :meth:`AsyncThread.update`."""
    check_function(fn, "fn")
    check_count(tries, "tries", least=1)
    thread.handle.require_clean("update()")
    queue, name = thread.core.update_queue, thread.name
    ticket = await queue.enter(name) if queue.busy(name) else None
    try:
        for attempt in range(1, tries + 1):
            reserved = False
            if not ASYNC:
                # Else whoever waits for its turn to write has read something old by then, always. An event
                # loop mustn't be kept waiting for it.
                reserved = thread.handle.contention > 0 and _reserve(thread)
            try:
                return await _try(thread, fn)
            except ConflictError as conflict:
                if attempt == tries:
                    raise _given_up(thread, tries, conflict) from None
                thread.handle.contention = _WARY
            finally:
                if reserved:
                    thread.core.backend.release()  # type: ignore[attr-defined]
            if ticket is None:
                ticket = await queue.enter(name)
            elif not reserved:
                # Short and the same for all, however often they lost: a growing pause would favour winners.
                await pause_async(random.uniform(0, _PAUSE_S))  # noqa: S311 - no secret
    finally:
        if ticket is not None:
            queue.leave(ticket)
    raise AssertionError("the last try ends by returning or raising")


async def _try(thread: AsyncThread, fn: Callable[[AsyncDraft], Any]) -> Version:
    """Read, change, write. Whatever is raised after reading, the handle has no changes then."""
    # Refuses, and touches nothing, if somebody has changed the handle meanwhile.
    await thread.refresh()
    try:
        made = fn(AsyncDraft(thread))
        if ASYNC:
            if isawaitable(made):
                await made
        else:
            refuse_coroutine(made, "the function", "give update() a plain one, or use an async store")
        return await thread.commit()
    except BaseException:
        thread.handle.drop_changes()
        raise


def _given_up(thread: AsyncThread, tries: int, conflict: ConflictError) -> ConflictError:
    often = "once" if tries == 1 else f"{tries:,} times"
    return ConflictError(
        f"update() of {thread.name!r} read and changed it {often}, and each time somebody else wrote first "
        f"(the last time {conflict.actual}); its changes were dropped. Give it a quicker function, or more "
        "tries=",
        expected=conflict.expected,
        actual=conflict.actual,
    )


def _reserve(thread: AsyncThread) -> bool:
    """Ask for it, where the store knows what that is."""
    thread.handle.contention -= 1
    reserve = getattr(thread.core.backend, "reserve", None)
    return reserve is not None and bool(reserve())
