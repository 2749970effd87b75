"""Claude Agent SDK: transcripts mirrored to, and resumed from, threads.

``EverthreadSessionStore``: a session of the Claude Agent SDK is a thread, its transcripts are logs."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from everthread.adapters.bridge import (
    AnyStore,
    StoreInUse,
    below,
    framework,
    joined,
    opened_record,
    own_records,
    sealed,
    split,
    surely,
)
from everthread.errors import ThreadNotFoundError, UsageError
from everthread.messages.shapes import CLAUDE
from everthread.threads.aio.thread import MESSAGES, AsyncThread

if TYPE_CHECKING:
    from claude_agent_sdk.types import (
        SessionKey,
        SessionListSubkeysKey,
        SessionStoreEntry,
        SessionStoreListEntry,
        SessionSummaryEntry,
    )

with framework("claude"):
    from claude_agent_sdk import fold_session_summary


__all__ = ["EverthreadSessionStore"]

#: What names of threads begin with, and where the document keeps what belongs to this adapter.
PART = "claude"
#: What names of logs begin with that hold the transcripts of subagents.
_SUB = "sub/"

#: Whose data a session is: a name, or a function of the session's key.
Subject = str | Callable[["SessionKey"], "str | None"] | None


class EverthreadSessionStore:
    """Keeps transcripts: ``ClaudeAgentOptions(session_store=EverthreadSessionStore(store))``.

    ``store`` is an open store of either colour, a URL, or ``None`` for the default place. A session is one
    thread with the transcripts of its subagents, so that a fork, a rewind or a deletion takes them all.
    An entry whose ``uuid`` is there already is not added again. With a ``subject`` entries and summary are
    sealed under that person's key; entries that were erased are left out when a session is loaded.

    It is for asyncio: under trio every call, and making one, raises :class:`UsageError`. So does a session
    whose thread another framework has written to: the SDK resumes nothing but transcripts of its own.
    """

    def __init__(self, store: AnyStore = None, *, subject: Subject = None) -> None:
        _refuse_trio()
        self._in_use = StoreInUse(store)
        self._subject = subject
        #: When the last entry came, in milliseconds: the SDK goes on with the session of the highest.
        self._last_ms = 0

    def thread_name(self, key: SessionKey | SessionListSubkeysKey) -> str:
        """The thread of a session, for everything else that a thread can do."""
        return joined(PART, key["project_key"], key["session_id"])

    async def _thread(self, key: SessionKey | SessionListSubkeysKey) -> AsyncThread:
        _refuse_trio()
        return await self._in_use.store.thread(self.thread_name(key))

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Add entries to a transcript, all or none; durable when this returns. Raises :class:`UsageError` if
        the thread holds a conversation of other frameworks and no entry of the SDK's."""
        thread = await self._thread(key)
        if not entries:
            return
        log_name = _log_name(key)
        first = await thread.log(log_name).read(0, 1)
        if first and _own(first[0]) is None:
            raise _foreign(thread.name)
        self._last_ms = max(self._in_use.store.core.runtime.now_us() // 1000, self._last_ms + 1)
        now_ms = self._last_ms

        async def add(draft: Any) -> None:
            log = draft.log(log_name)
            fresh: list[Any] = []
            seen: set[str] = set()
            for entry in entries:
                uuid = entry.get("uuid")
                if isinstance(uuid, str) and uuid:
                    if uuid in seen or await log.find(uuid) is not None:
                        continue
                    seen.add(uuid)
                fresh.append(entry)
            for entry in fresh:
                item: dict[str, Any] = {"shape": CLAUDE, "message": self._sealed(key, entry)}
                if isinstance(uuid := entry.get("uuid"), str) and uuid:
                    item["id"] = uuid
                log.append(item)
            if not fresh:
                return
            part = draft.state.setdefault(PART, {})
            before = part.plain()
            part["mtime"] = max(now_ms, before.get("mtime", 0) + 1)
            if log_name == MESSAGES:
                summary = _folded(opened_record(before.get("summary")), key, fresh)
                part["summary"] = self._sealed(key, summary)

        await surely(thread.update(add))

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """All entries of a transcript; ``None`` if there are none. Raises :class:`UsageError` if another
        framework has written to it."""
        thread = await self._thread(key)
        log = thread.log(_log_name(key))
        if not len(log):
            return None
        entries: list[SessionStoreEntry] = []
        for item in await log.read():
            own = _own(item)
            if own is None:
                raise _foreign(thread.name)
            entries += own
        return entries

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        """The sessions of a project and when each was last written to."""
        return [
            {"session_id": session_id, "mtime": _mtime(thread)}
            async for session_id, thread in self._sessions(project_key)
        ]

    async def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        """The SDK's summaries of the sessions of a project, kept with each append."""
        return [
            {"session_id": session_id, "mtime": _mtime(thread), "data": data}
            async for session_id, thread in self._sessions(project_key)
            if (data := opened_record(thread.state.plain().get(PART, {}).get("summary"))) is not None
        ]

    async def _sessions(self, project_key: str) -> AsyncIterator[tuple[str, AsyncThread]]:
        _refuse_trio()
        store = self._in_use.store
        async for info in store.threads(prefix=below(PART, project_key)):
            thread = await store.thread(info.name)
            # Only what has a transcript of its own is a session.
            if thread.head is not None and len(thread.log(MESSAGES)):
                yield split(info.name)[2], thread

    async def delete(self, key: SessionKey) -> None:
        """Delete a session for good, with the transcripts of its subagents; with a ``subpath`` only that one.
        What isn't there is deleted already."""
        thread = await self._thread(key)
        if key.get("subpath") is None:
            if thread.head is not None:
                try:
                    await surely(thread.delete())
                except ThreadNotFoundError:
                    # Somebody else was first.
                    return
            return

        async def empty(draft: Any) -> None:
            log = draft.log(_log_name(key))
            if first := await log.read(0, 1):
                log.truncate_from(first[0]["id"])

        await surely(thread.update(empty))

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """The subpaths under a session that hold entries."""
        thread = await self._thread(key)
        named = [name for name in thread.logs if name.startswith(_SUB)]
        return [name.removeprefix(_SUB) for name in named if len(thread.log(name))]

    def close(self) -> None:
        """Close the store, if it was opened here."""
        self._in_use.close()

    def _sealed(self, key: SessionKey, value: Any) -> Any:
        return sealed(self._subject(key) if callable(self._subject) else self._subject, value)


def _log_name(key: SessionKey) -> str:
    subpath = key.get("subpath")
    return MESSAGES if subpath is None else _SUB + subpath


def _mtime(thread: AsyncThread) -> int:
    assert thread.head is not None
    noted: int | None = thread.state.plain().get(PART, {}).get("mtime")
    return thread.head.at_us // 1000 if noted is None else noted


_own = own_records(CLAUDE)


def _foreign(name: str) -> UsageError:
    return UsageError(
        f"other frameworks have written to {name!r}, and the Claude Agent SDK resumes nothing but its own "
        f"transcripts: begin a new session and give it the briefing as its prompt, store.briefing({name!r})"
    )


def _refuse_trio() -> None:
    """Stores wait with asyncio."""
    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_run():
        raise UsageError(
            "EverthreadSessionStore is for asyncio and can't be used under trio: run the SDK with "
            "anyio.run(main, backend='asyncio'), or with asyncio.run(main())"
        )


def _folded(data: Any, key: SessionKey, entries: list[Any]) -> dict[str, Any]:
    previous: Any = None
    if data is not None:
        previous = {"session_id": key["session_id"], "mtime": 0, "data": data}
    return fold_session_summary(previous, key, entries)["data"]
