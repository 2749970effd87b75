"""Agents on durable engines: the engine's history holds a pointer, a thread holds the state. Imports no
engine."""

from everthread.engines.pointers import Execution, ThreadRef, latest

__all__ = ["Execution", "ThreadRef", "latest"]
