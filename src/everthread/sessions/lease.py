"""The lease as it is stored: who may write to a session now. A register of the store, not a version."""

from __future__ import annotations

import datetime
import math
import weakref
from typing import TYPE_CHECKING, Any

import msgspec

from everthread.arguments import check_name
from everthread.errors import InvalidValueError
from everthread.process import Place, here, is_gone
from everthread.sessions.records import moment
from everthread.versions import RunToken

if TYPE_CHECKING:
    from everthread.stores.contract import Cell


#: For a lease that can't be read: somebody's, until this much time has passed.
_UNREADABLE_TTL_US = 300_000_000
#: So many shared runs that were superseded are remembered, and refused for ever.
_PAST_MAX = 20


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
    #: A run that its caller named: it belongs to no process, and whoever presents the name is part of it.
    shared: bool = False
    #: Where a shared run stands among others: when it was handed out, by the clock of whoever did.
    order_us: int = 0
    #: The shared run that ended, where nobody holds it.
    ended: str = ""
    #: That run, or the one that holds it, is being ended or has ended for good: nothing more of it is
    #: written but its end.
    closed: bool = False
    #: What a shared run tells services that can refuse an older one. For others it is the revision.
    fence: int = 0
    #: Shared runs that others have superseded, and their order; the newest last.
    past: tuple[tuple[str, int], ...] = ()

    @property
    def host(self) -> str:
        return self.place.host

    @property
    def pid(self) -> int:
        return self.place.pid

    @property
    def since(self) -> datetime.datetime:
        return moment(self.since_us)

    @property
    def past_with_this(self) -> tuple[tuple[str, int], ...]:
        """The shared runs that may not come back once another run holds the lease."""
        name = self.run or self.ended
        own = ((name, self.order_us),) if self.shared and name else ()
        return (*(each for each in self.past if each[0] != name), *own)[-_PAST_MAX:]

    @property
    def newest_us(self) -> int:
        """The order of the newest shared run that ever came."""
        return max((order for _, order in self.past_with_this), default=0)

    def __str__(self) -> str:
        if self.shared:
            return f"the run {self.run!r}" + (f" of {self.agent!r}" if self.agent else "")
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
    if holder.shared:
        # It lives in many processes: that one of them is gone says nothing.
        return False
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


def token_of(run: str | RunToken) -> tuple[str, int | None]:
    """The name of a shared run, and its order if the caller gave one."""
    since = run.since if isinstance(run, RunToken) else None
    name = check_name(run.id if isinstance(run, RunToken) else run, "run")
    if since is None:
        return name, None
    if isinstance(since, datetime.datetime):
        if since.tzinfo is None:
            raise InvalidValueError("since needs a time zone: datetime.now(timezone.utc)", path="since")
        since = since.timestamp()
    if type(since) not in (int, float) or not 0 <= since < math.inf:
        raise InvalidValueError("since is a datetime, or seconds since 1970", path="since")
    return name, round(since * 1_000_000)
