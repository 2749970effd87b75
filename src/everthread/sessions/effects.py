"""The effect ledger: what was done to the world, once per key.

An effect is written down before it is begun and after it ended. A key whose effect ended well is found in
the index of commit keys, however many there are; what isn't settled stands in the journal's document, and
there are never many of those.

That a key isn't in that index isn't believed alone: an entry of it may be damaged. The record of a done
effect has an id that follows from its key, so the fingerprints of the log must not know it either. These are
complete, or known not to be.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from everthread.codec.values import encode, lower
from everthread.errors import InvalidValueError, KeyReusedError, NotFoundError, StateCorruptedError
from everthread.limits import DEFAULT_LIMITS
from everthread.sessions import journal as j
from everthread.sessions.entries import EffectRecord, effect_of
from everthread.sessions.losses import (
    CLEARED,
    LOSSES,
    UNREADABLE,
    Losses,
    accept,
    losses_in,
    lost_records,
)
from everthread.values import Erased, Personal, Tagged

if TYPE_CHECKING:
    from everthread.sessions.held import HeldThread
    from everthread.threads.sync.thread import Thread


#: Parts of the arguments that the fingerprint of a call looks at, and how deep.
_TOLD_MAX, _DEPTH_MAX = 10_000, 50


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

    def __init__(self, journal: HeldThread, run_id: str) -> None:
        self._journal = journal
        self._run_id = run_id

    def find(self, key: str) -> Intent | EffectRecord | None:
        """How the effect stands: open, done, or (``None``) free to be begun."""
        with self._journal.lock:
            self._journal.look_again()
            stored = self._journal.state[j.OPEN].get(key)
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
            if not accept(self._journal):
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
    told = _Teller().tell([bound, list(args), dict(kwargs)])
    return sha256(encode(told, DEFAULT_LIMITS)).hexdigest()[:32]


class _Teller:
    """Values as the fingerprint sees them: in one order, lowered, sealed parts left out, of bounded size."""

    def __init__(self) -> None:
        self._left = _TOLD_MAX

    def tell(self, value: Any, depth: int = 0) -> Any:
        self._left -= 1
        if self._left < 0 or depth > _DEPTH_MAX:
            return "more"
        if isinstance(value, Personal | Erased):
            return "personal"
        if isinstance(value, Mapping):
            some = islice(value.items(), _TOLD_MAX)
            pairs = [[self.tell(key, depth + 1), self.tell(item, depth + 1)] for key, item in some]
            return sorted(pairs, key=lambda pair: encode(pair[0], DEFAULT_LIMITS))
        if isinstance(value, list | tuple):
            return [self.tell(item, depth + 1) for item in islice(value, _TOLD_MAX)]
        try:
            return lower(value, limits=DEFAULT_LIMITS, seal=_left_out, root="argument")
        except InvalidValueError:
            return f"a {type(value).__qualname__}"


def _left_out(personal: Personal) -> Tagged:
    raise InvalidValueError("a personal value counts by its type alone")
