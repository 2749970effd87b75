"""LangGraph: ``EverthreadSaver`` keeps checkpoints, ``EverthreadStore`` what outlives threads."""

from typing import TYPE_CHECKING, Any

from everthread.adapters.doors import load

if TYPE_CHECKING:
    from everthread.adapters.langgraph.saver import EverthreadSaver
    from everthread.adapters.langgraph.store import EverthreadStore

__all__ = ["EverthreadSaver", "EverthreadStore"]

_HOMES = {
    "EverthreadSaver": "everthread.adapters.langgraph.saver",
    "EverthreadStore": "everthread.adapters.langgraph.store",
}


def __getattr__(name: str) -> Any:
    return load(__name__, name, _HOMES, extra="langgraph")
