"""Calling a function that has an effect: at most once per key, whatever dies in between.

The order of things is written once, as a generator; ``call`` and ``acall`` differ in how they run the steps
that it hands out.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from everthread.arguments import check_name
from everthread.errors import (
    EffectMismatchError,
    EverthreadError,
    InDoubtError,
    InvalidValueError,
    ResultNotStoredError,
    UsageError,
)
from everthread.sessions.claims import WAIT_S, Claim, Claims
from everthread.sessions.clock import moment
from everthread.sessions.effects import Done, Intent, Ledger, fingerprint, name_of
from everthread.sessions.entries import EffectRecord
from everthread.sessions.losses import Losses

if TYPE_CHECKING:
    from everthread.sessions.held import HeldThread


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


def make_call(
    key: str,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    verify: Callable[..., Any] | None,
    retry_on: Any,
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
    )


class Step(msgspec.Struct, frozen=True):
    """Something that the plan can't do itself: run the caller's code, or wait for another thread."""

    run: Callable[[], Any] | None = None
    wait: Future[None] | None = None


Plan = Generator[Step, Any, Any]


def drive(plan: Plan) -> Any:
    """Carry a plan out, blocking."""
    send: Callable[[Any], Step] = plan.send
    value: Any = None
    while True:
        try:
            step = send(value)
        except StopIteration as end:
            return end.value
        try:
            value = step.run() if step.run is not None else None
            if step.wait is not None:
                wait([step.wait], timeout=WAIT_S)
            send = plan.send
        except BaseException as error:
            value, send = error, plan.throw


async def drive_async(plan: Plan) -> Any:
    """Carry a plan out; what the caller's functions return is awaited where it can be."""
    import asyncio

    send: Callable[[Any], Step] = plan.send
    value: Any = None
    while True:
        try:
            step = send(value)
        except StopIteration as end:
            return end.value
        try:
            if step.wait is not None:
                await asyncio.wait([asyncio.wrap_future(step.wait)], timeout=WAIT_S)
                value = None
            elif step.run is not None:
                value = step.run()
                if inspect.isawaitable(value):
                    value = await value
            send = plan.send
        except BaseException as error:
            value, send = error, plan.throw


