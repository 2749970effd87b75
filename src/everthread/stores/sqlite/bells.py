"""Sleeping until another process rings, by a futex in a page that both have mapped.

A bell is a hint and nothing more. Who was killed rings no more, so nobody sleeps without a time-out; and
where the system has no futex, sleepers look up often enough by themselves.
"""

from __future__ import annotations

import errno
import mmap
import os
import sys
import time
from collections.abc import Callable
from typing import Any

#: The number of the system call, by machine; only where numbers are 64 bits wide.
_FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "loongarch64": 98, "ppc64le": 221, "s390x": 238}
_WAIT, _WAKE = 0, 1
_WORD = 0xFFFFFFFF
#: What ends a sleep as it should: another value than expected, the time-out, a signal.
_AWAKE = (errno.EAGAIN, errno.ETIMEDOUT, errno.EINTR)
#: How long a sleeper that nobody can wake pauses at most, the first time and later ones. Among eight, looking
#: more often takes more time from who writes than it saves those who wait.
_NAPS_S = (0.0002, 0.0004, 0.0008, 0.0016)


def nap(before: int) -> None:
    """Random, which keeps the turn-taking even; longer after some, when many are waiting, but never long."""
    longest = _NAPS_S[min(before, len(_NAPS_S) - 1)]
    # Only who waits pays for the import.
    import random

    time.sleep(random.uniform(longest / 8, longest))  # noqa: S311 - no secret


class Bell:
    """Four bytes of a shared page. Sleepers are woken in the order in which they lay down."""

    def __init__(self, page: mmap.mmap, offset: int) -> None:
        self._call, self._word = _bound(page, offset)
        self._naps = 0

    def look(self) -> int:
        """What a sleeper tells :meth:`sleep`, looked up before whatever it waits for."""
        return int(self._word.value) if self._call is not None else 0

    def ring(self) -> bool:
        """Wake one sleeper; whether there was one."""
        self._naps = 0
        if self._call is None:
            return False
        # Another number each time: who has looked but doesn't sleep yet won't, then.
        self._word.value = time.monotonic_ns() & _WORD
        return bool(self._call(_WAKE, 1, None) > 0)

    def sleep(self, looked: int, seconds_max: float) -> None:
        """Until somebody rings, or has rung since the sleeper ``looked``."""
        if self._call is not None and self._call(_WAIT, looked, seconds_max) >= 0:
            return
        nap(self._naps)
        self._naps += 1


def _bound(page: mmap.mmap, offset: int) -> tuple[Callable[[int, int, float | None], int] | None, Any]:
    """The system call on a word of the page, and the word; nothing where there is no such call."""
    number = _FUTEX.get(_machine(), 0)
    if not number:
        return None, None
    try:
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        call = libc.syscall
    except (ImportError, OSError, AttributeError):
        return None, None
    long, pointer, integer = ctypes.c_long, ctypes.c_void_p, ctypes.c_uint32
    call.restype = long
    call.argtypes = (long, pointer, ctypes.c_int, integer, pointer, pointer, integer)
    word = integer.from_buffer(page, offset)
    address = ctypes.addressof(word)
    pause = (long * 2)()
    pause_at = ctypes.addressof(pause)

    def futex(verb: int, value: int, seconds: float | None) -> int:
        if seconds is not None:
            pause[0], pause[1] = int(seconds), int(seconds % 1 * 1e9)
        answer = int(call(number, address, verb, value, None if seconds is None else pause_at, None, 0))
        return 0 if answer < 0 and ctypes.get_errno() in _AWAKE else answer

    return futex, word


def _machine() -> str:
    return os.uname().machine if sys.platform == "linux" and sys.maxsize > _WORD else ""
