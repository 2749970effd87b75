"""Functions that are called when something happened to a state or a session."""

from __future__ import annotations

import inspect
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from everthread.errors import InvalidValueError

#: What a function can be registered for, and what it is told, in this order.
EVENTS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "on_change": ("state",),
        "on_save": ("state",),
        "on_load": ("state",),
        "on_resume": ("state",),
        "on_discard": ("state",),
        "on_rewind": ("state",),
        "on_fork": ("state",),
        "on_close": ("state",),
        "on_session_start": ("session",),
        "on_turn": ("turn",),
        "on_tool_use": ("use",),
        "on_sandbox_ready": ("sandbox_id", "base_snapshot"),
        "on_session_end": ("reason", "turns", "usage", "run_turns", "run_usage"),
        "on_session_exit": ("sandbox_id", "snapshot", "thread"),
    }
)

#: Failures that are kept for looking at; all of them are logged.
FAILURES_MAX: Final = 100

_EITHER: Final = inspect.Parameter.POSITIONAL_OR_KEYWORD
_BY_NAME: Final = inspect.Parameter.KEYWORD_ONLY

_log = logging.getLogger(__name__)

Hook = Callable[..., Any]
#: Errors of hooks that are raised.
Passing = tuple[type[Exception], ...]


class HookFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A hook that raised: for which event, which one, what, and when (µs since 1970)."""

    event: str
    hook: str
    error: BaseException
    at_us: int

    def __str__(self) -> str:
        return f"{self.event}: {self.hook} raised {type(self.error).__name__}: {self.error}"


class SessionLifecycle:
    """Hooks by event. Attach it to a state, ``WorkingState(hooks=lifecycle)``, or share it among several.

    Hooks run in the order in which they were registered, after what they are told of is durable. One that
    raises is logged and kept in :attr:`failures`; the others still run, and nothing is undone. Async callers
    await hooks that are async functions. Safe to share between threads.
    """

    def __init__(self) -> None:
        # Replaced, never changed: a call under way keeps the hooks that it began with.
        self._hooks: dict[str, tuple[Hook, ...]] = {}
        self._failures: deque[HookFailure] = deque(maxlen=FAILURES_MAX)

    def register(self, event: str, fn: Hook | None = None) -> Any:
        """Call ``fn`` whenever ``event`` happens, for a state with the state: ``fn(state)``.

        It may take fewer arguments than :data:`EVENTS` lists for the event, or take them by these names as
        keyword-only ones or ``**kw``. Without ``fn`` this is a decorator. Registering a function twice calls
        it once. Raises :class:`InvalidValueError` for an unknown event or something that can't be called.
        """
        _check_event(event)
        if fn is None:
            return lambda function: self.register(event, function)
        if not callable(fn):
            raise InvalidValueError(f"a hook must be callable, not {type(fn).__name__}", path=event)
        known = self._hooks.get(event, ())
        if fn not in known:
            self._hooks = {**self._hooks, event: (*known, fn)}
        return fn

    def unregister(self, event: str, fn: Hook) -> bool:
        """Call ``fn`` no longer; whether it was registered."""
        _check_event(event)
        known = self._hooks.get(event, ())
        left = tuple(hook for hook in known if hook != fn)
        self._hooks = {**self._hooks, event: left}
        return len(left) < len(known)

    def hooks(self, event: str) -> tuple[Hook, ...]:
        """What is registered for an event."""
        return self._hooks.get(event, ())

    @property
    def failures(self) -> tuple[HookFailure, ...]:
        """The newest failures, oldest first."""
        return tuple(self._failures)

    def fire(self, event: str, /, *args: Any, passing: Passing = ()) -> tuple[HookFailure, ...]:
        """Call the hooks of ``event``; what failed. Raises no :class:`Exception` of theirs, but for those of
        ``passing``: then the hooks after it aren't called."""
        failed = []
        for hook in self._hooks.get(event, ()):
            try:
                result = _call(hook, EVENTS[event], args)
                if inspect.iscoroutine(result):
                    # Nobody would ever run it.
                    result.close()
                    raise TypeError(
                        "the hook is an async function, and nothing here awaits it; register a plain one"
                    )
            except passing:
                raise
            except Exception as error:
                failed.append(self._note(event, hook, error))
        return tuple(failed)

    async def fire_async(self, event: str, /, *args: Any, passing: Passing = ()) -> tuple[HookFailure, ...]:
        """As :meth:`fire`, for async callers: hooks may be plain or async functions, one after the other."""
        failed = []
        for hook in self._hooks.get(event, ()):
            try:
                result = _call(hook, EVENTS[event], args)
                if inspect.isawaitable(result):
                    await result
            except passing:
                raise
            except Exception as error:
                failed.append(self._note(event, hook, error))
        return tuple(failed)

    def _note(self, event: str, hook: Hook, error: Exception) -> HookFailure:
        name = getattr(hook, "__qualname__", None) or type(hook).__name__
        failure = HookFailure(event=event, hook=str(name), error=error, at_us=time.time_ns() // 1000)
        self._failures.append(failure)
        _log.error("a hook failed and was passed over: %s", failure, exc_info=error)
        return failure

    def __repr__(self) -> str:
        counts = ", ".join(f"{event} × {len(hooks)}" for event, hooks in self._hooks.items() if hooks)
        return f"<hooks: {counts or 'none'}>"


class Notifier:
    """Calls the hooks of one object. A hook that causes its own event again isn't called for that."""

    def __init__(self, lifecycle: SessionLifecycle | None) -> None:
        self.lifecycle = lifecycle
        self._under_way: set[tuple[int, str]] = set()

    def notify(self, event: str, *args: Any) -> None:
        # Per thread: events of another thread are other events.
        current = (threading.get_ident(), event)
        if self.lifecycle is None or current in self._under_way:
            return
        self._under_way.add(current)
        try:
            self.lifecycle.fire(event, *args)
        finally:
            self._under_way.discard(current)


class AsyncNotifier:
    """The same for async callers, whose hooks may be async functions."""

    def __init__(self, lifecycle: SessionLifecycle | None) -> None:
        self.lifecycle = lifecycle
        self._under_way: set[tuple[int, str]] = set()

    async def notify(self, event: str, *args: Any) -> None:
        import asyncio

        # Per task: events of another task are other events.
        current = (id(asyncio.current_task()), event)
        if self.lifecycle is None or current in self._under_way:
            return
        self._under_way.add(current)
        try:
            await self.lifecycle.fire_async(event, *args)
        finally:
            self._under_way.discard(current)


def hooks_of(given: Any) -> SessionLifecycle:
    """A :class:`SessionLifecycle` as it is, or one made from a dictionary: event → function or several."""
    if given is None:
        return SessionLifecycle()
    if isinstance(given, SessionLifecycle):
        return given
    if not isinstance(given, Mapping):
        raise InvalidValueError(
            f"hooks is a SessionLifecycle or a dictionary of functions, not {type(given).__name__}",
            path="hooks",
        )
    hooks = SessionLifecycle()
    for event, functions in given.items():
        for function in functions if isinstance(functions, list | tuple) else (functions,):
            hooks.register(event, function)
    return hooks


def _check_event(event: str) -> None:
    if not isinstance(event, str) or event not in EVENTS:
        raise InvalidValueError(f"there is no event {event!r}; there are {', '.join(EVENTS)}", path="event")


def _call(hook: Hook, names: tuple[str, ...], args: tuple[Any, ...]) -> Any:
    position, keywords = _fitting(hook, names, args)
    return hook(*position, **keywords)


def _fitting(
    hook: Hook, names: tuple[str, ...], args: tuple[Any, ...]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What of the arguments the hook has room for: by position first, the rest by name."""
    try:
        parameters = inspect.signature(hook).parameters.values()
    except (TypeError, ValueError):
        # Some built-in functions don't tell.
        return args, {}
    kinds = [parameter.kind for parameter in parameters]
    room = sum(kind in (inspect.Parameter.POSITIONAL_ONLY, _EITHER) for kind in kinds)
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        room = len(args)
    left = dict(zip(names[room:], args[room:], strict=False))
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        wanted = {parameter.name for parameter in parameters if parameter.kind is _BY_NAME}
        left = {name: value for name, value in left.items() if name in wanted}
    return args[:room], left
