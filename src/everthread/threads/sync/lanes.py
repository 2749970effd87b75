# Generated from src/everthread/threads/aio/lanes.py by tools/twin.py: change that, then run: make twin
"""Those who change one thread through the same store at once go one after another, in the order of coming.

Compare-and-set alone is kept by whoever is quickest: beside some that read and write in a millisecond, one
that takes five never comes to its turn, and of many each reads in vain most of the time. So who has met
somebody else waits in line, and so does who comes while a line stands.

It is a courtesy and nothing more. What keeps the data right is compare-and-set; so there is no lock here that
an interrupt, a signal handler or a fork(2) could leave taken, and a place in line that was left over holds up
the next one for a second, once. Who has waited for so long goes ahead of the one in front, which may be
waiting for it.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from time import monotonic

from everthread import process

#: Nobody waits for longer.
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
