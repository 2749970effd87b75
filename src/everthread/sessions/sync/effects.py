# Generated from src/everthread/sessions/aio/effects.py by tools/twin.py: change that, then run: make twin
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
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from itertools import count
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from everthread import process
from everthread.errors import (
    ConflictError,
    EffectMismatchError,
    EverthreadError,
    InDoubtError,
    InvalidValueError,
    KeyReusedError,
    NotFoundError,
    StateCorruptedError,
    UsageError,
)
from everthread.sessions import journal as j
from everthread.sessions.effects import (
    Call,
    Done,
    Intent,
    ToolUse,
    calling,
    denied_in,
    done_key,
    intent_of,
    make_call,
    may_be_called_now,
    not_stored,
    without_record,
)
from everthread.sessions.journal import CLEARED, UNREADABLE, Losses, losses_in
from everthread.sessions.locks import Signal
from everthread.sessions.records import EffectRecord, effect_of, moment
from everthread.sessions.sync import journal as journals
from everthread.sessions.sync.journal import accept_loss
from everthread.threads.sync.journals import LOSSES, lost_records

if TYPE_CHECKING:
    from everthread.sessions.sync.fenced_thread import FencedThread
    from everthread.threads.sync.thread import Thread


class OvertakenError(Exception):
    """Another process has settled the effect meanwhile, or begun it anew: look again."""


class Ledger:
    """The ledger of one run: every writing call is durable when it returns. ``shared``: other processes
    write to it at the same time."""

    def __init__(self, journal: FencedThread, run_id: str, shared: bool = False, execution: str = "") -> None:
        self._journal = journal
        self._run_id = run_id
        self._shared = shared
        #: The execution of a workflow that the run belongs to.
        self.execution = execution

    def find(self, key: str) -> Intent | EffectRecord | None:
        """How the effect stands: open, done, or (``None``) free to be begun."""
        with self._journal.mutex:
            self._journal.look_again()
            if self._shared:
                self._journal.refresh()
            stored = (self._journal.state.get(j.OPEN) or {}).get(key)
            if stored is not None:
                return intent_of(key, stored.plain())
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

    def plan(
        self, key: str, name: str, fingerprint: str, attempt: int, step: tuple[str, int] | None = None
    ) -> Intent:
        """What is about to be begun; nothing is written yet."""
        return Intent(
            id=self._journal.new_id(),
            key=key,
            name=name,
            print=fingerprint,
            run=self._run_id,
            attempt=attempt,
            at_us=self._journal.now_us(),
            place=process.here() if self._shared else None,
            step=step,
            execution=self.execution or None,
        )

    def unknown(self, key: str) -> Losses | None:
        """For a key that isn't found: what was lost, if it may have been among that."""
        with self._journal.mutex:
            lost = self._journal.state.get(LOSSES)
            if lost is None or key in lost.get(CLEARED, ()):
                return None
            return losses_in(self._journal.state)

    def accept_loss(self) -> bool:
        """See ``losses``. Whether there were any."""
        with self._journal.writing():
            if not accept_loss(self._journal):
                return False
            self._journal.state["format"] = j.FORMAT_WHOLE
            return True

    def _clear(self, key: str) -> None:
        """From here on it is known that this hasn't happened before."""
        lost = self._journal.state.get(LOSSES)
        if lost is not None and CLEARED in lost:
            lost[CLEARED][key] = True

    def intend(self, intent: Intent) -> None:
        """Raises :class:`OvertakenError`, having written nothing, if anybody has written to the journal since
        the key was looked for: that may have been about this key."""
        stored = _stored(intent)
        try:
            with self._journal.writing(rebases=False):
                del stored["key"]
                self._journal.state[j.OPEN][intent.key] = stored
                self._clear(intent.key)
        except ConflictError:
            raise OvertakenError from None

    def done(self, intent: Intent, result: Any, by: str) -> None:
        """Raises :class:`InvalidValueError`, having written nothing, if the result can't be stored."""
        self._settle(intent, {"state": "done", "result": result, "by": by}, done_key(intent.key))

    def done_without_result(self, intent: Intent, kind: str) -> None:
        self._settle(intent, {"state": "done", "unstorable": kind, "by": "call"}, done_key(intent.key))

    def not_done(self, intent: Intent, by: str, error: str | None = None) -> None:
        """Raises :class:`OvertakenError` if it isn't this intent any more that is open."""

        def change() -> None:
            if intent.attempt and not self.is_open(intent):
                raise OvertakenError
            self.put_not_done(intent, by, error)

        self._journal.write_anew(change)

    def is_open(self, intent: Intent) -> bool:
        """Whether this very intent is the open one of its key, as the journal is at hand."""
        stored = (self._journal.state.get(j.OPEN) or {}).get(intent.key)
        return stored is not None and bool(stored["id"] == intent.id)

    def _settle(self, intent: Intent, outcome: dict[str, Any], key: str) -> None:
        with self._journal.mutex:
            self._journal.look_again()
            log = self._journal.log(j.EFFECT_LOG)
            record_id: str | None = key
            try:
                if log.find(key) is not None:
                    # Written by an attempt whose answer was lost, or by somebody else who was first.
                    if self.is_open(intent):
                        with self._journal.writing():
                            self._journal.state[j.OPEN].pop(intent.key, None)
                    return
            except StateCorruptedError:
                # Whether an unreadable record has this id can't be told; that this happened must be written
                # down.
                record_id = None
            with self._journal.writing(metadata={"effect": len(log)}, key=key):
                self._put(intent, outcome, record_id)

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
        stored = _stored(intent)
        del stored["id"]
        stored.pop("place", None)
        stored.pop("step", None)
        settled = {**stored, **outcome, "settled_us": self._journal.now_us()}
        log = self._journal.log(j.EFFECT_LOG)
        # First: a result may turn out not to be storable.
        log.append(settled if record_id is None else {**settled, "id": record_id})
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


