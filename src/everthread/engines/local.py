"""The verbs of an engine without one: for tests of an agent, and for trying it out. And how tasks and custom
fields are loaded and saved under any engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from everthread.engines.aio import steps
from everthread.engines.pointers import Execution, ThreadRef, named
from everthread.sessions.tasks import custom_part, slice_of

if TYPE_CHECKING:
    from everthread.store_async import AsyncStore


class LocalEngine:
    """Steps on an open async store, in this process: ``run_agent(ref, engine=LocalEngine(store), …)``.

    Nothing replays them: a process that dies leaves the thread as it is, and a later run goes on from there
    with ``open_thread(mode="continue")``. ``run`` names the run, and is another one each time.
    """

    def __init__(self, store: AsyncStore, run: str | Execution) -> None:
        self.store = store
        self.where = run if isinstance(run, Execution) else Execution(run)

    def step(
        self, ref: ThreadRef, *key: str | int, slot: int | None = None, **options: Any
    ) -> AbstractAsyncContextManager[steps.AsyncEngineStep]:
        """A step of the run that stands at ``ref``, recorded once under ``key``."""
        return steps.enter_step(self.store, ref, key, self.where, slot=slot, **options)

    async def open_thread(self, name: str, **options: Any) -> ThreadRef:
        """The pointer that a run begins with: ``mode="new"``, ``"continue"`` or ``"fork"``."""
        return await steps.open_thread(self.store, self.where, name=name, **options)

    async def append(
        self,
        ref: ThreadRef,
        messages: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        key: Sequence[str | int] | None = None,
        slot: int | None = None,
    ) -> ThreadRef:
        """Append messages, each under its id, once."""
        return await steps.append(self.store, ref, messages, self.where, key=key, slot=slot)

    async def rewind(self, ref: ThreadRef, to: ThreadRef) -> ThreadRef:
        """Take back what came after ``to``."""
        return await steps.rewind(self.store, ref, to, self.where)

    async def end(
        self, ref: ThreadRef, reason: str = "completed", error: BaseException | None = None, **about: Any
    ) -> ThreadRef:
        """Record why the run ends, and the error that it failed with; ``about`` may be ``agent``, ``turns``
        and ``usage``."""
        return await steps.end(self.store, ref, self.where, reason, named(error), **about)

    async def load(self, ref: ThreadRef) -> dict[str, Any]:
        """Tasks and custom fields at ``ref``."""
        return await load_slice(self.store, ref)

    async def save(self, ref: ThreadRef, update: Mapping[str, Any], *, key: Sequence[str | int]) -> ThreadRef:
        """Assign tasks and custom fields."""
        async with self.step(ref, *key) as step:
            if not step.done:
                assign_slice(step, update)
        return step.ref


async def load_slice(store: AsyncStore, ref: ThreadRef) -> dict[str, Any]:
    """Tasks and custom fields at ``ref``, as far as they are plain data: an engine keeps what a workflow is
    told, so that personal values, and what JSON has no form for, stay in the thread."""
    found = slice_of((await steps.read_at(store, ref)).state.plain())
    return {name: value for name, value in found.items() if _is_plain(value)}


def assign_slice(step: steps.AsyncEngineStep, update: Mapping[str, Any]) -> None:
    """Assign custom fields one by one, and tasks as a whole."""
    custom = custom_part(update)
    step.state.update(custom)
    step.result = sorted(custom)


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(name, str) and _is_plain(each) for name, each in value.items())
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, str)
