"""The activities behind what stands in :mod:`sessions` and :mod:`checkpoints`: logs of threads, as frameworks
read and write them. A framework is loaded when one of its activities runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from temporalio import activity

from everthread.engines.aio.steps import read_at
from everthread.engines.local import assign_slice, load_slice
from everthread.engines.pointers import ThreadRef
from everthread.engines.temporal.activities import final_failures, step, store


@dataclass(frozen=True)
class Place:
    """A log, and whose words stand in it."""

    log: str = "messages"
    subject: str | None = None
    reveal: bool = False


@dataclass(frozen=True)
class Popped:
    """The item that was taken out of a log, and where that left the thread."""

    ref: ThreadRef
    item: Any = None


async def _past(ref: ThreadRef, place: Place) -> Any:
    with final_failures():
        return (await read_at(store(), ref)).log(place.log)


def _key(verb: str, ref: ThreadRef) -> tuple[str, str]:
    # Each of these verbs moves the pointer: from one pointer there is one of them.
    return (verb, ref.version or "")


# ── tasks and custom fields ──────────────────────────────────────────────────────────────────


@activity.defn(name="everthread.load")
async def load_activity(ref: ThreadRef) -> dict[str, Any]:
    with final_failures():
        return await load_slice(store(), ref)


@activity.defn(name="everthread.save")
async def save_activity(ref: ThreadRef, update: dict[str, Any], key: list[Any]) -> ThreadRef:
    async with step(ref, *key) as made:
        if not made.done:
            assign_slice(made, update)
    return made.ref


# ── OpenAI Agents ────────────────────────────────────────────────────────────────────────────


def _items(place: Place) -> Any:
    from everthread.adapters.openai_agents import Items

    return Items(place.subject, reveal=place.reveal)


@activity.defn(name="everthread.session.get_items")
async def get_items_activity(ref: ThreadRef, limit: int | None, place: Place) -> list[Any]:
    found: list[Any] = await _items(place).read(await _past(ref, place), limit)
    return found


@activity.defn(name="everthread.session.add_items")
async def add_items_activity(ref: ThreadRef, items: list[Any], place: Place) -> ThreadRef:
    enclosed = _items(place).enclosed(items)
    async with step(ref, *_key("add_items", ref)) as made:
        if not made.done:
            made.log(place.log).extend(enclosed)
    return made.ref


@activity.defn(name="everthread.session.pop_item")
async def pop_item_activity(ref: ThreadRef, place: Place) -> Popped:
    async with step(ref, *_key("pop_item", ref)) as made:
        if not made.done:
            made.result = await _items(place).pop(made.thread.log(place.log))
    return Popped(made.ref, made.result)


@activity.defn(name="everthread.session.clear")
async def clear_activity(ref: ThreadRef, place: Place) -> ThreadRef:
    from everthread.adapters.openai_agents import clear_log

    async with step(ref, *_key("clear_session", ref)) as made:
        if not made.done:
            await clear_log(made.thread.log(place.log))
    return made.ref


# ── Pydantic AI ──────────────────────────────────────────────────────────────────────────────


@activity.defn(name="everthread.conversation.load")
async def load_conversation_activity(ref: ThreadRef, place: Place) -> list[Any]:
    from everthread.adapters.pydantic_ai.history import shown

    items = await (await _past(ref, place)).read()
    return [
        data for each in shown(items, place.reveal or place.subject is not None) for data in each.messages
    ]


@activity.defn(name="everthread.conversation.save")
async def save_conversation_activity(ref: ThreadRef, history: list[Any], place: Place) -> ThreadRef:
    from everthread.adapters.pydantic_ai.history import put_history

    async with step(ref, *_key("save_conversation", ref)) as made:
        if not made.done:
            await put_history(made.thread.log(place.log), history, place.subject)
    return made.ref


# ── LangGraph ────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Forwarded:
    """Which checkpoint, and how its bytes are to be read."""

    thread_id: str
    checkpoint_ns: str
    parent_id: str | None
    kind: str
    prefix: str
    subject: str | None = None


def _saver(prefix: str, subject: str | None) -> Any:
    from everthread.adapters.langgraph import EverthreadSaver

    # A workflow that was reset goes on from an earlier checkpoint: beside those that it had made.
    return EverthreadSaver(store(), on_conflict="fork", prefix=prefix, subject=subject)


def _config(place: Forwarded, checkpoint_id: str | None) -> dict[str, Any]:
    named = {"thread_id": place.thread_id, "checkpoint_ns": place.checkpoint_ns}
    return {"configurable": {**named, "checkpoint_id": checkpoint_id} if checkpoint_id else named}


@activity.defn(name="everthread.checkpoints.put")
async def put_checkpoint_activity(place: Forwarded, data: bytes) -> None:
    saver = _saver(place.prefix, place.subject)
    checkpoint, metadata, versions = saver.serde.loads_typed((place.kind, data))
    await saver.aput(_config(place, place.parent_id), checkpoint, metadata, versions)


@activity.defn(name="everthread.checkpoints.put_writes")
async def put_writes_activity(place: Forwarded, data: bytes) -> None:
    saver = _saver(place.prefix, place.subject)
    writes, task_id, task_path = saver.serde.loads_typed((place.kind, data))
    await saver.aput_writes(
        _config(place, place.parent_id), [tuple(each) for each in writes], task_id, task_path
    )


@dataclass(frozen=True)
class Stored:
    """A checkpoint as bytes; none, if there is none."""

    kind: str = ""
    data: str = ""


@activity.defn(name="everthread.checkpoints.get")
async def get_checkpoint_activity(place: Forwarded) -> Stored:
    from base64 import b64encode

    saver = _saver(place.prefix, place.subject)
    found = await saver.aget_tuple(_config(place, place.parent_id))
    if found is None:
        return Stored()
    parts = [found.config, found.checkpoint, found.metadata, found.parent_config, found.pending_writes or []]
    kind, data = saver.serde.dumps_typed(parts)
    return Stored(kind, b64encode(data).decode())


LOG_ACTIVITIES: list[Callable[..., Any]] = [
    load_activity,
    save_activity,
    get_items_activity,
    add_items_activity,
    pop_item_activity,
    clear_activity,
    load_conversation_activity,
    save_conversation_activity,
    put_checkpoint_activity,
    put_writes_activity,
    get_checkpoint_activity,
]
