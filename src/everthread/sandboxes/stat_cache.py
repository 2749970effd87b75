"""What a folder looked like when it was last read: files that look the same needn't be read again.

A file counts as unchanged if its times, size, number and mode are those that were noted, and none of its
times is so recent that it could have been written again without showing (git calls that racily clean). What
was noted before the machine started is forgotten: after a power cut a file may look as it did and hold
something else.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

import msgspec

from everthread.codec import records
from everthread.errors import EverthreadError
from everthread.sandboxes.disk import Signature

#: Times of files come from a clock that may lag by a tick, or count whole seconds alone.
_TICK_NS = 20_000_000
_COARSE_NS = 2_000_000_000
_SECOND_NS = 1_000_000_000
#: It is written when one in so many files has changed since.
_UNSAVED_SHARE = 50


class _Stored(msgspec.Struct, array_like=True):
    boot: str
    #: Tells one folder of a path from another.
    folder: tuple[int, int]
    #: What decided which files were left out, and which these were.
    rules: bytes
    files: dict[str, tuple[Signature, bytes]]
    left_out: dict[str, tuple[Signature, str]]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Stored).decode


class StatCache:
    """What is known of the files of one folder. Without a ``path`` it is kept in memory only."""

    def __init__(self, path: str | None = None) -> None:
        self._path = path
        self._folder = (0, 0)
        #: How many files have changed since it was written.
        self._unsaved = 0
        self.rules = b""
        #: By the text of their paths: how a file looked, and what the tree says of it.
        self.files: dict[str, tuple[Signature, bytes]] = {}
        #: Files that were left out for what they hold: how they looked, and why.
        self.left_out: dict[str, tuple[Signature, str]] = {}

    def open(self, folder: os.stat_result, rules: bytes = b"") -> None:
        """Get ready for a folder; what is known of another one is forgotten."""
        place = (folder.st_dev, folder.st_ino)
        if self._folder != place and self._path is not None:
            self._load(place)
        if self._folder != place or self.rules != rules:
            self.left_out = {}
            if self._folder != place:
                self.files = {}
        self._folder, self.rules = place, rules

    def _load(self, place: tuple[int, int]) -> None:
        assert self._path is not None
        with suppress(OSError, EverthreadError, msgspec.MsgspecError), open(self._path, "rb") as file:
            stored = _decode(records.unframe(file.read(), "what is known of a folder"))
            if stored.boot == boot_id() and stored.folder == place:
                self._folder, self.rules = place, stored.rules
                self.files, self.left_out = stored.files, stored.left_out

    def note(self, text: str, seen: Signature, entry: bytes) -> None:
        self.files[text] = (seen, entry)
        self._unsaved += 1

    def note_left_out(self, text: str, seen: Signature, why: str) -> None:
        self.left_out[text] = (seen, why)
        self._unsaved += 1

    def drop(self, text: str) -> None:
        if self.files.pop(text, None) is not None or self.left_out.pop(text, None) is not None:
            self._unsaved += 1

    def save(self) -> None:
        """Keep it for the next process, if much of it is new. It is a cache: an older one only means that
        more is read, and what can't be written is done without."""
        if self._path is None or self._unsaved <= len(self.files) // _UNSAVED_SHARE:
            return
        self._unsaved = 0
        stored = _Stored(boot_id(), self._folder, self.rules, self.files, self.left_out)
        beside = f"{self._path}.{os.getpid()}"
        with suppress(OSError):
            os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
            with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(records.frame(_encode(stored)))
            os.replace(beside, self._path)

    def forget(self) -> None:
        self.files, self.left_out = {}, {}
        if self._path is not None:
            with suppress(OSError):
                os.unlink(self._path)


def is_settled(found: Signature, began_ns: int) -> bool:
    """Whether a file that looked like this when looking began would look different, had it been written
    since."""
    newest = max(found[0], found[1])
    coarse = found[0] % _SECOND_NS == 0 and found[1] % _SECOND_NS == 0
    return newest < began_ns - (_COARSE_NS if coarse else _TICK_NS)


def now_ns() -> int:
    """By the clock that files are stamped with."""
    return time.time_ns()


def boot_id() -> str:
    """Which start of the machine this is."""
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()
    return ""
