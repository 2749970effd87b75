"""A message history as a log keeps it, and for whoever handles ``message_history`` by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter

from everthread.adapters.awaiting import AnyStore, StoreInUse, surely
from everthread.adapters.subjects import opened_record, sealed
from everthread.messages.shapes import PYDANTIC_AI, is_enclosed
from everthread.threads.aio.thread import MESSAGES
from everthread.versions import Version


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
