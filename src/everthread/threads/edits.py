"""Edits of a handle by comparison, for those who are handed a whole new state: the same for both colours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from everthread.codec import records
from everthread.codec.values import encode, lower
from everthread.history.diff import diff_documents


def assign(thread: Any, path: tuple[Any, ...], value: Any) -> None:
    """Make the value at a place of the document this one, by the fewest edits.

    ``path`` leads through dictionaries, which are there but for the last key. Raises
    :class:`InvalidValueError` or :class:`LimitError`, naming the place, for what can't be stored.
    """
    document = thread._doc()
    lowered = thread._lower(value, ".".join(str(key) for key in path))
    node = document.raw
    for key in path[:-1]:
        node = node[key]
    last = path[-1]
    if last in node:
        # Not through the root: a document of many parts is compared only where something is assigned.
        changes = diff_documents({last: node[last]}, {last: lowered}, path[:-1])
        if changes:
            document.apply(changes)
        return
    target = document.root
    for key in path[:-1]:
        target = target[key]
    target[last] = value


def encode_item(thread: Any, log: str, item: Any) -> bytes:
    """An item as a log holds it, byte for byte."""
    screen = thread.core.screen
    item = item if screen is None else screen(item, log)
    lowered = lower(item, limits=thread._limits, seal=thread._seal, root=log)
    encoded: bytes = encode(lowered, thread._limits)
    return encoded


def splice(log: Any, at: int, remove: int, raws: Sequence[bytes], ids: Sequence[Any]) -> None:
    """Put encoded items in the place of ``remove`` items from index ``at`` on. Ids aren't compared with those
    that the log holds: an id may occur twice, and an item may lack one."""
    log._thread._writable()
    prints = [records.NO_FINGERPRINT if each is None else records.fingerprint(each) for each in ids]
    if raws or remove:
        log._splice(at, remove, list(raws), prints)
