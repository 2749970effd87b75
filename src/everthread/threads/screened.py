"""The document of a store that was opened with detectors: texts are looked at before they are taken in.

Classes of their own, so that documents of other stores don't even ask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from everthread.arguments import format_path
from everthread.threads.document import Document
from everthread.threads.nodes import READ_ONLY, Node
from everthread.threads.tracked_dict import TrackedDict
from everthread.threads.tracked_list import TrackedList


class ScreenedDict(TrackedDict):
    __slots__ = ()

    def _take_in(self, value: Any, place: Any, prefix: str | None = None) -> Any:
        taken = super()._take_in(value, place, prefix)
        return taken if taken is not value or type(value) is not str else _looked_at(self, value, place)


class ScreenedList(TrackedList):
    __slots__ = ()

    def _take_in(self, value: Any, place: Any, prefix: str | None = None) -> Any:
        taken = super()._take_in(value, place, prefix)
        return taken if taken is not value or type(value) is not str else _looked_at(self, value, place)


def _looked_at(node: Node, text: str, place: Any) -> Any:
    return node._document.lower(text, format_path((*node._path(), place), "state"))


class ScreenedDocument(Document):
    """As :class:`Document`; ``lower`` is what looks at texts."""

    __slots__ = ()

    def __init__(
        self,
        raw: dict[Any, Any],
        *,
        lower: Callable[[Any, str], Any],
        lift: Callable[[Any], Any],
        writable: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(raw, lower=lower, lift=lift, writable=writable, **options)
        self.root = ScreenedDict(self, raw, None, None, None if writable else READ_ONLY)

    def view(self, raw: Any, parent: Node, key: Any, locked: str | None) -> Node:
        kind = ScreenedDict if type(raw) is dict else ScreenedList
        return kind(self, raw, parent, key, locked)