def _stored(intent: Intent) -> dict[str, Any]:
    """What is written of an intent. Only in a run that is shared it matters who calls it."""
    stored: dict[str, Any] = msgspec.to_builtins(intent)
    for part in ("place", "step", "execution"):
        if stored[part] is None:
            del stored[part]
    return stored


def find_done(journal: Thread, key: str) -> EffectRecord | None:
    """The record of a done effect. Raises :class:`StateCorruptedError` if it can't be read, or can't be told
    from those that can't."""
    found = find_keyed(journal, key)
    return find_by_id(journal, key) if found is None and UNREADABLE not in journal.state else found


def find_by_id(journal: Thread, key: str) -> EffectRecord | None:
    """The same by the id of the record: slower for the first time, and independent of the index of keys."""
    log = journal.log(j.EFFECT_LOG)
    at = log.find(done_key(key)) if journal.head is not None else None
    return None if at is None else effect_of((log.read(at, at + 1))[0])


def find_keyed(journal: Thread, key: str) -> EffectRecord | None:
    """The record of a done effect, as far as the index of keys knows it."""
    if journal.head is None:
        return None
    try:
        version = journals.find_keyed(journal, done_key(key))
    except KeyReusedError:
        # A journal is rewound only where it is damaged: that it was done is all that is left.
        return without_record(key)
    if version is None:
        return None
    log, place = journal.log(j.EFFECT_LOG), version.metadata.get("effect")
    item = (log.read(place, place + 1))[0] if type(place) is int and place < len(log) else None
    if not isinstance(item, Mapping) or item.get("key") != key:
        (item,) = (journal.at(version)).log(j.EFFECT_LOG).read(-1)
    if not isinstance(item, Mapping) or item.get("key") != key:
        return without_record(key)
    return effect_of(item)


# ── calls under way in this process: one at a time for a key ────────────────────────────────────────


#: How long one waits for another before looking whether it is still there.
WAIT_S = 0.5
_numbers = count()
#: The claims within which this code runs: a thread's or, with those of whoever began it, a task's.
_within: ContextVar[tuple[int, ...]] = ContextVar("within", default=())


class Claim:
    """One call that works on a key. Over when nobody refers to it any more, even if an interrupt kept it from
    saying so."""

    def __init__(self) -> None:
        self.number = next(_numbers)
        self.ended = Signal()


