"""Reading whatever can be read of a damaged thread, with a marker in place of what can't."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, NoReturn

from everthread.arguments import check_name
from everthread.errors import InvalidStateError, StateCorruptedError
from everthread.history.logs import EMPTY_LOG
from everthread.history.snapshots import Snapshot
from everthread.stores.contract import Line
from everthread.threads.aio.core import Core
from everthread.threads.aio.fallback import readable_below
from everthread.threads.aio.handle import AnyVersion, Handle
from everthread.threads.aio.log import AsyncLogView
from everthread.threads.aio.past import AsyncPast
from everthread.threads.aio.reader import hash_below, placed
from everthread.threads.aio.thread import MESSAGES, AsyncThread
from everthread.threads.document import Document
from everthread.threads.head_cache import Recent
from everthread.threads.twins import streamed
from everthread.values import Corrupt
from everthread.versions import Version, parse_version_name


class PartialHandle(Handle):
    """Stands on what can be read, and doesn't write."""

    #: Why no version at all can be read.
    lost: Corrupt | None = None

    async def load_newest(self) -> None:
        try:
            await super().load_newest()
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

    async def fetch(self, log: str, start: int, stop: int) -> list[Any]:
        line, head = self.require()
        return await marked(self.core, line, log, start, stop, head.recent.get(log), self.open_seal)


class AsyncPartialThread(AsyncThread):
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

    async def commit(self, *args: Any, **options: Any) -> NoReturn:
        """Refused."""
        self.handle.require_writable()

    async def rewind(self, version: AnyVersion, *, files: bool = False) -> NoReturn:
        """Refused."""
        self.handle.require_writable()

    async def rebase(self, **options: Any) -> NoReturn:
        """Refused."""
        self.handle.require_writable()

    async def merge(self, *args: Any, **options: Any) -> NoReturn:
        """Refused."""
        self.handle.require_writable()

    async def update(self, *args: Any, **options: Any) -> NoReturn:
        """Refused."""
        self.handle.require_writable()

    async def delete(self) -> NoReturn:
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
        return AsyncPartialLog(self.handle, name, logs.get(check_name(name, "log name"), EMPTY_LOG))

    async def at(self, version: AnyVersion) -> AsyncPast:
        """The thread as it was; its ``state`` is a :class:`Corrupt` if that version can't be rebuilt."""
        line, head = self.handle.require()
        found: Version | None = None
        snapshot, lost = Snapshot.empty(), None
        try:
            beyond = self._beyond(version)
            if beyond is not None:
                found = (await self.core.reader.version(line, beyond))[0]
            else:
                found = await self.handle.find_version(version)
            if head.version.id == found.id:
                snapshot = Snapshot(head.build_document(), head.logs, head.segment, head.merged)
            else:
                snapshot = (await self.core.reader.load(line, found.seq)).snapshot
        except StateCorruptedError as error:
            lost = Corrupt(str(error))
        return AsyncPartialPast(self.handle, line, found, snapshot, lost)

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

    @streamed
    async def history(self, limit: int | None = 20, before: AnyVersion | None = None) -> AsyncIterator[Any]:
        """The versions, newest first; a :class:`Corrupt` where one or several can't be read."""
        handle = self.handle
        await handle.load()
        if handle.line is None or handle.head is None:
            return
        line, recovered = handle.line, handle.recovered
        seq = handle.head.seq if recovered is None else recovered.last
        if before is not None:
            seq = (before if isinstance(before, int) else (await self.handle.find_version(before)).seq) - 1
        left = -1 if limit is None else limit
        while seq > 0 and left:
            found: list[Any]
            found, seq = await _versions(self.core, line, seq)
            for version in found[: left if left > 0 else None]:
                yield version
            left = -1 if left < 0 else max(left - len(found), 0)


class AsyncPartialLog(AsyncLogView):
    """A log of which some items may be damaged. It isn't written to."""

    async def find(self, message_id: Any) -> int | None:
        """The index of the item with this id, as far as it can be read, or ``None``."""
        for at, item in enumerate(await self.read()):
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


class AsyncPartialPast(AsyncPast):
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

    async def fetch(self, log: str, start: int, stop: int) -> list[Any]:
        handle = self._handle
        return await marked(handle.core, self._line, log, start, stop, None, handle.open_seal)


async def marked(
    core: Core, line: Line, log: str, start: int, stop: int, recent: Recent | None, open_: Any
) -> list[Any]:
    """Items by physical position, a :class:`Corrupt` in the place of each that can't be read."""
    try:
        return await core.reader.items(line, log, start, stop, recent, open_)
    except StateCorruptedError as error:
        if stop - start == 1:
            return [Corrupt(str(error))]
    middle = (start + stop) // 2
    lower = await marked(core, line, log, start, middle, recent, open_)
    return lower + await marked(core, line, log, middle, stop, recent, open_)


async def _versions(core: Core, line: Line, seq: int) -> tuple[list[Any], int]:
    """The versions of the row that holds ``seq``, from there downwards, or a marker; and where to go on."""
    reader = core.reader
    line = await reader.owner(line, seq)
    try:
        rows = await reader.backend.scan(line.id, seq, 2)
    except StateCorruptedError as error:
        return [Corrupt(str(error))], await readable_below(reader.backend, line, seq)
    if not rows or rows[0].first > seq or rows[0].seq < seq:
        below = max((row.seq for row in rows if row.seq < seq), default=line.parent_seq)
        return [Corrupt(f"versions {below + 1} to {seq} of {line.name!r} are missing")], below
    row = rows[0]
    try:
        found: list[Any] = reader.versions(line, row, hash_below(rows, 0))
    except StateCorruptedError as error:
        return [Corrupt(str(placed(error, line, row)))], row.first - 1
    return [version for version in found if version.seq <= seq], row.first - 1
