"""Agents on Temporal: a plugin for clients and workers, a step for activities, and verbs for workflow
code."""

from everthread.arguments import framework

with framework("temporal"):
    from everthread.engines.temporal.activities import blocking_store, step, store
    from everthread.engines.temporal.plugin import EverthreadPlugin
    from everthread.engines.temporal.verbs import append, end, open_thread, recycle_due, rewind

__all__ = [
    "EverthreadPlugin",
    "append",
    "blocking_store",
    "end",
    "open_thread",
    "recycle_due",
    "rewind",
    "step",
    "store",
]
