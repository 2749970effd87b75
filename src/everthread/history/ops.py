"""Edits of a document: what one commit changes, how to apply it, how to compose several.

An op is a tuple (a list once decoded) whose first element says what it does:

    (SET, path, value)                  the value at path becomes value; path () replaces the document
    (DELETE, path)                      the key goes; absent is fine
    (SPLICE, path, at, remove, items)   list[at:at+remove] becomes items
    (ADD, path, number)                 the number at path grows by number; a missing key counts as 0

Ops work on lowered trees (see ``codec.values``). A path is a sequence of keys and list indices.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from everthread.arguments import format_path
from everthread.errors import StateCorruptedError

SET = 0
DELETE = 1
SPLICE = 2
ADD = 3

Op = Sequence[Any]

#: How far back composition looks for an op to fold a new one into. Not finding one is always correct,
#: only longer; the bound keeps composing linear.
_LOOK_BACK = 128


def apply(document: Any, ops: Iterable[Op]) -> Any:
    """Apply ``ops`` in order, in place where possible, and return the root.

    Values of the ops become part of the document: hand in ops that nobody else holds.
    Raises :class:`StateCorruptedError` if an op doesn't fit the document.
    """
    op: Op = ()
    try:
        for op in ops:
            path = op[1]
            if op[0] == SET and len(path) == 1:
                # What nearly every version does.
                document[path[0]] = op[2]
            else:
                document = _apply_one(document, op)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        path = op[1] if isinstance(op, list | tuple) and len(op) > 1 else None
        where = format_path(path, "state") if isinstance(path, list | tuple) else "state"
        raise StateCorruptedError(
            f"a recorded change at {where} doesn't fit the document it was made on", where=where
        ) from error
    return document


def _apply_one(document: Any, op: Op) -> Any:
    code, path = op[0], op[1]
    if not path:
        if code != SET:
            raise ValueError(code)
        return op[2]
    node = document
    for key in path[:-1]:
        node = node[key]
    last = path[-1]
    if code == SET:
        node[last] = op[2]
    elif code == DELETE:
        node.pop(last, None)
    elif code == SPLICE:
        target = node[last]
        at, remove, items = op[2], op[3], op[4]
        if not (isinstance(target, list) and 0 <= at <= at + remove <= len(target)):
            raise ValueError(op)
        target[at : at + remove] = items
    elif code == ADD:
        node[last] = (node.get(last, 0) if type(node) is dict else node[last]) + op[2]
    else:
        raise ValueError(code)
    return document


def compose(deltas: Iterable[Iterable[Op]]) -> list[Op]:
    """One list of ops that does what applying all ``deltas`` in order would do, usually much shorter.

    Key order of dictionaries is kept as replaying one by one would give it. Takes ownership of the
    values in ``deltas``.
    """
    net: list[list[Any] | None] = []
    for delta in deltas:
        for op in delta:
            code, path = op[0], tuple(op[1])
            last = net[-1] if net else None
            if last is not None and code == SET and last[0] == SET and last[1] == path:
                # What nearly every version does: set again what the one before has set.
                last[2] = op[2]
            else:
                _add(net, [code, path, *op[2:]])
    return [op for op in net if op is not None]


def _add(net: list[list[Any] | None], op: list[Any]) -> None:
    """Append ``op`` to ``net``, or fold it into an earlier op where that is safe."""
    code, path = op[0], op[1]
    depth = len(path)
    overwritten: list[int] = []
    floor = max(0, len(net) - _LOOK_BACK)
    for index in range(len(net) - 1, floor - 1, -1):
        earlier = net[index]
        if earlier is None:
            continue
        kind, place = earlier[0], earlier[1]
        if len(place) < depth and path[: len(place)] == place:
            # An earlier op on an ancestor: what this path means was decided there.
            if kind == SET and _apply_within(earlier, op):
                _drop(net, overwritten)
                return
            break
        if place == path:
            if code == SET and kind == SET:
                # Replaced where it stands, so that a new key keeps its position.
                earlier[2] = op[2]
                _drop(net, overwritten)
                return
            if kind == SET and _apply_within(earlier, op):
                _drop(net, overwritten)
                return
            if code == ADD and kind == ADD:
                # Floats stay apart: (x + a) + b and x + (a + b) may differ in the last bit.
                if type(earlier[2]) is not int or type(op[2]) is not int:
                    break
                earlier[2] += op[2]
                return
            if code == SPLICE and kind == SPLICE and not overwritten and _join(earlier, op):
                return
            if code == SET and kind == ADD:
                # Where it stands, too: the addition may have been what brought the key.
                earlier[:] = op
                _drop(net, overwritten)
                return
            if code in (SET, DELETE) and kind != DELETE:
                overwritten.append(index)
                continue
            break
        if len(place) > depth and place[:depth] == path:
            if code in (SET, DELETE):
                overwritten.append(index)
                continue
            if code == SPLICE:
                break
    if code in (SET, DELETE):
        _drop(net, overwritten)
    net.append(op)


def _drop(net: list[list[Any] | None], indices: Iterable[int]) -> None:
    for index in indices:
        net[index] = None


def _apply_within(earlier: list[Any], op: list[Any]) -> bool:
    """Apply ``op`` inside the value that ``earlier`` sets. DELETE of that very place stays apart."""
    relative = op[1][len(earlier[1]) :]
    if not relative and op[0] == DELETE:
        return False
    try:
        holder = _apply_one([earlier[2]], [op[0], (0, *relative), *op[2:]])
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        return False
    earlier[2] = holder[0]
    return True


def _join(earlier: list[Any], op: list[Any]) -> bool:
    """Fold a splice into the splice just before it, if it falls within what that one inserted."""
    start = op[2] - earlier[2]
    items = earlier[4]
    if start < 0 or start + op[3] > len(items):
        return False
    items = list(items)
    items[start : start + op[3]] = op[4]
    earlier[4] = items
    return True
