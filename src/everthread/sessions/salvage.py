"""Reading what is sound of a state that may be damaged, or come from anywhere, and naming the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from everthread.codec.schema import VERSION_FIELD
from everthread.errors import DamageError
from everthread.working.layout import Item, Kind

Part = TypeVar("Part")
#: As many unsound items of one collection are described.
_TOLD_MAX = 3


def readable(problems: list[str], part: Callable[[], Iterable[Part]]) -> list[Part]:
    """A part of the state; one that is damaged is reported and doesn't keep the others from being read."""
    try:
        return list(part())
    except DamageError as error:
        problems.append(str(error))
        return []


def sound_items(problems: list[str], document: Mapping[Any, Any], kind: Kind[Item]) -> list[Item]:
    """The items of a collection in a plain document, without those that make no sense.

    These are problems only in a working state's document: elsewhere the key may mean something else.
    """
    if VERSION_FIELD not in document:
        problems = []
    stored = document.get(kind.key)
    if stored is None:
        return []
    if not isinstance(stored, Mapping):
        problems.append(f"state.{kind.key} holds no {kind.many}")
        return []
    found, unsound = [], []
    for id, fields in stored.items():
        try:
            found.append(kind.read(id if isinstance(id, str) else repr(id), fields))
        except DamageError as error:
            unsound.append(str(error))
    problems += unsound[:_TOLD_MAX]
    if len(unsound) > _TOLD_MAX:
        problems.append(f"{len(unsound) - _TOLD_MAX:,} more of state.{kind.key} make no sense")
    return found
