"""How the newest run on a thread stands, from two small reads. Loads little: lists of threads ask it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from everthread.sessions import journal as j
from everthread.sessions.beside import beside
from everthread.sessions.entries import STATUSES, Status
from everthread.sessions.lease import Lease, read_lease

if TYPE_CHECKING:
    from everthread.threads.sync.core import Core

T = TypeVar("T")


def standing(core: Core, uid: str) -> Status | None:
    """The status of the newest run on a line; ``None`` if there never was one.

    Raises :class:`StateCorruptedError` if the newest version of its journal can't be read.
    """
    space = beside(core)

    def document() -> Any:
        found = space.find(uid)
        return {} if found is None else space.head(found).build_document()

    read, lease, _ = with_lease(core, uid, document)
    j.check_format(read)
    run = j.own_part(read, uid).get(j.RUN)
    return run_status(run, lease) if isinstance(run, Mapping) else None


def with_lease(core: Core, uid: str, read: Callable[[], T]) -> tuple[T, Lease | None, Lease | None]:
    """What ``read`` finds, and the lease as it was after and before: of the same run."""
    lease = read_lease(core, uid)
    while True:
        found = read()
        again = read_lease(core, uid)
        if _run(again) == _run(lease):
            return found, again, lease
        # A run began or ended in between: seen half, it would look like one that crashed.
        lease = again


def _run(lease: Lease | None) -> str:
    return "" if lease is None else lease.holder.run


def run_status(stored: Mapping[str, Any], lease: Lease | None) -> Status:
    """Of a stored run. One without an end whose lease is gone, or expired, has crashed."""
    if stored.get("ended_us") is None and not held_by(lease, stored.get("run_id")):
        return "crashed"
    status = stored.get("status")
    return status if status in STATUSES else "crashed"


def held_by(lease: Lease | None, run_id: Any) -> bool:
    """Whether this run holds the lease, and may well be alive."""
    return lease is not None and lease.holder.run == run_id and lease.held
