"""``EverthreadConversationStore``: a conversation is a thread, its present history the log ``messages``.

Entries of branches that a conversation has left are in the log ``left``, so that ``messages`` is always what
the model sees, and can be read by everybody else. A fork is a fork of the thread. What other frameworks write
to the log belongs to the conversation from then on: each of their messages is an entry.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from everthread.adapters.bridge import (
    AnyStore,
    StoreInUse,
    framework,
    keys_of,
    named,
    opened_record,
    sealed,
    surely,
)
from everthread.adapters.pydantic_ai.history import ENTRY, built, dumped, missing_results, shown
from everthread.errors import ConflictError, ThreadExistsError, ThreadNotFoundError
from everthread.messages.shapes import PYDANTIC_AI, is_enclosed
from everthread.threads.aio.thread import MESSAGES, AsyncThread
from everthread.values import Erased

with framework("pydantic-ai"):
    from pydantic import TypeAdapter
    from pydantic_ai.conversation import Conversation
    from pydantic_ai.conversation_store import (
        ConversationConflict,
        ConversationEntry,
        ConversationRecord,
        ConversationStore,
    )


__all__ = ["EverthreadConversationStore"]

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

    ``prefix`` begins the names of the threads: with another one a conversation is whichever thread has that
    name, and goes on from what another framework has written there. Personal values that others put into it
    are shown only with a ``subject``.
    """

    def __init__(self, store: AnyStore = None, *, subject: Subject = None, prefix: str = f"{PART}/") -> None:
        self._in_use = StoreInUse(store)
        self._subject = subject
        self._prefix = prefix
        #: Entry → a conversation that holds it; ends of histories only.
        self._known: OrderedDict[str, str] = OrderedDict()

    def thread_name(self, conversation_id: str) -> str:
        """The thread of a conversation, for everything else that a thread can do."""
        return named(self._prefix, conversation_id)

    async def _thread(self, conversation_id: str) -> AsyncThread:
        return await self._in_use.store.thread(self.thread_name(conversation_id))

    async def load(
        self, conversation_id: str, *, limit: int | None = None, scope: str | None = None
    ) -> Conversation | None:
        """Load a conversation, or ``None`` if there is none.

        Calls at its end that never got a result, and weren't deferred, get one that says so: Pydantic AI
        would refuse a new prompt behind them. The next save keeps it.
        """
        conversation = await super().load(conversation_id, limit=limit, scope=scope)
        if conversation is not None and conversation.deferred_tool_requests is None:
            conversation.messages += missing_results(conversation.messages)
        return conversation

    # ── records ──────────────────────────────────────────────────────────────────────────────

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        """The record of a conversation, or ``None``."""
        return await self._record(await self._thread(conversation_id), conversation_id)

    async def _record(self, thread: AsyncThread, conversation_id: str) -> ConversationRecord | None:
        """The record as it was saved; where others have written since, it ends with what they wrote."""
        document = thread.state.plain() if thread.head is not None else {}
        stored = opened_record(document.get(PART))
        end = await _end(thread)
        if not stored and PART not in document and thread.head is not None and end is not None:
            # Begun by another framework.
            record = ConversationRecord(
                conversation_id=conversation_id,
                head_id=end,
                revision=f"@{end}",
                updated_at=thread.head.at,
            )
        # A fork whose own record was never written still has its source's.
        elif not stored or stored.get("conversation_id") != conversation_id:
            return None
        else:
            record = _RECORDS.validate_python(stored)
            if record.head_id != end:
                record = dataclasses.replace(record, head_id=end, revision=f"{record.revision}@{end}")
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
        async for info in store.threads(prefix=self._prefix):
            keys = keys_of(self._prefix, info.name)
            thread = await store.thread(info.name)
            # A thread that nobody has saved as a conversation yet is none that is listed.
            if len(keys) == 1 and thread.head is not None and PART in thread.state.plain():
                record = await self._record(thread, keys[0])
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
        stored = await self._record(thread, record.conversation_id)
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
        if await _end(thread) == base:
            return
        log = thread.messages
        now = await log.read()
        wanted = await _chain(thread, base, reveal=self._subject is not None)
        same = 0
        while same < min(len(now), len(wanted)) and now[same] == wanted[same].item:
            same += 1
        if same < len(now):
            left = thread.log(LEFT)
            for at, item in enumerate(now[same:], same):
                # Again under its id is no second time. What was erased isn't worth keeping.
                if not (is_enclosed(item) and isinstance(item["message"], Erased)):
                    left.append(item if _own_entry(item) else _note(item, at, now))
            log.truncate_from(now[same]["id"])
        log.extend(each.item for each in wanted[same:])

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """Delete a conversation for good, with the entries that no fork shares."""
        thread = await self._thread(conversation_id)
        stored = await self._record(thread, conversation_id)
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
        found = await _chain(thread, entry_id, 1, reveal=self._subject is not None)
        entries = [entry for each in found for entry in each.entries]
        if not entries or entries[-1].id != entry_id:
            raise KeyError(entry_id)
        return entries[-1]

    async def read_history(self, head_id: str | None, *, limit: int | None = None) -> list[ConversationEntry]:
        """The entries up to one, oldest first, or the last ``limit`` of them. Raises ``KeyError``."""
        if head_id is None or limit == 0:
            return []
        thread = await self._holding(head_id)
        found = await _chain(thread, head_id, limit, reveal=self._subject is not None)
        entries = [entry for each in found for entry in each.entries]
        return entries if limit is None else entries[-limit:]

    async def _holding(self, entry_id: str) -> AsyncThread:
        """A thread with this entry: the one where it was seen last, else whichever has it."""
        store = self._in_use.store
        known = self._known.get(entry_id)
        if known is not None:
            thread = await self._thread(known)
            if await _has(thread, entry_id):
                return thread
        async for info in store.threads(prefix=self._prefix):
            keys = keys_of(self._prefix, info.name)
            thread = await store.thread(info.name)
            if len(keys) == 1 and await _has(thread, entry_id):
                self._known[entry_id] = keys[0]
                return thread
        raise KeyError(entry_id)

    def close(self) -> None:
        """Close the store, if it was opened here."""
        self._in_use.close()


