"""The verifiers of this process, by name.

What is stored names a verifier; whether and how that name is answered is decided by the process that reads.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, overload

from everthread import process
from everthread.arguments import check_name
from everthread.errors import InvalidValueError
from everthread.verifiers.commands import Command
from everthread.verifiers.files import FileHash
from everthread.verifiers.git import GitBranch, GitCommit
from everthread.verifiers.permissions import Permissions
from everthread.verifiers.processes import ProcessAlive
from everthread.verifiers.specs import Spec, make_spec
from everthread.verifiers.verdicts import Verdict, verdict_of
from everthread.verifiers.web import HttpStatus

Function = TypeVar("Function", bound=Callable[..., Any])

#: Callbacks handed in without a name are kept for this process only, the latest of them.
CALLBACKS_MAX = 1_000
_CALLBACK = "callback "


class Verifier(Protocol):
    """One kind of check. Both calls may raise and may hang: their caller bounds and reports that."""

    def capture(self, value: Any, args: dict[str, Any], timeout_s: float) -> Any:
        """What is true now, as JSON-like data; raises if that can't be found out."""
        ...

    def check(
        self, value: Any, args: dict[str, Any], expected: Any, allowed: Permissions, timeout_s: float
    ) -> Verdict:
        """Whether it still is."""
        ...


class Registered:
    """A function of the user's as a verifier."""

    __slots__ = ("_capture", "function")

    def __init__(self, function: Callable[..., Any], capture: Callable[..., Any] | None) -> None:
        self.function = function
        self._capture = capture

    def capture(self, value: Any, args: dict[str, Any], timeout_s: float) -> Any:
        return None if self._capture is None else self._capture(value, **args)

    def check(
        self, value: Any, args: dict[str, Any], expected: Any, allowed: Permissions, timeout_s: float
    ) -> Verdict:
        if self._capture is None:
            return verdict_of(self.function(value, **args))
        return verdict_of(self.function(value, expected=expected, **args))


_BUILT_IN: dict[str, Verifier] = {
    "command": Command(),
    "file_hash": FileHash(),
    "git_branch": GitBranch(),
    "git_commit": GitCommit(),
    "http_status": HttpStatus(),
    "process_alive": ProcessAlive(),
}
_registered: dict[str, Registered] = {}
_callbacks: OrderedDict[str, Registered] = OrderedDict()
_lock = process.fork_lock()


@overload
def register(name: str, fn: Function, *, capture: Callable[..., Any] | None = None) -> Function: ...


@overload
def register(
    name: str, fn: None = None, *, capture: Callable[..., Any] | None = None
) -> Callable[[Function], Function]: ...


def register(
    name: str, fn: Callable[..., Any] | None = None, *, capture: Callable[..., Any] | None = None
) -> Any:
    """Let ``name`` stand for ``fn`` in this process; without ``fn`` a decorator.

    ``fn(value, **arguments)`` answers True (still holds), False (no longer), None (can't tell), one of the
    texts of :class:`Status`, or a :class:`Verdict`. With ``capture``, what ``capture(value, **arguments)``
    returned when the fact was recorded is handed to ``fn`` as ``expected``. Registering a name again replaces
    it. Raises :class:`InvalidValueError` for a built-in name or what can't be called.
    """
    check_name(name, "verifier")
    if name in _BUILT_IN:
        raise InvalidValueError(f"the verifier {name!r} is built in; choose another name")
    if fn is None:
        return lambda function: register(name, function, capture=capture)
    if not callable(fn) or not (capture is None or callable(capture)):
        raise InvalidValueError(f"the verifier {name!r} must be a function")
    with _lock:
        _registered[name] = Registered(fn, capture)
    return fn


def by_name(name: str, **arguments: Any) -> Spec:
    """A registered verifier with arguments, to be handed to ``set_context(…, verify=…)``."""
    return make_spec(name, arguments)


def find(name: str) -> Verifier | None:
    """The verifier of this name in this process."""
    return _BUILT_IN.get(name) or _registered.get(name) or _callbacks.get(name)


def unknown(name: str) -> str:
    """Why a name isn't found."""
    if name.startswith(_CALLBACK):
        return "its verifier is a function without a name: verifiers.register(name, fn) lets others know it"
    return f"no verifier called {name!r} is registered in this process"


def name_of(function: Callable[..., Any]) -> str:
    """The name under which a function is registered; one that isn't gets a name for this process only.

    Another process could not know which function was meant, so the name is one that it can't have.
    """
    import secrets

    with _lock:
        for name, known in (*_registered.items(), *_callbacks.items()):
            if known.function is function:
                return name
        place = f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', 'function')}"
        name = f"{_CALLBACK}{place[:200]} {secrets.token_hex(8)}"
        _callbacks[name] = Registered(function, None)
        while len(_callbacks) > CALLBACKS_MAX:
            _callbacks.popitem(last=False)
    return name
