"""The effect ledger: what was done to the world, once per key.

An effect is written down before it is begun and after it ended. A key whose effect ended well is found in
the index of commit keys, however many there are; what isn't settled stands in the journal's document, and
there are never many of those.

That a key isn't in that index isn't believed alone: an entry of it may be damaged. The record of a done
effect has an id that follows from its key, so the fingerprints of the log must not know it either. These are
complete, or known not to be.
"""

from __future__ import annotations

import inspect
import sys
import threading
import weakref
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from hashlib import sha256
from inspect import GEN_CLOSED, getgeneratorstate
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from everthread import process
from everthread.arguments import check_name
from everthread.codec.values import encode, lower
from everthread.errors import (
    EffectMismatchError,
    EverthreadError,
    InDoubtError,
    InvalidValueError,
    KeyReusedError,
    NotFoundError,
    ResultNotStoredError,
    StateCorruptedError,
    UsageError,
)
from everthread.limits import DEFAULT_LIMITS
from everthread.sessions import journal as j
from everthread.sessions.journal import CLEARED, UNREADABLE, Losses, accept_losses, losses_in
from everthread.sessions.records import EffectRecord, effect_of, moment
from everthread.threads.sync.journals import LOSSES, lost_records
from everthread.values import Erased, Personal, Tagged

if TYPE_CHECKING:
    from everthread.sessions.fenced_thread import FencedThread
    from everthread.threads.sync.thread import Thread


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


class Ledger:
    """The ledger of one run: every writing call is durable when it returns."""

    def __init__(self, journal: FencedThread, run_id: str) -> None:
        self._journal = journal
        self._run_id = run_id

    def find(self, key: str) -> Intent | EffectRecord | None:
        """How the effect stands: open, done, or (``None``) free to be begun."""
        with self._journal.lock:
            self._journal.look_again()
            stored = (self._journal.state.get(j.OPEN) or {}).get(key)
            if stored is not None:
                return _intent(key, stored.plain())
            found = find_keyed(self._journal, key)
            if found is not None or UNREADABLE in self._journal.state:
                return found
            try:
                return find_by_id(self._journal, key)
            except StateCorruptedError as error:
                self._lost(str(error))
                return None

    def _lost(self, why: str) -> None:
        """Some records can't be read, and any of them may be the one that is looked for."""
        with self._journal.writing():
            self._journal.state["format"] = j.FORMAT
            self._journal.state[UNREADABLE] = True
            if LOSSES not in self._journal.state:
                self._journal.state[LOSSES] = lost_records(why, self._journal.now_us())

    def plan(self, key: str, name: str, fingerprint: str, attempt: int) -> Intent:
        """What is about to be begun; nothing is written yet."""
        return Intent(
            id=self._journal.new_id(),
            key=key,
            name=name,
            print=fingerprint,
            run=self._run_id,
            attempt=attempt,
            at_us=self._journal.now_us(),
        )

    def unknown(self, key: str) -> Losses | None:
        """For a key that isn't found: what was lost, if it may have been among that."""
        with self._journal.lock:
            lost = self._journal.state.get(LOSSES)
            if lost is None or key in lost.get(CLEARED, ()):
                return None
            return losses_in(self._journal.state)

    def accept_losses(self) -> bool:
        """See ``losses``. Whether there were any."""
        with self._journal.writing():
            if not accept_losses(self._journal):
                return False
            self._journal.state["format"] = j.FORMAT_WHOLE
            return True

    def _clear(self, key: str) -> None:
        """From here on it is known that this hasn't happened before."""
        lost = self._journal.state.get(LOSSES)
        if lost is not None and CLEARED in lost:
            lost[CLEARED][key] = True

    def intend(self, intent: Intent) -> None:
        stored = msgspec.to_builtins(intent)
        with self._journal.writing():
            del stored["key"]
            self._journal.state[j.OPEN][intent.key] = stored
            self._clear(intent.key)

    def done(self, intent: Intent, result: Any, by: str) -> None:
        """Raises :class:`InvalidValueError`, having written nothing, if the result can't be stored."""
        self._settle(intent, {"state": "done", "result": result, "by": by}, done_key(intent.key))

    def done_without_result(self, intent: Intent, kind: str) -> None:
        self._settle(intent, {"state": "done", "unstorable": kind, "by": "call"}, done_key(intent.key))

    def not_done(self, intent: Intent, by: str, error: str | None = None) -> None:
        with self._journal.writing():
            self.put_not_done(intent, by, error)

    def _settle(self, intent: Intent, outcome: dict[str, Any], key: str) -> None:
        with self._journal.lock:
            self._journal.look_again()
            log = self._journal.log(j.EFFECT_LOG)
            with suppress(StateCorruptedError):
                if log.find(key) is not None:
                    # Written by an attempt whose answer was lost.
                    return
            with self._journal.writing(metadata={"effect": len(log)}, key=key):
                self._put(intent, outcome, key)

    def put_not_done(self, intent: Intent, by: str, error: str | None) -> None:
        """As :meth:`not_done`, within a write of the caller's."""
        self._put(intent, {"state": "not_done", "by": by, "error": error})
        self._clear(intent.key)

    def put_failed(self, intent: Intent, error: str) -> None:
        """Its function raised, and nobody knows how far it had got. Within a write of the caller's."""
        open_ = self._journal.state[j.OPEN].get(intent.key)
        if open_ is not None:
            open_["error"] = error

    def _put(self, intent: Intent, outcome: dict[str, Any], record_id: str | None = None) -> None:
        stored = msgspec.to_builtins(intent)
        del stored["id"]
        settled = {**stored, **outcome, "settled_us": self._journal.now_us()}
        log = self._journal.log(j.EFFECT_LOG)
        # First: a result may turn out not to be storable.
        try:
            log.append(settled if record_id is None else {**settled, "id": record_id})
        except StateCorruptedError:
            # Whether an unreadable record has this id can't be told; that this happened must be written down.
            log.append(settled)
        self._journal.state[j.OPEN].pop(intent.key, None)
        lost = self._journal.state.get(LOSSES)
        if lost is not None and CLEARED in lost:
            lost[CLEARED].pop(intent.key, None)

    def require(self, key: str) -> Intent:
        """The open effect of this key, or what stands for one that may be lost. Raises
        :class:`NotFoundError` if there is neither."""
        found = self.find(key)
        if found is None and self.unknown(key) is not None:
            return self.plan(key, "", "", 0)
        if not isinstance(found, Intent):
            raise NotFoundError(f"the effect {key!r} isn't in doubt; nothing is to be settled")
        return found


