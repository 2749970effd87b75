# Generated from src/everthread/threads/aio/lost_ack.py by tools/twin.py: change that, then run: make twin
"""A commit whose answer was lost (an I/O error, an interrupt) and that had been written all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from everthread.codec import records
from everthread.errors import EverthreadError, StoreBusyError, StoreUnavailableError
from everthread.history.chain import HASH_KEPT
from everthread.history.diff import copy_tree, diff_documents
from everthread.history.logs import EMPTY_LOG, LogState, common_prefix
from everthread.stores.contract import Line
from everthread.threads.head_cache import CachedHead, from_snapshot
from everthread.versions import Version

if TYPE_CHECKING:
    from everthread.threads.sync.handle import Handle
    from everthread.threads.sync.log import Log

Change = tuple[str, int, int, list[bytes], list[bytes]]


class Landed(Exception):  # noqa: N818 - a signal inside this layer
    """An earlier try is there after all; the handle stands on it, with whatever it changed since."""

    def __init__(self, version: Version) -> None:
        super().__init__("landed")
        self.version = version


def find_landed(handle: Handle, line: Line, seq: int) -> Landed | None:
    """If version ``seq`` of the line is one this handle sent, stand on it and keep what was changed since."""
    reader = handle.core.reader
    try:
        version, found = reader.version(line, seq)
    except (StoreUnavailableError, StoreBusyError):
        # Not known: only who asks again learns whether it was somebody else.
        raise
    except EverthreadError:
        return None
    digest = next((d for d in handle.attempted if d[:HASH_KEPT] == found[:HASH_KEPT]), None)
    if digest is None or (version.kind == "rewind" and handle.dirty):
        # What was changed since a rewind that landed was meant for the state before it.
        return None
    loaded = reader.load(line, seq)
    carry(handle, line, from_snapshot(loaded.snapshot, seq, digest, version, loaded.costs, {}))
    return Landed(version)


def carry(handle: Handle, line: Line, landed: CachedHead) -> None:
    """Stand on a version that holds part of what was pending, and keep what was changed beyond it."""
    changes = _changes_beyond(handle, landed)
    ops = []
    if handle.document is not None and handle.document.dirty:
        ops = copy_tree(diff_documents(landed.build_document(), handle.document.raw))
    sealed = handle.sealed
    handle.stand(line, landed, "rebasing")
    handle.sealed = sealed
    if ops and handle.document is not None:
        handle.document.apply(ops)
    for name, at, remove, raws, prints in changes:
        if raws or remove:
            handle.log(name)._splice(at, remove, raws, prints)
    handle.moving = ""


def _changes_beyond(handle: Handle, landed: CachedHead) -> list[Change]:
    """What the pending changes of all logs do beyond those that landed."""
    states = _states(handle)
    return [
        _beyond(handle.logs[name], state, landed.logs.get(name, EMPTY_LOG)) for name, state in states.items()
    ]


def _states(handle: Handle) -> dict[str, LogState]:
    return {name: log._current for name, log in handle.logs.items() if log._dirty}


def _beyond(log: Log, current: LogState, landed: LogState) -> Change:
    """What a log's pending changes do beyond those that landed. Positions are the same in both."""
    shared = common_prefix(landed, current)
    raws = log._raw_range(current, shared, current.length)
    return log.name, shared, landed.length - shared, raws, [records.print_of(raw) for raw in raws]
