"""What is still known of versions that were pruned, or are away."""

from __future__ import annotations

from everthread.codec import records
from everthread.codec.records import Head
from everthread.errors import StateCorruptedError, StoreUnavailableError, VersionPrunedError
from everthread.history.chain import link
from everthread.history.retention import read_tombstone
from everthread.stores.contract import Line, Row


def pruned(seq: int, name: str | None = None) -> VersionPrunedError:
    which = f"version {seq}" if name is None else f"version {seq} of {name!r}"
    return VersionPrunedError(f"{which} was pruned by store.gc(); history() shows what is left")


class AwayError(StoreUnavailableError):
    """What was asked for is in an archive, and as sound there as anybody knows."""


def away(line: Line | None = None) -> AwayError:
    """What is raised for versions and items that :meth:`Store.cool` moved away."""
    who = "this thread" if line is None else repr(line.name)
    if line is not None and "\0" in line.space:
        # A companion is called after the line it belongs to.
        who = f"the {line.space.rpartition(chr(0))[2]} of the thread with the uid {line.name}"
    return AwayError(
        f"the past of {who} is in a cold archive, and this store was opened without one: open it with the "
        "cold=… that it was moved to"
    )


def dropped(line: Line, log: str, start: int, stop: int) -> VersionPrunedError:
    return VersionPrunedError(
        f"items of log {log!r} of {line.name!r} (positions {start} to {stop}) were pruned by store.gc() with "
        "the versions that held them; refresh() moves this handle to the newest version"
    )


def pruned_head(row: Row, seq: int) -> Head:
    """The head of a pruned version, if anything may still ask for it. Raises :class:`VersionPrunedError`."""
    head = read_tombstone(row.body).heads.get(seq - row.first)
    if head is None:
        raise pruned(seq)
    return records.read_head(head)


def pruned_hashes(line: Line, row: Row, before: bytes | None) -> list[bytes]:
    """The hashes of pruned versions; ``before`` is that of the version before them, if it isn't the first."""
    digest = line.start_hash if before is None else before
    hashes = []
    for each in read_tombstone(row.body).digests:
        digest = link(digest, each)
        hashes.append(digest)
    if len(hashes) != row.seq - row.first + 1 or digest != row.hash:
        raise StateCorruptedError(
            f"the digests of the pruned versions {row.first} to {row.seq} of {line.name!r} don't add up",
            where=f"{line.name} {row.seq}",
        )
    return hashes