class Claims:
    """The claims of a session, by key."""

    def __init__(self) -> None:
        # May be taken again by its thread: an interrupt, which only the main thread gets, may leave it taken.
        self._mutex = process.ProcessLock()
        # Only the call itself holds its claim.
        self._held: weakref.WeakValueDictionary[str, Claim] = weakref.WeakValueDictionary()

    def take(self, key: str, mine: Claim) -> Signal | None:
        """Claim a key; ``None`` if that worked, else what to wait for. Raises :class:`UsageError` if this
        very call holds it already."""
        with self._mutex:
            other = self._held.get(key)
            if other is None:
                self._held[key] = mine
                return None
        if other.number in _within.get():
            raise UsageError(f"the effect {key!r} is being called from within itself")
        return other.ended

    def drop(self, key: str, mine: Claim) -> None:
        with self._mutex:
            if self._held.get(key) is mine:
                del self._held[key]
        mine.ended.give()

    def holds(self, key: str) -> bool:
        """Whether an effect is being called just now."""
        with self._mutex:
            return key in self._held


# ── calling a function that has an effect ───────────────────────────────────────────────────────────


class Caller:
    """Carries calls out against the ledger of a run."""

    def __init__(
        self,
        journal: FencedThread,
        ledger: Ledger,
        run_id: str,
        notify: Callable[[ToolUse], None],
        put_error: Callable[[BaseException, str], Any],
        *,
        ttl_us: int | None = None,
        denied: str | None = None,
        on_skip: Callable[[EffectRecord], None] | None = None,
    ) -> None:
        """``ttl_us`` is the lease's, for a run that several processes share; ``denied`` the name of a thread
        in which no effects are to be made, the session's own or that of a parent; ``on_skip`` is called with
        an effect that another execution of the workflow made, before its result is returned."""
        self._on_skip = on_skip
        self._ttl_us = ttl_us
        self.denied = denied
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

    def call(self, call: Call) -> Any:
        """Find out how the effect stands, settle what is in doubt, run it if it hasn't happened."""
        claim = Claim()
        while (other := self._claims.take(call.key, claim)) is not None:
            other.wait(WAIT_S)
        outside = _within.set((*_within.get(), claim.number))
        try:
            self._record_left_over(call.key)
            attempt, told = 1, False
            while True:
                try:
                    return self._claimed(call, attempt, told)
                except OvertakenError as overtaken:
                    # Whoever it was: how the effect stands now is found out again.
                    attempt, told = overtaken.args or (attempt, told)
        finally:
            self._claims.drop(call.key, claim)
            _within.reset(outside)

    def call_effect(
        self,
        key: str,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        verify: Callable[..., Any] | None,
        retry_on: Any,
        step: tuple[str, int],
    ) -> Any:
        """For a step: ``step`` is its text and attempt."""
        return self.call(make_call(key, fn, args, kwargs, verify, retry_on, step))

    def _claimed(self, call: Call, attempt: int, told: bool) -> Any:
        """``told``: the hooks know of it already. Raises :class:`OvertakenError`."""
        found = self._ledger.find(call.key)
        if isinstance(found, EffectRecord):
            self._compare(call, found)
            # What this process remembers isn't an answer if the store doesn't know it any more.
            self._journal.require_lease()
            if self._on_skip is not None and found.execution not in ("", self._ledger.execution):
                self._on_skip(found)
            return self._recorded(found)
        if self.denied is not None:
            raise denied_in(self.denied, call.key)
        if isinstance(found, Intent):
            self._compare(call, found)
            if found.id in self._unstarted:
                self._use(call, "pre")
                self._unstarted.discard(found.id)
                return self._run(call, found)
            self._require_nobody_calling(call, found)
            answer = self._verify(call, found)
            if answer is not False:
                return answer.result
            attempt = found.attempt + 1
        elif (lost := self._ledger.unknown(call.key)) is not None:
            missing = self._ledger.plan(call.key, call.name, call.print, 0)
            answer = self._verify(call, missing, lost)
            if answer is not False:
                return answer.result
        if not told:
            # Before it is written down: a hook that fails or refuses leaves nothing in doubt.
            self._use(call, "pre")
        intent = self._ledger.plan(call.key, call.name, call.print, attempt, call.step)
        calling.add(intent.id)
        try:
            self._intend(intent)
            return self._run(call, intent)
        finally:
            calling.discard(intent.id)

    def _require_nobody_calling(self, call: Call, intent: Intent) -> None:
        """In a run that several processes share: raise :class:`InDoubtError` if one of them may be in the
        middle of this. A later attempt of the step that began it knows that it isn't."""
        if self._ttl_us is None or intent.run != self._run_id or intent.place is None:
            return
        if call.step and intent.step and intent.step[0] == call.step[0] and intent.step[1] < call.step[1]:
            return
        if may_be_called_now(intent, self._journal.now_us(), self._ttl_us):
            who = f"is being called by process {intent.place.pid} on {intent.place.host} now"
            raise InDoubtError(
                f"the effect {intent.key!r} ({intent.name}) {who}; it was not called here: ask again later",
                key=intent.key,
                reason=who,
                since=moment(intent.at_us),
            )

    def _verify(self, call: Call, intent: Intent, lost: Losses | None = None) -> Done | Literal[False]:
        """Settle an effect that is in doubt, or raise :class:`InDoubtError`."""
        if call.verify is None:
            raise self._in_doubt(intent, "and there is no verify to ask", lost)
        try:
            answer = call.verify(*call.args, **call.kwargs)
        except Exception as error:
            raise self._in_doubt(intent, f"and verify raised {type(error).__name__}", lost) from error
        if answer is None:
            raise self._in_doubt(intent, "and verify could not tell", lost)
        return settle(self._ledger, intent, answer, "verify")

    def _run(self, call: Call, intent: Intent) -> Any:
        try:
            result = call.fn(*call.args, **call.kwargs)
        except BaseException as error:
            self._failed(call, intent, error)
            raise
        if inspect.iscoroutine(result):
            # It was made, and nothing of it has run.
            result.close()
            with suppress(OvertakenError):
                self._ledger.not_done(intent, "call", "not awaited")
            raise UsageError(
                f"{call.name} is an async function, and nothing here awaits it; "
                "a session of an async store does: everthread.open_async()"
            )
        self._unrecorded[call.key] = (intent, result)
        self._record_left_over(call.key)
        self._use(call, "post", result=result)
        return result

    # ── writing down ─────────────────────────────────────────────────────────────────────────

    def _intend(self, intent: Intent) -> None:
        # Until it is acknowledged: it may be written all the same, and this process knows that nothing ran.
        self._unstarted.add(intent.id)
        try:
            self._ledger.intend(intent)
        except OvertakenError:
            self._unstarted.discard(intent.id)
            raise OvertakenError(intent.attempt, True) from None
        self._unstarted.discard(intent.id)

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
            raise not_stored(key, kind, result) from refused

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

        def change() -> None:
            if self._ledger.is_open(intent):
                if isinstance(error, call.retry_on):
                    self._ledger.put_not_done(intent, "call", kind)
                else:
                    self._ledger.put_failed(intent, kind)
            self._put_error(error, f"effect {call.key}")

        try:
            self._journal.write_anew(change)
        except EverthreadError as unrecorded:
            error.add_note(f"that {call.name} raised could not be recorded: {unrecorded}")
        self._use(call, "failure", error=error)

    # ── answers ──────────────────────────────────────────────────────────────────────────────

    def _recorded(self, found: EffectRecord) -> Any:
        if not found.stored:
            raise not_stored(found.key, "the type it had", None)
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
        say = f"session.settle({intent.key!r}, True, Done(result) or False)"
        if lost is not None:
            return InDoubtError(
                f"whether the effect {intent.key!r} ({intent.name}) has happened isn't known: {lost}, {why}. "
                f"It was not called; look, then {say}, or session.accept_loss() once nothing that is missing "
                "can be called again",
                key=intent.key,
                reason=f"{lost}, {why}",
                since=lost.since,
            )
        began = "in this run" if intent.run == self._run_id else f"in run {intent.run}"
        how = f"raised {intent.error}" if intent.error else "was begun and never ended"
        return InDoubtError(
            f"whether the effect {intent.key!r} ({intent.name}) has happened isn't known: it {how} {began}, "
            f"{why}. It was not repeated; look, then {say}",
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
