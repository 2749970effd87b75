"""The verifiers of this process, by name.

What is stored names a verifier; whether and how that name is answered is decided by the process that reads.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, overload

import msgspec

from everthread.arguments import check_name
from everthread.errors import InvalidValueError
from everthread.values import Erased
from everthread.verifiers.builtin import Command, FileHash, GitBranch, GitCommit, HttpStatus, ProcessAlive
from everthread.verifiers.specs import (
    AllowCommands,
    Permissions,
    Spec,
    Stored,
    Verdict,
    checked,
    make_spec,
    one_line,
    permissions,
    unverifiable,
    verdict_of,
)

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
_lock = threading.Lock()


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


# ── running verifiers side by side, each with a time limit ──────────────────────────────────────────


Answer = TypeVar("Answer")
AT_ONCE_MAX = 8
_OWN_SHARE = 0.8


class Outcome(msgspec.Struct, Generic[Answer], frozen=True):
    """What came of a job: its answer, or why there is none."""

    answer: Answer | None = None
    problem: str = ""


def run_all(
    jobs: Sequence[Callable[[float], Answer]], *, each_s: float, total_s: float
) -> list[Outcome[Answer]]:
    """Run the jobs in daemon threads, a few at once; one outcome per job, in order.

    A job that has not answered after ``each_s`` is left behind: nothing can end a thread from outside, but
    nobody waits for it, not even the end of the process. What has not begun after ``total_s`` isn't begun.
    A job is told in how many seconds it should end by itself, and clear up, a little before it is left.
    """
    found: dict[int, Outcome[Answer]] = {}
    running: dict[int, float] = {}
    answers: queue.SimpleQueue[tuple[int, Outcome[Answer]]] = queue.SimpleQueue()
    end = time.monotonic() + total_s
    waiting = list(range(len(jobs)))[::-1]
    while waiting or running:
        now = time.monotonic()
        if waiting and now >= end:
            for number in waiting:
                found[number] = Outcome(problem=f"not checked: the {total_s:g} s for all checks were used up")
            waiting.clear()
            continue
        while waiting and len(running) < AT_ONCE_MAX:
            number = waiting.pop()
            limit_s = min(each_s, end - now)
            running[number] = now + limit_s
            _start(number, partial(jobs[number], limit_s * _OWN_SHARE), answers)
        try:
            number, outcome = answers.get(timeout=max(0.0, min(running.values()) - time.monotonic()))
        except queue.Empty:
            _give_up(running, found, each_s)
            continue
        # An answer may still come from a job that was given up.
        if running.pop(number, None) is not None:
            found[number] = outcome
    return [found[number] for number in range(len(jobs))]


def _give_up(running: dict[int, float], found: dict[int, Outcome[Answer]], each_s: float) -> None:
    now = time.monotonic()
    for number in [number for number, until in running.items() if until <= now]:
        del running[number]
        found[number] = Outcome(problem=f"it gave no answer in time (at most {each_s:g} s)")


def _start(
    number: int,
    job: Callable[[], Answer],
    answers: queue.SimpleQueue[tuple[int, Outcome[Answer]]],
) -> None:
    def work() -> None:
        try:
            outcome = Outcome(answer=job())
        # Also SystemExit and KeyboardInterrupt: a verifier must not end the process that asks it.
        except BaseException as error:
            outcome = Outcome(problem=_told(error))
        answers.put((number, outcome))

    try:
        threading.Thread(target=work, name="everthread-verifier", daemon=True).start()
    except RuntimeError as error:
        answers.put((number, Outcome(problem=f"no thread could be started: {error}")))


def _told(error: BaseException) -> str:
    """The error in words; an error whose text can't be had is named by its class."""
    try:
        text = str(error)
    except Exception:
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


# ── recording what a verifier sees, and asking it again later ───────────────────────────────────────


#: Seconds that one verifier, and all of a resume together, may take.
EACH_S = 5.0
TOTAL_S = 15.0


def capture(verify: Any, value: Any, *, timeout_s: float = EACH_S) -> dict[str, Any]:
    """What to store beside a fact so that it can be verified later: JSON-like data, no code.

    ``verify`` is a spec such as ``file_hash("a.txt")``, the name of a registered verifier, a function, or
    what an earlier call returned, which is kept as it is. The verifier looks at the world now. If it can't
    (the file isn't there, say), that is recorded, and reported as unverifiable later: keeping the fact
    matters more. Raises :class:`InvalidValueError` for anything else.
    """
    if isinstance(verify, Mapping):
        stored = Stored.from_data(verify)
        if stored is None:
            raise InvalidValueError("this is no stored verifier", path="verify")
        return stored.to_data()
    spec = _spec_of(verify)
    verifier = find(spec.name)
    if verifier is None:
        raise InvalidValueError(
            f"no verifier is called {spec.name!r}; register it first: verifiers.register(name, fn)",
            path="verify",
        )
    job = partial(verifier.capture, value, dict(spec.args))
    (outcome,) = run_all([job], each_s=timeout_s, total_s=timeout_s)
    if outcome.problem:
        return Stored(spec.name, spec.args, None, one_line(outcome.problem)).to_data()
    expected = checked(outcome.answer, f"what verifier {spec.name!r} captured")
    return Stored(spec.name, spec.args, expected).to_data()


def check(
    stored: Any,
    value: Any,
    *,
    allow_commands: AllowCommands = False,
    allow_network: bool = True,
    timeout_s: float = EACH_S,
) -> Verdict:
    """Ask the verifier of one fact. Never raises for what is stored, never waits longer than told."""
    allowed = permissions(allow_commands, allow_network)
    return check_all([(stored, value)], allowed, each_s=timeout_s, total_s=timeout_s)[0]


def check_all(
    facts: Sequence[tuple[Any, Any]],
    allowed: Permissions | None = None,
    *,
    each_s: float = EACH_S,
    total_s: float = TOTAL_S,
) -> list[Verdict]:
    """Ask the verifiers of many facts, each a pair of what :func:`capture` returned and the value."""
    allowed = allowed or Permissions()
    jobs = [_job(stored, value, allowed) for stored, value in facts]
    outcomes = run_all(jobs, each_s=each_s, total_s=total_s)
    return [outcome.answer or unverifiable(outcome.problem) for outcome in outcomes]


def _spec_of(verify: Any) -> Spec:
    if isinstance(verify, Spec):
        return verify
    if isinstance(verify, str):
        return make_spec(verify, {})
    if callable(verify):
        return make_spec(name_of(verify), {})
    raise InvalidValueError(
        f"verify is a verifier such as verifiers.file_hash(…), a registered name or a function, "
        f"not {type(verify).__name__}",
        path="verify",
    )


def _job(data: Any, value: Any, allowed: Permissions) -> Callable[[float], Verdict]:
    def answer(reason: str) -> Callable[[float], Verdict]:
        return lambda _: unverifiable(reason)

    stored = Stored.from_data(data)
    if stored is None:
        return answer("the stored verifier is not understood")
    if isinstance(value, Erased):
        return answer("the value was erased")
    if stored.problem:
        return answer(f"it could not be checked when it was recorded: {stored.problem}")
    verifier = find(stored.name)
    if verifier is None:
        return answer(unknown(stored.name))
    return partial(verifier.check, value, dict(stored.args), stored.expected, allowed)
