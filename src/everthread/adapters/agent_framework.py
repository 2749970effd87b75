"""Microsoft Agent Framework: the history of a session on a thread.

``EverthreadHistoryProvider``: a session is the thread of its id, its history the log ``messages``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from everthread.adapters.bridge import AnyStore, StoreInUse, framework, own_records, sealed, surely
from everthread.errors import UsageError
from everthread.messages.shapes import AGENT_FRAMEWORK
from everthread.messages.view import view

with framework("agent-framework"):
    from agent_framework import HistoryProvider, Message

__all__ = ["EverthreadHistoryProvider"]

_own = own_records(AGENT_FRAMEWORK)


class EverthreadHistoryProvider(HistoryProvider):  # type: ignore[misc]
    """``Agent(client, context_providers=[EverthreadHistoryProvider(store)])``, then
    ``agent.run(…, session=agent.create_session(session_id="trip"))``.

    ``store`` is an open store of either colour, a URL, or ``None`` for the default place. What other
    frameworks wrote to the thread is shown converted. With a ``subject`` messages are sealed under that
    person's key. Further ``options`` are those of ``HistoryProvider``.
    """

    def __init__(
        self,
        store: AnyStore = None,
        *,
        source_id: str = "everthread",
        subject: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(source_id, **options)
        self._in_use = StoreInUse(store)
        self._subject = subject

    async def get_messages(
        self, session_id: str | None, *, state: dict[str, Any] | None = None, **kwargs: Any
    ) -> list[Message]:
        """Return the history of a session, oldest first. A call without a result gets one that says so."""
        items = await (await self._thread(session_id)).messages.read()
        shown = view(items, AGENT_FRAMEWORK, _own, reveal=self._subject is not None, resumable=False)
        return [Message.from_dict(message) for each in shown for message in each.messages]

    async def save_messages(
        self,
        session_id: str | None,
        messages: Sequence[Message],
        *,
        state: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Append messages, all or none; durable when this returns."""
        items = [
            {"shape": AGENT_FRAMEWORK, "message": sealed(self._subject, message.to_dict())}
            for message in messages
        ]
        thread = await self._thread(session_id)
        if items:
            await surely(thread.update(lambda draft: draft.messages.extend(items)))

    async def _thread(self, session_id: str | None) -> Any:
        if session_id is None:
            raise UsageError("a history needs a session: agent.create_session(session_id=…)")
        return await self._in_use.store.thread(session_id)

    def close(self) -> None:
        """Close the store, if it was opened here."""
        self._in_use.close()
