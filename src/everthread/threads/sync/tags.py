# Generated from src/everthread/threads/aio/tags.py by tools/twin.py: change that, then run: make twin
"""Finding threads by their metadata."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from everthread.codec.values import lower
from everthread.errors import StateCorruptedError, StoreBusyError
from everthread.stores.contract import Found, Line
from everthread.threads.sync.core import Core
from everthread.threads.sync.fold import tag_value, tags_of


def find_tagged(core: Core, metadata: Mapping[str, Any]) -> list[Found]:
    """Live lines whose metadata have all of these values, by name."""
    backend, space = core.backend, core.space
    wanted = {
        name: tag_value(value)
        for name, value in lower(dict(metadata), limits=core.limits, root="metadata").items()
    }
    newer = _bring_up_to_date(core)
    found = [each for each in backend.lines_by_tags(space, wanted) if each.line.id not in newer]
    for line, tags in newer.values():
        if _has(core, line, tags, wanted):
            now = backend.find(space, line.name)
            if now is not None and now.line.id == line.id:
                found.append(now)
    return sorted(found, key=lambda each: each.line.name) if newer else found


def _bring_up_to_date(core: Core) -> dict[int, tuple[Line, dict[str, bytes]]]:
    """The index is brought up to date by who searches, rather than at every commit: it costs a save nothing.

    Who reads doesn't wait for others who write: returns what couldn't be put into the index, by line.
    """
    backend = core.backend
    left: dict[int, tuple[Line, dict[str, bytes]]] = {}
    for line, seq in backend.untagged(core.space):
        tags: dict[str, bytes] = {}
        newest = seq
        for row, _ in backend.tail(line.id):
            if row.seq > seq:
                with suppress(StateCorruptedError):
                    tags.update(tags_of(row))
                newest = row.seq
        if not left:
            try:
                backend.tag(line.id, newest, tags)
                continue
            except StoreBusyError:
                pass
        left[line.id] = line, tags
    return left


def _has(core: Core, line: Line, tags: dict[str, bytes], wanted: dict[str, bytes]) -> bool:
    """Whether a line has the values: by its newer versions, and for the rest by the index."""
    if any(tags.get(name, value) != value for name, value in wanted.items()):
        return False
    rest = {name: value for name, value in wanted.items() if name not in tags}
    if not rest:
        return True
    return any(each.line.id == line.id for each in core.backend.lines_by_tags(core.space, rest))
