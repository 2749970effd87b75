"""``everthread.open()`` and ``Store``: a store with everything that agents keep in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from everthread.arguments import check_options, counted
from everthread.errors import EverthreadError, InvalidValueError, ThreadNotFoundError, UsageError
from everthread.limits import DEFAULT_LIMITS, Limits
from everthread.maintenance.store import MaintainedStore
from everthread.maintenance.unfinished import LIFETIMES, cut_short, forget_old, left
from everthread.process import check_not_in_workflow
from everthread.records.opening import open_backend
from everthread.stores.contract import Backend
from everthread.stores.contract import Progress as ErasureProgress
from everthread.stores.urls import (
    Existing,
    chosen_keyring,
    chosen_namespace,
    default_url,
    over_network,
    store_url,
)
from everthread.threads.reports import Progress
from everthread.threads.runtime import Runtime
from everthread.threads.twins import iterated
from everthread.type_names import type_names
from everthread.versions import RunToken

if TYPE_CHECKING:
    from everthread.briefing.selection import Briefing
    from everthread.detectors import Detector
    from everthread.events.event import Upcast
    from everthread.events.sync.stream import EventStream
    from everthread.history.retention import Retention
    from everthread.knowledge import Knowledge
    from everthread.maintenance.reports import GcReport, RestoreReport
    from everthread.people.erase import Elsewhere
    from everthread.people.holds import LegalHold
    from everthread.people.report import ErasureReport
    from everthread.people.users import UserStore
    from everthread.redaction.report import Place, RedactionReport
    from everthread.sandboxes.workspace import Workspaces
    from everthread.search.query import Hits
    from everthread.sessions.resume import ResumeReport
    from everthread.sessions.sync.joined_run import JoinedRun
    from everthread.sessions.sync.ledger_merge import LedgerMerge
    from everthread.sessions.sync.orders import Constraints
    from everthread.sessions.sync.session import AgentSession
    from everthread.sessions.sync.status import SessionRecords
    from everthread.stores.cold import Archive
    from everthread.threads.sync.core import Core
    from everthread.threads.sync.thread import AnyVersion, Effects, Thread
    from everthread.transfer.report import ExportReport, ImportReport
    from everthread.verifiers.specs import AllowCommands
else:
    _HOMES = {
        "everthread.briefing.selection": "Briefing",
        "everthread.detectors": "Detector",
        "everthread.events.event": "Upcast",
        "everthread.events.sync.stream": "EventStream",
        "everthread.history.retention": "Retention",
        "everthread.knowledge": "Knowledge",
        "everthread.maintenance.reports": "GcReport RestoreReport",
        "everthread.people.erase": "Elsewhere",
        "everthread.people.holds": "LegalHold",
        "everthread.people.report": "ErasureReport",
        "everthread.people.users": "UserStore",
        "everthread.redaction.report": "Place RedactionReport",
        "everthread.sandboxes.workspace": "Workspaces",
        "everthread.search.query": "Hits",
        "everthread.sessions.sync.orders": "Constraints",
        "everthread.sessions.resume": "ResumeReport",
        "everthread.sessions.sync.session": "AgentSession",
        "everthread.sessions.sync.status": "SessionRecords",
        "everthread.stores.cold": "Archive",
        "everthread.threads.sync.core": "Core",
        "everthread.threads.sync.thread": "AnyVersion Effects Thread",
        "everthread.transfer.report": "ExportReport ImportReport",
        "everthread.verifiers.specs": "AllowCommands",
    }
    globals().update(type_names(_HOMES))


class Store(MaintainedStore):
    """An open store. Close it, or use it as a context manager. Safe to share between threads."""

    def events(self, name: str, *, upcast: Mapping[str, Upcast] | None = None) -> EventStream:
        """The stream of events of this name, which exists from its first event.

        ``upcast`` maps a type of event to a function that brings the data of old ones up to date on reading.
        """
        from everthread.events.sync.stream import EventStream

        self._check()
        return EventStream(self.core, name, upcast)

    @staticmethod
    def _join_run(thread: Thread, run: str | RunToken, *, ends: bool = False) -> JoinedRun:
        from everthread.sessions.sync.joined_run import join_run

        return join_run(thread, run, ends=ends)

    @staticmethod
    def _compare_ledgers(core: Core, uid: str, other: str) -> LedgerMerge | None:
        from everthread.sessions.sync.ledger_merge import compare_ledgers

        return compare_ledgers(core, uid, other)

    @staticmethod
    def _open_workspaces() -> Workspaces:
        from everthread.sandboxes.workspace import Workspaces

        return Workspaces()

    def session(
        self,
        name: str | None = None,
        *,
        user_id: str | None = None,
        agent: str | None = None,
        max_turns: int | None = None,
        hooks: Any = None,
        mode: str = "continue",
        source: str | Thread | None = None,
        at: AnyVersion | None = None,
        key: str | None = None,
        effects: Effects = "inherit",
        prepare: Callable[..., Any] | None = None,
        transform: Callable[..., Any] | None = None,
        system: Any = None,
        replace_system: bool = False,
        initial: Mapping[str, Any] | None = None,
        lease_ttl: float = 300.0,
        wait_s: float = 0,
        parent: AgentSession | None = None,
        run: str | RunToken | None = None,
    ) -> AgentSession:
        """Begin a run of an agent on the thread of this name; use it as a context manager.

        See :class:`AgentSession` for what the options mean. Raises :class:`SessionBusyError` if another live
        run holds the thread, and still does after ``wait_s`` seconds.
        """
        from everthread.sessions.sync.session import AgentSession

        return AgentSession(
            name,
            user_id,
            store=self,
            agent=agent,
            max_turns=max_turns,
            hooks=hooks,
            mode=mode,
            source=source,
            at=at,
            key=key,
            effects=effects,
            prepare=prepare,
            transform=transform,
            system=system,
            replace_system=replace_system,
            initial=initial,
            lease_ttl=lease_ttl,
            wait_s=wait_s,
            parent=parent,
            run=run,
        )

    def send(
        self, thread: str | Thread, message: Any, *, key: str | None = None, shape: str | None = None
    ) -> Any:
        """Send a message to a thread, from any process, whether or not a run is at work on it. Durable when
        this returns; the id that the message has in ``messages`` (``None`` if it isn't a dictionary).

        The run appends it at the start of its next turn, or where it waits with ``session.next_input()``;
        once, whoever is killed. Sent again with its ``key`` it is the same message. ``shape`` says that it is
        a provider's own. Raises :class:`ThreadNotFoundError` if there is no such thread (any more),
        :class:`InvalidValueError` if another message was sent under the key.
        """
        from everthread.sessions.sync.inbox import send

        self._check()
        return send(self.core, thread, message, key, shape)

    def session_records(self, name: str) -> SessionRecords:
        """What is known of the session on a thread, running or not: its status, runs, effects, decisions,
        errors. Begins no run, writes nothing. Raises :class:`ThreadNotFoundError`."""
        return self._records(name)

    def accept_loss(self, thread: str) -> bool:
        """Accept that the journal of a thread lost records: from here on effects that it doesn't know count
        as not begun, and may be called. Recorded as a run of its own. Whether anything was known to be lost.
        Raises :class:`ThreadNotFoundError`, and :class:`SessionBusyError` while a run is at work on it, which
        has ``session.accept_loss()``."""
        if self._records(thread).losses is None:
            return False
        session = self.session(thread, agent="accept_loss")
        try:
            return session.accept_loss()
        finally:
            session.close()

    @property
    def constraints(self) -> Constraints:
        """Standing orders for all agents of this namespace, which every briefing shows first. Set here and
        by ``everthread constraint``, never by what a model is given."""
        from everthread.sessions.sync.orders import Constraints

        self._check()
        return Constraints(self.core)

    @property
    def users(self) -> UserStore:
        """Key/value data of persons, apart from the threads."""
        from everthread.people.users import UserStore

        return UserStore(self)

    def resume(
        self,
        thread: str,
        *,
        max_age_s: float | None = 86_400.0,
        allow_commands: AllowCommands = False,
        allow_network: bool = True,
    ) -> ResumeReport:
        """What a new run would find on a thread, checked against reality; no run is started, nothing written.

        ``max_age_s``: when a fact without a verifier counts as stale; None for never. ``allow_commands``:
        True or a list of argument lists lets the verifiers that are stored commands run; otherwise they are
        reported as unverifiable, since a state may come from elsewhere. Raises :class:`ThreadNotFoundError`.
        """
        from everthread.sessions.sync.resume import resume_report

        return resume_report(
            self._records(thread),
            now_us=self.core.runtime.now_us(),
            max_age_s=max_age_s,
            allow_commands=allow_commands,
            allow_network=allow_network,
        )

    def briefing(
        self,
        thread: str,
        max_tokens: int = 1_500,
        *,
        tokenizer: Any = None,
        max_age_s: float | None = 86_400.0,
        allow_commands: AllowCommands = False,
        allow_network: bool = True,
        reveal: bool = False,
    ) -> Briefing:
        """The text that a new run on a thread needs, within a token budget; no run is started.

        ``tokenizer``: a function from text to its number of tokens, or an object with ``encode()``; without
        one an estimate is used that rather counts too many. Personal values are masked unless ``reveal`` is
        asked for. Raises :class:`ThreadNotFoundError`, and
        :class:`InvalidValueError` if the budget is too small for anything.
        """
        from everthread.sessions.sync.briefing import session_briefing

        return session_briefing(
            self._records(thread),
            now_us=self.core.runtime.now_us(),
            max_tokens=max_tokens,
            tokenizer=tokenizer,
            max_age_s=max_age_s,
            allow_commands=allow_commands,
            allow_network=allow_network,
            reveal=reveal,
        )

    @property
    def knowledge(self) -> Knowledge:
        """Texts with embeddings, in PostgreSQL with pgvector. Raises :class:`UnsupportedError` elsewhere."""
        from everthread.knowledge import Knowledge

        self._check()
        return Knowledge(self.core)

    def refresh_documents(self) -> int:
        """Bring the JSON documents up to date that PostgreSQL shows in the view ``documents``; how many.

        Raises :class:`UnsupportedError` elsewhere.
        """
        from everthread.knowledge import refresh_documents

        self._check()
        return refresh_documents(self)

    def search(
        self,
        text: str,
        *,
        kinds: Collection[str] | None = None,
        prefix: str = "",
        limit: int = 20,
        progress: Progress | None = None,
    ) -> Hits:
        """Find words in messages, todos, decisions, open loops and whatever else agents keep, in the newest
        version of each thread; the best hits first, each with an excerpt.

        All words must occur; words in double quotes stand one after the other. Case and accents don't count.
        ``kinds`` limits what is looked at (see :class:`Hit`), ``prefix`` the names of threads. What is sealed
        is never looked at. Raises :class:`InvalidValueError` if there is no word in ``text``.
        """
        from everthread.search.query import search

        self._check()
        return search(self.core, text, kinds=kinds, prefix=prefix, limit=limit, progress=progress)

    def _records(self, thread: str) -> SessionRecords:
        from everthread.sessions.sync.status import read_session

        found = read_session(self, thread)
        if found is None:
            raise ThreadNotFoundError(f"there is no thread {thread!r}; it exists from its first commit")
        return found

    @iterated
    def scan(self, text: str, *, progress: Progress | None = None) -> Iterator[Place]:
        """Every place where ``text`` stands in clear in this namespace, lazily: in documents, logs, results
        of steps, labels, metadata, keys, names, events, registers; in every version, also in what is folded.

        Reads everything once; changes nothing. What is sealed isn't opened. Raises
        :class:`InvalidValueError` for a text that is empty.
        """
        from everthread.redaction.scan import Scanner, check_text

        self._check()
        return Scanner(self.core, check_text(text), progress).run()

    def redact(
        self,
        text: str,
        *,
        replacement: str = "[redacted]",
        reason: str = "",
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> RedactionReport:
        """Put ``replacement`` in the place of ``text`` wherever :meth:`scan` finds it in the history of
        threads: in every version, fork and item. With ``dry_run`` nothing is changed.

        Versions keep their ids and hashes: a record that is rewritten keeps the digest of what was committed,
        and the store records what was redacted, so that :meth:`verify` passes and says so. What is left
        (names, keys, types of events, registers) is in the report. Close other handles and stores first: what
        they have read they may write again. Cut short anywhere, the next open does the rest.
        """
        from everthread.redaction.redact import redact
        from everthread.redaction.scan import check_text

        self._check()
        needle = check_text(text, replacement, reason)
        return redact(self.core, needle, reason, dry_run=dry_run, progress=progress)

    def export(
        self,
        path: str | os.PathLike[str],
        *,
        every_namespace: bool = False,
        keys: str | bytes | None = None,
        progress: Progress | None = None,
    ) -> ExportReport:
        """Write everything in this namespace into one archive at ``path``, which must not exist: threads with
        their past and journals, events, persons' data, sealed values as they are.

        Keys stay in the keyring, unless ``keys`` is given, a passphrase or 32 random bytes: then the keys
        that the archive needs travel in it, encrypted under that. Who has both can read everything in it, and
        tell whose it is, for ever: erasing reaches no copy of it.

        Any store can import it. Others may go on writing meanwhile; memory stays bounded.
        ``progress(done, total)`` is called as it goes. Raises :class:`StateCorruptedError` rather than write
        an archive of damaged threads.
        """
        from everthread.transfer.exporter import export

        self._check()
        self._write_doubts(every_namespace)
        return export(self.core, path, every=every_namespace, progress=progress, keys=keys)

    def import_from(
        self,
        path: str | os.PathLike[str],
        *,
        on_conflict: str = "error",
        every_namespace: bool = False,
        keys: str | bytes | None = None,
        progress: Progress | None = None,
    ) -> ImportReport:
        """Bring in what an archive holds: ids and hashes of versions stay, forks go on sharing their past.

        The whole archive is checked first; a damaged one changes nothing. What is here already is recognised
        and skipped, so that an import that was cut short is finished by running it again. Where a name is
        taken by something else: ``on_conflict`` "error" raises :class:`ThreadExistsError`, naming all of
        them, before anything is written; "skip" leaves them out, with their forks; "rename" brings them under
        another name. The report says what was done.

        With ``keys``, what the archive was exported with, its keys come into this keyring; but for those of
        anybody whom this store or its keyring knows to be erased. Without, what is sealed stays closed here
        unless the keyring has its keys; the report counts those that are missing. Raises
        :class:`KeyringError` if they don't open with it, or there are none; nothing was changed then.
        """
        from everthread.transfer.importer import check_conflict, import_from

        self._check()
        rule, here = check_conflict(on_conflict), self.core
        every, settle = every_namespace, self._settle
        return import_from(here, path, rule=rule, every=every, progress=progress, settle=settle, keys=keys)

    def copy_to(
        self,
        target: Store,
        *,
        on_conflict: str = "error",
        every_namespace: bool = False,
        progress: Progress | None = None,
    ) -> ImportReport:
        """Bring everything in this namespace into another open store, as :meth:`export` and
        :meth:`import_from` would, without a file between them. Doing it again brings what is new."""
        from everthread.transfer.importer import check_conflict, copy_store

        self._check()
        if not isinstance(target, Store):
            raise UsageError("copy_to() takes an open store of the same colour: everthread.open(url)")
        target._check()
        rule, told, settle = check_conflict(on_conflict), progress, target._settle
        self._write_doubts(every_namespace)
        return copy_store(
            self.core, target.core, rule=rule, every=every_namespace, progress=told, settle=settle
        )

    def _write_doubts(self, every_namespace: bool) -> None:
        """Write the doubts of the store into the ledgers, which are copied; the store's own record isn't."""
        from everthread.maintenance.restore import write_doubts

        namespace = None if every_namespace else self.core.space
        write_doubts(self.core, namespace)

    # ── persons ──────────────────────────────────────────────────────────────────────────────

    #: How many were erased since this store was opened or restored because their time was over.
    _swept = 0

    def erase(
        self,
        subject: str,
        *,
        dry_run: bool = False,
        timeout_s: float = 30.0,
        progress: ErasureProgress | None = None,
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
        from everthread.people import erase as erasing

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
        from everthread.people.erase import reports

        self._check()
        return reports(self.core)

    def hold(
        self,
        subject: str,
        reason: str,
        *,
        threads: str | Sequence[str] | None = None,
        keys: str | Sequence[str] | None = None,
    ) -> None:
        """Put a person's data under a legal hold: :meth:`erase` refuses until it is released, and records
        each attempt; so does that of every other store on the same keyring. The reason is kept in clear, in
        this store: don't name the person in it.

        With ``threads`` (names in this namespace that begin so) or ``keys`` (of user values) only those of
        the person's values are held: :meth:`erase` through this store erases the others, and its report names
        what stayed. Again adds to what is held. Raises :class:`ErasedError` if the person is being erased
        already.
        """
        from everthread.people.holds import Holds

        self._check()
        Holds(self.core).place(subject, reason, threads, keys)

    def holds(self, subject: str | None = None) -> list[LegalHold]:
        """The legal holds in force, of one person or of all: those of this store, the oldest first, then
        those of other stores on the same keyring."""
        from everthread.people.holds import Holds

        self._check()
        return Holds(self.core).all(subject)

    def release_hold(self, subject: str, reason: str = "", *, everywhere: bool = False) -> None:
        """End the legal hold that was placed through this store, or with ``everywhere`` those of all stores
        on the same keyring, some of which may be gone. Raises :class:`InvalidStateError` if there is none."""
        from everthread.people.holds import Holds

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
        progress: Progress | None = None,
    ) -> GcReport:
        """Remove what nobody needs: expired threads, what belonged to deleted ones, events that the retention
        of their stream doesn't keep and, with ``retention``, the content of versions that it doesn't keep.
        Persons whose time is over are erased, and what is left here of those who were erased through another
        store on the same keyring.

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
            from everthread.people.erase import settle

            self._swept = 0
            settle(self.core)
            forget_old(self.core)
        return msgspec.structs.replace(report, subjects=subjects)

    def restore(self, path: str | os.PathLike[str], *, nothing_since: bool = False) -> RestoreReport:
        """Replace everything in this store by a backup, all or nothing. Get new handles afterwards.

        Nobody comes back who was erased since; holds that are in force stay so, and so do times; receipts
        are kept. Effects that were called after the backup was made aren't forgotten: see
        ``RestoreReport.doubtful``. If the backup was made of another store, or this one is damaged, every
        ledger is in doubt; with ``nothing_since`` you say that no effect was called after the backup was
        made. Keys aren't in a backup: ``RestoreReport.needs`` counts what can't be opened here.
        """
        from everthread.maintenance.key_needs import count_keys
        from everthread.people.erase import after_restoring, before_restoring
        from everthread.people.lifetimes import Lifetimes

        self._check()
        # What is due is due whatever the backup knows of it, and so is what will be.
        self._sweep()
        times: dict[str, str | None] = {}
        with suppress(EverthreadError):
            times = Lifetimes(self.core).kept()
        kept = before_restoring(self.core)
        report = super().restore(path, nothing_since=nothing_since)
        erased = after_restoring(self.core, kept)
        with suppress(EverthreadError):
            Lifetimes(self.core).put_back(times)
        self._sweep()
        return msgspec.structs.replace(report, erased=erased, needs=count_keys(self.core))

    def _settle(self) -> None:
        """Nobody who was erased comes back with what came in."""
        from everthread.people.erase import settle

        settle(self.core)
        self._sweep()

    def _finish_erasures(self) -> None:
        """What interrupted erasures and redactions have left to do, and what is due since; interrupted
        imports are told of. Whatever is wrong with it, the store is open."""
        with suppress(EverthreadError):
            if self.core.backend.erasures(True):
                from everthread.people.erase import resume

                resume(self.core)
        with suppress(EverthreadError):
            begun = left(self.core.backend, self.core.space, self.core.runtime.now_us)
            if any(work.what == LIFETIMES for _, work in begun):
                self._sweep()
            if any(work.what != LIFETIMES for _, work in begun):
                from everthread.redaction.redact import resume_redactions

                resume_redactions(self.core)

    def _warn_of_new_keyring(self) -> None:
        from everthread.maintenance.key_needs import warn_of_new_keyring

        warn_of_new_keyring(self.core)

    def _left_undone(self) -> list[str]:
        """What :meth:`_finish_erasures` would go on with, or tell of. Changes nothing."""
        from everthread.people.erase import unfinished

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
        from everthread.people import erase as erasing

        with suppress(EverthreadError):
            return erasing.elsewhere(self.core)
        return erasing.Elsewhere()

    def _unfinished_keys(self, but: str) -> int:
        """How many keys erasures are about that were cut short, and that :meth:`erase` of anybody finishes on
        the way; ``but`` for one. Changes nothing."""
        from everthread.people.erase import unfinished

        found = 0
        for erasure in unfinished(self.core):
            if erasure.id != but and erasure.is_free() and erasure.can_resume():
                found += len(erasure.key_ids)
        return found

    def _sweep(self) -> None:
        """Erase what is due. Waits for nobody."""
        from everthread.people.users import UserStore

        with suppress(EverthreadError):
            self._swept += UserStore(self)._sweep(0.0)


def open(
    url: str | os.PathLike[str] | None = None,
    *,
    durability: str = "full",
    keyring: Any = None,
    namespace: str | None = None,
    limits: Limits = DEFAULT_LIMITS,
    runtime: Runtime | None = None,
    telemetry: bool = False,
    cold: Any = None,
    detectors: Sequence[Detector] = (),
) -> Store:
    """Open a store; it is created if it isn't there.

    ``url``: ``memory:``, ``sqlite:///relative.db`` or ``sqlite:////absolute.db``, ``file:///folder``,
    ``postgresql://host/name``, ``valkey://host/0``; or a path: ``agent.db`` (also ``.sqlite``,
    ``.sqlite3``), a SQLite file, the folder of a file store. Without one: ``$EVERTHREAD_URL``, else the
    nearest ``.everthread`` folder, else ``~/.everthread``.
    ``durability``: ``"full"`` survives a power cut, ``"process"`` only the death of the process and is about
    ten times faster. ``keyring``: where the keys of personal values are (by default ``$EVERTHREAD_KEYRING``,
    else ``~/.everthread/keyring``). ``namespace`` keeps tenants apart (by default ``$EVERTHREAD_NAMESPACE``,
    else the one without a name). ``telemetry`` tells OpenTelemetry what the
    store does, without any content. ``cold``: a folder, or an archive, to which :meth:`Store.cool` moves idle
    threads and from which they come back. ``detectors`` look for secrets in what is about to be stored: see
    :mod:`everthread.detectors`.
    """
    store = unsettled(
        url, durability, cold, telemetry, namespace=namespace, keyring=keyring, limits=limits,
        runtime=runtime, detectors=detectors,
    )  # fmt: skip
    store._finish_erasures()
    return store


def _url(given: str | os.PathLike[str]) -> str:
    return given if isinstance(given, Existing) else store_url(given)


def unsettled(
    url: str | os.PathLike[str] | None, durability: str, cold: Any, telemetry: bool, **options: Any
) -> Store:
    """The same for who only looks: what others left unfinished, and whose time is over, stays as it is."""
    check_not_in_workflow()
    options["namespace"] = chosen_namespace(options.get("namespace"))
    options["keyring"] = chosen_keyring(options.get("keyring"))
    check_options(options["namespace"], options.get("limits", DEFAULT_LIMITS), options.get("keyring"))
    archive = None if cold is None else archive_of(cold)
    backend = open_backend(default_url() if url is None else _url(url), durability)
    if telemetry:
        backend = observed(backend)
    if archive is not None:
        backend = with_archive(backend, archive)
    store = Store(backend, **options)
    try:
        store.core.vault.check_keyring()
        if over_network(store.url):
            store._warn_of_new_keyring()
    except BaseException:
        store.close()
        raise
    return store


def with_archive(backend: Backend, archive: Archive) -> Backend:
    """A backend that brings threads back from an archive; closed again if it can't have one."""
    from everthread.stores.cold import ColdBackend, no_cold

    if not backend.capabilities.cold:
        backend.close()
        raise no_cold()
    thawing: Any = ColdBackend(backend, archive)
    found: Backend = thawing
    return found


def observed(backend: Backend) -> Backend:
    """A backend that tells OpenTelemetry what it does; closed again if that can't be had."""
    from everthread.stores.tracing import traced

    try:
        found: Backend = traced(backend)
    except BaseException:
        backend.close()
        raise
    return found


def archive_of(cold: Any) -> Archive:
    from everthread.stores.cold import open_archive

    return open_archive(cold)
