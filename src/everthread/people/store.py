"""An open store with its verbs about persons: erasing them, holding their data, rotating their keys."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from everthread.arguments import counted
from everthread.errors import EverthreadError, InvalidValueError
from everthread.threads.sync.store import ThreadStore
from everthread.threads.sync.unfinished import LIFETIMES, cut_short, forget_old, left

if TYPE_CHECKING:
    from everthread.history.retention import Retention
    from everthread.people.erasing import Elsewhere
    from everthread.people.reports import ErasureReport
    from everthread.stores.contract import Progress
    from everthread.threads.cleanup import GcReport
    from everthread.threads.reports import Progress as Done
    from everthread.threads.reports import RestoreReport


class PeopleStore(ThreadStore):
    """A store of threads that knows what to do about persons. What is rarely used is loaded when it is."""

    #: How many were erased since this store was opened or restored because their time was over.
    _swept = 0

    def erase(
        self,
        subject: str,
        *,
        dry_run: bool = False,
        timeout_s: float = 30.0,
        progress: Progress | None = None,
    ) -> ErasureReport:
        """Erase a person: destroy their keys, delete what is sealed under them and their user data, in all
        namespaces, get the bytes out of the store's files, look for them, and say so in a signed report.

        Reads then give :class:`Erased`; everything else stays as it is. Safe while others read and write;
        readers inside a transaction are waited for up to ``timeout_s``. What is interrupted is finished by
        the next open, or by erasing again. Who erases the same person at the same time is waited for as long,
        and both have the same report. What is left here of persons who were erased through another store
        on the same keyring goes, too, and has reports of its own. With ``dry_run`` nothing is changed.
        ``progress(what, part)`` is called as it goes. Raises :class:`LegalHoldError` if somebody holds the
        data, see :meth:`hold`.
        """
        from everthread.people import erasing

        self._check()
        # Before anything is destroyed. Not a number is no time either.
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not timeout_s >= 0:
            raise InvalidValueError("timeout_s is a number of seconds, none at least", path="timeout_s")
        if dry_run:
            return erasing.preview(self.core, subject)
        return erasing.erase(self.core, subject, timeout_s, progress)

    def erasure_reports(self) -> list[ErasureReport]:
        """The newest report of each erasure here, also of those that another process finished; and the first
        one, where a restored backup made it go through once more."""
        from everthread.people.erasing import reports

        self._check()
        return reports(self.core)

    def hold(self, subject: str, reason: str) -> None:
        """Put a person's data under a legal hold: :meth:`erase` refuses until it is released, and records
        each attempt; so does that of every other store on the same keyring. The reason is kept in clear, in
        this store: don't name the person in it.

        Raises :class:`ErasedError` if the person is being erased already.
        """
        from everthread.people.holding import Holds

        self._check()
        Holds(self.core).place(subject, reason)

    def release_hold(self, subject: str, reason: str = "", *, everywhere: bool = False) -> None:
        """End the legal hold that was placed through this store, or with ``everywhere`` those of all stores
        on the same keyring, some of which may be gone. Raises :class:`InvalidStateError` if there is none."""
        from everthread.people.holding import Holds

        self._check()
        Holds(self.core).release(subject, reason, everywhere=everywhere)

    def rotate_keys(self, subject: str | None = None) -> None:
        """Seal what comes under a new key of this person; older values still open. Without a ``subject``:
        wrap all keys under a fresh master key, or under the one that the environment holds by now."""

        self._check()
        keyring = self.core.vault.keyring
        if subject is None:
            keyring.rotate_master()
        else:
            keyring.rotate(subject)

    def gc(
        self,
        retention: Retention | None = None,
        *,
        dry_run: bool = False,
        compact: bool = False,
        progress: Done | None = None,
    ) -> GcReport:
        """Remove what nobody needs: expired threads, what belonged to deleted ones and, with ``retention``,
        the content of versions that it doesn't keep. Persons whose time is over are erased, and what is left
        here of those who were erased through another store on the same keyring.

        What threads and forks stand on always stays, and so do keys, results of steps and the chain of
        hashes. The report also counts who was erased when this store was opened, because their time was over
        by then. With ``dry_run`` nothing is changed. ``compact`` gives space back to the system, which
        takes as long as writing the store once. Others may go on writing meanwhile.
        """
        report = super().gc(retention, dry_run=dry_run, compact=compact, progress=progress)
        from everthread.people.users import UserStore

        users = UserStore(self)
        subjects = self._swept + (len(users._due()) if dry_run else users.sweep())
        if not dry_run:
            from everthread.people.erasing import settle

            self._swept = 0
            settle(self.core)
            forget_old(self.core)
        return msgspec.structs.replace(report, subjects=subjects)

    def restore(self, path: str | os.PathLike[str]) -> RestoreReport:
        """Replace everything in this store by a backup, all or nothing. Get new handles afterwards.

        Nobody comes back who was erased since; holds that are in force stay so, and so do times; receipts
        are kept. Effects that were called since aren't forgotten: see ``RestoreReport.doubtful``.
        """
        from everthread.people.erasing import after_restoring, before_restoring
        from everthread.people.lifetimes import Lifetimes

        self._check()
        # What is due is due whatever the backup knows of it, and so is what will be.
        self._sweep()
        times: dict[str, str | None] = {}
        with suppress(EverthreadError):
            times = Lifetimes(self.core).kept()
        kept = before_restoring(self.core)
        report = super().restore(path)
        erased = after_restoring(self.core, kept)
        with suppress(EverthreadError):
            Lifetimes(self.core).put_back(times)
        self._sweep()
        return msgspec.structs.replace(report, erased=erased)

    def _settle(self) -> None:
        """Nobody who was erased comes back with what came in."""
        from everthread.people.erasing import settle

        settle(self.core)
        self._sweep()

    def _finish_erasures(self) -> None:
        """What interrupted erasures and redactions have left to do, and what is due since; interrupted
        imports are told of. Whatever is wrong with it, the store is open."""
        with suppress(EverthreadError):
            if self.core.backend.erasures(True):
                from everthread.people.erasing import resume

                resume(self.core)
        with suppress(EverthreadError):
            begun = left(self.core.backend, self.core.space, self.core.runtime.now_us)
            if any(work.what == LIFETIMES for _, work in begun):
                self._sweep()
            if any(work.what != LIFETIMES for _, work in begun):
                from everthread.redaction.resuming import go_on

                go_on(self.core)

    def _left_undone(self) -> list[str]:
        """What :meth:`_finish_erasures` would go on with, or tell of. Changes nothing."""
        from everthread.people.erasing import unfinished

        core = self.core
        found = [str(work) for _, work in cut_short(core.backend, core.space, core.runtime.now_us)]
        for erasure in unfinished(core):
            if erasure.is_free():
                began = f"the erasure of {counted(len(erasure.key_ids), 'key')} isn't finished"
                found.append(f"{began}: opening the store with the keyring of these goes on with it")
        return found

    def _erased_elsewhere(self) -> Elsewhere:
        """What :meth:`gc` and :meth:`erase` would delete of persons who were erased through another store;
        nothing, if the keyring can't tell. Changes nothing."""
        from everthread.people import erasing

        with suppress(EverthreadError):
            return erasing.elsewhere(self.core)
        return erasing.Elsewhere()

    def _unfinished_keys(self, but: str) -> int:
        """How many keys erasures are about that were cut short, and that :meth:`erase` of anybody finishes on
        the way; ``but`` for one. Changes nothing."""
        from everthread.people.erasing import unfinished

        found = 0
        for erasure in unfinished(self.core):
            if erasure.id != but and erasure.is_free() and erasure.may_go_on():
                found += len(erasure.key_ids)
        return found

    def _sweep(self) -> None:
        """Erase what is due. Waits for nobody."""
        from everthread.people.users import UserStore

        with suppress(EverthreadError):
            self._swept += UserStore(self)._sweep(0.0)
