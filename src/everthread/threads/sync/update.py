# Generated from src/everthread/threads/aio/update.py by tools/twin.py: change that, then run: make twin
"""Reading, modifying and writing a thread, again where somebody else was first."""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

from everthread import process
from everthread.arguments import check_count, check_function
from everthread.errors import ConflictError
from everthread.threads.twins import pause, refuse_coroutine
from everthread.versions import Version

if TYPE_CHECKING:
    from everthread.threads.document import TrackedDict
    from everthread.threads.sync.log import Log
    from everthread.threads.sync.thread import Thread


# ── the queue ──
# Within a process, updates to a thread are served first come, first served, so fast ones can't starve a slow
# one. Compare-and-set keeps the data right; the queue only keeps it fair. So an update that was interrupted
# can't block the others: each waits for a second at most, then goes ahead of the one in front.


#: The longest wait in the queue.
_PATIENCE_S = 1.0


class Place:
    """A place in a line."""

    def __init__(self, name: str, lane: deque[Place]) -> None:
        self.name = name
        self.lane = lane
        #: Not the task itself: the line must not keep it alive.
        self.whose = _me()
        self.generation = process.generation
        self._called = threading.Lock()
        self._called.acquire()

    @property
    def is_first(self) -> bool:
        """Also if somebody who had waited for long has gone ahead, and left it out."""
        with suppress(IndexError):
            return self.lane[0] is self or self not in self.lane
        return True

    @property
    def deserted(self) -> bool:
        """Whether nobody will ever leave it."""
        return False

    def wait(self, seconds: float) -> None:
        self._called.acquire(timeout=seconds)

    def call(self) -> None:
        """Have it look again."""
        with suppress(RuntimeError):
            self._called.release()


class Lanes:
    """The lines before the threads of one store, by name."""

    def __init__(self) -> None:
        self._lanes: dict[str, deque[Place]] = {}

    def busy(self, name: str) -> bool:
        return name in self._lanes

    def enter(self, name: str) -> Place | None:
        """Wait in line for a place at its front. ``None`` for who has it already: nobody waits for itself."""
        lane = self._lanes.setdefault(name, deque())
        with suppress(IndexError):
            first = lane[0]
            if first.generation != process.generation:
                # Those who stand here are in the process that this one was forked from.
                lane = self._lanes[name] = deque()
            elif first.whose == _me():
                return None
        place = Place(name, lane)
        lane.append(place)
        try:
            until_s = monotonic() + _PATIENCE_S
            _clear(lane)
            while not place.is_first:
                left_s = until_s - monotonic()
                if left_s > 0:
                    place.wait(left_s)
                    _clear(lane)
                    continue
                with suppress(IndexError):
                    # Takes long, or was interrupted on its way out.
                    if lane[0] is not place:
                        lane.popleft()
        except BaseException:
            self.leave(place)
            raise
        return place

    def leave(self, place: Place) -> None:
        """Let the next one go ahead."""
        if place.generation != process.generation:
            return
        lane = place.lane
        with suppress(ValueError):
            lane.remove(place)
        _clear(lane)
        with suppress(IndexError):
            lane[0].call()
            return
        # Who comes at this very moment stands in a line that nobody sees: it will have to try again.
        if self._lanes.get(place.name) is lane:
            self._lanes.pop(place.name, None)


def _clear(lane: deque[Place]) -> None:
    """Take those away from the front whom nobody can call."""
    with suppress(IndexError):
        while lane[0].deserted:
            lane.popleft()


def _me() -> int:
    return threading.get_ident()


# ── the draft ──


class Draft(MutableMapping[Any, Any]):
    """Document and logs of one attempt.

    Most updates touch the document only, so a draft is the document as well: ``draft["n"] += 1`` and
    ``draft.state["n"] += 1`` are the same.
    """

    def __init__(self, thread: Thread) -> None:
        self._thread = thread

    @property
    def state(self) -> TrackedDict:
        return self._thread.state

    @property
    def messages(self) -> Log:
        return self._thread.messages

    def log(self, name: str) -> Log:
        return self._thread.log(name)

    def plain(self) -> Any:
        return self.state.plain()

    def increment(self, key: Any, by: int | float = 1) -> Any:
        return self.state.increment(key, by)

    def __getitem__(self, key: Any) -> Any:
        return self.state[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.state[key] = value

    def __delitem__(self, key: Any) -> None:
        del self.state[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.state)

    def __len__(self) -> int:
        return len(self.state)

    def __repr__(self) -> str:
        return f"<draft of {self._thread.name!r}: {self.state!r}>"


#: How often update() tries, and how long it pauses at most before it tries again.
TRIES = 1000
_PAUSE_S = 0.002
#: After a conflict so many updates of a handle ask the store to keep others from writing, where it can.
_WARY = 16


def update(thread: Thread, fn: Callable[[Draft], Any], tries: int) -> Version | None:
    """See :meth:`Thread.update`."""
    check_function(fn, "fn")
    check_count(tries, "tries", least=1)
    thread.handle.require_clean("update()")
    lanes, name = thread.core.lanes, thread.name
    place = lanes.enter(name) if lanes.busy(name) else None
    try:
        for attempt in range(1, tries + 1):
            reserved = False
            reserved = thread.handle.contention > 0 and _reserve(thread)
            try:
                return _try(thread, fn)
            except ConflictError as conflict:
                if attempt == tries:
                    raise _given_up(thread, tries, conflict) from None
                thread.handle.contention = _WARY
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
        thread.handle.drop_changes()
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
    thread.handle.contention -= 1
    reserve = getattr(thread.core.backend, "reserve", None)
    return reserve is not None and bool(reserve())
