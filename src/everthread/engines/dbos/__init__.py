"""Agents on DBOS: a step for steps, and verbs for workflow code. ``blocking`` has the verbs for workflows
that aren't async."""

from everthread.arguments import framework

with framework("dbos"):
    from everthread.engines.dbos import blocking
    from everthread.engines.dbos.source import blocking_store, close, store, use
    from everthread.engines.dbos.steps import step
    from everthread.engines.dbos.verbs import (
        BEGINS_IN_ORDER,
        append,
        end,
        load,
        open_thread,
        rewind,
        save,
    )

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