class Caller:
    """Carries calls out against the ledger of a run."""

    def __init__(
        self,
        journal: HeldThread,
        ledger: Ledger,
        run_id: str,
        tell: Callable[[ToolUse], None],
        put_error: Callable[[BaseException, str], Any],
    ) -> None:
        self._journal = journal
        self._ledger = ledger
        self._run_id = run_id
        self._tell = tell
        self._put_error = put_error
        self._claims = Claims()
        #: Intents whose function was not called, because writing them down seemed to fail.
        self._unstarted: set[str] = set()
        #: What functions returned whose end could not be written down yet.
        self._unrecorded: dict[str, tuple[Intent, Any]] = {}

    # ── the plan ─────────────────────────────────────────────────────────────────────────────

    def plan(self, call: Call) -> Plan:
        """Find out how the effect stands, settle what is in doubt, run it if it hasn't happened."""
        claim = Claim()
        plan = self._claiming(call, claim)
        claim.follow(plan)
        return plan

    def _claiming(self, call: Call, claim: Claim) -> Plan:
        while (other := self._claims.take(call.key, claim)) is not None:
            yield Step(wait=other.ended)
        try:
            return (yield from self._claimed(call))
        finally:
            self._claims.drop(call.key, claim)

    def _claimed(self, call: Call) -> Plan:
        self._record_left_over(call.key)
        found = self._ledger.find(call.key)
        attempt = 1
        if isinstance(found, EffectRecord):
            self._compare(call, found)
            # What this process remembers isn't an answer if the store doesn't know it any more.
            self._journal.require_lease()
            return self._recorded(found)
        if isinstance(found, Intent):
            self._compare(call, found)
            if found.id in self._unstarted:
                self._unstarted.discard(found.id)
                return (yield from self._run(call, found))
            answer = yield from self._verify(call, found)
            if answer is not False:
                return answer.result
            attempt = found.attempt + 1
        elif (lost := self._ledger.unknown(call.key)) is not None:
            missing = self._ledger.plan(call.key, call.name, call.print, 0)
            answer = yield from self._verify(call, missing, lost)
            if answer is not False:
                return answer.result
        return (yield from self._run(call, self._intend(call, attempt)))

    def _verify(
        self, call: Call, intent: Intent, lost: Losses | None = None
    ) -> Generator[Step, Any, Done | Literal[False]]:
        """Settle an effect that is in doubt, or raise :class:`InDoubtError`."""
        verify = call.verify
        if verify is None:
            raise self._in_doubt(intent, "and there is no verify to ask", lost)
        try:
            answer = yield Step(lambda: verify(*call.args, **call.kwargs))
        except Exception as error:
            raise self._in_doubt(intent, f"and verify raised {type(error).__name__}", lost) from error
        if answer is None:
            raise self._in_doubt(intent, "and verify could not tell", lost)
        return settle(self._ledger, intent, answer, "verify")

    def _run(self, call: Call, intent: Intent) -> Plan:
        self._use(call, "pre")
        try:
            result = yield Step(lambda: call.fn(*call.args, **call.kwargs))
        except BaseException as error:
            self._failed(call, intent, error)
            raise
        if inspect.iscoroutine(result):
            # Only the blocking driver hands one back: it was made, and nothing of it has run.
            result.close()
            self._ledger.not_done(intent, "call", "not awaited")
            raise UsageError(f"{call.name} is an async function: await session.acall(…) calls it")
        self._unrecorded[call.key] = (intent, result)
        self._record_left_over(call.key)
        self._use(call, "post", result=result)
        return result

    # ── writing down ─────────────────────────────────────────────────────────────────────────

    def _intend(self, call: Call, attempt: int) -> Intent:
        intent = self._ledger.plan(call.key, call.name, call.print, attempt)
        # Until it is acknowledged: it may be written all the same, and this process knows that nothing ran.
        self._unstarted.add(intent.id)
        self._ledger.intend(intent)
        self._unstarted.discard(intent.id)
        return intent

    def _record_left_over(self, key: str) -> None:
        """Write down what a function returned. If that fails the next call with this key tries again."""
        if key not in self._unrecorded:
            return
        intent, result = self._unrecorded[key]
        kind = type(result).__qualname__
        refused: InvalidValueError | None = None
        try:
            try:
                self._ledger.done(intent, result, "call")
            except InvalidValueError as error:
                refused = error
                self._ledger.done_without_result(intent, kind)
        except EverthreadError as error:
            error.add_note(
                f"the effect {key!r} has happened; call it again with the same key to record its result, "
                "it will not be repeated"
            )
            raise
        del self._unrecorded[key]
        if refused is not None:
            raise _not_stored(key, kind, result) from refused

    def runs(self, key: str) -> bool:
        """Whether an effect is being called in this process just now."""
        return self._claims.holds(key)

    def flush(self) -> None:
        """Before the run ends: record what could not be recorded before."""
        for key in list(self._unrecorded):
            self._record_left_over(key)

    def _failed(self, call: Call, intent: Intent, error: BaseException) -> None:
        """Record that the function raised. Never hides what it raised."""
        kind = type(error).__name__
        try:
            with self._journal.writing():
                if isinstance(error, call.retry_on):
                    self._ledger.put_not_done(intent, "call", kind)
                else:
                    self._ledger.put_failed(intent, kind)
                self._put_error(error, f"effect {call.key}")
        except EverthreadError as unrecorded:
            error.add_note(f"that {call.name} raised could not be recorded: {unrecorded}")
        self._use(call, "failure", error=error)

    # ── answers ──────────────────────────────────────────────────────────────────────────────

    def _recorded(self, found: EffectRecord) -> Any:
        if not found.stored:
            raise _not_stored(found.key, "the type it had", None)
        return found.result

    def _compare(self, call: Call, found: EffectRecord | Intent) -> None:
        """Refuse a key that stands for something else. A function may be renamed from one run to the next,
        within a run another name is another effect."""
        if found.print and found.print != call.print:
            other = "with other arguments"
        elif found.run == self._run_id and found.name and found.name != call.name:
            other = f"of {found.name}"
        else:
            return
        raise EffectMismatchError(
            f"the key {call.key!r} belongs to a call {other}; give each effect a key of its own",
            key=call.key,
        )

    def _in_doubt(self, intent: Intent, why: str, lost: Losses | None = None) -> InDoubtError:
        if lost is not None:
            known = f"the journal of this thread lost records ({lost.why})"
            return InDoubtError(
                f"whether the effect {intent.key!r} ({intent.name}) has happened isn't known: {known}, "
                f"{why}. It was not called; look, then session.settle({intent.key!r}, True or False), or "
                "session.accept_losses() once nothing that was lost can be called again",
                key=intent.key,
                reason=f"{known}, {why}",
                since=moment(lost.since_us),
            )
        began = "in this run" if intent.run == self._run_id else f"in run {intent.run}"
        how = f"raised {intent.error}" if intent.error else "was begun and never ended"
        return InDoubtError(
            f"whether the effect {intent.key!r} ({intent.name}) has happened isn't known: it {how} {began}, "
            f"{why}. It was not repeated; look, then session.settle({intent.key!r}, True or False)",
            key=intent.key,
            reason=f"{how} {began}, {why}",
            since=moment(intent.at_us),
        )

    def _use(self, call: Call, phase: Literal["pre", "post", "failure"], **outcome: Any) -> None:
        use = ToolUse(
            phase=phase, name=call.name, key=call.key, args=call.args, kwargs=call.kwargs, **outcome
        )
        self._tell(use)


def settle(ledger: Ledger, intent: Intent, answer: Any, by: str) -> Done | Literal[False]:
    """Record what somebody found out about an effect in doubt: True, ``Done(result)`` or False."""
    if answer is False:
        ledger.not_done(intent, by)
        return False
    done = Done() if answer is True else answer
    if not isinstance(done, Done):
        raise UsageError(
            f"whether an effect happened is told by True, Done(result), False or None, not {answer!r}"
        )
    ledger.done(intent, done.result, by)
    return done


def _not_stored(key: str, kind: str, result: Any) -> ResultNotStoredError:
    return ResultNotStoredError(
        f"the effect {key!r} is done and recorded as done, but what it returned ({kind}) can't be stored; "
        "let the function return plain data, or register() the type",
        key=key,
        result=result,
    )
