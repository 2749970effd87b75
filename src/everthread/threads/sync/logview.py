# Generated from src/everthread/threads/aio/logview.py by tools/twin.py: change that, then run: make twin
"""A log as it was at one version."""

from __future__ import annotations

from typing import Any

from everthread.errors import InvalidStateError
from everthread.history.logs import LogState
from everthread.threads.colours import SequenceReads
from everthread.threads.nodes import READ_ONLY


class LogView(SequenceReads):
    """A log at one version, read only. Items come as plain copies."""

    def __init__(self, source: Any, name: str, state: LogState) -> None:
        self._source = source
        self.name = name
        self._state = state

    def _now(self) -> LogState:
        return self._state

    def _fetch(self, start: int, stop: int) -> list[Any]:
        fetched: list[Any] = self._source.fetch(self.name, start, stop)
        return fetched

    def __len__(self) -> int:
        return self._now().length

    def read(self, start: int = 0, stop: int | None = None) -> list[Any]:
        """The items from ``start`` up to, not including, ``stop``; negative numbers count from the end."""
        state = self._now()
        start, stop, _ = slice(start, stop).indices(state.length)
        if stop <= start:
            return []
        ranges = state.ranges(start, stop)
        items = self._fetch(*ranges[0])
        for first, last in ranges[1:]:
            items.extend(self._fetch(first, last))
        return items

    def append(self, item: Any) -> Any:
        """Refused: the past is read only."""
        raise InvalidStateError(READ_ONLY)

    def extend(self, items: Any) -> Any:
        """Refused: the past is read only."""
        raise InvalidStateError(READ_ONLY)

    def truncate_from(self, message_id: Any) -> Any:
        """Refused: the past is read only."""
        raise InvalidStateError(READ_ONLY)

    def __repr__(self) -> str:
        return f"<log {self.name!r}: {len(self)} items>"
