"""Pydantic AI: conversations and plain message histories, on threads.

``EverthreadConversationStore``: a conversation is a thread, its present history the log ``messages``.

Entries of branches that a conversation has left are in the log ``left``, so that ``messages`` is always what
the model sees, and can be read by everybody else. A fork is a fork of the thread.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from everthread.adapters.bridge import (
    AnyStore,
    StoreInUse,
    below,
    framework,
    joined,
    opened_record,
    sealed,
    split,
    surely,
)
from everthread.errors import ConflictError, ThreadExistsError, ThreadNotFoundError
from everthread.messages.shapes import PYDANTIC_AI, is_enclosed
from everthread.threads.aio.thread import MESSAGES, AsyncThread
from everthread.values import Erased
from everthread.versions import Version

with framework("pydantic-ai"):
    from pydantic import TypeAdapter
    from pydantic_ai.conversation_store import (
        ConversationConflict,
        ConversationEntry,
        ConversationRecord,
        ConversationStore,
    )
    from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter


__all__ = ["EverthreadConversationStore", "load_messages", "save_messages"]

# A message history as a log keeps it, and for whoever handles ``message_history`` by hand.


def dumped(messages: Sequence[ModelMessage]) -> list[Any]:
    """Messages as JSON data, as Pydantic AI writes it."""
    data: list[Any] = ModelMessagesTypeAdapter.dump_python(list(messages), mode="json")
    return data


def built(data: Sequence[Any]) -> list[ModelMessage]:
    """Messages of such data."""
    # From text, because only there base64 is read as bytes.
    return ModelMessagesTypeAdapter.validate_json(json.dumps(list(data)))


async def save_messages(
    store: AnyStore,
    thread: str,
    messages: Sequence[ModelMessage],
    *,
    log: str = MESSAGES,
    subject: str | None = None,
) -> Version | None:
    """Keep a history as the messages of a thread: only what is new is written, as one version.

    If the history was rewritten, its messages from the first difference on take the place of the old ones,
    which the versions before still hold. ``save_messages(store, "t", result.all_messages())``. With a
    ``subject`` they are sealed under that person's key, until ``store.erase(subject)``.
    """
    wanted = dumped(messages)
    in_use = StoreInUse(store)
    try:
        handle = await in_use.store.thread(thread)

        async def save(draft: Any) -> None:
            kept = draft.log(log)
            items = await kept.read()
            same = 0
            while same < min(len(items), len(wanted)) and _message_of(items[same]) == wanted[same]:
                same += 1
            if same < len(items):
                kept.truncate_from(items[same]["id"])
            kept.extend({"shape": PYDANTIC_AI, "message": sealed(subject, each)} for each in wanted[same:])

        return await surely(handle.update(save))
    finally:
        in_use.close()


async def load_messages(store: AnyStore, thread: str, *, log: str = MESSAGES) -> list[ModelMessage]:
    """The history that was kept, for ``agent.run(…, message_history=…)``; empty if there is none. Messages
    that were erased are left out."""
    in_use = StoreInUse(store)
    try:
        items = await (await in_use.store.thread(thread)).log(log).read()
        return built([data for item in items if (data := _message_of(item)) is not None])
    finally:
        in_use.close()


def _message_of(item: Any) -> Any:
    ours = is_enclosed(item) and item.get("shape") == PYDANTIC_AI
    return opened_record(item["message"]) if ours else None


#: What names of threads begin with, and where documents keep what belongs to this adapter.
PART = "pydantic_ai"
LEFT = "left"
#: Where the histories of so many conversations are is remembered.
_KNOWN_MAX = 10_000

#: Whose data a conversation is: a name, or a function of its record: ``lambda record: record.scope``.
Subject = str | Callable[[ConversationRecord], "str | None"] | None

_RECORDS: TypeAdapter[ConversationRecord] = TypeAdapter(ConversationRecord)


class EverthreadConversationStore(ConversationStore):
    """Conversations on a store of either colour, a URL, or the default place.

    A save is one durable version of record and new entries together, and compare-and-set by the revision.
    Deleting a conversation is final; what forks share lives on with them.

    With a ``subject`` record and messages are sealed under that person's key, until ``store.erase(subject)``.
    A conversation that was erased is none any more; its id may begin a new one.
    """

    def __init__(self, store: AnyStore = None, *, subject: Subject = None) -> None:
        self._in_use = StoreInUse(store)
        self._subject = subject
        #: Entry → a conversation that holds it; ends of histories only.
        self._known: OrderedDict[str, str] = OrderedDict()

    def thread_name(self, conversation_id: str) -> str:
        """The thread of a conversation, for everything else that a thread can do."""
        return joined(PART, conversation_id)

    async def _thread(self, conversation_id: str) -> AsyncThread:
        return await self._in_use.store.thread(self.thread_name(conversation_id))

    # ── records ──────────────────────────────────────────────────────────────────────────────

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        """The record of a conversation, or ``None``."""
        return self._record(await self._thread(conversation_id), conversation_id)

    def _record(self, thread: AsyncThread, conversation_id: str) -> ConversationRecord | None:
        stored = opened_record(thread.state.plain().get(PART)) if thread.head is not None else None
        # A fork whose own record was never written still has its source's.
        if not stored or stored.get("conversation_id") != conversation_id:
            return None
        record = _RECORDS.validate_python(stored)
        for entry_id in (*record.branches, record.head_id):
            if entry_id is not None:
                self._known[entry_id] = conversation_id
                self._known.move_to_end(entry_id)
        while len(self._known) > _KNOWN_MAX:
            self._known.popitem(last=False)
        return record

    async def read_records(
        self, *, scope: str | None = None, limit: int | None = None
    ) -> Sequence[ConversationRecord]:
        """The records of this scope, or all, the latest saved first."""
        store = self._in_use.store
        found = []
        async for info in store.threads(prefix=below(PART)):
            record = self._record(await store.thread(info.name), split(info.name)[1])
            if record is not None and scope in (None, record.scope):
                found.append(record)
        found.sort(key=lambda record: record.updated_at, reverse=True)
        return found[:limit]

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        """Store a record with its new entries, all or nothing. Raises ``ConversationConflict`` if another
        revision is stored, or if the record builds on entries that are gone."""
        conflict = ConversationConflict(record.conversation_id)
        subject = self._subject(record) if callable(self._subject) else self._subject
        thread = await self._thread(record.conversation_id)
        stored = self._record(thread, record.conversation_id)
        if (stored.revision if stored else None) != expected_revision:
            raise conflict
        if stored is None and thread.head is not None and thread.state.plain().get(PART) == {}:
            # A deletion was cut short: nothing of that conversation may live on in this one.
            await surely(_deleted(thread))
            thread = await self._thread(record.conversation_id)
        if stored is None and record.forked_from is not None and thread.head is None:
            thread = await self._forked(record, conflict)
        try:
            base = new_entries[0].parent_id if new_entries else record.head_id
            await self._stand_on(thread, base)
            for entry, message in zip(
                new_entries, dumped([each.message for each in new_entries]), strict=True
            ):
                thread.messages.append(_item(entry, message, subject))
            thread.state[PART] = sealed(subject, _RECORDS.dump_python(record, mode="json"))
            await surely(thread.commit())
        except (LookupError, ConflictError, ThreadNotFoundError) as error:
            raise conflict from error
        if record.head_id is not None:
            self._known[record.head_id] = record.conversation_id

    async def _forked(self, record: ConversationRecord, conflict: ConversationConflict) -> AsyncThread:
        source = await self._thread(record.forked_from or "")
        try:
            return await surely(source.fork(self.thread_name(record.conversation_id)))
        except (ThreadNotFoundError, ThreadExistsError) as error:
            raise conflict from error

    async def _stand_on(self, thread: AsyncThread, base: str | None) -> None:
        """Let the log ``messages`` be the history up to an entry; what it had beyond that has been left."""
        log = thread.messages
        last = await log.read(-1)
        if (last[0]["id"] if last else None) == base:
            return
        now = await log.read()
        wanted = await _chain(thread, base)
        same = 0
        while same < min(len(now), len(wanted)) and now[same]["id"] == wanted[same]["id"]:
            same += 1
        if same < len(now):
            left = thread.log(LEFT)
            for item in now[same:]:
                # Again under its id is no second time. What was erased isn't worth keeping.
                if not isinstance(item["message"], Erased):
                    left.append(item)
            log.truncate_from(now[same]["id"])
        log.extend(wanted[same:])

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """Delete a conversation for good, with the entries that no fork shares."""
        thread = await self._thread(conversation_id)
        stored = self._record(thread, conversation_id)
        if stored is None or stored.revision != expected_revision:
            raise ConversationConflict(conversation_id)
        try:
            # First a version without it: who saved meanwhile is noticed, who comes later finds none.
            thread.state[PART] = {}
            await surely(thread.commit())
            await surely(thread.delete())
        except (ConflictError, ThreadNotFoundError) as error:
            raise ConversationConflict(conversation_id) from error

    # ── entries ──────────────────────────────────────────────────────────────────────────────

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        """The entry of this id. Raises ``KeyError``."""
        thread = await self._holding(entry_id)
        entries = _entries(await _chain(thread, entry_id, 1))
        if not entries:
            raise KeyError(entry_id)
        return entries[0]

    async def read_history(self, head_id: str | None, *, limit: int | None = None) -> list[ConversationEntry]:
        """The entries up to one, oldest first, or the last ``limit`` of them. Raises ``KeyError``."""
        if head_id is None or limit == 0:
            return []
        return _entries(await _chain(await self._holding(head_id), head_id, limit))

    async def _holding(self, entry_id: str) -> AsyncThread:
        """A thread with this entry: the one where it was seen last, else whichever has it."""
        store = self._in_use.store
        known = self._known.get(entry_id)
        if known is not None:
            thread = await self._thread(known)
            if await _has(thread, entry_id):
                return thread
        async for info in store.threads(prefix=below(PART)):
            thread = await store.thread(info.name)
            if await _has(thread, entry_id):
                self._known[entry_id] = split(info.name)[1]
                return thread
        raise KeyError(entry_id)

    def close(self) -> None:
        """Close the store, if it was opened here."""
        self._in_use.close()


def _item(entry: ConversationEntry, message: Any, subject: str | None) -> dict[str, Any]:
    kept = {"entry": {"parent_id": entry.parent_id, "kind": entry.kind}, **message}
    return {"id": entry.id, "shape": PYDANTIC_AI, "message": sealed(subject, kept)}


def _entries(items: list[Any]) -> list[ConversationEntry]:
    """The entries that items are; erased ones are left out."""
    kept = [(item["id"], held) for item in items if (held := opened_record(item["message"])) is not None]
    bare = [{key: each for key, each in held.items() if key != "entry"} for _, held in kept]
    return [
        ConversationEntry(id=entry_id, message=message, **held["entry"])
        for (entry_id, held), message in zip(kept, built(bare), strict=True)
    ]


async def _deleted(thread: AsyncThread) -> None:
    try:
        await thread.delete()
    except ThreadNotFoundError:
        # Somebody else was first.
        return


async def _has(thread: AsyncThread, entry_id: str) -> bool:
    for name in (MESSAGES, LEFT):
        if await thread.log(name).find(entry_id) is not None:
            return True
    return False


async def _chain(thread: AsyncThread, end: str | None, limit: int | None = None) -> list[Any]:
    """The items up to the one called ``end``, each after its parent; with a ``limit`` the last so many."""
    log = thread.log(MESSAGES)
    at = None if end is None else await log.find(end)
    if at is not None:
        # The history as it stands: no need to look further back than wanted.
        return await log.read(0 if limit is None else max(0, at + 1 - limit), at + 1)
    everything = {item["id"]: item for name in (LEFT, MESSAGES) for item in await thread.log(name).read()}
    chain: list[Any] = []
    while end is not None and (limit is None or len(chain) < limit):
        held = opened_record(everything[end]["message"])
        if held is None:
            # What came before it can't be told any more.
            break
        chain.append(everything[end])
        end = held["entry"]["parent_id"]
    return chain[::-1]
