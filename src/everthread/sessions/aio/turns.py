"""One turn of a run, a model call and the tools it asked for, and the messages of a session."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

from everthread.arguments import check_mapping
from everthread.errors import EverthreadError, InvalidStateError, InvalidValueError
from everthread.messages.pairing import Orphans
from everthread.messages.request import (
    Request,
    for_anthropic,
    for_google,
    for_langchain,
    for_openai_chat,
    for_openai_responses,
)
from everthread.messages.shapes import enclose
from everthread.sessions.effects import ToolUse
from everthread.sessions.tasks import OWN, custom_part, own_part, slice_of
from everthread.sessions.usage import Count, Usage, checked_counts
from everthread.threads.aio.workspace import record_turn, wanted_files
from everthread.threads.twins import ASYNC, AwaitedFace, StreamReads

if TYPE_CHECKING:
    from datetime import datetime
    from types import TracebackType

    from everthread.sessions.aio.fenced_thread import AsyncFencedThread
    from everthread.sessions.aio.inbox import Inbox
    from everthread.sessions.aio.journal import Failures, Runs
    from everthread.versions import Version


# ── messages ────────────────────────────────────────────────────────────────────────────────────────


#: In the session's own part of the document: messages that wait for the turn's end.
WAITING = "inbox"
#: There, too: state of other logs than this one, by the name of the log.
SLICES = "slices"
MESSAGES = "messages"


class Options(TypedDict, total=False):
    """What every ``for_…`` takes."""

    shape: str | None
    orphans: Orphans
    reveal: bool


class AnthropicOptions(Options, total=False):
    cache: str | None


class AsyncMessages(StreamReads):
    """A log of the session's thread, or the log ``messages``; each change is a version of its own."""

    def __init__(
        self, thread: AsyncFencedThread, name: str = MESSAGES, permit: Callable[[], None] | None = None
    ) -> None:
        self._thread = thread
        self.name = name
        self._permit = permit

    async def append(self, item: Any, shape: str | None = None) -> Any:
        """Add one item and return its id; as ``thread.messages.append``, and committed.

        With a ``shape`` (one of ``everthread.messages.SHAPES``) the item is a provider's own message: it is
        kept as it is, and its shape with it.
        """
        item = item if shape is None else enclose(item, shape)
        async with self._thread.writing():
            self._check()
            return self._thread.log(self.name).append(item)

    async def extend(self, items: Iterable[Any], shape: str | None = None) -> list[Any]:
        """Append several, all or none, as one version; their ids."""
        items = items if shape is None else [enclose(item, shape) for item in items]
        async with self._thread.writing():
            self._check()
            return self._thread.log(self.name).extend(items)

    async def truncate_from(self, message_id: Any) -> int:
        """Remove the item with this id and all after it; how many went."""
        async with self._thread.writing():
            self._check()
            log = self._thread.log(self.name)
            if ASYNC:
                at = await log.find(message_id)
                if at is None:
                    return 0
                before = len(log)
                log.truncate_from(message_id)
                return before - at
            else:
                return log.truncate_from(message_id)

    def _check(self) -> None:
        if self._permit is not None:
            self._permit()

    async def find(self, message_id: Any) -> int | None:
        """The index of the item with this id, or ``None``."""
        async with self._thread.mutex:
            return await self._thread.log(self.name).find(message_id)

    async def read(self, start: int = 0, stop: int | None = None) -> list[Any]:
        """The items from ``start`` up to, not including, ``stop``; negative numbers count from the end."""
        async with self._thread.mutex:
            return await self._thread.log(self.name).read(start, stop)

    async def times(self, start: int = 0, stop: int | None = None) -> list[datetime | None]:
        """Return when the version of each item was committed: see ``thread.messages.times``."""
        async with self._thread.mutex:
            return await self._thread.log(self.name).times(start, stop)

    def __len__(self) -> int:
        with self._thread.mutex:
            return len(self._thread.log(self.name))

    # ── its own slice ────────────────────────────────────────────────────────────────────────

    def slice(self) -> dict[str, Any]:
        """Tasks and custom state that belong to this log, as ``session.slice()`` gives those of the thread:
        for threads that several agents share, each with a log. That of ``messages`` is the thread's."""
        with self._thread.mutex:
            document = self._thread.state.plain()
            if self.name != MESSAGES:
                own = document.get(OWN)
                slices = own.get(SLICES) if isinstance(own, Mapping) else None
                found = slices.get(self.name) if isinstance(slices, Mapping) else None
                document = found if isinstance(found, Mapping) else {}
            return slice_of(document)

    async def merge_update(self, update: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        """Assign custom state of this log's slice key by key, as ``session.merge_update()`` does."""
        if update is not None:
            check_mapping(update, "update")
        custom = custom_part({**(update or {}), **more})
        async with self._thread.writing():
            self._check()
            state = self._thread.state
            if self.name != MESSAGES:
                state = own_part(state).setdefault(SLICES, {}).setdefault(self.name, {})
            state.update(custom)

    # ── for a provider ───────────────────────────────────────────────────────────────────────

    async def for_anthropic(self, **options: Unpack[AnthropicOptions]) -> Request:
        """All messages, ready for ``client.messages.create``, with cache points."""
        return for_anthropic(await self.read(), **options)

    async def for_openai_chat(self, **options: Unpack[Options]) -> Request:
        """All messages, ready for ``client.chat.completions.create``."""
        return for_openai_chat(await self.read(), **options)

    async def for_openai_responses(self, **options: Unpack[Options]) -> Request:
        """All messages, ready for ``client.responses.create``."""
        return for_openai_responses(await self.read(), **options)

    async def for_google(self, **options: Unpack[Options]) -> Request:
        """All messages, ready for ``client.models.generate_content``."""
        return for_google(await self.read(), **options)

    async def for_langchain(self, **options: Unpack[Options]) -> Request:
        """All messages as LangChain stores them, for ``messages_from_dict``."""
        return for_langchain(await self.read(), **options)

    if not ASYNC:

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Sequence) and list(self) == list(other)

    def __repr__(self) -> str:
        return f"<log {self.name!r}: {len(self)} items>"


