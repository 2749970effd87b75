"""Taking, renewing and giving back the lease of a session, and reading who has it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from everthread.errors import SessionBusyError, SessionFencedError, UnavailableError
from everthread.process import here
from everthread.sessions import lease as leases
from everthread.sessions.lease import Holder, Lease, lease_of, token_of
from everthread.sessions.records import moment
from everthread.stores.contract import StaleCell
from everthread.threads.aio.journals import LEASE, every_cell, space_beside
from everthread.versions import RunToken

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

    #: Whether the run is one that its caller named, and of no process.
    shared = False

    def __init__(
        self, core: Core, uid: str, *, run: str, agent: str | None, ttl_us: int, unlisted: bool = False
    ) -> None:
        self._core = core
        #: Whether it is taken for the run before, whose place it leaves as it was.
        self._unlisted = unlisted
        self._before: Holder | None = None
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
            if found is not None:
                self._require_free(found)
                self.journal = found.holder.journal
                self._before = found.holder
                past = found.holder.past if self._unlisted else found.holder.past_with_this
                self.holder = msgspec.structs.replace(self.holder, past=past)
            # Before it is there: whoever reads it in this process must find that its run is alive.
            leases.live[self.holder.run] = self
            try:
                self.fence = await self._swap(found.revision if found else 0, self.holder)
            except StaleCell:
                continue
            except BaseException:
                # Whether it was taken isn't known here. If it was, nobody of this process holds it.
                self.abandon()
                raise
            return found

    def _require_free(self, found: Lease) -> None:
        if found.active:
            end = "wait, or end that run"
            if found.holder.shared:
                join = f"store.session(name, run={found.holder.run!r})"
                end = f"wait, go on in it with {join}, or end it by complete() in such a session"
            raise SessionBusyError(
                f"this session is held by {found.holder}, until {found.expires:%Y-%m-%d %H:%M:%S} UTC "
                f"if it doesn't go on; {end}",
                holder=found.holder,
                expires=found.expires,
            )

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
        # A run that its caller named, and that had ended, may still go on.
        last = self._before if self._unlisted and self._before is not None else self.holder
        nobody = msgspec.structs.replace(last, run="", fence_due=fence_due, restored_us=0)
        with suppress(SessionFencedError, StaleCell):
            await self.check()
            await self._swap(self._revision, nobody)


class SharedLease(OwnLease):
    """The lease of a run that its caller named, as one process has it: joined rather than taken, and left
    rather than given back. What others of the run write into it stays there."""

    shared = True

    def __init__(
        self,
        core: Core,
        uid: str,
        run: str | RunToken,
        *,
        agent: str | None = None,
        ttl_us: int,
        ends: bool = False,
    ) -> None:
        name, self._order_us = token_of(run)
        #: Whether it belongs to the end of the run, which may write after :meth:`close`.
        self._ends = ends
        self._guest_of = run.guest_of if isinstance(run, RunToken) else ""
        super().__init__(core, uid, run=name, agent=agent, ttl_us=ttl_us)
        self.holder = msgspec.structs.replace(self.holder, shared=True)

    @property
    def fence_due(self) -> bool:
        """Whether a run from before may still write: whoever sees this writes the fence."""
        return self.holder.fence_due

    async def acquire(self) -> Lease | None:
        """Join the run, or begin it; what was there before. Raises :class:`SessionFencedError` if a newer
        run has come, and :class:`SessionBusyError` if a run holds it that belongs to a process."""
        while True:
            found = await read_lease(self._core, self._uid)
            if found is not None and self._is_mine(found):
                self._adopt(found)
                return found
            before = Holder(run="", place=here()) if found is None else found.holder
            if found is not None:
                self._require_turn(found)
                self.journal = before.journal
            now_us = self._core.runtime.now_us()
            again = before.ended == self.holder.run
            wanted = before.order_us if again else self._order_us
            mine = Holder(
                run=self.holder.run,
                agent=self.holder.agent,
                place=here(),
                since_us=now_us,
                ttl_us=self.holder.ttl_us,
                shared=True,
                order_us=max(now_us, before.newest_us + 1) if wanted is None else wanted,
                fence=1 if found is None else found.revision + 1,
                fence_due=found is not None and not found.given_back,
                past=before.past if again else self._past_after(before),
            )
            with suppress(StaleCell):
                await self._swap(0 if found is None else found.revision, mine)
                # What is stored says more than this: as others of the run will read it.
                self.holder, self.fence = mine, mine.fence
                return found

    def _past_after(self, before: Holder) -> tuple[tuple[str, int], ...]:
        """Return the runs that may not write any more once this one has the lease."""
        return tuple(each for each in before.past_with_this if each[0] != self._guest_of)

    async def is_superseded(self) -> SessionFencedError | None:
        """What entering would raise because another run has come; writes nothing."""
        found = await read_lease(self._core, self._uid)
        try:
            if found is not None and not self._is_mine(found):
                self._require_turn(found, busy=False)
        except SessionFencedError as fenced:
            return fenced
        return None

    def _is_mine(self, found: Lease) -> bool:
        holder = found.holder
        return holder.shared and holder.run == self.holder.run and (self._ends or not holder.closed)

    def _require_turn(self, found: Lease, busy: bool = True) -> None:
        """Whether this run may follow the one that is there."""
        holder = found.holder
        if any(name in (self.holder.run, self._guest_of) for name, _ in holder.past):
            raise self._fenced(found)
        if holder.closed and (holder.run or holder.ended) == self.holder.run:
            raise self._fenced(found)
        older = self._order_us is not None and self._order_us <= holder.newest_us
        if older and holder.ended != self.holder.run:
            raise self._fenced(found)
        if busy and not holder.shared:
            self._require_free(found)

    def _adopt(self, found: Lease) -> None:
        """Take what is stored as this process's own: others of the run have written it."""
        self.holder, self.fence = found.holder, found.holder.fence
        self._revision, self._renewed_us = found.revision, found.renewed_us
        if _number(found.holder.journal) > _number(self.journal):
            self.journal = found.holder.journal

    async def check(self) -> None:
        found = await read_lease(self._core, self._uid)
        if found is None or not self._is_mine(found):
            raise self._fenced(found)
        self._adopt(found)

    def _fenced(self, found: Lease | None) -> SessionFencedError:
        holder = None if found is None else found.holder
        if holder is None or (holder.run or holder.ended) != self.holder.run or holder.restored_us:
            return super()._fenced(found)
        return SessionFencedError(
            f"run {self.holder.run!r} has ended: another part of it ended it; nothing more of it is written",
            attempt=self.fence,
            newest=0 if found is None else found.revision,
        )

    async def renew(self) -> None:
        await self._change(lambda holder: holder, durable=False)

    async def close(self) -> None:
        """Let nothing more of the run be written but its end, in any of its processes, for good."""
        await self._change(lambda holder: msgspec.structs.replace(holder, closed=True))

    async def fenced_off(self) -> None:
        """The runs before can't write any more."""
        await self._change(lambda holder: msgspec.structs.replace(holder, fence_due=False))

    async def _change(self, change: Callable[[Holder], Holder], durable: bool = True) -> None:
        """Change what is stored, whatever others of the run write meanwhile."""
        while True:
            found = await read_lease(self._core, self._uid)
            if found is None or not self._is_mine(found):
                raise self._fenced(found)
            self._adopt(found)
            with suppress(StaleCell):
                await self._swap(found.revision, change(found.holder), durable)
                return

    async def release(self, *, fence_due: bool = False) -> None:
        """End the run, for all of its processes. What one of them has under way may still land before the
        next run: that one fences it off."""
        with suppress(SessionFencedError):
            await self._change(
                lambda holder: msgspec.structs.replace(holder, run="", ended=holder.run, fence_due=True)
            )


def _number(version: str) -> int:
    """The number of a version, from its id; 0 for none."""
    number = version.partition("-")[0]
    return int(number) if number.isdecimal() else 0
