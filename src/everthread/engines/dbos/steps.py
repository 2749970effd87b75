"""``step``: what a step of DBOS does to the thread of its workflow."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import (
    asynccontextmanager,
    contextmanager,
)
from typing import Any

from everthread.engines.aio import steps
from everthread.engines.dbos.execution import blocking_execution, execution
from everthread.engines.dbos.source import source
from everthread.engines.either_step import EitherStep
from everthread.engines.pointers import ThreadRef
from everthread.engines.sync import steps as blocking_steps


class WorkflowStep(EitherStep):
    """Entered with ``async with`` or, in a blocking step of DBOS, ``with``."""

    @asynccontextmanager
    async def _enter_async(self) -> AsyncIterator[steps.AsyncEngineStep]:
        where, store = await execution(), await source().store()
        async with steps.enter_step(store, *self._arguments, where, **self._options) as step:
            yield step

    @contextmanager
    def _enter_blocking(self) -> Iterator[blocking_steps.EngineStep]:
        where, store = blocking_execution(), source().blocking_store()
        with blocking_steps.enter_step(store, *self._arguments, where, **self._options) as step:
            yield step


def step(
    ref: ThreadRef,
    *key: str | int,
    slot: int | None = None,
    resolve: Any = None,
    label: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> WorkflowStep:
    """A step of the workflow that stands at ``ref``, inside a step of DBOS: ``async with step(ref, "turn", 1)
    as s``, or ``with`` in a blocking one. It gives what ``thread.step()`` gives, and ``s.ref``: return that.

    The key is unique in the workflow. What runs in parallel from one pointer are slots of one key. In a
    workflow that DBOS has forked, ``s.ref`` leads to a thread of its own. Raises :class:`FencedError` if the
    workflow was recovered elsewhere, rewound or cancelled: then nothing is written."""
    options = {"slot": slot, "resolve": resolve, "label": label, "metadata": metadata}
    return WorkflowStep(ref, key, options)
