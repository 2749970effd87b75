"""Agents on DBOS: a step for steps, and verbs for workflow code. ``blocking`` has the verbs for workflows
that aren't async."""

from everthread.arguments import framework

with framework("dbos"):
    from everthread.engines.dbos import blocking
    from everthread.engines.dbos.source import blocking_store, close, store, use
    from everthread.engines.dbos.steps import step
    from everthread.engines.dbos.verbs import append, end, load, open_thread, rewind, save

#: DBOS knows steps by the order in which they begin: ``run_agent`` keeps to one.
BEGINS_IN_ORDER = True

__all__ = [
    "BEGINS_IN_ORDER",
    "append",
    "blocking",
    "blocking_store",
    "close",
    "end",
    "load",
    "open_thread",
    "rewind",
    "save",
    "step",
    "store",
    "use",
]
