"""Opening personal values on purpose, and making new ones of them that belong to the same people."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from everthread.errors import ErasedError
from everthread.model.arguments import check_function
from everthread.model.values import Erased, Personal


def reveal(value: Any) -> Any:
    """A copy of ``value`` in which personal values stand in clear, however deep; ``None`` for erased ones.

    For what is handed to a model or shown to somebody: say it where that happens. Mappings become dicts,
    sequences lists. Raises :class:`SealError` if a key isn't at hand.
    """
    return _opened(value, [], [])


def derive(fn: Callable[..., Any], /, *inputs: Any, **named: Any) -> Any:
    """What ``fn`` makes of the inputs in clear, as a :class:`Personal` of everybody whose values went in.

    A summary, a translation or an embedding says something about the people that it was made of: this way it
    is sealed under all of their keys, and erasing any of them takes it along. Personal values are found
    however deep they are inside of the inputs. If one was erased, so is what would come of it: ``fn``
    isn't called and an :class:`Erased` comes back. Without any personal value it is what ``fn`` gave.
    """
    check_function(fn, "fn")
    sources: list[Personal] = []
    erased: list[Erased] = []
    opened = [_opened(each, sources, erased) for each in inputs]
    options = {name: _opened(each, sources, erased) for name, each in named.items()}
    if erased:
        return Erased()
    result = fn(*opened, **options)
    # What it returns may be personal itself, of other people.
    plain = _opened(result, sources, erased)
    return Personal.from_sources(sources, plain) if sources else result


def _opened(value: Any, found: list[Personal], erased: list[Erased]) -> Any:
    """A copy in clear; what was personal in it is noted."""
    match value:
        case Personal():
            try:
                plain = value.value
            except ErasedError:
                # Since it was read.
                erased.append(Erased(value.sealed))
                return None
            found.append(value)
            return _opened(plain, found, erased)
        case Erased():
            erased.append(value)
            return None
        case str() | bytes() | bytearray() | memoryview():
            return value
        case Mapping():
            return {key: _opened(each, found, erased) for key, each in value.items()}
        case tuple() if type(value) is tuple:
            return tuple(_opened(each, found, erased) for each in value)
        case tuple() | range():
            return value
        case Sequence():
            return [_opened(each, found, erased) for each in value]
    return value