def find_done(journal: Thread, key: str) -> EffectRecord | None:
    """The record of a done effect. Raises :class:`StateCorruptedError` if it can't be read, or can't be told
    from those that can't."""
    found = find_keyed(journal, key)
    return find_by_id(journal, key) if found is None and UNREADABLE not in journal.state else found


def find_by_id(journal: Thread, key: str) -> EffectRecord | None:
    """The same by the id of the record: slower for the first time, and independent of the index of keys."""
    log = journal.log(j.EFFECT_LOG)
    at = log.find(done_key(key)) if journal.head is not None else None
    return None if at is None else effect_of(log[at])


def find_keyed(journal: Thread, key: str) -> EffectRecord | None:
    """The record of a done effect, as far as the index of keys knows it."""
    if journal.head is None:
        return None
    try:
        version = j.find_keyed(journal, done_key(key))
    except KeyReusedError:
        # A journal is rewound only where it is damaged: that it was done is all that is left.
        return _without_record(key)
    if version is None:
        return None
    log, place = journal.log(j.EFFECT_LOG), version.metadata.get("effect")
    item = log[place] if type(place) is int and place < len(log) else None
    if not isinstance(item, Mapping) or item.get("key") != key:
        item = journal.at(version).log(j.EFFECT_LOG)[-1]
    if not isinstance(item, Mapping) or item.get("key") != key:
        return _without_record(key)
    return effect_of(item)


def _without_record(key: str) -> EffectRecord:
    """A done effect of which nothing else can be read any more."""
    return effect_of({"key": key, "state": "done", "unstorable": "lost", "by": None})


def done_key(key: str) -> str:
    """The commit key under which the end of an effect is recorded, and the id of its record."""
    return "done:" + sha256(key.encode()).hexdigest()


def _intent(key: str, stored: Mapping[str, Any]) -> Intent:
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


# ── calls under way in this process: one at a time for a key ────────────────────────────────────────


#: How long one waits for another before looking whether it is still there.
WAIT_S = 0.5


class Claim:
    """One call that works on a key."""

    def __init__(self) -> None:
        self.owner: tuple[int, Any] | None = None
        self.ended: Future[None] = Future()
        # So that a waiter who is cancelled doesn't cancel it for the others.
        self.ended.set_running_or_notify_cancel()
        self._plan: weakref.ref[Generator[Any, Any, Any]] | None = None

    def follow(self, plan: Generator[Any, Any, Any]) -> None:
        """The plan that this is the claim of: it is over when that is, even if an interrupt kept it from
        saying so."""
        self._plan = weakref.ref(plan)

    @property
    def over(self) -> bool:
        plan = self._plan() if self._plan is not None else None
        return self.ended.done() or plan is None or getgeneratorstate(plan) == GEN_CLOSED


class Claims:
    """The claims of a session, by key."""

    def __init__(self) -> None:
        # May be taken again by its thread: an interrupt, which only the main thread gets, may leave it taken.
        self._mutex = process.ProcessLock()
        self._held: dict[str, Claim] = {}

    def take(self, key: str, mine: Claim) -> Claim | None:
        """Claim a key; ``None`` if that worked, else the claim to wait for. Raises :class:`UsageError` if
        this very call holds it already."""
        mine.owner = _whoami()
        with self._mutex:
            other = self._held.get(key)
            if other is None or other.over:
                self._held[key] = mine
                return None
        if other.owner == mine.owner:
            raise UsageError(f"the effect {key!r} is being called from within itself")
        return other

    def drop(self, key: str, mine: Claim) -> None:
        mine.ended.set_result(None)
        with self._mutex:
            if self._held.get(key) is mine:
                del self._held[key]

    def holds(self, key: str) -> bool:
        """Whether an effect is being called just now."""
        with self._mutex:
            claim = self._held.get(key)
            return claim is not None and not claim.over


def _whoami() -> tuple[int, Any]:
    """The thread and, inside an event loop, the task."""
    task = None
    if (asyncio := sys.modules.get("asyncio")) is not None:
        with suppress(RuntimeError):
            task = asyncio.current_task()
    return threading.get_ident(), task


# ── calling a function that has an effect ───────────────────────────────────────────────────────────
# The order of things is written once, as a generator; ``call`` and ``acall`` differ in how they run the
# steps that it hands out.


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
        journal: FencedThread,
        ledger: Ledger,
        run_id: str,
        notify: Callable[[ToolUse], None],
        put_error: Callable[[BaseException, str], Any],
    ) -> None:
        self._journal = journal
        self._ledger = ledger
        self._run_id = run_id
        self._notify = notify
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
        self._notify(use)


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