async def post(thread: AsyncFencedThread, message: Any) -> None:
    """Let a message wait until the turn that is under way has ended."""
    async with thread.writing():
        own_part(thread.state).setdefault(WAITING, []).append(message)


async def deliver(thread: AsyncFencedThread) -> None:
    """Append what waits; part of the caller's write."""
    own = thread.state.get(OWN)
    waiting = own.get(WAITING) if own is not None and hasattr(own, "get") else None
    if not waiting:
        return
    for message in waiting.plain():
        if ASYNC:
            message = await _with_free_id(thread, message)
            thread.messages.append(message)
        else:
            try:
                thread.messages.append(message)
            except InvalidValueError:
                thread.messages.append(_without_id(message))
    del own[WAITING]


def _without_id(message: Any) -> Any:
    """Meanwhile another message has got its id: it is kept all the same, under a new one."""
    return {name: value for name, value in message.items() if name != "id"}


if ASYNC:

    async def _with_free_id(thread: AsyncFencedThread, message: Any) -> Any:
        """The message, without its id if another one has it by now."""
        wanted = message.get("id") if isinstance(message, Mapping) else None
        at = None if wanted is None else await thread.messages.find(wanted)
        if at is None:
            return message
        (known,) = await thread.messages.read(at, at + 1)
        return message if known == message else _without_id(message)


