"""What the change of a record looks like: whether everything is of the type that those who apply it rely on.
Values may be anything.

Said twice: of anything, and for a decoder of those that are just as nearly all are.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

#: The least length of an op, by its code.
_OP_LENGTHS = (3, 2, 5, 3)


def are_ops(ops: Any) -> bool:
    if type(ops) is not list:
        return False
    for op in ops:
        if type(op) is not list or len(op) < 2 or type(op[1]) is not list:
            return False
        code = op[0]
        if type(code) is not int or not 0 <= code <= 3 or len(op) < _OP_LENGTHS[code]:
            return False
    return True


def are_splices(splices: Any) -> bool:
    if type(splices) is not list:
        return False
    for splice in splices:
        if type(splice) is not list or len(splice) < 5 or type(splice[0]) is not str:
            return False
        _, at, remove, insert, position, *rest = splice
        if not type(at) is type(remove) is type(insert) is type(position) is int:
            return False
        if at < 0 or remove < 0 or insert < 0 or position < 0:
            return False
        if rest and type(rest[0]) is not bytes:
            return False
    return True


def is_merged(merged: Any) -> bool:
    """Whether this maps uids of lines to [seq, segment]."""
    return type(merged) is dict and all(
        type(uid) is bytes
        and type(place) is list
        and len(place) == 2
        and all(type(number) is int for number in place)
        for uid, place in merged.items()
    )


def are_counts(counts: Any) -> bool:
    return type(counts) is dict and all(
        type(log) is str and type(used) is int and used >= 0 for log, used in counts.items()
    )


# ── many at once ─────────────────────────────────────────────────────────────────────────────────

_Count = Annotated[int, msgspec.Meta(ge=0)]


class Plain(msgspec.Struct, array_like=True):
    """A change as nearly all are: its ops set or add. The decoder checks it, which takes no time at all."""

    ops: list[tuple[Literal[0, 3], list[Any], Any]]
    logs: list[tuple[str, _Count, _Count, _Count, _Count, bytes]] = []
    merged: dict[bytes, tuple[int, int]] = {}
    counts: dict[str, _Count] = {}
