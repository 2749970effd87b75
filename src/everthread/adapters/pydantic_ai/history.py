"""Message histories of Pydantic AI on threads: what a log keeps of them, for whoever handles
``message_history`` by hand, and what other frameworks wrote there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from everthread.adapters.bridge import AnyStore, StoreInUse, framework, id_of, own_records, sealed, surely
from everthread.messages.shapes import PYDANTIC_AI
from everthread.messages.view import Shown, view
from everthread.threads.aio.thread import MESSAGES
from everthread.versions import Version

with framework("pydantic-ai"):
    from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter

#: What an item of a conversation store says of itself beside its message.
ENTRY = "entry"

_own = own_records(PYDANTIC_AI)


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
    which the versions before still hold. ``save_messages(store, "t", result.all_messages())``. What another
    framework wrote stays as it is as long as the history begins with it, and so does what it has written
    since the history was loaded. With a ``subject`` messages are sealed under that person's key, until
    ``store.erase(subject)``.
    """
    wanted = dumped(messages)
    in_use = StoreInUse(store)
    try:
        handle = await in_use.store.thread(thread)

        async def save(draft: Any) -> None:
            await put_history(draft.log(log), wanted, subject)

        return await surely(handle.update(save))
    finally:
        in_use.close()


async def put_history(log: Any, history: Sequence[Any], subject: str | None) -> None:
    """Let a log hold this history, which is data as :func:`dumped` gives it; see :func:`save_messages`."""
    now = shown(await log.read(), subject is not None)
    same, fresh = _continued(now, history)
    if same < len(now) and not _came_meanwhile(now[same:], fresh):
        log.truncate_from(id_of(now[same].item))
    log.extend({"shape": PYDANTIC_AI, "message": sealed(subject, each)} for each in fresh)


async def load_messages(
    store: AnyStore, thread: str, *, log: str = MESSAGES, reveal: bool = False, deferred: bool = False
) -> list[ModelMessage]:
    """Return the history that was kept, for ``agent.run(…, message_history=…)``; empty if there is none.

    What other frameworks wrote is converted. Messages that were erased are left out. A call without a result
    gets one that says so; with ``deferred`` calls of Pydantic AI's own at the end stay open, for
    ``agent.run(…, deferred_tool_results=…)``. Personal values that others put into the thread are shown only
    with ``reveal``.
    """
    in_use = StoreInUse(store)
    try:
        items = await (await in_use.store.thread(thread)).log(log).read()
        found = shown(items, reveal, resumable=deferred)
        return built([data for each in found for data in each.messages])
    finally:
        in_use.close()


def shown(items: Sequence[Any], reveal: bool, *, resumable: bool = True) -> list[Shown]:
    """Return the items as Pydantic AI writes them, so that they can be compared with what it hands back."""
    found = view(items, PYDANTIC_AI, _bare, reveal=reveal, resumable=resumable)
    return [each if each.own else each._replace(messages=dumped(built(each.messages))) for each in found]


def missing_results(messages: Sequence[ModelMessage]) -> list[ModelMessage]:
    """Return the results that the calls of the last message lack, which say so."""
    items = [{"shape": PYDANTIC_AI, "message": each} for each in dumped(messages[-1:])]
    return built([data for each in shown(items, True, resumable=False) for data in each.messages[1:]])


def _bare(item: Any) -> list[Any] | None:
    """Its own messages, without what a conversation store adds."""
    messages = _own(item)
    if messages is None:
        return None
    return [{name: each for name, each in message.items() if name != ENTRY} for message in messages]


def _continued(items: Sequence[Shown], history: Sequence[Any]) -> tuple[int, list[Any]]:
    """How many items of a log a history begins with, and its messages after them.

    Of other frameworks' messages the parts are compared: Pydantic AI joins requests that follow each other.
    """
    left, joined = list(history), False
    for count, each in enumerate(items):
        rest: list[Any] | None = None
        if left[: len(each.messages)] == each.messages:
            rest = left[len(each.messages) :]
        elif not each.own or joined:
            rest = _without(left, each.messages)
        if rest is None:
            return count, left
        left, joined = rest, not each.own
    return len(items), left


def _without(history: list[Any], messages: Sequence[Any]) -> list[Any] | None:
    """The history without the parts of these messages at its beginning; ``None`` if they aren't there."""
    left = list(history)
    for message in messages:
        for part in message["parts"]:
            if not left or left[0]["kind"] != message["kind"] or left[0]["parts"][:1] != [part]:
                return None
            parts = left[0]["parts"][1:]
            left[:1] = [{**left[0], "parts": parts}] if parts else []
    return left


def _came_meanwhile(rest: Sequence[Shown], fresh: Sequence[Any]) -> bool:
    """Whether items are none that whoever saves has rewritten: others wrote them since, and they stay."""
    parts = [part for message in fresh for part in message["parts"]]
    return not any(
        each.own or any(part in parts for message in each.messages for part in message["parts"])
        for each in rest
    )
