"""Finding the references to sealed values in what is encoded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from everthread.codec.seal import SealedRef, read_reference
from everthread.codec.types import Code
from everthread.codec.values import decode
from everthread.values import Tagged

#: How a reference begins, from its type code on; seldom anything else does.
_REFERENCE = b"\x1e\x94\x01"


def may_refer(data: bytes) -> bool:
    """Whether encoded values may hold a reference: no if not, perhaps otherwise."""
    return _REFERENCE in data


def references(parts: Iterable[bytes]) -> dict[bytes, SealedRef]:
    """The references in encoded values, by value id. Looks only into what may hold one."""
    tagged: list[Tagged] = []
    for part in parts:
        if _REFERENCE in part:
            _gather(decode(part), tagged)
    return {reference.value_id: reference for reference in map(read_reference, tagged)}


def _gather(node: Any, found: list[Tagged]) -> None:
    if type(node) is dict:
        for value in node.values():
            _gather(value, found)
    elif type(node) is list:
        for value in node:
            _gather(value, found)
    elif type(node) is Tagged and node.code == Code.SEALED:
        found.append(node)
    elif type(node) is Tagged and _REFERENCE in node.data:
        # A tuple, a set or an object: packed once more.
        _gather(decode(node.data), found)
