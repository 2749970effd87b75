"""Waiting for others, and what a store takes up: the contract's verbs that no commit waits for."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from contextlib import suppress

from everthread.errors import UnsupportedError
from everthread.stores.contract import Line, Prune, Totals, Usage
from everthread.stores.files.access import Access
from everthread.stores.files.content import Content
from everthread.stores.files.disk import TEMPORARY
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

    # ── pruning ──────────────────────────────────────────────────────────────────────────────

    def prune(self, line: Line, prune: Prune) -> bool:
        return self._access.write(lambda content: content.prune(line, prune))

    # ── sizes ────────────────────────────────────────────────────────────────────────────────

    def usage(self, line: int) -> Usage:
        def work(content: Content) -> Usage:
            track = content.track(line)
            if track is None:
                return Usage()
            sizes = _sizes(track.folder)
            pruned, tombstones = track.tombs()
            return Usage(
                versions=track.last_seq - track.line.parent_seq - pruned,
                pruned=pruned,
                tombstones=tombstones,
                records=sum(size for name, size in sizes.items() if name.startswith("journal-")) - tombstones,
                chunks=sum(size for name, size in sizes.items() if name.startswith("items-")),
                packs=sum(size for name, size in sizes.items() if name.startswith("folds-")),
            )

        return self._access.read(work)

    def totals(self) -> Totals:
        def work(content: Content) -> Totals:
            counted = []
            for part in ("sealed", "cells", "events"):
                sizes = _tree(os.path.join(content.folder, part), finished=True)
                counted.append((len(sizes), sum(sizes)))
            files = ((self._access.root, sum(_tree(self._access.root))),)
            return Totals(sealed=counted[0], cells=counted[1], events=counted[2], files=files)

        return self._access.read(work)

    def persist(self) -> None:
        """Raises :class:`UnsupportedError` unless every write is synced anyway."""
        self._access.check_open()
        if not self._access.disk.durable:
            raise UnsupportedError('open the store with durability="full": each write is synced then')

    def compact(self) -> None:
        self._access.check_open()


def _sizes(folder: str) -> dict[str, int]:
    """The files in a folder, with their sizes."""
    with os.scandir(folder) as found:
        return {each.name: each.stat().st_size for each in found if each.is_file(follow_symlinks=False)}


def _tree(folder: str, *, finished: bool = False) -> list[int]:
    """The sizes of all files below a folder, or of the ``finished`` ones; of those that go meanwhile none is
    counted."""
    sizes = []
    for path, _, names in os.walk(folder):
        for name in names:
            if finished and name.startswith(TEMPORARY):
                continue
            with suppress(FileNotFoundError):
                sizes.append(os.lstat(os.path.join(path, name)).st_size)
    return sizes
