"""The lease as it is stored: who may write to a session now. A register of the store, not a version."""

from __future__ import annotations

import datetime
import weakref
from typing import TYPE_CHECKING, Any

import msgspec

from everthread.process import Place, here, is_gone
from everthread.sessions.records import moment

if TYPE_CHECKING:
    from everthread.stores.contract import Cell


#: For a lease that can't be read: somebody's, until this much time has passed.
_UNREADABLE_TTL_US = 300_000_000


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds a session: a run in a process on a machine. ``run`` is "" if nobody does."""

    run: str
    agent: str | None = None
    place: Place
    since_us: int = 0
    ttl_us: int = _UNREADABLE_TTL_US
    #: The newest version of the journal that the holder knew of when it wrote this. A journal that ends
    #: before it has lost records.
    journal: str = ""
    #: When a restored backup took the session from its holder, if that was the last change.
    restored_us: int = 0
    #: Nobody holds it, but a run from before may still write: the one that took over failed before its fence.
    fence_due: bool = False

    @property
    def host(self) -> str:
        return self.place.host

    @property
    def pid(self) -> int:
        return self.place.pid

    @property
    def since(self) -> datetime.datetime:
        return moment(self.since_us)

    def __str__(self) -> str:
        agent = f"{self.agent!r}, " if self.agent else ""
        return f"{agent}process {self.pid} on {self.host} (run {self.run})"


class Lease:
    """What is in the register of one line, as it was read."""

    def __init__(self, holder: Holder, cell: Cell) -> None:
        self.holder = holder
        self.revision = cell.revision
        self.renewed_us = cell.written_us
        self._age_us = cell.read_us - cell.written_us

    @property
    def expired(self) -> bool:
        """Not renewed for longer than it lasts. A clock that was set back counts as well: only the fence
        decides who may write, and nobody should wait a day for it."""
        return abs(self._age_us) >= self.holder.ttl_us

    @property
    def active(self) -> bool:
        """Whether a run holds it that may well be alive."""
        return bool(self.holder.run) and not self.expired and not _is_over(self.holder)

    @property
    def given_back(self) -> bool:
        """Whether its last holder ended by itself: nobody is left that might still write."""
        return not (self.holder.run or self.holder.restored_us or self.holder.fence_due)

    @property
    def expires(self) -> datetime.datetime:
        return moment(self.renewed_us + self.holder.ttl_us)


#: The leases of this process by run. One that nobody refers to any more holds nothing.
live: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()


def _is_over(holder: Holder) -> bool:
    if holder.place == here():
        return holder.run not in live
    return is_gone(holder.place)


def lease_of(cell: Cell) -> Lease:
    """What a register says."""
    try:
        holder = msgspec.msgpack.decode(cell.value, type=Holder)
    except (msgspec.DecodeError, ValueError):
        holder = Holder(run="unreadable", place=Place("unknown", "", 0, ""))
    return Lease(holder, cell)
