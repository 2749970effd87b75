"""Taking, renewing and giving back the lease of a session, and reading who has it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from everthread.errors import SessionBusyError, SessionFencedError, UnavailableError
from everthread.process import here
from everthread.sessions import lease as leases
from everthread.sessions.lease import Holder, Lease, lease_of
from everthread.sessions.records import moment
from everthread.stores.contract import StaleCell
from everthread.threads.aio.journals import LEASE, every_cell, space_beside

if TYPE_CHECKING:
    from everthread.threads.aio.core import Core
    from everthread.versions import Version


def lease_space(core: Core) -> str:
    """Where the leases of a store's threads are: no public name reaches it."""
    return space_beside(core.space, LEASE)


async def read_lease(core: Core, uid: str) -> Lease | None:
    """The lease of a line as it is now; ``None`` if nobody ever had one."""
    cell = await core.backend.cell(lease_space(core), uid, core.runtime.now_us())
    return None if cell is None else lease_of(cell)


async def active_leases(core: Core) -> AsyncIterator[tuple[str, Lease]]:
    """The threads, of all namespaces, that a run holds which may well be alive, and its lease."""
    spaces = {core.space}
    async for line in core.backend.every_line():
        if "\0" not in line.space:
            spaces.add(line.space)
    for space in sorted(spaces):
        for uid, cell in await every_cell(core, space_beside(space, LEASE)):
            lease = lease_of(cell)
            if lease.active:
                held = await core.backend.line_by_uid(bytes.fromhex(uid))
                yield uid if held is None else held.name, lease


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

    async def acquire(self) -> Lease | None:
        """Take the lease; what was there before. Raises :class:`SessionBusyError` if it is held."""
        while True:
            found = await read_lease(self._core, self._uid)
            if found is not None and found.active:
                raise SessionBusyError(
                    f"this session is held by {found.holder}, until {found.expires:%Y-%m-%d %H:%M:%S} UTC "
                    "if it doesn't go on; wait, or end that run",
                    holder=found.holder,
                    expires=found.expires,
                )
            self.journal = found.holder.journal if found is not None else ""
            # Before it is there: whoever reads it in this process must find that its run is alive.
            leases.live[self.holder.run] = self
            try:
                self.fence = await self._swap(found.revision if found else 0, self.holder)
            except StaleCell:
                continue
            return found

    async def _swap(self, expected: int, holder: Holder, durable: bool = True) -> int:
        now = self._core.runtime.now_us()
        value = msgspec.msgpack.encode(msgspec.structs.replace(holder, journal=self.journal))
        self._revision = await self._core.backend.swap(self._space, self._uid, expected, value, now, durable)
        self._renewed_us = now
        return self._revision

    async def check(self) -> None:
        """Raise :class:`SessionFencedError` if another run has taken over. An expired lease that nobody took
        is still this run's."""
        found = await read_lease(self._core, self._uid)
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

    async def renew(self) -> None:
        """Say that this run is alive. Raises :class:`SessionFencedError` if it was taken over."""
        try:
            await self._swap(self._revision, self.holder, durable=False)
        except StaleCell:
            # A renewal whose answer was lost is ours all the same.
            await self.check()
            await self._swap(self._revision, self.holder, durable=False)

    async def renew_if_due(self) -> None:
        """Renew after a third of the time. What can't be renewed now is renewed next time."""
        if abs(self._core.runtime.now_us() - self._renewed_us) * 3 < self.holder.ttl_us:
            return
        with suppress(UnavailableError, StaleCell):
            await self.renew()

    def abandon(self) -> None:
        """Leave it as it is, so that this run counts as one that crashed."""
        leases.live.pop(self.holder.run, None)

    async def release(self, *, fence_due: bool = False) -> None:
        """Give it back, if it is still this run's. ``fence_due``: the run before isn't fenced off yet."""
        self.abandon()
        nobody = msgspec.structs.replace(self.holder, run="", fence_due=fence_due)
        with suppress(SessionFencedError, StaleCell):
            await self.check()
            await self._swap(self._revision, nobody)
