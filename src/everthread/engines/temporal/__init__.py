"""Agents on Temporal: a plugin for clients and workers, a step for activities, and verbs for workflow
code."""

from everthread.arguments import framework

with framework("temporal"):
    from everthread.engines.temporal.activities import blocking_store, step, store
    from everthread.engines.temporal.payloads import PayloadDriver
    from everthread.engines.temporal.plugin import EverthreadPlugin
    from everthread.engines.temporal.sessions import ThreadSession, load_conversation, save_conversation
    from everthread.engines.temporal.verbs import (
        TAKES_OPTIONS,
        append,
        end,
        load,
        open_thread,
        recycle_due,
        rewind,
        save,
    )

__all__ = [
    "TAKES_OPTIONS",
    "EverthreadPlugin",
    "PayloadDriver",
    "ThreadSession",
    "append",
    "blocking_store",
    "end",
    "load",
    "load_conversation",
    "open_thread",
    "recycle_due",
    "rewind",
    "save",
    "save_conversation",
    "step",
    "store",
]
