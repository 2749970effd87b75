"""An open store with the verbs that keep it sound: verify, gc, cool, stats, backup, restore."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from everthread.arguments import check_count, check_path, check_progress, check_several
from everthread.errors import (
    EverthreadError,
    InvalidValueError,
    NotAStoreError,
    StoreUnavailableError,
    UnsupportedError,
    UsageError,
)
from everthread.history.chain import SignedHead
from everthread.threads.lifetimes import Lifetime, ttl_us
from everthread.threads.reports import Progress
from everthread.threads.sync.store import ThreadStore
from everthread.type_names import type_names

if TYPE_CHECKING:
    from everthread.history.retention import Retention
    from everthread.maintenance.reports import BackupReport, CoolReport, GcReport, RestoreReport, VerifyReport
    from everthread.maintenance.stats import StoreStats
    from everthread.threads.doubts import Doubt
else:
    _HOMES = {
        "everthread.history.retention": "Retention",
        "everthread.maintenance.reports": "BackupReport CoolReport GcReport RestoreReport VerifyReport",
        "everthread.maintenance.stats": "StoreStats",
        "everthread.threads.doubts": "Doubt",
    }
    globals().update(type_names(_HOMES))


class MaintainedStore(ThreadStore):
    """A store of threads that can be checked, cleaned, copied and measured. Each verb loads what it needs."""

    def verify(
        self,
        progress: Progress | None = None,
        *,
        anchors: Iterable[SignedHead] = (),
        public_key: Any = None,
    ) -> VerifyReport:
        """Check every record of every thread against its checksum and the chain, what is derived from them
        against themselves, and every event; and whether what is sealed can be opened here (``needs``). Reads
        everything; changes nothing; goes on after damage.

        ``progress(done, total)`` is called as it goes, with numbers of versions. ``anchors`` are heads that
        were signed with :meth:`Thread.sign` and kept elsewhere: with the ``public_key`` they show whether
        history was rewritten or cut off since.
        """
        self._check()
        check_progress(progress)
        check_several(anchors, "anchors", "signed heads")
        from everthread.maintenance.key_needs import count_keys
        from everthread.maintenance.verify import StoreCheck, damaged_events

        core = self.core
        verifier = StoreCheck(core.reader, core.space, core.vault.can_open, anchors, public_key)
        report = verifier.run(progress, core.runtime.now_us)
        damage = (*report.damage, *damaged_events(core))
        return msgspec.structs.replace(report, damage=damage, needs=count_keys(core))

    def gc(
        self,
        retention: Retention | None = None,
        *,
        dry_run: bool = False,
        compact: bool = False,
        progress: Progress | None = None,
    ) -> GcReport:
        """Remove what nobody needs: expired threads, what belonged to deleted ones, events that the retention
        of their stream doesn't keep and, with ``retention``, the content of versions that it doesn't keep.

        What threads and forks stand on always stays, and so do keys, results of steps and the chain of
        hashes. With ``dry_run`` nothing is changed. ``compact`` gives the space back to the operating system,
        which takes as long as writing the store once. Others may go on writing meanwhile.
        """
        self._check()
        check_progress(progress)
        from everthread.history.retention import Retention

        rule = Retention() if retention is None else retention
        if not isinstance(rule, Retention):
            raise InvalidValueError(
                "retention is a Retention, or None to keep all versions", path="retention"
            )
        if rule.takes and not self.capabilities.prune:
            raise UnsupportedError(f"{self.url} keeps all versions; gc() without retention does the rest")
        from everthread.maintenance.gc import Cleaner

        return Cleaner(self.core, rule, dry_run=dry_run, progress=progress).run(compact=compact)

    def cool(
        self, idle_for: Lifetime, *, sweep_after: Lifetime = None, progress: Progress | None = None
    ) -> CoolReport:
        """Move threads that nobody has written to for so long (a ``timedelta`` or seconds) to the archive
        that the store was opened with (``open(…, cold=…)``).

        They stay listed and can be committed to; whoever reads their past brings them back, exactly as they
        were. With ``sweep_after`` parcels of this store are removed that are older than that (an hour at
        least) and that no thread needs any more: a backup from before then may need them. Raises
        :class:`UsageError` without an archive, :class:`UnsupportedError` if the store can't do it.
        """
        self._check()
        check_progress(progress)
        backend: Any = self.core.backend
        if not self.capabilities.cold:
            raise UnsupportedError(f"{self.url} can't move threads to an archive")
        if not hasattr(backend, "thaw"):
            raise UsageError("open the store with cold=… (a folder, or an archive) to move threads there")
        if idle_for is None:
            raise InvalidValueError(
                "idle_for is a timedelta or seconds; 0 is for all threads", path="idle_for"
            )
        idle_us = 0 if idle_for in (0, datetime.timedelta(0)) else ttl_us(idle_for)
        from everthread.maintenance.cold import YOUNG_US, Cooling

        cooling = Cooling(self.core, backend, idle_us, progress)
        report = cooling.run()
        if sweep_after is not None:
            moment_us = self.core.runtime.now_us() - max(ttl_us(sweep_after), YOUNG_US)
            try:
                report = msgspec.structs.replace(report, swept=cooling.sweep(moment_us / 1e6))
            except UnsupportedError as error:
                problems = (*report.problems, f"nothing was swept: {error}")
                report = msgspec.structs.replace(report, problems=problems)
        return report

    def stats(self, *, limit: int = 1000, progress: Progress | None = None) -> StoreStats:
        """What this namespace takes up: bytes by thread (the ``limit`` largest), by kind and by age.

        Reads no content; takes a moment per thread.
        """
        self._check()
        limit = check_count(limit, "limit", least=1)
        check_progress(progress)
        from everthread.maintenance.stats import measure

        return measure(self.core, limit, progress)

    def backup(self, path: str | os.PathLike[str]) -> BackupReport:
        """Write a complete copy to ``path``, which must not exist. Others may go on writing meanwhile.

        Keys stay in the keyring. The report says which one that is, and how many keys the copy needs.
        """
        from everthread.maintenance.key_needs import count_keys
        from everthread.maintenance.reports import BackupReport
        from everthread.maintenance.restore import record_origin

        self._check()
        place = check_path(path)
        # Before: once the copy is there, nothing that fails here may make it look as if it weren't.
        needs = count_keys(self.core)
        # A store that can't be written to can be copied. Wherever the copy is restored, all is in doubt.
        with suppress(EverthreadError):
            record_origin(self.core)
        self.core.backend.backup(place)
        return BackupReport(path=os.path.abspath(place), needs=needs)

    def restore(self, path: str | os.PathLike[str], *, nothing_since: bool = False) -> RestoreReport:
        """Replace everything in this store by a backup, all or nothing. Get new handles afterwards.

        Effects that were called after the backup was made aren't forgotten: see ``RestoreReport.doubtful``.
        If the backup was made of another store, or this one is damaged, every ledger is in doubt. With
        ``nothing_since`` you say that no effect was called after the backup was made.
        """
        from everthread.maintenance.restore import Ledgers

        self._check()
        place = check_path(path)
        ledgers = Ledgers(self.core, bool(nothing_since))
        ledgers.look()
        try:
            self.core.backend.restore(place, ledgers.cells())
        except (NotAStoreError, StoreUnavailableError) as error:
            from everthread.stores.backup_file import wrong_kind_message

            if (words := wrong_kind_message(self.core.backend.url, place)) is None:
                raise
            raise NotAStoreError(words) from error
        finally:
            # Also if the answer doesn't come: it may have been done.
            self.core.head_cache.clear()
        return ledgers.mark()

    # ── doubts: periods of which no ledger knows which effects happened ──────────────────────

    def doubt(self, since: datetime.datetime, why: str = "") -> Doubt:
        """Say that this store lost what was written to it after ``since``, an aware datetime: after a
        point-in-time recovery, ``pg_restore``, or a copy of its files that was put back.

        Every ledger of every namespace is in doubt from then on, also those of threads that are created
        later: a call whose key the ledger doesn't know is verified, or raises :class:`InDoubtError`, until
        the key is settled, the loss is accepted for the thread (:meth:`Store.accept_loss`), or
        :meth:`end_doubt` is called. Runs at work are fenced off.
        """
        from everthread.maintenance.restore import record_doubt

        self._check()
        if not isinstance(since, datetime.datetime) or since.tzinfo is None:
            raise InvalidValueError("since must be a datetime with a time zone", path="since")
        since_us = max(1, round(since.timestamp() * 1_000_000))
        if since_us > self.core.runtime.now_us():
            raise InvalidValueError("since must not be in the future", path="since")
        return record_doubt(self.core, since_us, why or "the store was brought back as it was then")

    def doubts(self) -> list[Doubt]:
        """Return the doubts that hold for every ledger of the store, the oldest time first."""
        from everthread.threads.sync.journals import read_doubts

        self._check()
        return read_doubts(self.core)

    def end_doubt(self) -> int:
        """Say that no thread which is created from now on was used in the time that is in doubt. Threads that
        exist stay in doubt until the loss is accepted for each. Returns the number of doubts that ended."""
        from everthread.maintenance.restore import end_doubts

        self._check()
        return end_doubts(self.core)
