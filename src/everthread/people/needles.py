"""What an erasure looks for afterwards: pieces of the sealed bytes and of the keys of somebody."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

#: So long is a piece: never to be found by chance, short enough to lie within one page of a database.
_PIECE_BYTES = 24
#: A long value is looked for at places this far apart: no page of a database holds more.
_APART_BYTES = 1_000
#: As many are looked for. Of more values every second one is, every third …
PIECES_MAX = 20_000
#: As many are kept until the erasure is finished, in case this process dies.
KEPT_PIECES_MAX = 2_000

_MASK = 0xA5


class Notes(msgspec.Struct, frozen=True, kw_only=True):
    """What an erasure has to know of itself if another process finishes it. Kept in the ledger until then.

    Masked, so that looking for the pieces doesn't find the notes themselves.
    """

    token: bytes = b""
    captured: bool = False
    values: int = 0
    size: int = 0
    users: int = 0
    #: How many of the keys had been destroyed before, through another store or before a backup was restored.
    before: int = 0
    survivors: int = 0
    rotated: bool = False
    pieces: tuple[bytes, ...] = ()
    traces: tuple[bytes, ...] = ()

    def pack(self) -> bytes:
        kept = msgspec.structs.replace(self, pieces=tuple(thinned(self.pieces, KEPT_PIECES_MAX)))
        return masked(msgspec.msgpack.encode(kept))

    @classmethod
    def unpack(cls, data: bytes) -> Notes | None:
        """``None`` if there are none, or none that make sense."""
        try:
            return msgspec.msgpack.decode(masked(data), type=cls)
        except (msgspec.DecodeError, ValueError):
            return None


def pieces_of(sealed: bytes) -> Iterator[bytes]:
    """Pieces of the sealed bytes of a value. The first one holds the nonce, which nobody else ever has."""
    last = len(sealed) - _PIECE_BYTES
    for start in (*range(1, max(last, 2), _APART_BYTES), last):
        if 0 <= start <= last:
            yield sealed[start : start + _PIECE_BYTES]


def thinned(pieces: Iterable[bytes], most: int) -> list[bytes]:
    """At most so many of them, evenly chosen."""
    found = list(dict.fromkeys(pieces))
    step = -(-len(found) // most)
    return found[:: max(step, 1)]


def masked(data: bytes) -> bytes:
    """Every bit pattern another one; twice is none."""
    return data.translate(_TABLE)


_TABLE = bytes(byte ^ _MASK for byte in range(256))
