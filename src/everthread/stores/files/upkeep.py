"""Waiting for others, and what a store takes up: the contract's verbs that no commit waits for."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from everthread.stores.files.access import Access
from everthread.stores.files.content import Content
from everthread.stores.signals import Signals


class Journals:
    """Looks whether the journals of some lines have grown."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._known: dict[int, tuple[int, bool]] = {}

    def changed(self, lines: Sequence[int]) -> Collection[int] | None:
        before, self._known = self._known, self._access.read(lambda content: _stand(content, lines))
        # Line 0: nobody can tell which one is meant.
        return [line for line in lines if line == 0 or self._known.get(line) != before.get(line, ())]

    def close(self) -> None:
        """Nothing to let go of."""


def _stand(content: Content, lines: Sequence[int]) -> dict[int, tuple[int, bool]]:
    """How far each line has come, and whether it was deleted."""
    found = {}
    for line in lines:
        track = content.track(line)
        if track is not None:
            found[line] = (track.last_seq, track.line.deleted or track.journal.sealed)
    return found


class Upkeep:
    """What :class:`FileBackend` is made of besides its daily work."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self.signals = Signals(lambda: Journals(access))

    # ── waiting ──────────────────────────────────────────────────────────────────────────────

    def newer(self, line: int, seq: int) -> bool:
        last, deleted = self._access.read(lambda content: _stand(content, [line])).get(line, (seq, True))
        return deleted or last > seq

    def wait(self, line: int, seq: int, timeout_s: float) -> bool:
        return self.signals.wait(line, timeout_s, lambda: line > 0 and self.newer(line, seq))
