"""LlamaIndex: a chat store on threads.

``EverthreadChatStore``: a key of the store is a thread, its messages the log ``messages``."""

from __future__ import annotations

from typing import Any

from everthread.adapters.bridge import framework, id_of, own_records, sealed
from everthread.errors import UsageError
from everthread.messages.shapes import LLAMA_INDEX
from everthread.messages.view import Shown, view
from everthread.store import Store

with framework("llama-index"):
    from llama_index.core.base.llms.types import ChatMessage
    from llama_index.core.bridge.pydantic import PrivateAttr
    from llama_index.core.storage.chat_store.base import BaseChatStore

__all__ = ["EverthreadChatStore"]

_own = own_records(LLAMA_INDEX)


class EverthreadChatStore(BaseChatStore):  # type: ignore[misc]
    """``ChatMemoryBuffer.from_defaults(chat_store=EverthreadChatStore(store), chat_store_key="trip")``.

    ``store`` is one of ``everthread.open()``. Every change is one durable version. What other frameworks
    wrote to the thread is shown converted, and stays as it is as long as the messages that are set begin with
    it. With a ``subject`` messages are sealed under that person's key.
    """

    _store: Any = PrivateAttr()
    _subject: str | None = PrivateAttr()

    def __init__(self, store: Store, *, subject: str | None = None) -> None:
        super().__init__()
        if not isinstance(store, Store):
            raise UsageError("a chat store is called without await: give it a store of everthread.open()")
        self._store = store
        self._subject = subject

    @classmethod
    def class_name(cls) -> str:
        return "EverthreadChatStore"

    def _item(self, message: ChatMessage) -> dict[str, Any]:
        data = message.model_dump(mode="json")
        return {"shape": LLAMA_INDEX, "message": sealed(self._subject, data)}

    def _shown(self, log: Any, *, exact: bool = True) -> list[Shown]:
        found = view(log, LLAMA_INDEX, _own, reveal=self._subject is not None, resumable=exact)
        return [each._replace(messages=[*map(ChatMessage.model_validate, each.messages)]) for each in found]

    def get_messages(self, key: str) -> list[ChatMessage]:
        """Return the messages of a thread, oldest first; none if there is no thread. A call without a result
        gets one that says so."""
        return self._messages(key, exact=False)

    def _messages(self, key: str, *, exact: bool) -> list[ChatMessage]:
        shown = self._shown(self._store.thread(key).messages, exact=exact)
        return [message for each in shown for message in each.messages]

    def set_messages(self, key: str, messages: list[ChatMessage]) -> None:
        """Let the thread hold these: from the first difference on they take the place of what was there."""

        def replace(draft: Any) -> None:
            left = list(messages)
            for each in self._shown(draft.messages):
                if left[: len(each.messages)] != each.messages:
                    draft.messages.truncate_from(id_of(each.item))
                    break
                left = left[len(each.messages) :]
            draft.messages.extend(map(self._item, left))

        self._store.thread(key).update(replace)

    def add_message(self, key: str, message: ChatMessage) -> None:
        """Append a message; durable when this returns."""
        item = self._item(message)
        self._store.thread(key).update(lambda draft: draft.messages.append(item))

    def delete_messages(self, key: str) -> list[ChatMessage] | None:
        """Remove all messages; the versions before still hold them."""
        found = self._messages(key, exact=True)
        self.set_messages(key, [])
        return found or None

    def delete_message(self, key: str, idx: int) -> ChatMessage | None:
        """Remove the message at a place, and answer with it."""
        found = self._messages(key, exact=True)
        if not -len(found) <= idx < len(found):
            return None
        gone = found.pop(idx)
        self.set_messages(key, found)
        return gone

    def delete_last_message(self, key: str) -> ChatMessage | None:
        """Remove the latest message, and answer with it."""
        return self.delete_message(key, -1)

    def get_keys(self) -> list[str]:
        """The names of all threads that hold messages."""
        names = [info.name for info in self._store.threads()]
        return [name for name in names if len(self._store.thread(name).messages)]
