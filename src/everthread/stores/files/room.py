"""Room at the end of a journal, for versions to come: a sync takes less where a file needn't grow with it.

The room is the last line of a file, nothing but spaces. It has no newline, so that whoever knows nothing of
it takes it for the torn end that an append may leave behind: it doesn't count, and may be cut off. A version
is written over its beginning. Until that is synced, the disk may show spaces in place of any part of it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable

from everthread.stores.files.disk import read_at

#: How many names an open file has.
CountNames = Callable[[int], int]

#: So much room is made at a time, and only for who has appended so often without anybody else in between.
ROOM_BYTES = 16 * 1024
ROOM_AFTER = 16
#: A disk writes no less than this at once, and no part of it alone.
_SECTOR = 512
_BLOCK = 4096

_SPACES = b" " * (ROOM_BYTES + _BLOCK)
#: So much of it is looked at before something is written over it: others write from its beginning.
BEGINNING = _SPACES[:64]
_LOST = _SPACES[:_SECTOR]


def with_room(data: bytes, end: int) -> bytes:
    """What to write at the end of a file so that there is room behind it, up to the end of a block."""
    stop = (end + len(data) + ROOM_BYTES) // _BLOCK * _BLOCK
    return data + _SPACES[: stop - end - len(data)]


def without_room(data: bytes) -> bytes:
    """The end of a file without the room there."""
    return data.rstrip(b" ")


def without_torn_room(data: bytes) -> bytes:
    """The same, of a file whose room may not have arrived on disk as a whole: it shows zeros there."""
    return data.rstrip(b" \0")


def shows_room(line: bytes, offset: int) -> bool:
    """Whether room shows where a part of the line at this offset should be, because it never got to the disk.

    No line begins like that, nor with a zero, and no flipped bit makes it so; else whole sectors are missing.
    """
    if line.startswith((b" ", b"\0")):
        return True
    return any(line.startswith(_LOST, at) for at in range(-offset % _SECTOR, len(line), _SECTOR))


def room_in(file: int, size: int) -> int:
    """How much room there is at the end of a file that is so long. Nobody writes meanwhile."""
    start = max(size - len(_SPACES), 0)
    data = read_at(file, start, size - start)
    return len(data) - len(without_room(data))


# ── looking at a file without asking for its times ───────────────────────────────────────────────

_EMPTY_PATH = 0x1000
_NAMES = 0x4
_FOUND = struct.Struct("=I12xI")


def count_names(file: int) -> int:
    return os.fstat(file).st_nlink


def make_count_names() -> CountNames:
    """As :func:`count_names`, but without asking for the times of the file, where that is possible.

    Linux keeps finer times for files whose times somebody asks for: then each write changes them, and that
    has to get to the disk as well. The function that is returned isn't for two threads at once.
    """
    try:
        # Nothing that a few saves should have to load.
        import ctypes

        # Whole numbers, bytes and the buffer go as they are: to declare them would take longer at each call.
        call = ctypes.CDLL(None).statx
        buffer = ctypes.create_string_buffer(256)
    except (ImportError, AttributeError, OSError):
        return count_names
    unpack = _FOUND.unpack_from

    def count(file: int) -> int:
        if call(file, b"", _EMPTY_PATH, _NAMES, buffer):
            # Whatever is wrong, this says so; or nothing is, but a sandbox doesn't know the call.
            return count_names(file)
        known, names = unpack(buffer)
        return names if known & _NAMES else count_names(file)

    return count
