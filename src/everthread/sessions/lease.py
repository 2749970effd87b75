"""The lease: who may write to a session now. A register of the store, not a version."""

from __future__ import annotations

import datetime
import weakref
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from everthread.errors import (
    SessionBusyError,
    SessionFencedError,
    UnavailableError,
)
from everthread.process import Place, here, is_gone
from everthread.sessions.records import moment
from everthread.stores.contract import StaleCell
from everthread.threads.sync.journals import LEASE, every_cell, space_beside

if TYPE_CHECKING:
    from everthread.stores.contract import Cell
    from everthread.threads.sync.core import Core
    from everthread.versions import Version


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
_live: weakref.WeakValueDictionary[str, OwnLease] = weakref.WeakValueDictionary()


def _is_over(holder: Holder) -> bool:
    if holder.place == here():
        return holder.run not in _live
    return is_gone(holder.place)


def lease_space(core: Core) -> str:
    """Where the leases of a store's threads are: no public name reaches it."""
    return space_beside(core.space, LEASE)


def read_lease(core: Core, uid: str) -> Lease | None:
    """The lease of a line as it is now; ``None`` if nobody ever had one."""
    cell = core.backend.cell(lease_space(core), uid, core.runtime.now_us())
    return None if cell is None else _decode(cell)


def active_leases(core: Core) -> Iterator[tuple[str, Lease]]:
    """The threads, of all namespaces, that a run holds which may well be alive, and its lease."""
    spaces = {core.space, *(line.space for line in core.backend.every_line() if "\0" not in line.space)}
    for space in sorted(spaces):
        for uid, cell in every_cell(core, space_beside(space, LEASE)):
            lease = _decode(cell)
            if lease.active:
                line = core.backend.line_by_uid(bytes.fromhex(uid))
                yield uid if line is None else line.name, lease


def _decode(cell: Cell) -> Lease:
    try:
        holder = msgspec.msgpack.decode(cell.value, type=Holder)
    except (msgspec.DecodeError, ValueError):
        holder = Holder(run="unreadable", place=Place("unknown", "", 0, ""))
    return Lease(holder, cell)


class OwnLease:
    """A run's own lease: taken when it begins, renewed as it writes, given back at its end."""

    def __init__(self, core: Core, uid: str, *, run: str, agent: str | None, ttl_us: int) -> None:
        self._core = core
        self._space = lease_space(core)
        self._uid = uid
        self.holder = Holder(
            run=run, agent=agent, place=here(), since_us=core.runtime.now_us(), ttl_us=ttl_us
        )
        self._revision = 0
        self._renewed_us = 0
        #: A number that grows with every takeover, for services that can tell an old one from a new one.
        self.fence = 0
        #: The newest version of the journal, for the next run.
        self.journal = ""

    def acquire(self) -> Lease | None:
        """Take the lease; what was there before. Raises :class:`SessionBusyError` if it is held."""
        while True:
            found = read_lease(self._core, self._uid)
            if found is not None and found.active:
                raise SessionBusyError(
                    f"this session is held by {found.holder}, until {found.expires:%Y-%m-%d %H:%M:%S} UTC "
                    "if it doesn't go on; wait, or end that run",
                    holder=found.holder,
                    expires=found.expires,
                )
            self.journal = found.holder.journal if found is not None else ""
            try:
                self.fence = self._swap(found.revision if found else 0, self.holder)
            except StaleCell:
                continue
            _live[self.holder.run] = self
            return found

    def _swap(self, expected: int, holder: Holder, durable: bool = True) -> int:
        now = self._core.runtime.now_us()
        value = msgspec.msgpack.encode(msgspec.structs.replace(holder, journal=self.journal))
        self._revision = self._core.backend.swap(self._space, self._uid, expected, value, now, durable)
        self._renewed_us = now
        return self._revision

    def check(self) -> None:
        """Raise :class:`SessionFencedError` if another run has taken over. An expired lease that nobody took
        is still this run's."""
        found = read_lease(self._core, self._uid)
        if found is None or found.holder.run != self.holder.run:
            raise self._fenced(found)
        self._revision = found.revision

    def _fenced(self, found: Lease | None) -> SessionFencedError:
        if found is not None and found.holder.restored_us:
            since = moment(found.holder.restored_us)
            words = (
                f"the store was restored from a backup at {since:%Y-%m-%d %H:%M:%S} UTC; this run must stop, "
                "nothing of it is written any more: open the session anew"
            )
            return SessionFencedError(words, attempt=self.fence, newest=found.revision, holder=None)
        who = f"{found.holder} has" if found is not None and found.holder.run else "another run has"
        return SessionFencedError(
            f"{who} taken this session over; this run must stop, nothing of it is written any more",
            attempt=self.fence,
            newest=found.revision if found else 0,
            holder=found.holder if found else None,
        )

    def wrote_journal(self, version: Version) -> None:
        """This is the newest version of the journal now, and acknowledged."""
        if version.id != self.journal:
            self.journal = version.id

    def renew(self) -> None:
        """Say that this run is alive. Raises :class:`SessionFencedError` if it was taken over."""
        try:
            self._swap(self._revision, self.holder, durable=False)
        except StaleCell:
            # A renewal whose answer was lost is ours all the same.
            self.check()
            self._swap(self._revision, self.holder, durable=False)

    def renew_if_due(self) -> None:
        """Renew after a third of the time. What can't be renewed now is renewed next time."""
        if abs(self._core.runtime.now_us() - self._renewed_us) * 3 < self.holder.ttl_us:
            return
        with suppress(UnavailableError, StaleCell):
            self.renew()

    def abandon(self) -> None:
        """Leave it as it is, so that this run counts as one that crashed."""
        _live.pop(self.holder.run, None)

    def release(self, *, fence_due: bool = False) -> None:
        """Give it back, if it is still this run's. ``fence_due``: the run before isn't fenced off yet."""
        self.abandon()
        nobody = msgspec.structs.replace(self.holder, run="", fence_due=fence_due)
        with suppress(SessionFencedError, StaleCell):
            self.check()
            self._swap(self._revision, nobody)
