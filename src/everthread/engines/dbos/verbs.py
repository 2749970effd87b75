"""Verbs for the code of async workflows. Each is a step of DBOS, so that its answer, a pointer, is part of
the history. ``everthread.engines.dbos.blocking`` has them for other workflows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dbos import DBOS, StepOptions
from dbos import error as dbos_errors

from everthread.engines.aio import steps
from everthread.engines.aio.steps import Mode
from everthread.engines.dbos.execution import execution
from everthread.engines.dbos.source import store
from everthread.engines.local import assign_slice, load_slice
from everthread.engines.pointers import ThreadRef, named
from everthread.errors import UnavailableError

#: DBOS knows steps by the order in which they begin: ``run_agent`` keeps to one.
BEGINS_IN_ORDER = True


def step_options(name: str) -> StepOptions:
    """How the steps behind the verbs run: again, while the store can't be reached."""
    return {
        "name": f"everthread.{name}",
        "retries_allowed": True,
        "interval_seconds": 0.2,
        "max_attempts": 8,
        "should_retry": lambda error: isinstance(error, UnavailableError),
    }


def listed(messages: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One message or several, as a list."""
    if isinstance(messages, Mapping):
        return [dict(messages)]
    return [dict(message) for message in messages]


def innermost(error: BaseException | None) -> BaseException | None:
    """What a step raised, where DBOS has tried it several times and tells of that instead."""
    while isinstance(error, dbos_errors.DBOSMaxStepRetriesExceeded) and error.errors:
        error = error.errors[-1]
    return error


async def open_thread(
    name: str | None = None,
    *,
    mode: Mode = "new",
    source: ThreadRef | None = None,
    system: str | None = None,
    **more: Any,
) -> ThreadRef:
    """The pointer that a workflow begins with; the thread is called like the workflow's id, unless ``name``
    says otherwise. In a workflow that DBOS has forked, ``~`` and its id are added.

    ``new`` begins an empty thread with a ``system`` message; if another workflow began one of this name, it
    fails. ``continue`` goes on with a thread as it stands. ``fork`` begins with what ``source`` holds.
    ``more`` may be ``prepare``, ``transform``, ``effects``, ``agent`` and ``ttl``, as
    ``everthread.engines.steps.open_thread`` has them."""

    async def work() -> ThreadRef:
        where = await execution()
        options: Any = {"mode": mode, "source": source, "system": system, **more}
        return await steps.open_thread(await store(), where, name=name or where.origin, **options)

    return await DBOS.run_step_async(step_options("open_thread"), work)


async def append(
    ref: ThreadRef,
    messages: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    *,
    key: Sequence[str | int] | None = None,
    slot: int | None = None,
) -> ThreadRef:
    """Append one message or several, each with an ``"id"`` that its sender chose: once, however often it is
    told, also to later workflows. ``key`` and ``slot`` are for results of parallel tools."""

    async def work() -> ThreadRef:
        where = await execution()
        return await steps.append(await store(), ref, listed(messages), where, key=key, slot=slot)

    return await DBOS.run_step_async(step_options("append"), work)


async def load(ref: ThreadRef) -> dict[str, Any]:
    """Tasks and custom fields at ``ref``, as far as they are plain data."""

    async def work() -> dict[str, Any]:
        return await load_slice(await store(), ref)

    return await DBOS.run_step_async(step_options("load"), work)


async def save(ref: ThreadRef, update: Mapping[str, Any], *, key: Sequence[str | int]) -> ThreadRef:
    """Assign custom fields one by one, and ``tasks`` as a whole, as a step of this key."""

    async def work() -> ThreadRef:
        where = await execution()
        async with steps.enter_step(await store(), ref, key, where) as step:
            if not step.done:
                assign_slice(step, update)
        return step.ref

    return await DBOS.run_step_async(step_options("save"), work)


async def rewind(ref: ThreadRef, to: ThreadRef) -> ThreadRef:
    """Take back what came after ``to``. Steps that are still under way from a version between the two can't
    record anything any more."""

    async def work() -> ThreadRef:
        where = await execution()
        return await steps.rewind(await store(), ref, to, where)

    return await DBOS.run_step_async(step_options("rewind"), work)


async def end(
    ref: ThreadRef, reason: str = "completed", error: BaseException | None = None, **about: Any
) -> ThreadRef:
    """Record why the workflow ends, as its last step, and free the thread for others. Without it a workflow
    that is rewound to its last step would leave the thread as it was. Of ``error``, which it failed with, the
    name and the first line are kept. ``about`` may be ``agent``, ``turns`` and ``usage``, as
    ``everthread runs`` shows them."""

    async def work() -> ThreadRef:
        where = await execution()
        return await steps.end(await store(), ref, where, reason, named(innermost(error)), **about)

    return await DBOS.run_step_async(step_options("end"), work)
