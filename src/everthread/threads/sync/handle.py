# Generated from src/everthread/threads/aio/handle.py by tools/twin.py: change that, then run: make twin
"""The inside of a thread handle: where it stands, what it has changed, and the one way to write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from everthread.arguments import check_name
from everthread.codec.values import decode_plain, encode_stored, lift, lower
from everthread.errors import (
    InvalidStateError,
    StateCorruptedError,
    ThreadDeletedError,
    ThreadNotFoundError,
    UsageError,
    VersionNotFoundError,
)
from everthread.history.chain import parse_version_id, version_id
from everthread.history.diff import diff_documents
from everthread.history.logs import EMPTY_LOG, LOST
from everthread.process import check_not_in_workflow
from everthread.stores.contract import Line
from everthread.threads import migrations
from everthread.threads.document import CUT, SHARED, Document
from everthread.threads.head_cache import NO_SLOT, CachedHead
from everthread.threads.lifetimes import expired, has_expired
from everthread.threads.reports import Recovered
from everthread.threads.sealing import SealedRow
from everthread.threads.sync.core import Core, EffectCaller, Validator
from everthread.threads.sync.fallback import fall_back
from everthread.threads.sync.log import Log
from everthread.threads.sync.reader import LARGE
from everthread.threads.sync.version_names import find_named
from everthread.values import Personal, Tagged
from everthread.versions import Version, parse_version_name

AnyVersion = Version | int | str


class Guard(Protocol):
    """Says whether a handle may still be used, for whoever isn't content with what the store says."""

    def check(self) -> None:
        """Raise if nothing may be built on the handle any more."""


