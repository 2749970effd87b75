# Generated from src/everthread/threads/aio/held_items.py by tools/twin.py: change that, then run: make twin
"""Items that pruned versions inserted and later ones still hold: no record is left to check them by."""

from __future__ import annotations

from everthread.codec.records import Change
from everthread.errors import EverthreadError, StateCorruptedError
from everthread.history.spans import Spans
from everthread.stores.contract import PRUNED, Line, Row
from everthread.threads.sync.reader import Reader
from everthread.threads.sync.sealed_values import Note, SealedValues

#: So many items are read at a time.
_STRETCH = 1_000


class HeldItems:
    """Goes along while the rows of a line are looked at, and reads what the first version after pruned ones
    holds. Everything that a later one holds was there, too, or was inserted since."""

    def __init__(self, reader: Reader, line: Line, note: Note, sealed: SealedValues) -> None:
        self._reader = reader
        self._line = line
        self._note = note
        self._sealed = sealed
        #: By log, the positions that need no further look.
        self._seen: dict[str, Spans] = {}
        self._due = False

    def inserted(self, changes: list[Change]) -> None:
        """These are checked with their records."""
        for change in changes:
            for log, _, _, insert, position, *_ in change.logs:
                self._seen.setdefault(log, Spans()).add(position, position + insert - 1)

    def after(self, row: Row) -> None:
        """``row`` has been looked at."""
        if row.kind == PRUNED:
            self._due = True
            return
        if not self._due:
            return
        self._due = False
        try:
            logs = (self._reader.load(self._line, row.first)).snapshot.logs
        except EverthreadError:
            # What keeps it from being rebuilt is told where it stands.
            return
        for log, state in logs.items():
            seen = self._seen.setdefault(log, Spans())
            for start, stop in state.pieces:
                for first, last, known in list(seen.split(start, stop - 1)):
                    if not known:
                        self._read(row, log, first, last + 1)
                seen.add(start, stop - 1)

    def _read(self, row: Row, log: str, start: int, stop: int) -> None:
        for first in range(start, stop, _STRETCH):
            last = min(first + _STRETCH, stop)
            try:
                found = self._reader.raw_items(self._line, log, first, last)
                if len(found) != last - first:
                    raise StateCorruptedError("some of them are missing")
            except EverthreadError as error:
                problem = f"items {first} to {last} of log {log!r}, of pruned versions: {error}"
                self._note(row.first, row.seq, problem, "items")
            else:
                self._sealed.look(row.first, row.seq, found)
