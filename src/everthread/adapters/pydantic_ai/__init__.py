"""Pydantic AI: conversations and plain message histories, on threads."""

from typing import TYPE_CHECKING, Any

from everthread.adapters.doors import load

if TYPE_CHECKING:
    from everthread.adapters.pydantic_ai.conversations import EverthreadConversationStore
    from everthread.adapters.pydantic_ai.history import load_messages, save_messages

__all__ = ["EverthreadConversationStore", "load_messages", "save_messages"]

_HOMES = {
    "EverthreadConversationStore": "everthread.adapters.pydantic_ai.conversations",
    "load_messages": "everthread.adapters.pydantic_ai.history",
    "save_messages": "everthread.adapters.pydantic_ai.history",
}


def __getattr__(name: str) -> Any:
    return load(__name__, name, _HOMES, extra="pydantic-ai")


def __dir__() -> list[str]:
    return sorted(__all__)
