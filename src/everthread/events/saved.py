"""What projections and consumers keep: positions and states, each in a cell of its own."""

from __future__ import annotations

from typing import Any, NamedTuple

from everthread.codec.records import compress, expand
from everthread.codec.values import Open, decode_plain, encode
from everthread.errors import StateCorruptedError
from everthread.limits import Limits


def cell_name(kind: str, *parts: str) -> str:
    """A name that no other kind and parts have: each part comes with its length."""
    return "".join([f"events/{kind}", *(f"/{len(part)}:{part}" for part in parts)])


#: What the cells of consumers begin with, and those of trimming.
CONSUMERS, TRIMS = cell_name("consumer") + "/", cell_name("trim") + "/"


def stream_of(cell: str) -> str:
    """The stream that a cell of a consumer or of trimming speaks of."""
    length, _, rest = cell.removeprefix(_kind(cell)).partition(":")
    return rest[: int(length)] if length.isdecimal() else ""


def renamed_cell(cell: str, stream: str) -> str:
    """The cell of the same kind of a stream that is called otherwise."""
    old, kind = stream_of(cell), _kind(cell)
    rest = cell.removeprefix(f"{kind}{len(old)}:{old}")
    return f"{kind}{len(stream)}:{stream}{rest}"


def _kind(cell: str) -> str:
    return TRIMS if cell.startswith(TRIMS) else CONSUMERS


def pack_position(seq: int) -> bytes:
    return compress(encode([seq]))


def read_position(data: bytes, where: str) -> int:
    position: int = _read(data, where, 1, None)[0]
    return position


def pack_group(position: int, pending: list[list[Any]]) -> bytes:
    """How far a group has come, and what was handed out: seq, worker, when, how often."""
    return compress(encode([position, pending]))


def read_group(data: bytes, where: str) -> tuple[int, list[list[Any]]]:
    position, pending = _read(data, where, 2, None)
    if type(pending) is not list or not all(type(each) is list and len(each) == 4 for each in pending):
        raise StateCorruptedError(f"{where} can't be decoded", where=where)
    return position, pending


class Trimming(NamedTuple):
    """What was trimmed of a stream, and its retention.

    ``origin`` is the seq that the stream began with before it was first trimmed (0: it never was, or was
    deleted since), ``up_to`` the last seq that was trimmed. ``ttl_us`` and ``keep`` are 0 where there is no
    such bound.
    """

    origin: int = 0
    up_to: int = 0
    ttl_us: int = 0
    keep: int = 0


def pack_trimming(trimming: Trimming) -> bytes:
    return compress(encode(list(trimming)))


def read_trimming(data: bytes, where: str) -> Trimming:
    parts = _read(data, where, 4, None)
    if not all(type(part) is int and part >= 0 for part in parts):
        raise StateCorruptedError(f"{where} can't be decoded", where=where)
    return Trimming(*parts)


def pack_snapshot(first: int, seq: int, lowered: Any, limits: Limits) -> bytes:
    """What the events ``first`` … ``seq`` led to. Raises :class:`LimitError` if it takes too many bytes."""
    return compress(encode([first, seq, lowered], limits))


def read_snapshot(data: bytes, where: str, open_: Open) -> tuple[int, int, Any]:
    first, seq, state = _read(data, where, 3, open_)
    if type(seq) is not int:
        raise StateCorruptedError(f"{where} can't be decoded", where=where)
    return first, seq, state


def _read(data: bytes, where: str, count: int, open_: Open | None) -> Any:
    parts = decode_plain(expand(data, where), open_)
    if type(parts) is not list or len(parts) < count or type(parts[0]) is not int or parts[0] < 0:
        raise StateCorruptedError(f"{where} can't be decoded", where=where)
    return parts[:count]
