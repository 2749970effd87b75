"""Large contents cut into pieces by what they hold: versions share those that didn't change. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import blake2b, sha256

from everthread.sandboxes.tree import ID_BYTES

#: A content up to this size is one piece; longer ones are cut into pieces of these sizes.
PIECE_BYTES_MAX = 1024 * 1024
_PIECE_BYTES_MIN = 256 * 1024
#: A cut goes to the end of its line if that is as near as this: a text within one line isn't cut in two.
_LINE_BYTES_MAX = 4096

#: Each byte is one of two kinds, chosen so that both are about as frequent in texts as in anything else.
#: A cut is made where sixteen bytes in a row are of just these kinds: about once in 64 KiB, wherever that
#: stands in the content. Two calls of the interpreter, where a rolling hash would be a loop over each byte.
_KINDS = bytes(((byte * 0x9E3779B1) >> 16 & 0xFF) % 2 for byte in range(256))
_CUT = bytes(map(int, "0110100110010110"))


def content_id(data: bytes) -> bytes:
    """What a piece is known by."""
    return sha256(data).digest()[:ID_BYTES]


def parts_id(parts: list[bytes]) -> bytes:
    """What a content of several pieces is known by."""
    # By another function: no piece, whoever wrote it, can pass for a list of pieces.
    return blake2b(b"".join(parts), digest_size=ID_BYTES, person=b"parts").digest()


def cut(read: Callable[[int], bytes], first: bytes = b"") -> Iterator[bytes]:
    """The pieces of a content that ``read(count)`` gives, after those bytes that were read already."""
    buffer = first
    while True:
        while len(buffer) <= PIECE_BYTES_MAX and (more := read(PIECE_BYTES_MAX)):
            buffer += more
        if len(buffer) <= PIECE_BYTES_MAX:
            if buffer:
                yield buffer
            return
        at = _place(buffer)
        yield buffer[:at]
        buffer = buffer[at:]


def _place(buffer: bytes) -> int:
    found = buffer[_PIECE_BYTES_MIN:PIECE_BYTES_MAX].translate(_KINDS).find(_CUT)
    if found < 0:
        return PIECE_BYTES_MAX
    at = _PIECE_BYTES_MIN + found + len(_CUT)
    line = buffer.find(b"\n", at, min(at + _LINE_BYTES_MAX, PIECE_BYTES_MAX))
    return at if line < 0 else line + 1
