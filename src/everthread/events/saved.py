"""What projections and consumers keep: positions and states, each in a cell of its own."""

from __future__ import annotations

from typing import Any

from everthread.codec.records import compress, expand
from everthread.codec.values import Open, decode_plain, encode
from everthread.errors import StateCorruptedError
from everthread.limits import Limits


def cell_name(kind: str, *parts: str) -> str:
    """A name that no other kind and parts have: each part comes with its length."""
    return "".join([f"events/{kind}", *(f"/{len(part)}:{part}" for part in parts)])


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
