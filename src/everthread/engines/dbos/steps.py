"""``step``: what a step of DBOS does to the thread of its workflow."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from types import TracebackType
from typing import Any

from everthread.engines.aio import steps
from everthread.engines.dbos.execution import blocking_execution, execution
from everthread.engines.dbos.source import source
from everthread.engines.pointers import ThreadRef
from everthread.engines.sync import steps as blocking_steps


class WorkflowStep:
    """Entered with ``async with`` or, in a blocking step of DBOS, ``with``."""

    def __init__(self, ref: ThreadRef, key: tuple[str | int, ...], options: dict[str, Any]) -> None:
        self._arguments = (ref, key)
        self._options = options
        self._awaited: AbstractAsyncContextManager[steps.AsyncEngineStep] | None = None
        self._blocking: AbstractContextManager[blocking_steps.EngineStep] | None = None

    async def __aenter__(self) -> steps.AsyncEngineStep:
        self._awaited = self._enter_async()
        return await self._awaited.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        assert self._awaited is not None
        return await self._awaited.__aexit__(kind, error, trace)

    def __enter__(self) -> blocking_steps.EngineStep:
        self._blocking = self._enter_blocking()
        return self._blocking.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        assert self._blocking is not None
        return self._blocking.__exit__(kind, error, trace)

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
