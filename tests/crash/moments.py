"""Where in its work a process was when it died, told by a page of memory that outlives it.

The process notes which verb of the store it is in and what is being done to which file; whoever shares the
page with it reads that after its death, or waits for a moment that comes seldom before killing it.
"""

from __future__ import annotations

import itertools
import mmap
import os
import time
from collections.abc import Callable
from typing import Any

import apsw

VERBS = ("opening", "between calls", "reading", "append", "create", "fold", "delete", "keyframe")
FILES = ("no file", "log written", "log synced", "checkpoint", "database synced", "log made anew")
OPENING, BETWEEN, READING = range(3)
CHECKPOINT = FILES.index("checkpoint")
_WRITING = ("append", "create", "fold", "delete", "keyframe")
_READING = ("find", "replay", "scan", "tail", "chunks", "fingerprints", "keyed", "line", "lines")
#: Looked at so often while a moment is waited for.
_POLL_S = 0.00005

_names = itertools.count()


class Moment:
    """What one process is doing: a verb, and a thing done to a file."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, 2)

    def reset(self) -> None:
        self._page[0] = OPENING
        self._page[1] = 0

    def close(self) -> None:
        self._page.close()

    def told(self) -> str:
        """In words."""
        verb, file = VERBS[self._page[0]], FILES[self._page[1]]
        return f"{verb}, {file}" if self._page[1] else verb

    def wait_for(self, wanted: str, deadline: float) -> bool:
        """Wait until it is in this verb, or does this to a file; whether that happened in time."""
        place, number = (0, VERBS.index(wanted)) if wanted in VERBS else (1, FILES.index(wanted))
        while self._page[place] != number:
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
        return True

    def note_verbs(self, backend: Any) -> None:
        """Note which verb of ``backend`` is being carried out, from now on."""
        for name in _WRITING + _READING:
            number = VERBS.index(name) if name in _WRITING else READING
            setattr(backend, name, self._noting(getattr(backend, name), number))
        self._page[0] = BETWEEN

    def _noting(self, verb: Callable[..., Any], number: int) -> Callable[..., Any]:
        page = self._page

        def call(*args: Any, **options: Any) -> Any:
            before, page[0] = page[0], number
            try:
                return verb(*args, **options)
            finally:
                page[0] = before

        return call

    def vfs(self) -> str:
        """The name of a VFS, SQLite's own with an eye on the calls that change files."""
        name = f"moments-{os.getpid()}-{next(_names)}"
        self._vfs = _NotingVFS(name, self._page)
        return name


class _NotingVFS(apsw.VFS):
    def __init__(self, name: str, page: mmap.mmap) -> None:
        self._page = page
        super().__init__(name, "")

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
        return _NotingFile(name, flags, self._page)


class _NotingFile(apsw.VFSFile):
    def __init__(self, name: Any, flags: list[int], page: mmap.mmap) -> None:
        super().__init__("", name, flags)
        self._page = page
        self._is_log = bool(flags[0] & apsw.SQLITE_OPEN_WAL)

    def _noted(self, what: int, call: Callable[..., None], *args: Any) -> None:
        self._page[1] = what
        try:
            call(*args)
        finally:
            self._page[1] = 0

    def xWrite(self, data: Any, offset: int) -> None:
        anew = self._is_log and offset == 0
        self._noted(5 if anew else 1 if self._is_log else CHECKPOINT, super().xWrite, data, offset)

    def xSync(self, flags: int) -> None:
        self._noted(2 if self._is_log else 4, super().xSync, flags)

    def xTruncate(self, newsize: int) -> None:
        self._noted(5 if self._is_log else CHECKPOINT, super().xTruncate, newsize)
