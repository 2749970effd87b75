# Generated from src/everthread/threads/aio/updating.py by tools/twin.py: change that, then run: make twin
"""Reading, modifying and writing a thread, again where somebody else was first."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from everthread.arguments import check_count, check_function
from everthread.errors import ConflictError
from everthread.threads.colours import pause, refuse_coroutine
from everthread.threads.sync.draft import Draft
from everthread.versions import Version

if TYPE_CHECKING:
    from everthread.threads.sync.thread import Thread

#: How often update() tries, and how long it pauses at most before it tries again.
TRIES = 1000
_PAUSE_S = 0.002
#: After a conflict so many updates of a handle ask the store to keep others from writing, where it can.
_WARY = 16


def update(thread: Thread, fn: Callable[[Draft], Any], tries: int) -> Version | None:
    """See :meth:`Thread.update`."""
    check_function(fn, "fn")
    check_count(tries, "tries", least=1)
    thread._require_clean("update()")
    lanes, name = thread.core.lanes, thread.name
    place = lanes.enter(name) if lanes.busy(name) else None
    try:
        for attempt in range(1, tries + 1):
            reserved = False
            reserved = thread._wary > 0 and _reserve(thread)
            try:
                return _try(thread, fn)
            except ConflictError as conflict:
                if attempt == tries:
                    raise _given_up(thread, tries, conflict) from None
                thread._wary = _WARY
            finally:
                if reserved:
                    thread.core.backend.release()  # type: ignore[attr-defined]
            if place is None:
                place = lanes.enter(name)
            elif not reserved:
                # Short and the same for all, however often they lost: a growing pause would favour winners.
                pause(random.uniform(0, _PAUSE_S))  # noqa: S311 - no secret
    finally:
        if place is not None:
            lanes.leave(place)
    raise AssertionError("the last try ends by returning or raising")


def _try(thread: Thread, fn: Callable[[Draft], Any]) -> Version | None:
    """Read, change, write. Whatever is raised after reading, the handle has no changes then."""
    # Refuses, and touches nothing, if somebody has changed the handle meanwhile.
    thread.refresh()
    try:
        made = fn(Draft(thread))
        refuse_coroutine(made, "the function", "give update() a plain one, or use an async store")
        return thread.commit()
    except BaseException:
        thread._drop_changes()
        raise


def _given_up(thread: Thread, tries: int, conflict: ConflictError) -> ConflictError:
    often = "once" if tries == 1 else f"{tries:,} times"
    return ConflictError(
        f"update() of {thread.name!r} read and changed it {often}, and each time somebody else wrote first "
        f"(the last time {conflict.actual}); its changes were dropped. Give it a quicker function, or more "
        "tries=",
        expected=conflict.expected,
        actual=conflict.actual,
    )


def _reserve(thread: Thread) -> bool:
    """Ask for it, where the store knows what that is."""
    thread._wary -= 1
    reserve = getattr(thread.core.backend, "reserve", None)
    return reserve is not None and bool(reserve())
