"""LangGraph: ``EverthreadSaver`` keeps checkpoints."""

from typing import TYPE_CHECKING, Any

from everthread.adapters.doors import load

if TYPE_CHECKING:
    from everthread.adapters.langgraph.saver import EverthreadSaver

__all__ = ["EverthreadSaver"]

_HOMES = {
    "EverthreadSaver": "everthread.adapters.langgraph.saver",
}


def __getattr__(name: str) -> Any:
    return load(__name__, name, _HOMES, extra="langgraph")
