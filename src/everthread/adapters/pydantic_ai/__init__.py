"""Pydantic AI: conversations and plain message histories, on threads.

``load_messages`` and ``save_messages`` work with every release of Pydantic AI that the extra allows;
``EverthreadConversationStore`` needs one that has conversation stores, and is asked for when it is used.
"""

from typing import TYPE_CHECKING, Any

from everthread.adapters.pydantic_ai.history import load_messages, save_messages

if TYPE_CHECKING:
    from everthread.adapters.pydantic_ai.conversations import EverthreadConversationStore

__all__ = ["EverthreadConversationStore", "load_messages", "save_messages"]


def __getattr__(name: str) -> Any:
    if name != "EverthreadConversationStore":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from everthread.adapters.pydantic_ai.conversations import EverthreadConversationStore

    return EverthreadConversationStore
