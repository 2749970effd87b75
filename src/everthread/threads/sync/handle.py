# Generated from src/everthread/threads/aio/handle.py by tools/twin.py: change that, then run: make twin
"""The inside of a thread handle: where it stands, what it has changed, and the one way to write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import get_ident
from typing import Any

from everthread.arguments import check_name
from everthread.codec.values import decode_plain, encode_stored, lift, lower
from everthread.errors import (
    InvalidStateError,
    StateCorruptedError,
    ThreadDeletedError,
    ThreadNotFoundError,
)
from everthread.history.logs import EMPTY_LOG, LOST
from everthread.stores.contract import Line
from everthread.threads.colours import BlockingFace
from everthread.threads.document import SHARED, Document
from everthread.threads.head_cache import NO_SLOT, Memo
from everthread.threads.lifetimes import expired, has_expired
from everthread.threads.reports import Recovered
from everthread.threads.sealing import SealedRow
from everthread.threads.sync.core import Core, Validator
from everthread.threads.sync.fallback import fall_back
from everthread.threads.sync.log import Log
from everthread.threads.sync.reader import LARGE
from everthread.values import Personal, Tagged


class Handle(BlockingFace):
    """Pinned at its first read; moved only by what its owner does. Not for two threads at once."""

    #: Raise instead of standing on an older version, where the newest one is damaged.
    _strict = False
    #: Set while the handle stands on an older version for that reason: then it doesn't write.
    _recovered: Recovered | None = None
    #: How long the thread lives after a write through this handle: 0 for ever, ``None`` as before.
    _ttl_us: int | None = None
    #: How many updates still expect others to write at the same time.
    _wary = 0
    # What most handles begin with stands here: that makes one sooner.
    _line: Line | None = None
    _memo: Memo | None = None
    #: A line to be created with its first version; for a fork the line it comes from and its tags.
    _unborn: tuple[Line, int, Mapping[str, bytes]] | None = None
    _pinned = False
    #: What was under way: "" nothing, "standing" a move, "rebasing" one that carries changes along.
    _moving = ""
    _deleted = False
    _document: Document | None = None
    #: The head that the document was built from, unless there is a newer one.
    _built: Memo | None = None
    _logs_touched = False
    #: What the store remembers of this line.
    _slot = NO_SLOT
    #: Whether the store is at work on a commit; in a blocking store, for which thread of execution.
    _writing = 0

    def __init__(self, core: Core, name: str, validate: Validator | None = None) -> None:
        self.core = core
        self.name = check_name(name, "thread name")
        self._runtime = core.runtime
        self._limits = core.limits
        self._validate = validate
        self._logs: dict[str, Log] = {}
        self._sealed: dict[bytes, SealedRow] = {}
        #: The hashes of versions that were sent to the store and not acknowledged (yet).
        self._attempted: list[bytes] = []
        if core.screen is not None:
            # Only then: stores without detectors don't pay for a look.
            self._lower = self._screened  # type: ignore[method-assign]

    # ── standing ─────────────────────────────────────────────────────────────────────────────

    def _load(self) -> None:
        if not self._pinned or self._moving:
            self._load_newest()

    def _here(self) -> None:
        """Make sure that there is something to look at, for what can't wait for the store."""
        if not self._pinned or self._moving:
            self._load_newest()

    def _newest(self) -> tuple[Line | None, Memo | None]:
        """The line of this name and its newest version, or the last one that can still be read."""
        try:
            found = self.core.backend.find(self.core.space, self.name)
            memo = self.core.head(found) if found is not None else None
        except StateCorruptedError as error:
            if self._strict:
                raise
            line, memo, self._recovered = fall_back(self, error)
            return line, memo
        self._recovered = None
        if found is None or memo is None:
            return None, None
        version = memo.version
        mortal = version is not None and version.ttl_us is not None
        if mortal and has_expired(found.line, version, self._runtime.now_us()):
            return None, None
        return found.line, memo

    def _load_newest(self) -> None:
        """Read the newest version: for the first time, or because a move was interrupted half way."""
        self._require_idle("reading")
        known, before = self._line, self._memo
        line, memo = self._newest()
        if self._moving and known is not None and (line is None or line.uid != known.uid):
            self._deleted = True
        lost = self._moving == "rebasing"
        self._stand(line, memo, instead_of=(known, before))
        if lost:
            raise InvalidStateError(
                "moving the uncommitted changes was interrupted half way: they are gone, "
                "and the handle stands on the newest version"
            )

    def _stand(
        self, line: Line | None, memo: Memo | None, moving: str = "", *, instead_of: tuple[Any, ...] = ()
    ) -> None:
        """Take up a committed position; whatever was uncommitted is gone.

        Until it is complete the handle is marked as moving, so that an interrupt in between is noticed. If it
        isn't where ``instead_of`` says any more, somebody else has moved it on since, and it stays there.
        """
        if instead_of and (self._line is not instead_of[0] or self._memo is not instead_of[1]):
            return
        self._moving = moving or "standing"
        self._line, self._memo, self._pinned = line, memo, True
        self._slot = self.core.memos.slot(line.uid) if line is not None else NO_SLOT
        if self._sealed:
            self._sealed = {}
        if self._attempted:
            self._attempted = []
        self._unborn = None
        self._logs_touched = False
        for name, log in self._logs.items():
            log._settle(memo.logs.get(name, EMPTY_LOG) if memo else EMPTY_LOG)
        if self._document is not None:
            self._document.reset(self._build_document())
        self._moving = moving

    def _drop_changes(self) -> None:
        """Forget what is uncommitted. A handle that was moving finds its place when it loads again."""
        if self._moving:
            self._moving = "standing"
        elif self._pinned:
            self._stand(self._line, self._memo)

    def _stand_unborn(self, line: Line, memo: Memo, source: int, tags: Mapping[str, bytes]) -> None:
        """Stand on a version that the first commit, together with ``line`` itself, will follow."""
        self._stand(None, memo)
        self._unborn = (line, source, tags)

    def _build_document(self) -> Any:
        memo = self._memo
        if memo is None:
            return {}
        document = memo.build_document()
        self._built = memo
        if memo.changes_count >= 4:
            self._compact(memo, document)
        return document

    def _compact(self, memo: Memo, document: Any) -> bytes:
        """Remember the document of this head, just as it was built from it, in one piece."""
        compact = memo.compacted(document)
        if self._line is not None:
            self._memo = self._built = compact
            if self._slot.memo is memo:
                self._slot.memo = compact
        return compact.document

    def _encoded(self, node: Any) -> bytes:
        """A container of the document, encoded: nothing has to be done if all of it is, and is unchanged."""
        document, memo = self._document, self._memo
        if memo is None or self._built is not memo or document is None or node is not document.root._raw:
            return encode_stored(node)
        if document.root._dirty or document.cut or self._moving:
            return encode_stored(node)
        return self._compact(memo, node) if memo.changes_count else memo.document

    def _doc(self) -> Document:
        self._here()
        if self._document is None:
            kind = Document if self.core.screen is None else _screened_document()
            self._document = kind(
                self._build_document(),
                lower=self._lower,
                lift=self._lift,
                depth_max=self._limits.depth_max,
            )
        return self._document

    def _log(self, name: str) -> Log:
        log = self._logs.get(name)
        if log is None:
            log = self._logs[name] = Log(self, name)  # type: ignore[arg-type]
            if self._pinned and not self._moving and self._memo is not None:
                log._settle(self._memo.logs.get(name, EMPTY_LOG))
        return log

    @property
    def _dirty(self) -> bool:
        return self._logs_touched or (self._document is not None and self._document.dirty)

    def _require(self) -> tuple[Line, Memo]:
        """The line and head of a thread that exists."""
        if self._moving or not self._pinned:
            self._here()
        self._check_alive()
        if self._line is None or self._memo is None:
            raise ThreadNotFoundError(
                f"there is no thread {self.name!r} yet: it exists from its first commit"
            )
        return self._line, self._memo

    def _check_alive(self) -> None:
        if self._deleted:
            raise ThreadDeletedError(
                f"the thread {self.name!r} was deleted; store.thread({self.name!r}) starts a new one"
            )
        line, memo = self._line, self._memo
        if line is None or memo is None or memo.version.ttl_us is None:
            return
        if has_expired(line, memo.version, self._runtime.now_us()):
            raise expired(self.name)

    def _require_clean(self, verb: str) -> None:
        self._require_idle(verb)
        if self._dirty:
            raise InvalidStateError(
                f"{verb} needs a handle without uncommitted changes: commit() or discard() them first"
            )

    # ── what logs and documents ask for ──────────────────────────────────────────────────────

    def _touch(self) -> None:
        self._logs_touched = True

    def _untouch(self) -> None:
        """A change was taken back: see whether any is left."""
        self._logs_touched = any(log._dirty for log in self._logs.values())

    def _require_idle(self, verb: str) -> None:
        # One's own commit can't be under way: it was interrupted where it ended.
        if self._writing and self._writing != get_ident():
            raise InvalidStateError(f"{verb}: {SHARED}")

    @contextmanager
    def _alone(self, verb: str) -> Iterator[None]:
        """While this thread of execution writes: the others are refused, or it is noticed afterwards.

        ``commit()``, which every save runs, does the same by itself.
        """
        me = get_ident()
        if self._writing and self._writing != me:
            self._require_idle(verb)
        try:
            self._writing = me
            yield
        finally:
            self._writing = 0

    def _writable(self) -> None:
        self._require_idle("a change")
        self._here()
        self._check_alive()

    def _lower(self, value: Any, where: str) -> Any:
        if type(value) is Personal:
            return self._seal(value)
        return lower(value, limits=self._limits, seal=self._seal, root=where)

    def _screened(self, value: Any, where: str) -> Any:
        screen = self.core.screen
        assert screen is not None
        return lower(screen(value, where), limits=self._limits, seal=self._seal, root=where)

    def _lift(self, node: Any) -> Any:
        if type(node) is dict or type(node) is list:
            # There and back again in C takes a fraction of the time of walking through it.
            return decode_plain(self._encoded(node), self._open_seal)
        return lift(node, self._open_seal)

    def _seal(self, personal: Personal) -> Tagged:
        return self.core.vault.seal(personal, self._sealed)

    def _open_seal(self, tagged: Tagged) -> Any:
        return self.core.vault.open(tagged, self._sealed)

    def _fetch(self, log: str, start: int, stop: int) -> list[Any]:
        line, memo = self._line, self._memo
        if line is None or memo is None or self._deleted or self._moving or memo.version.ttl_us is not None:
            line, memo = self._require()
        recent = memo.recent.get(log)
        if recent is not None and stop - start < LARGE and (held := recent.between(start, stop)):
            # As the reader does it, which has more to ask: nearly always the newest, which are remembered.
            block, before = held
            newest: list[Any] = decode_plain(block, self._open_seal)
            return newest[before : before + stop - start]
        return self.core.reader.items(line, log, start, stop, recent, self._open_seal)

    def _fetch_raw(self, log: str, start: int, stop: int) -> list[bytes]:
        return self.core.reader.raw_items(self._require()[0], log, start, stop)

    def _find_print(self, log: str, print_: bytes, count: int) -> list[int]:
        """Committed positions below ``count`` whose fingerprint fits, the newest first."""
        line, known = self._line, self._slot.prints.get(log)
        if line is not None and not line.parent and known is not None and known.covers(count):
            return list(known.search(print_, 0, count))
        found: list[int] = []
        while line is not None and count:
            own = line.counts.get(log, 0) if line.parent else 0
            if count > own:
                slot = recent = None
                if line is self._line and self._memo is not None:
                    slot, recent = self._slot, self._memo.recent.get(log)
                prints = self.core.prints(line, log, count, slot, recent)
                found.extend(prints.search(print_, own, count - own))
                if prints.lost:
                    # Any of these might be it: reading it says that it can't be read.
                    found.extend(prints.search(LOST, own, count - own))
                count = own
            line = self.core.reader.parent(line) if line.parent else None
        return found


def _screened_document() -> type[Document]:
    from everthread.threads.document import ScreenedDocument

    return ScreenedDocument
