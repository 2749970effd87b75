"""Reading, modifying and writing a thread, again where somebody else was first."""

from __future__ import annotations

import random
from collections.abc import Callable
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from everthread.arguments import check_count, check_function
from everthread.errors import ConflictError
from everthread.threads.aio.draft import AsyncDraft
from everthread.threads.colours import ASYNC, pause_async, refuse_coroutine
from everthread.versions import Version

if TYPE_CHECKING:
    from everthread.threads.aio.thread import AsyncThread

#: How often update() tries, and how long it pauses at most before it tries again.
TRIES = 1000
_PAUSE_S = 0.002
#: After a conflict so many updates of a handle ask the store to keep others from writing, where it can.
_WARY = 16


async def update(thread: AsyncThread, fn: Callable[[AsyncDraft], Any], tries: int) -> Version | None:
    """See :meth:`AsyncThread.update`."""
    check_function(fn, "fn")
    check_count(tries, "tries", least=1)
    thread._require_clean("update()")
    lanes, name = thread.core.lanes, thread.name
    place = await lanes.enter(name) if lanes.busy(name) else None
    try:
        for attempt in range(1, tries + 1):
            reserved = False
            if not ASYNC:
                # Else whoever waits for its turn to write has read something old by then, always. An event
                # loop mustn't be kept waiting for it.
                reserved = thread._wary > 0 and _reserve(thread)
            try:
                return await _try(thread, fn)
            except ConflictError as conflict:
                if attempt == tries:
                    raise _given_up(thread, tries, conflict) from None
                thread._wary = _WARY
            finally:
                if reserved:
                    thread.core.backend.release()  # type: ignore[attr-defined]
            if place is None:
                place = await lanes.enter(name)
            elif not reserved:
                # Short and the same for all, however often they lost: a growing pause would favour winners.
                await pause_async(random.uniform(0, _PAUSE_S))  # noqa: S311 - no secret
    finally:
        if place is not None:
            lanes.leave(place)
    raise AssertionError("the last try ends by returning or raising")


async def _try(thread: AsyncThread, fn: Callable[[AsyncDraft], Any]) -> Version | None:
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
        thread._drop_changes()
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
    thread._wary -= 1
    reserve = getattr(thread.core.backend, "reserve", None)
    return reserve is not None and bool(reserve())
