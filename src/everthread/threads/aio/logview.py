"""A log as it was at one version."""

from __future__ import annotations

from typing import Any

from everthread.errors import InvalidStateError
from everthread.history.logs import LogState
from everthread.threads.colours import StreamReads
from everthread.threads.nodes import READ_ONLY


class AsyncLogView(StreamReads):
    """A log at one version, read only. Items come as plain copies."""

    def __init__(self, source: Any, name: str, state: LogState) -> None:
        self._source = source
        self.name = name
        self._state = state

    def _now(self) -> LogState:
        return self._state

    async def _fetch(self, start: int, stop: int) -> list[Any]:
        fetched: list[Any] = await self._source.fetch(self.name, start, stop)
        return fetched

    def __len__(self) -> int:
        return self._now().length

    async def read(self, start: int = 0, stop: int | None = None) -> list[Any]:
        """The items from ``start`` up to, not including, ``stop``; negative numbers count from the end."""
        state = self._now()
        start, stop, _ = slice(start, stop).indices(state.length)
        if stop <= start:
            return []
        ranges = state.ranges(start, stop)
        items = await self._fetch(*ranges[0])
        for first, last in ranges[1:]:
            items.extend(await self._fetch(first, last))
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