class AsyncTurn(AwaitedFace):
    """What ``with session.turn() as t:`` gives. It is counted when it begins, also if it dies half-way.

    ``number`` counts over all runs of the thread.
    """

    def __init__(
        self,
        thread: AsyncFencedThread,
        runs: Runs,
        inbox: Inbox,
        failures: Failures,
        notify: Callable[..., Awaitable[None]],
        mark: Callable[[AsyncTurn, bool], None],
        uid: str,
    ) -> None:
        self._thread = thread
        self._runs = runs
        self._inbox = inbox
        self._failures = failures
        self._notify = notify
        self._mark = mark
        self._uid = uid
        self._counts: dict[str, Count] = {}
        self._open = False
        self._start: Version | None = None
        self.number = 0
        self.rewound = False
        #: The messages from outside that came in since the last turn: they are in ``messages`` now.
        self.received: list[Any] = []
        #: As ``session.messages``, but closed with the turn: what a cancelled tool appends late is refused.
        self.messages = AsyncMessages(thread, permit=self._permit)

    # ── inside ───────────────────────────────────────────────────────────────────────────────

    def message_id(self, slot: Any) -> str:
        """An id derived from the thread, this turn and ``slot``, to append a message under: the same whenever
        this turn asks for it, whatever ids a model provider uses again, and never that of another turn."""
        # With the run: a journal that fell back to an older version counts turns from there once more.
        text = f"{self._uid}\0{self._runs.run_id}\0{self.number}\0{slot}"
        return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]

    async def add_usage(self, counts: Mapping[str, Count] | None = None, /, **more: Count) -> None:
        """Count what this turn used: ``t.add_usage(input_tokens=120, output_tokens=40)``. Durable at once: it
        is used, whatever becomes of the turn."""
        self._check_open()
        added = checked_counts(counts or {}, more)
        await self._runs.add_usage(added, self.number)
        for name, count in added.items():
            self._counts[name] = self._counts.get(name, 0) + count

    @property
    def usage(self) -> Usage:
        """What was counted in this turn."""
        return Usage(self._counts)

    @asynccontextmanager
    async def tool(self, name: str, *args: Any, **kwargs: Any) -> AsyncIterator[None]:
        """Around a tool that needs no ledger: tells ``on_tool_use``, and notes it if the tool raises."""
        self._check_open()
        use: dict[str, Any] = {"name": name, "args": args, "kwargs": kwargs}
        await self._notify("on_tool_use", ToolUse(phase="pre", **use))
        try:
            yield
        except Exception as error:
            await self._failures.note(error, f"tool {name}")
            await self._notify("on_tool_use", ToolUse(phase="failure", error=error, **use))
            raise
        await self._notify("on_tool_use", ToolUse(phase="post", **use))

    async def rewind(self, *, files: bool = False) -> Version | None:
        """Take back what this turn did to the thread: messages, tasks, working and custom state together. The
        turn stays counted, usage and effects stay recorded, and nothing can be appended through it. With
        ``files`` the working folder is again what it was when the turn began, as :meth:`AsyncThread.rewind`
        does it."""
        async with self._thread.mutex:
            self._check_open()
            start = self._start
            assert start is not None, "a turn that is open began at a version"
            if files:
                await wanted_files(self._thread, start)
            self.rewound = True
            await self._thread.discard()
            if start is self._thread.head and not files:
                return start
            return await self._thread.rewind(start, files=files)

    def _check_open(self) -> None:
        if not self._open:
            raise InvalidStateError("a turn works inside its with block only")

    def _permit(self) -> None:
        self._check_open()
        if self.rewound:
            raise InvalidStateError(
                f"turn {self.number} was rewound; nothing is appended through it any more"
            )

    # ── entering and leaving ─────────────────────────────────────────────────────────────────

    async def __aenter__(self) -> Self:
        if self.number:
            raise InvalidStateError("a turn is entered once; begin the next with session.turn()")
        try:
            self._mark(self, True)
            async with self._thread.writing():
                await deliver(self._thread)
                # What was changed between turns is none of this turn's doing.
                await record_turn(self._thread.handle)
            self.received = await self._inbox.take_all()
            self.number = await self._runs.begin_turn()
            self._start = self._thread.head
            self._open = True
            await self._notify("on_turn", self)
        except BaseException:
            self._open = False
            self._mark(self, False)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._open = False
            async with self._thread.writing():
                await deliver(self._thread)
                await record_turn(self._thread.handle)
            if isinstance(error, Exception):
                await self._failures.note(error, f"turn {self.number}")
            await self._runs.end_turn()
        except EverthreadError as failure:
            if error is None:
                raise
            # What the turn itself raised is the news; that it could not be recorded is a note to it.
            error.add_note(f"the end of turn {self.number} could not be recorded: {failure}")
        finally:
            self._mark(self, False)

    def __repr__(self) -> str:
        return f"<turn {self.number}{'' if self._open else ', over'}>"
