"""The texts of one thread, as its newest version has them. Sealed values stay sealed: no key is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

from everthread.codec.values import lift
from everthread.search.texts import Entry, document_entries

if TYPE_CHECKING:
    from everthread.history.logs import LogState
    from everthread.stores.contract import Line
    from everthread.threads.head_cache import Memo
    from everthread.threads.sync.core import Core

#: Items that are read at a time.
BATCH = 256


class Gathering:
    """A thread at its newest version, to be read from."""

    def __init__(self, core: Core, line: Line, memo: Memo) -> None:
        self._core = core
        self._line = line
        self._memo = memo

    @property
    def logs(self) -> dict[str, LogState]:
        """The logs that are the caller's, by name."""
        return {name: state for name, state in self._memo.logs.items() if "\0" not in name}

    @cached_property
    def entries(self) -> list[Entry]:
        """The texts of the document."""
        document = lift(self._memo.build_document())
        return list(document_entries(document)) if isinstance(document, dict) else []

    def items(self, log: str, first: int, last: int) -> Iterator[tuple[int, Any]]:
        """The items at the positions ``[first, last)`` of a log, each with its position."""
        recent = self._memo.recent.get(log)
        for start in range(first, last, BATCH):
            stop = min(start + BATCH, last)
            items = self._core.reader.items(self._line, log, start, stop, recent, None)
            yield from enumerate(items, start)
