"""Verbs for the code of workflows. Each is an activity, so that its answer, a pointer, is part of the
history."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, cast

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError, FailureError

from everthread.engines.pointers import ThreadRef, named
from everthread.engines.temporal.activities import (
    append_activity,
    append_at_activity,
    end_activity,
    end_with_error_activity,
    has_plugin,
    open_activity,
    rewind_activity,
)
from everthread.engines.temporal.log_activities import load_activity, save_activity

#: ``run_agent(options=…)`` hands options to these verbs.
TAKES_OPTIONS = True
#: How the activities behind these verbs are scheduled, unless the caller says otherwise. They send
#: heartbeats: if their worker dies, another one has them after this time-out.
_OPTIONS: dict[str, Any] = {
    "start_to_close_timeout": timedelta(seconds=60),
    "heartbeat_timeout": timedelta(seconds=5),
    "retry_policy": RetryPolicy(initial_interval=timedelta(milliseconds=200)),
}


async def open_thread(
    name: str | None = None,
    *,
    mode: Literal["new", "continue", "fork"] = "new",
    source: ThreadRef | None = None,
    system: str | None = None,
    effects: Literal["thread", "execution"] = "thread",
    agent: str | None = None,
    ttl: timedelta | float | None = None,
    prepare: Callable[..., Any] | str | None = None,
    transform: Callable[..., Any] | str | None = None,
    **options: Any,
) -> ThreadRef:
    """The pointer that a workflow begins with; the thread is called like the workflow's id, unless ``name``
    says otherwise. ``options`` are those of ``workflow.execute_activity()``, here and below.

    ``new`` begins an empty thread with a ``system`` message; if another workflow began one of this name, it
    fails. ``continue`` goes on with a thread as it stands or, with a ``source``, from that version of it: so
    does a child workflow on the thread of its parent. ``fork`` begins with what ``source`` holds;
    ``prepare`` and ``transform`` are those of ``thread.fork()``. They run in an activity, which finds them by
    name among the ``fork_hooks`` of the plugin.

    An effect is made once on the thread, whichever execution of the workflow calls it; with
    ``effects="execution"``, once in each execution, which includes its resets and the runs that it continues
    as new. ``agent`` is recorded with the run. With a ``ttl`` the thread expires when nothing was written to
    it for that long."""
    more: dict[str, Any] = {} if effects == "thread" else {"effects": effects}
    if agent is not None:
        more["agent"] = agent
    if ttl is not None:
        more["ttl"] = ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
    for hook, given in (("prepare", prepare), ("transform", transform)):
        if given is not None:
            more[hook] = given if isinstance(given, str) else given.__name__
    if mode == "continue" and source is not None:
        name = name or source.thread
        parent = workflow.info().parent
        if parent is not None:
            # The parent goes on with its thread afterwards.
            more["guest_of"] = parent.run_id
    arguments = [name or workflow.info().workflow_id, mode, source, system, more or None]
    return cast("ThreadRef", await call(open_activity, arguments, options))


async def append(
    ref: ThreadRef,
    messages: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    *,
    key: Sequence[str | int] | None = None,
    slot: int | None = None,
    **options: Any,
) -> ThreadRef:
    """Append one message or several, each with an ``"id"`` that its sender chose: once, however often it is
    told, also to later runs. ``key`` and ``slot`` are for results of parallel tools."""
    told = [dict(messages)] if isinstance(messages, Mapping) else [dict(message) for message in messages]
    if key is None:
        return cast("ThreadRef", await call(append_activity, [ref, told], options))
    return cast("ThreadRef", await call(append_at_activity, [ref, told, list(key), slot], options))


async def rewind(ref: ThreadRef, to: ThreadRef, **options: Any) -> ThreadRef:
    """Take back what came after ``to``. Activities that are still under way from a version between the two
    can't record anything any more."""
    return cast("ThreadRef", await call(rewind_activity, [ref, to], options))


async def end(
    ref: ThreadRef,
    reason: str = "completed",
    error: BaseException | None = None,
    *,
    agent: str | None = None,
    turns: int | None = None,
    usage: Mapping[str, Any] | None = None,
    **options: Any,
) -> ThreadRef:
    """Record why the run ends, as its last step, and free the thread for others. A run that is reset to its
    very end brings the thread back to where this run had brought it. Of ``error``, which it failed with, the
    name and the first line are kept: of what an activity raised, where Temporal tells of the activity.
    ``agent``, ``turns`` and ``usage`` are recorded with the run, as ``everthread runs`` shows them."""
    told = _named(error)
    figures = {"agent": agent, "turns": turns, "usage": None if usage is None else dict(usage)}
    about = {field: value for field, value in figures.items() if value is not None} or None
    while True:
        # A reset draws a new one. If that comes with the answer, the run before has recorded it: its thread
        # may have gone elsewhere since.
        seed = workflow.random_seed()
        if told is None:
            ref = cast("ThreadRef", await call(end_activity, [ref, reason, about], options))
        else:
            arguments = [ref, reason, *told, about]
            ref = cast("ThreadRef", await call(end_with_error_activity, arguments, options))
        if workflow.random_seed() == seed:
            return ref


def _named(error: BaseException | None) -> tuple[str, str] | None:
    while isinstance(error, FailureError) and isinstance(error.cause, FailureError):
        error = error.cause
    if isinstance(error, ApplicationError) and error.type:
        return error.type, error.message.strip().partition("\n")[0]
    return named(error)


async def load(ref: ThreadRef, **options: Any) -> dict[str, Any]:
    """Tasks and custom fields at ``ref``, as far as they are plain data."""
    return cast("dict[str, Any]", await call(load_activity, [ref], options))


async def save(
    ref: ThreadRef, update: Mapping[str, Any], *, key: Sequence[str | int], **options: Any
) -> ThreadRef:
    """Assign custom fields one by one, and ``tasks`` as a whole, as a step of this key."""
    return cast("ThreadRef", await call(save_activity, [ref, dict(update), list(key)], options))


async def call(activity: Callable[..., Any], arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """Run an activity of ours. Raises ``ApplicationError`` if this worker lacks the plugin: Temporal would
    look for the activity for ever."""
    if not has_plugin.get():
        raise ApplicationError(
            "this worker has no EverthreadPlugin: connect its client with "
            "Client.connect(…, plugins=[EverthreadPlugin(store)])",
            type="UsageError",
            non_retryable=True,
        )
    return await workflow.execute_activity(activity, args=list(arguments), **{**_OPTIONS, **options})


def recycle_due(*, events_max: int | None = None, bytes_max: int | None = None) -> bool:
    """Whether it is time for continue-as-new: the history is longer than this, or, with neither number, as
    long as Temporal advises; and no handler of an update or a signal is still at work."""
    info = workflow.info()
    if events_max is None and bytes_max is None:
        due = info.is_continue_as_new_suggested()
    else:
        due = (events_max is not None and info.get_current_history_length() > events_max) or (
            bytes_max is not None and info.get_current_history_size() > bytes_max
        )
    return due and workflow.all_handlers_finished()
