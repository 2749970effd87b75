# Generated from src/everthread/threads/aio/removing.py by tools/twin.py: change that, then run: make twin
"""Taking single versions of one thread out, by the keys that they carry, as ``gc()`` takes out old ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from everthread.codec import records
from everthread.history.retention import Retention, VersionLike
from everthread.stores.contract import SEAL_SEQ
from everthread.threads.sync.cleaning import Cleaner
from everthread.threads.sync.keeping import Pins

if TYPE_CHECKING:
    from everthread.threads.sync.thread import Thread


class _WithoutKeys(Retention, frozen=True, kw_only=True):
    """Keeps what doesn't carry one of these keys; rewinds only where what they led to stays."""

    gone: frozenset[str]

    def keeps(self, version: VersionLike, now_us: int) -> bool:
        head: Any = version
        return head.kind != records.REWIND and head.key not in self.gone


def remove_versions(thread: Thread, keys: frozenset[str]) -> bool:
    """Remove the content of the versions that carry these keys, as far as nothing stands on them.

    False, and nothing is removed, if the store can't, or if a fork of the thread shares its history.
    """
    core = thread.core
    line, _ = thread._require()
    if not core.backend.capabilities.prune or line.parent:
        return False
    for each in core.backend.every_line():
        if each.parent == line.id and not each.deleted:
            return False
    pins = Pins()
    rows = core.backend.scan(line.id, SEAL_SEQ - 1, 1)
    pins.add_past(core.reader, line, rows[0].seq if rows else line.parent_seq)
    cleaner = Cleaner(core, _WithoutKeys(keep_last=1, gone=keys), dry_run=False, progress=None)
    cleaner._prune_family([line], pins)
    core.memos.slot(line.uid).forget()
    return True
