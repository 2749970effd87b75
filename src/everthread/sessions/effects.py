"""Effects on the world: what a call is, how it is told from another, and what is recorded of it. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from itertools import islice
from typing import Any, Literal

import msgspec

from everthread.arguments import check_name
from everthread.codec.values import encode, lower
from everthread.errors import EffectsDeniedError, InvalidValueError, ResultNotStoredError, UsageError
from everthread.limits import DEFAULT_LIMITS
from everthread.process import Place, here, is_gone
from everthread.sessions.records import EffectRecord, effect_of
from everthread.values import Erased, Personal, Tagged

#: Parts of the arguments that the fingerprint of a call looks at, and how deep.
_PARTS_MAX, _DEPTH_MAX = 10_000, 50


class Done(msgspec.Struct, frozen=True):
    """What a ``verify`` answers when the effect has happened and its result is known."""

    result: Any = None


class Intent(msgspec.Struct, frozen=True, kw_only=True):
    """An effect that was begun. ``error`` is set if its function raised."""

    id: str
    key: str
    name: str
    print: str
    run: str
    attempt: int
    at_us: int
    error: str | None = None
    #: In a run that several processes share: which of them calls it, and in which attempt of which step.
    place: Place | None = None
    step: tuple[str, int] | None = None
    #: The execution of a workflow that its run belongs to.
    execution: str | None = None


#: The intents whose functions are being called in this process just now, by id.
calling: set[str] = set()


def may_be_called_now(intent: Intent, now_us: int, ttl_us: int) -> bool:
    """Whether a process that shares the run of an intent may be in the middle of it."""
    place, mine = intent.place, here()
    if place is None or intent.error is not None:
        return False
    if place == mine:
        return intent.id in calling
    if place.machine and place.machine == mine.machine:
        return not is_gone(place)
    return abs(now_us - intent.at_us) < ttl_us


def without_record(key: str) -> EffectRecord:
    """A done effect of which nothing else can be read any more."""
    return effect_of({"key": key, "state": "done", "unstorable": "lost", "by": None})


def done_key(key: str) -> str:
    """The commit key under which the end of an effect is recorded, and the id of its record."""
    return "done:" + sha256(key.encode()).hexdigest()


def intent_of(key: str, stored: Mapping[str, Any]) -> Intent:
    known = {name: stored[name] for name in Intent.__struct_fields__ if name in stored}
    return msgspec.convert({**known, "key": key}, Intent)


# ── which call it was ────────────────────────────────────────────────────────────────────────


def name_of(fn: Any) -> str:
    """What a function is called, without its module: moving it elsewhere doesn't make it another one."""
    while hasattr(fn, "func"):  # functools.partial
        fn = fn.func
    name = getattr(fn, "__name__", None) or type(fn).__name__
    return str(name)[:200]


def fingerprint(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Sixteen bytes, as text, that tell the arguments of one call from those of another.

    Personal values, and what can't be stored, count by their type alone: nobody must be able to guess a
    person's data from the ledger.
    """
    bound: list[Any] = []
    while hasattr(fn, "func"):
        bound.append([list(fn.args), dict(fn.keywords)])
        fn = fn.func
    canonical = _Canonical().form([bound, list(args), dict(kwargs)])
    return sha256(encode(canonical, DEFAULT_LIMITS)).hexdigest()[:32]


class _Canonical:
    """Values as the fingerprint sees them: in one order, lowered, sealed parts left out, of bounded size."""

    def __init__(self) -> None:
        self._left = _PARTS_MAX

    def form(self, value: Any, depth: int = 0) -> Any:
        self._left -= 1
        if self._left < 0 or depth > _DEPTH_MAX:
            return "more"
        if isinstance(value, Personal | Erased):
            return "personal"
        if isinstance(value, Mapping):
            some = islice(value.items(), _PARTS_MAX)
            pairs = [[self.form(key, depth + 1), self.form(item, depth + 1)] for key, item in some]
            return sorted(pairs, key=lambda pair: encode(pair[0], DEFAULT_LIMITS))
        if isinstance(value, list | tuple):
            return [self.form(item, depth + 1) for item in islice(value, _PARTS_MAX)]
        try:
            return lower(value, limits=DEFAULT_LIMITS, seal=_left_out, root="argument")
        except InvalidValueError:
            return f"a {type(value).__qualname__}"


def _left_out(personal: Personal) -> Tagged:
    raise InvalidValueError("a personal value counts by its type alone")


# ── calls ────────────────────────────────────────────────────────────────────────────────────


class ToolUse(msgspec.Struct, frozen=True, kw_only=True):
    """What ``on_tool_use`` is told: before the tool runs (``pre``), after (``post``), or that it raised
    (``failure``). ``key`` is ``None`` for a tool outside the ledger."""

    phase: Literal["pre", "post", "failure"]
    name: str
    key: str | None = None
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = {}
    result: Any = None
    error: BaseException | None = None


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """What is to happen once."""

    key: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    verify: Callable[..., Any] | None
    retry_on: tuple[type[BaseException], ...]
    name: str
    print: str
    #: The attempt of the step that calls it.
    step: tuple[str, int] | None = None


def repeated(verify: Callable[..., Any] | None) -> Callable[..., Any]:
    """Return the ``verify`` of a function that may run twice. Raises :class:`UsageError` if it has one."""
    if verify is not None:
        raise UsageError("repeatable=True runs the function again instead of asking: leave out verify=")
    return lambda *args, **kwargs: False


def make_call(
    key: str,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    verify: Callable[..., Any] | None,
    retry_on: Any,
    step: tuple[str, int] | None = None,
) -> Call:
    """Raises :class:`UsageError` for what can't be called."""
    check_name(key, "the key of an effect")
    if not callable(fn) or not (verify is None or callable(verify)):
        raise UsageError("an effect and its verify are functions: session.call(key, fn, *args, verify=…)")
    kinds = retry_on if isinstance(retry_on, tuple) else (retry_on,)
    if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
        raise UsageError("retry_on names the exceptions after which nothing has happened, as classes")
    return Call(
        key=key,
        fn=fn,
        args=args,
        kwargs=kwargs,
        verify=verify,
        retry_on=kinds,
        name=name_of(fn),
        print=fingerprint(fn, args, kwargs),
        step=step,
    )


def not_stored(key: str, kind: str, result: Any) -> ResultNotStoredError:
    """What is raised for an effect that is done and whose result could not be kept."""
    return ResultNotStoredError(
        f"the effect {key!r} is done and recorded as done, but what it returned ({kind}) can't be stored; "
        "let the function return plain data, or register() the type",
        key=key,
        result=result,
    )


def denied_in(thread: str, key: str) -> EffectsDeniedError:
    """What is raised for an effect in a fork that makes none."""
    return EffectsDeniedError(
        f'the effect {key!r} was not called: {thread!r} is a fork for trying things out (effects="deny"), '
        "a fork of one, or works for one; call it in the thread that was forked",
        key=key,
        thread=thread,
    )
