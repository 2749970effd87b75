# Generated from threads/aio/partial_thread.py by tools/twin.py: change that, then run: make twin
"""Reading whatever can be read of a damaged thread, with a marker in place of what can't."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

from everthread.arguments import check_name
from everthread.errors import InvalidStateError, StateCorruptedError
from everthread.history.logs import EMPTY_LOG
from everthread.history.snapshots import Snapshot
from everthread.stores.contract import Line
from everthread.threads.document import Document
from everthread.threads.head_cache import Recent
from everthread.threads.sync.core import Core
from everthread.threads.sync.fallback import readable_below
from everthread.threads.sync.handle import AnyVersion, Handle
from everthread.threads.sync.log import LogView
from everthread.threads.sync.past import Past
from everthread.threads.sync.reader import hash_below, placed
from everthread.threads.sync.thread import MESSAGES, Thread
from everthread.threads.twins import iterated
from everthread.values import Corrupt
from everthread.versions import Version, parse_version_name


class PartialHandle(Handle):
    """Stands on what can be read, and doesn't write."""

    #: Why no version at all can be read.
    lost: Corrupt | None = None

    def load_newest(self) -> None:
        try:
            super().load_newest()
        except StateCorruptedError as error:
            self.lost = Corrupt(str(error))
            self.stand(None, None)

    def open_document(self) -> Document:
        self.ensure_loaded()
        if self.document is None:
            self.document = Document(self.build_document(), lower=self.lower, lift=self.lift, writable=False)
        return self.document

    def require_writable(self) -> NoReturn:
        raise InvalidStateError(
            f"this handle on {self.name!r} was asked for with partial=True and only reads; "
            "store.thread(name) gives one that writes"
        )

    def fetch(self, log: str, start: int, stop: int) -> list[Any]:
        line, head = self.require()
        return marked(self.core, line, log, start, stop, head.recent.get(log), self.open_seal)


class PartialThread(Thread):
    """What ``store.thread(name, partial=True)`` gives: it reads, never raises for damage, and doesn't write.

    It stands on the newest version that can be rebuilt; if none can, ``state`` is a :class:`Corrupt`. Items
    of logs that can't be read are a :class:`Corrupt` each, and so is the state of a version that can't be
    rebuilt.
    """

    handle: PartialHandle

    def __init__(self, core: Core, name: str) -> None:
        super().__init__(core, name)
        self.handle = PartialHandle(core, name)

    @property
    def state(self) -> Any:
        """The document, read only; a :class:`Corrupt` if it can't be rebuilt at any version."""
        self.handle.ensure_loaded()
        return super().state if self.handle.lost is None else self.handle.lost

    def commit(self, *args: Any, **options: Any) -> NoReturn:
        """Refused."""
        self.handle.require_writable()

    def rewind(self, version: AnyVersion, *, files: bool = False) -> NoReturn:
        """Refused."""
        self.handle.require_writable()

    def rebase(self, **options: Any) -> NoReturn:
        """Refused."""
        self.handle.require_writable()

    def merge(self, *args: Any, **options: Any) -> NoReturn:
        """Refused."""
        self.handle.require_writable()

    def update(self, *args: Any, **options: Any) -> NoReturn:
        """Refused."""
        self.handle.require_writable()

    def delete(self) -> NoReturn:
        """Refused."""
        self.handle.require_writable()

    def step(self, *args: Any, **options: Any) -> NoReturn:
        """Refused."""
        self.handle.require_writable()

    @property
    def messages(self) -> Any:
        """The same as ``log("messages")``."""
        return self.log(MESSAGES)

    def log(self, name: str) -> Any:
        """A log, read only; a :class:`Corrupt` stands in the place of each item that can't be read."""
        self.handle.ensure_loaded()
        logs = self.handle.head.logs if self.handle.head is not None else {}
        return PartialLog(self.handle, name, logs.get(check_name(name, "log name"), EMPTY_LOG))

    def at(self, version: AnyVersion) -> Past:
        """The thread as it was; its ``state`` is a :class:`Corrupt` if that version can't be rebuilt."""
        line, head = self.handle.require()
        found: Version | None = None
        snapshot, lost = Snapshot.empty(), None
        try:
            beyond = self._beyond(version)
            if beyond is not None:
                found = (self.core.reader.version(line, beyond))[0]
            else:
                found = self.handle.find_version(version)
            if head.version.id == found.id:
                snapshot = Snapshot(head.build_document(), head.logs, head.segment, head.merged)
            else:
                snapshot = (self.core.reader.load(line, found.seq)).snapshot
        except StateCorruptedError as error:
            lost = Corrupt(str(error))
        return PartialPast(self.handle, line, found, snapshot, lost)

    def _beyond(self, version: AnyVersion) -> int | None:
        """The seq of a version that comes after the last good one."""
        recovered = self.handle.recovered
        if recovered is None:
            return None
        if isinstance(version, str):
            seq = parse_version_name(version).seq or 0
        else:
            seq = version if isinstance(version, int) else version.seq
        return seq if recovered.first <= seq <= recovered.last else None

    @iterated
    def history(self, limit: int | None = 20, before: AnyVersion | None = None) -> Iterator[Any]:
        """The versions, newest first; a :class:`Corrupt` where one or several can't be read."""
        handle = self.handle
        handle.load()
        if handle.line is None or handle.head is None:
            return
        line, recovered = handle.line, handle.recovered
        seq = handle.head.seq if recovered is None else recovered.last
        if before is not None:
            seq = (before if isinstance(before, int) else (self.handle.find_version(before)).seq) - 1
        left = -1 if limit is None else limit
        while seq > 0 and left:
            found: list[Any]
            found, seq = _versions(self.core, line, seq)
            yield from found[: left if left > 0 else None]
            left = -1 if left < 0 else max(left - len(found), 0)


