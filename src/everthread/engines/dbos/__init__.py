"""Agents on DBOS: a step for steps, and verbs for workflow code. ``blocking`` has the verbs for workflows
that aren't async."""

from everthread.arguments import framework

with framework("dbos"):
    from everthread.engines.dbos import blocking
    from everthread.engines.dbos.source import blocking_store, close, store, use
    from everthread.engines.dbos.steps import step
    from everthread.engines.dbos.verbs import append, end, open_thread, rewind

__all__ = [
    "append",
    "blocking",
    "blocking_store",
    "close",
    "end",
    "open_thread",
    "rewind",
    "step",
    "store",
    "use",
]
