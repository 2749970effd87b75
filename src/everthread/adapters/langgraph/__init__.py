"""LangGraph: ``EverthreadSaver`` keeps checkpoints, ``EverthreadStore`` what outlives threads."""

from everthread.adapters.bridge import framework

with framework("langgraph"):
    from everthread.adapters.langgraph.saver import EverthreadSaver
    from everthread.adapters.langgraph.store import EverthreadStore

__all__ = ["EverthreadSaver", "EverthreadStore"]