class PartialLog(LogView):
    """A log of which some items may be damaged. It isn't written to."""

    def find(self, message_id: Any) -> int | None:
        """The index of the item with this id, as far as it can be read, or ``None``."""
        for at, item in enumerate(self.read()):
            if type(item) is dict and item.get("id") == message_id:
                return at
        return None

    def append(self, item: Any) -> None:
        """Refused."""
        self._source.require_writable()

    def extend(self, items: Any) -> None:
        """Refused."""
        self._source.require_writable()

    def truncate_from(self, message_id: Any) -> None:
        """Refused."""
        self._source.require_writable()


class PartialPast(Past):
    """A version as far as it can be read."""

    def __init__(
        self, handle: PartialHandle, line: Line, version: Any, snapshot: Snapshot, lost: Corrupt | None
    ) -> None:
        super().__init__(handle, line, version, snapshot)
        self._lost = lost

    @property
    def state(self) -> Any:
        """The document as it was; a :class:`Corrupt` if it can't be rebuilt."""
        return super().state if self._lost is None else self._lost

    def fetch(self, log: str, start: int, stop: int) -> list[Any]:
        handle = self._handle
        return marked(handle.core, self._line, log, start, stop, None, handle.open_seal)


def marked(
    core: Core, line: Line, log: str, start: int, stop: int, recent: Recent | None, open_: Any
) -> list[Any]:
    """Items by physical position, a :class:`Corrupt` in the place of each that can't be read."""
    try:
        return core.reader.items(line, log, start, stop, recent, open_)
    except StateCorruptedError as error:
        if stop - start == 1:
            return [Corrupt(str(error))]
    middle = (start + stop) // 2
    lower = marked(core, line, log, start, middle, recent, open_)
    return lower + marked(core, line, log, middle, stop, recent, open_)


def _versions(core: Core, line: Line, seq: int) -> tuple[list[Any], int]:
    """The versions of the row that holds ``seq``, from there downwards, or a marker; and where to go on."""
    reader = core.reader
    line = reader.owner(line, seq)
    try:
        rows = reader.backend.scan(line.id, seq, 2)
    except StateCorruptedError as error:
        return [Corrupt(str(error))], readable_below(reader.backend, line, seq)
    if not rows or rows[0].first > seq or rows[0].seq < seq:
        below = max((row.seq for row in rows if row.seq < seq), default=line.parent_seq)
        return [Corrupt(f"versions {below + 1} to {seq} of {line.name!r} are missing")], below
    row = rows[0]
    try:
        found: list[Any] = reader.versions(line, row, hash_below(rows, 0))
    except StateCorruptedError as error:
        return [Corrupt(str(placed(error, line, row)))], row.first - 1
    return [version for version in found if version.seq <= seq], row.first - 1