class Handle:
    """What a thread holds: the head it stands on, what is pending on top of it, and the way to the store.

    The modules of this package and ``store.core``'s users work on it, as ``thread.handle``; users of a thread
    don't. Pinned at its first read; moved only by what its owner does. Not for two threads at once.
    """

    #: Raise instead of standing on an older version, where the newest one is damaged.
    strict = False
    #: Set while the handle stands on an older version for that reason: then it doesn't write.
    recovered: Recovered | None = None
    #: How long the thread lives after a write through this handle: 0 for ever, ``None`` as before.
    ttl_us: int | None = None
    #: How many updates still expect others to write at the same time.
    contention = 0
    # What most handles begin with stands here: that makes one sooner.
    line: Line | None = None
    head: CachedHead | None = None
    #: A line to be created with its first version; for a fork the line it comes from and its tags.
    unborn: tuple[Line, int, Mapping[str, bytes]] | None = None
    pinned = False
    #: What was under way: "" nothing, "standing" a move, "rebasing" one that carries changes along.
    moving = ""
    deleted = False
    document: Document | None = None
    #: The head that the document was built from, unless there is a newer one.
    _built: CachedHead | None = None
    logs_touched = False
    #: The hash of a head whose document was migrated, and what that came to.
    _migrated: tuple[bytes, bytes] | None = None
    #: What the store remembers of this line.
    slot = NO_SLOT
    #: Calls effects, for the handle of a session.
    effect_caller: EffectCaller | None = None
    #: The run that was last found to hold the lease, and the version that the handle stood on then.
    vouched: tuple[str, bytes] | None = None
    #: Whether the store is at work on a commit.
    writing = False
    #: Records the working folder of this handle, and whether it does so at each commit: see ``workspace``.
    workspace: Any = None
    records_each_commit = False
    workspace_options: Mapping[str, Any] = {}

    def __init__(
        self, core: Core, name: str, validate: Validator | None = None, guard: Guard | None = None
    ) -> None:
        self.core = core
        self.name = check_name(name, "thread name")
        self.runtime = core.runtime
        self.limits = core.limits
        self.validate = validate
        #: Whether the next commit may change the schema that is attached to the thread.
        self.attaches_schema = False
        self.guard = guard
        self.logs: dict[str, Log] = {}
        self.sealed: dict[bytes, SealedRow] = {}
        #: The hashes of versions that were sent to the store and not acknowledged (yet).
        self.attempted: list[bytes] = []
        if core.screen is not None:
            # Only then: stores without detectors don't pay for a look.
            self.lower = self._screened  # type: ignore[method-assign]

    # ── standing ─────────────────────────────────────────────────────────────────────────────

    def load(self) -> None:
        if not self.pinned or self.moving:
            self.load_newest()

    def ensure_loaded(self) -> None:
        """Make sure that there is something to look at, for what can't wait for the store."""
        if not self.pinned or self.moving:
            self.load_newest()

    def newest(self) -> tuple[Line | None, CachedHead | None]:
        """The line of this name and its newest version, or the last one that can still be read."""
        check_not_in_workflow()
        try:
            found = self.core.backend.find(self.core.space, self.name)
            head = self.core.head(found) if found is not None else None
        except StateCorruptedError as error:
            if self.strict:
                raise
            line, head, self.recovered = fall_back(self, error)
            return line, head
        self.recovered = None
        if found is None or head is None:
            return None, None
        version = head.version
        mortal = version is not None and version.ttl_us is not None
        if mortal and has_expired(found.line, version, self.runtime.now_us()):
            return None, None
        return found.line, head

    def load_newest(self) -> None:
        """Read the newest version: for the first time, or because a move was interrupted half way."""
        self.require_idle("reading")
        known, before = self.line, self.head
        line, head = self.newest()
        if self.moving and known is not None and (line is None or line.uid != known.uid):
            self.deleted = True
        lost = self.moving == "rebasing"
        self.stand(line, head, instead_of=(known, before))
        if lost:
            raise InvalidStateError(
                "moving the uncommitted changes was interrupted half way: they are gone, "
                "and the handle stands on the newest version"
            )

    def stand(
        self,
        line: Line | None,
        head: CachedHead | None,
        moving: str = "",
        *,
        instead_of: tuple[Any, ...] = (),
    ) -> None:
        """Take up a committed position; whatever was uncommitted is gone.

        Until it is complete the handle is marked as moving, so that an interrupt in between is noticed. If it
        isn't where ``instead_of`` says any more, somebody else has moved it on since, and it stays there.
        """
        if instead_of and (self.line is not instead_of[0] or self.head is not instead_of[1]):
            return
        self.moving = moving or "standing"
        self.line, self.head, self.pinned = line, head, True
        self.slot = self.core.head_cache.slot(line.uid) if line is not None else NO_SLOT
        if self.sealed:
            self.sealed = {}
        if self.attempted:
            self.attempted = []
        self.unborn = None
        self.logs_touched = False
        for name, log in self.logs.items():
            log._settle(head.logs.get(name, EMPTY_LOG) if head else EMPTY_LOG)
        if self.document is not None:
            self.document.reset(self.build_document())
            if not moving:
                self._migrate(self.document)
        self.moving = moving

    def drop_changes(self) -> None:
        """Forget what is uncommitted. A handle that was moving finds its place when it loads again."""
        if self.moving:
            self.moving = "standing"
        elif self.pinned:
            self.stand(self.line, self.head)

    def stand_unborn(self, line: Line, head: CachedHead, source: int, tags: Mapping[str, bytes]) -> None:
        """Stand on a version that the first commit, together with ``line`` itself, will follow."""
        self.stand(None, head)
        self.unborn = (line, source, tags)

    def build_document(self) -> Any:
        head = self.head
        if head is None:
            return {}
        document = head.build_document()
        self._built = head
        if head.changes_count >= 4:
            self._compact(head, document)
        return document

    def _compact(self, head: CachedHead, document: Any) -> bytes:
        """Remember the document of this head, just as it was built from it, in one piece."""
        compact = head.compacted(document)
        if self.line is not None:
            self.head = self._built = compact
            if self.slot.head is head:
                self.slot.head = compact
        return compact.document

    def _encoded(self, node: Any) -> bytes:
        """A container of the document, encoded: nothing has to be done if all of it is, and is unchanged."""
        document, head = self.document, self.head
        if head is None or self._built is not head or document is None or node is not document.root._raw:
            return encode_stored(node)
        if document.root._dirty or document.cut or self.moving:
            return encode_stored(node)
        return self._compact(head, node) if head.changes_count else head.document

    def open_document(self) -> Document:
        self.ensure_loaded()
        if self.document is None:
            kind = Document if self.core.screen is None else _screened_document()
            self.document = kind(
                self.build_document(),
                lower=self.lower,
                lift=self.lift,
                depth_max=self.limits.depth_max,
            )
            self._migrate(self.document)
        return self.document

    def _migrate(self, document: Document) -> None:
        """Show a document of an older form in the present one. It becomes part of the next version, and is
        no change that anybody made."""
        if self.head is not None and self.recovered is None and migrations.is_due(document.raw):
            made = migrations.migrated(self.lift(document.raw), self.name)
            document.apply(diff_documents(document.raw, self.lower(made, "state")))
            self._migrated = (self.head.hash, encode_stored(document.raw))

    def log(self, name: str) -> Log:
        log = self.logs.get(name)
        if log is None:
            log = self.logs[name] = Log(self, name)
            if self.pinned and not self.moving and self.head is not None:
                log._settle(self.head.logs.get(name, EMPTY_LOG))
        return log

    @property
    def version(self) -> Version | None:
        """The version of the head."""
        return self.head.version if self.head is not None else None

    @property
    def dirty(self) -> bool:
        """Whether there is anything to commit."""
        document = self.document
        if self.logs_touched or document is None or not document.dirty:
            return self.logs_touched
        if self._migrated is None or self.head is None or self._migrated[0] != self.head.hash:
            return True
        return document.cut == CUT or encode_stored(document.raw) != self._migrated[1]

    def require(self) -> tuple[Line, CachedHead]:
        """The line and head of a thread that exists."""
        if self.moving or not self.pinned:
            self.ensure_loaded()
        self.check_alive()
        if self.line is None or self.head is None:
            raise ThreadNotFoundError(
                f"there is no thread {self.name!r} yet: it exists from its first commit"
            )
        return self.line, self.head

    def check_alive(self) -> None:
        """Raises if the thread was deleted, has expired, or the guard says no."""
        if self.guard is not None:
            self.guard.check()
        if self.deleted:
            raise ThreadDeletedError(
                f"the thread {self.name!r} was deleted; store.thread({self.name!r}) starts a new one"
            )
        line, head = self.line, self.head
        if line is None or head is None or head.version.ttl_us is None:
            return
        if has_expired(line, head.version, self.runtime.now_us()):
            raise expired(self.name)

    def require_clean(self, verb: str) -> None:
        self.require_idle(verb)
        if self.dirty:
            raise InvalidStateError(
                f"{verb} needs a handle without uncommitted changes: commit() or discard() them first"
            )

    # ── what logs and documents ask for ──────────────────────────────────────────────────────

    def touch(self) -> None:
        self.logs_touched = True

    def untouch(self) -> None:
        """A change was taken back: see whether any is left."""
        self.logs_touched = any(log._dirty for log in self.logs.values())

    def require_idle(self, verb: str) -> None:
        if self.writing:
            raise InvalidStateError(f"{verb}: {SHARED}")

    def require_writable(self) -> None:
        self.require_idle("a change")
        self.ensure_loaded()
        self.check_alive()

    def lower(self, value: Any, where: str) -> Any:
        if type(value) is Personal:
            return self.seal(value)
        return lower(value, limits=self.limits, seal=self.seal, root=where)

    def _screened(self, value: Any, where: str) -> Any:
        screen = self.core.screen
        assert screen is not None
        return lower(screen(value, where), limits=self.limits, seal=self.seal, root=where)

    def lift(self, node: Any) -> Any:
        if type(node) is dict or type(node) is list:
            # There and back again in C takes a fraction of the time of walking through it.
            return decode_plain(self._encoded(node), self.open_seal)
        return lift(node, self.open_seal)

    def seal(self, personal: Personal) -> Tagged:
        return self.core.vault.seal(personal, self.sealed)

    def open_seal(self, tagged: Tagged) -> Any:
        return self.core.vault.open(tagged, self.sealed)

    def fetch(self, log: str, start: int, stop: int) -> list[Any]:
        check_not_in_workflow()
        line, head = self.line, self.head
        if line is None or head is None or self.deleted or self.moving or head.version.ttl_us is not None:
            line, head = self.require()
        recent = head.recent.get(log)
        if recent is not None and stop - start < LARGE and (part := recent.between(start, stop)):
            # As the reader does it, which has more to ask: nearly always the newest, which are remembered.
            block, before = part
            newest: list[Any] = decode_plain(block, self.open_seal)
            return newest[before : before + stop - start]
        return self.core.reader.items(line, log, start, stop, recent, self.open_seal)

    def drop_items(self, log: str, kept: list[tuple[int, int]]) -> None:
        """Take all items out of a log but those at these indices (start, stop), in order; to be committed.
        Versions before keep what they had."""
        items = self.log(log)
        stop = items._current.length
        for start, end in [*reversed(kept), (0, 0)]:
            if stop > end:
                items._splice(end, stop - end, [], [])
            stop = start

    def upsert(self, log: str, item: Any) -> None:
        """Append an item to a log, or put it in the place of the one that has its id; to be committed."""
        self.log(log)._upsert(item, item["id"], None)

    def fetch_raw(self, log: str, start: int, stop: int) -> list[bytes]:
        return self.core.reader.raw_items(self.require()[0], log, start, stop)

    def find_print(self, log: str, print_: bytes, count: int) -> list[int]:
        """Committed positions below ``count`` whose fingerprint fits, the newest first."""
        line, known = self.line, self.slot.prints.get(log)
        if line is not None and not line.parent and known is not None and known.covers(count):
            return list(known.search(print_, 0, count))
        found: list[int] = []
        while line is not None and count:
            own = line.counts.get(log, 0) if line.parent else 0
            if count > own:
                slot = recent = None
                if line is self.line and self.head is not None:
                    slot, recent = self.slot, self.head.recent.get(log)
                prints = self.core.prints(line, log, count, slot, recent)
                found.extend(prints.search(print_, own, count - own))
                if prints.lost:
                    # Any of these might be it: reading it says that it can't be read.
                    found.extend(prints.search(LOST, own, count - own))
                count = own
            line = self.core.reader.parent(line) if line.parent else None
        return found

    def find_version(self, version: AnyVersion) -> Version:
        """A version of this thread. Raises :class:`VersionNotFoundError`."""
        line, head = self.require()
        if isinstance(version, str):
            return find_named(self.core.reader, self.name, line, head, version)
        seq, wanted = _named(version)
        if seq == head.seq and wanted in (None, head.version.id):
            return head.version
        if 1 <= seq <= head.seq:
            found, _ = self.core.reader.version(line, seq)
            if wanted in (None, found.id):
                return found
        raise VersionNotFoundError(f"{self.name!r} has no version {wanted or seq}")

    def contains(self, version: AnyVersion) -> bool:
        """Whether a version, pruned or not, is among those that led to the head."""
        if self.line is None or self.head is None:
            return False
        line, head = self.require()
        if isinstance(version, str) and parse_version_name(version).id is None:
            version = self.find_version(version)
        seq, wanted = _named(version)
        if wanted == head.version.id:
            return True
        if not 1 <= seq <= head.seq:
            return False
        if wanted is not None and version_id(seq, self.core.reader.digest(line, seq)) != wanted:
            return False
        owner = self.core.reader.owner(line, seq)
        return self.core.reader.contains(line, head.seq, head.segment, owner, seq)


def _named(version: AnyVersion) -> tuple[int, str | None]:
    """The seq of a version, and its id if that was given."""
    if isinstance(version, Version):
        return version.seq, version.id
    if isinstance(version, str):
        return parse_version_id(version)[0], version
    if isinstance(version, int) and not isinstance(version, bool):
        return version, None
    raise UsageError(f"a version is a Version, its seq, its id or its label, not {type(version).__name__}")


def _screened_document() -> type[Document]:
    from everthread.threads.document import ScreenedDocument

    return ScreenedDocument
