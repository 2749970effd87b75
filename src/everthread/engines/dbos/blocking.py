"""The verbs for the code of workflows that aren't async; ``everthread.engines.dbos.verbs`` says what they
promise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dbos import DBOS

from everthread.engines.dbos.execution import blocking_execution
from everthread.engines.dbos.source import blocking_store
from everthread.engines.dbos.verbs import innermost, listed, step_options
from everthread.engines.pointers import ThreadRef, named
from everthread.engines.sync import steps
from everthread.engines.sync.steps import Mode


def open_thread(
    name: str | None = None,
    *,
    mode: Mode = "new",
    source: ThreadRef | None = None,
    system: str | None = None,
    **more: Any,
) -> ThreadRef:
    def work() -> ThreadRef:
        where = blocking_execution()
        options: Any = {"mode": mode, "source": source, "system": system, **more}
        return steps.open_thread(blocking_store(), where, name=name or where.origin, **options)

    return DBOS.run_step(step_options("open_thread"), work)


def append(ref: ThreadRef, messages: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> ThreadRef:
    def work() -> ThreadRef:
        where = blocking_execution()
        return steps.append(blocking_store(), ref, listed(messages), where)

    return DBOS.run_step(step_options("append"), work)


def rewind(ref: ThreadRef, to: ThreadRef) -> ThreadRef:
    def work() -> ThreadRef:
        where = blocking_execution()
        return steps.rewind(blocking_store(), ref, to, where)

    return DBOS.run_step(step_options("rewind"), work)


def end(
    ref: ThreadRef, reason: str = "completed", error: BaseException | None = None, **about: Any
) -> ThreadRef:
    def work() -> ThreadRef:
        where = blocking_execution()
        return steps.end(blocking_store(), ref, where, reason, named(innermost(error)), **about)

    return DBOS.run_step(step_options("end"), work)