def _item(entry: ConversationEntry, message: Any, subject: str | None) -> dict[str, Any]:
    kept = {ENTRY: {"parent_id": entry.parent_id, "kind": entry.kind}, **message}
    return {"id": entry.id, "shape": PYDANTIC_AI, "message": sealed(subject, kept)}


def _own_entry(item: Any) -> dict[str, Any] | None:
    """What an item says of itself that this store wrote; ``None`` if somebody else did, or it was erased."""
    if not (is_enclosed(item) and item.get("shape") == PYDANTIC_AI):
        return None
    entry = (opened_record(item["message"]) or {}).get(ENTRY)
    return entry if isinstance(entry, dict) else None


# An item of another framework may be several messages, or none: the last one has the item's id, those before
# it the id and a number. In the log ``left`` such an item stands in a note that says what came before it.

_NOTED = "left"
_NUMBERED = "#part-"


class _Line(NamedTuple):
    """An item of a log and the entries that it is."""

    item: Any
    entries: list[ConversationEntry]


def _note(item: Any, at: int, items: Sequence[Any]) -> dict[str, Any]:
    return {"id": item["id"], _NOTED: item, "parent_id": items[at - 1]["id"] if at else None}


def _lines(items: Sequence[Any], reveal: bool) -> list[_Line]:
    """Items with their entries; erased ones have none."""
    lines: list[_Line] = []
    before: str | None = None
    for each in shown(items, reveal):
        name, own = str(each.item["id"]), _own_entry(each.item)
        entries = []
        for number, message in enumerate(built(each.messages), 1):
            entry_id = name if number == len(each.messages) else f"{name}{_NUMBERED}{number}"
            held = own or {"parent_id": before}
            entries.append(ConversationEntry(id=entry_id, message=message, **held))
            before = entry_id
        lines.append(_Line(each.item, entries))
        before = name
    return lines


async def _deleted(thread: AsyncThread) -> None:
    try:
        await thread.delete()
    except ThreadNotFoundError:
        # Somebody else was first.
        return


async def _end(thread: AsyncThread) -> str | None:
    """The entry that a thread's history ends with."""
    last = await thread.messages.read(-1)
    return str(last[0]["id"]) if last else None


async def _has(thread: AsyncThread, entry_id: str) -> bool:
    item_id = entry_id.partition(_NUMBERED)[0]
    for name in (MESSAGES, LEFT):
        if await thread.log(name).find(item_id) is not None:
            return True
    return False


async def _chain(
    thread: AsyncThread, end: str | None, limit: int | None = None, *, reveal: bool
) -> list[_Line]:
    """The items up to the entry called ``end``, each after its parent; with a ``limit`` the last so many at
    least. An item of several entries that doesn't end with it is given as entries of this store's own."""
    if end is None:
        return []
    item_id, numbered, number = end.partition(_NUMBERED)
    log = thread.log(MESSAGES)
    at = await log.find(item_id)
    if at is None:
        lines = _lines(await _left_chain(thread, item_id, limit), reveal)
    else:
        # The history as it stands: no need to look further back than wanted, unless others wrote to it.
        items = await log.read(0 if limit is None else max(0, at + 1 - limit), at + 1)
        if limit is not None and not all(_own_entry(item) for item in items):
            items = await log.read(0, at + 1)
        lines = _lines(items, reveal)
    if numbered and lines:
        lines[-1:] = [
            _Line(_item(entry, dumped([entry.message])[0], None), [entry])
            for entry in lines[-1].entries[: int(number)]
        ]
    return lines


async def _left_chain(thread: AsyncThread, end: str, limit: int | None) -> list[Any]:
    everything = {
        str(item["id"]): item for name in (LEFT, MESSAGES) for item in await thread.log(name).read()
    }
    now = [str(item["id"]) for item in await thread.log(MESSAGES).read()]
    chain: list[Any] = []
    wanted: str | None = end
    while wanted is not None and (limit is None or len(chain) < limit):
        wanted = wanted.partition(_NUMBERED)[0]
        item = everything[wanted]
        if _NOTED in item:
            chain.append(item[_NOTED])
            wanted = item["parent_id"]
        elif (own := _own_entry(item)) is not None:
            chain.append(item)
            wanted = own["parent_id"]
        elif is_enclosed(item) and isinstance(item["message"], Erased):
            # What came before it can't be told any more.
            break
        else:
            # Somebody else's, and part of the history as it stands: so is all before it.
            chain.append(item)
            at = now.index(wanted)
            wanted = now[at - 1] if at else None
    return chain[::-1]
