"""Legal holds: somebody's data that must not be erased for now, and why. Recorded without a name."""

from __future__ import annotations

import datetime
from collections.abc import Sequence, Set
from typing import TYPE_CHECKING, Any

import msgspec

from everthread.arguments import check_name, check_several
from everthread.codec.seal import ID_BYTES
from everthread.errors import (
    ErasedError,
    InvalidStateError,
    InvalidValueError,
    LegalHoldError,
    StateCorruptedError,
)
from everthread.stores.contract import Cell, StaleCell
from everthread.threads.sealing import PEOPLE

if TYPE_CHECKING:
    from everthread.threads.sync.core import Core

_PREFIX = "person/"
#: One name, or several.
Names = str | Sequence[str] | None
HELD, FREE, ERASING = "held", "free", "erasing"
REFUSED, RELEASED, ERASED_AROUND = "refused", "released", "erased around it"
_REASON_CHARS_MAX = 1_000
_ELSEWHERE = "placed through another store on the same keyring"
#: As many entries of the trail are kept, the newest ones and the first.
_TRAIL_MAX = 100
_PAGE = 1_000
#: So long after it began an erasure has either been noted or was given up.
_BEGUN_US = 60_000_000
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """Something that happened: when, what, and why."""

    at_us: int
    what: str
    reason: str = ""


class Scope(msgspec.Struct, frozen=True, array_like=True):
    """What a hold covers of a person, if not all: threads of a namespace whose names begin so, with all that
    is kept beside them, and values of the user store by key."""

    space: str
    threads: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()

    def covers(self, thread: str) -> bool:
        return thread.startswith(self.threads)

    def joined(self, other: Scope) -> Scope:
        threads, keys = {*self.threads, *other.threads}, {*self.keys, *other.keys}
        return Scope(self.space, tuple(sorted(threads)), tuple(sorted(keys)))

    def __str__(self) -> str:
        parts = [f"threads {prefix}…" for prefix in self.threads] + [f"the user value {k}" for k in self.keys]
        return ", ".join(parts)


class Standing(msgspec.Struct, frozen=True):
    """How it stands with one person, known by one of their keys."""

    state: str = FREE
    trail: tuple[Entry, ...] = ()
    #: By what the keyring knows the hold of this store, so that other stores on it hear of it.
    mark: bytes = b""
    #: What of theirs is held; all if there is none.
    scope: Scope | None = None

    @property
    def hold(self) -> Entry | None:
        """The hold in force."""
        if self.state != HELD:
            return None
        return next((entry for entry in reversed(self.trail) if entry.what == HELD), None)

    @property
    def refused_last(self) -> bool:
        """Whether it is held, and the last thing that happened was an erasure that was refused."""
        return self.state == HELD and self.trail[-1].what == REFUSED

    @property
    def weight(self) -> tuple[bool, int]:
        """Of several which one counts: a hold, else what happened last."""
        return self.state == HELD, self.trail[-1].at_us if self.trail else 0

    def after(self, state: str, entry: Entry) -> Standing:
        kept = (*self.trail[:1], *self.trail[1:][-_TRAIL_MAX:])
        return Standing(state, (*kept, entry), self.mark, self.scope)


class LegalHold(msgspec.Struct, frozen=True, kw_only=True):
    """A hold in force. It names nobody: ``key_id`` is that of one of the person's keys, as in reports of
    erasures. ``refused`` is how often an erasure was refused since, as far as that is kept. ``elsewhere``: it
    was placed through another store on the same keyring, which knows the reason and since when. ``threads``
    and ``keys`` are what it covers, names that threads begin with and keys of user values; without either it
    covers all of the person's values."""

    key_id: str
    reason: str = ""
    since_us: int | None = None
    refused: int = 0
    elsewhere: bool = False
    threads: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()

    @property
    def since(self) -> datetime.datetime | None:
        return None if self.since_us is None else _EPOCH + self.since_us * _MICROSECOND


class Holds:
    """The standing of persons, in one cell each, changed by compare-and-set: a hold and an erasure that come
    at the same moment can't both succeed."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def place(self, subject: str, reason: str, threads: Names = None, keys: Names = None) -> None:
        """Hold somebody's data, or some of it. Raises :class:`ErasedError` if it is being erased already."""
        scope = self._scope(threads, keys)
        if not _is_reason(reason) or not reason.strip():
            raise InvalidValueError(
                f"a legal hold needs a reason, of at most {_REASON_CHARS_MAX:,} characters", path="reason"
            )
        check_name(subject, "subject")
        # Who has no key yet gets one: a hold may come before the first value.
        self._core.vault.key_for(subject)
        key_id, _ = self._found(self._core.vault.keyring.key_ids(subject))
        noted = bool(self._core.backend.erased([key_id]))
        mark = fresh = self._core.runtime.random_bytes(ID_BYTES)

        def decide(found: Standing) -> Standing:
            nonlocal mark
            # Who began to erase may have died before anything was noted.
            begun_us = found.trail[-1].at_us if found.trail else 0
            if found.state == ERASING and (noted or self._entry(HELD).at_us - begun_us < _BEGUN_US):
                raise ErasedError("it is too late for a hold: this person is being erased")
            mark = found.mark or fresh
            covered = scope if found.state != HELD else _joined(found.scope, scope)
            held = found.after(HELD, self._entry(HELD, reason))
            return msgspec.structs.replace(held, mark=mark, scope=covered)

        self._change(key_id, decide)
        # Here first: whoever dies in between has placed a hold that others don't know of, and can release it.
        if not self._core.vault.keyring.set_hold(key_id, mark, on=True):
            raise ErasedError("it is too late for a hold: this person was erased through another store")

    def _scope(self, threads: Names, keys: Names) -> Scope | None:
        chosen = [_names(threads, "threads"), _names(keys, "keys")]
        if threads is None and keys is None:
            return None
        if not any(chosen):
            raise InvalidValueError(
                "a hold on nothing keeps nothing: name threads= or keys=, or leave both out", path="threads"
            )
        return Scope(self._core.space, *chosen)

    def release(self, subject: str, reason: str = "", *, everywhere: bool = False) -> None:
        """End the hold of this store, or of all. Raises :class:`InvalidStateError` if there is none."""
        if not _is_reason(reason):
            # It is kept for good: what can't be read back would bar the person from being erased.
            raise InvalidValueError(
                f"the reason is text of at most {_REASON_CHARS_MAX:,} characters", path="reason"
            )
        keyring = self._core.vault.keyring
        key_ids = keyring.key_ids(subject)
        (at, own), marks = self._found(key_ids), keyring.holds(key_ids)
        if own.state != HELD and not (everywhere and marks):
            others = "; there is one of another store: release it there, or everywhere" if marks else ""
            raise InvalidStateError(f"there is no legal hold of this store on this person's data{others}")

        def decide(found: Standing) -> Standing:
            freed = found.after(FREE, self._entry(RELEASED, reason))
            return msgspec.structs.replace(freed, mark=b"", scope=None)

        # There first: whoever dies in between can release it once more.
        for mark in marks if everywhere else marks & {own.mark}:
            for key_id in key_ids:
                keyring.set_hold(key_id, mark, on=False)
        # An erasure that was cut short may have left it under several keys.
        for key_id in dict.fromkeys((at, *(k for k in key_ids if self._standing(k).state == HELD))):
            self._change(key_id, decide)

    def look(self, key_ids: list[bytes]) -> Standing:
        """How it stands with whoever has these keys, here and in other stores on the same keyring."""
        _, own = self._found(key_ids)
        if own.hold is None and self._core.vault.keyring.holds(key_ids):
            return own.after(HELD, self._entry(HELD, _ELSEWHERE))
        return own

    def keeps(self, key_ids: list[bytes]) -> bool:
        """Whether a hold on whoever has these keys keeps something of theirs that has a key of its own. Once
        is enough in the record: this is asked at every open."""
        at, own = self._found(key_ids)
        if own.hold is None and not self._core.vault.keyring.holds(key_ids):
            return False
        if not own.trail or own.trail[-1].what != REFUSED:
            self._change(at, lambda found: found.after(found.state, self._entry(REFUSED)))
        return True

    def _found(self, key_ids: list[bytes]) -> tuple[bytes, Standing]:
        """Under which of somebody's keys it is kept how they stand in this store, and what that is. Any may
        be it: keys that come in with an archive stand before those that were here."""
        found = [(k, self._standing(k)) for k in key_ids]
        return max(found, key=lambda each: each[1].weight, default=(b"", Standing()))

    def _standing(self, key_id: bytes) -> Standing:
        return _read(self._core.backend.cell(PEOPLE, _name(key_id), self._core.runtime.now_us()))

    def follow(self, key_ids: list[bytes], key_id: bytes) -> None:
        """Let the hold on whoever has these keys go on under their new one."""
        _, own = self._found(key_ids)
        self._change(key_id, lambda found: own)
        self._core.vault.keyring.set_hold(key_id, own.mark, on=True)
        # The new one first: whoever dies in between has it twice, and not at all never.
        for old in key_ids:
            if self._standing(old).state == HELD:
                self._change(
                    old, lambda found: msgspec.structs.replace(found, state=FREE, mark=b"", scope=None)
                )

    def begin_erasing(self, key_ids: list[bytes], *, around: bool = False) -> Standing | None:
        """From now on it is too late for a hold. Raises :class:`LegalHoldError`; the attempt is recorded.

        With ``around`` a hold on some of their values of this namespace doesn't refuse: it is given back.
        """
        refused: list[Entry] = []
        kept: list[Standing] = []
        marks = self._core.vault.keyring.holds(key_ids)

        def decide(found: Standing) -> Standing:
            refused.clear()
            kept.clear()
            hold = self._refusing(found, marks, around=around)
            if hold is not None:
                refused.append(hold)
                return found.after(found.state, self._entry(REFUSED))
            if found.hold is not None:
                kept.append(found)
                return found.after(HELD, self._entry(ERASED_AROUND))
            return found if found.state == ERASING else found.after(ERASING, self._entry(ERASING))

        at, _ = self._found(key_ids)
        self._change(at, decide)
        for hold in refused:
            raise LegalHoldError(
                f"this person's data is under a legal hold ({hold.reason}); it isn't erased before the hold "
                "is released. The attempt was recorded",
                reason=hold.reason,
                since_us=hold.at_us,
            )
        return kept[0] if kept else None

    def refusing(self, key_ids: list[bytes]) -> Entry | None:
        """The hold for which :meth:`begin_erasing` would refuse an erasure of a person. Changes nothing."""
        _, own = self._found(key_ids)
        return self._refusing(own, self._core.vault.keyring.holds(key_ids), around=True)

    def _refusing(self, own: Standing, marks: Set[bytes], *, around: bool) -> Entry | None:
        """The hold that refuses, of this store or of another one that the keyring has a mark of."""
        hold, scope = own.hold, own.scope
        if hold is not None and not (around and scope is not None and scope.space == self._core.space):
            return hold
        others = marks if hold is None else marks - {own.mark}
        return self._entry(HELD, _ELSEWHERE) if others else None

    def standings(self) -> list[tuple[bytes, Standing]]:
        """Whoever is held, by one of their keys."""
        return [(bytes.fromhex(n.removeprefix(_PREFIX)), _decoded(value)) for n, value in self.in_force()]

    def all(self, subject: str | None = None) -> list[LegalHold]:
        """The holds in force, those of this store first, the oldest first; of one person, or of all."""
        keyring = self._core.vault.keyring
        wanted = None if subject is None else set(keyring.key_ids(check_name(subject, "subject")))
        own: list[LegalHold] = []
        marks: set[bytes] = set()
        for key_id, standing in self.standings():
            marks.add(standing.mark)
            hold = standing.hold
            if hold is None or (wanted is not None and key_id not in wanted):
                continue
            refused = sum(e.what == REFUSED and e.at_us >= hold.at_us for e in standing.trail)
            scope = standing.scope or Scope("")
            told = LegalHold(
                key_id=key_id.hex(),
                reason=hold.reason,
                since_us=hold.at_us,
                refused=refused,
                threads=scope.threads,
                keys=scope.keys,
            )
            own.append(told)
        keys = keyring.held() if wanted is None else wanted
        # One look at all of them first: mostly no other store holds anybody.
        others = [
            LegalHold(key_id=key_id.hex(), elsewhere=True)
            for key_id in (sorted(keys) if keyring.holds(keys) - marks else ())
            if keyring.holds([key_id]) - marks
        ]
        return [*sorted(own, key=lambda each: each.since_us or 0), *others]

    def in_force(self) -> list[tuple[str, bytes]]:
        """The cells of all holds, to be put back after a backup was restored."""
        found: list[tuple[str, bytes]] = []
        after: str | None = None
        while page := self._core.backend.cells(PEOPLE, _PREFIX, after, _PAGE):
            found += [(name, cell.value) for name, cell in page if _read(cell).state == HELD]
            after = page[-1][0]
        return found

    def put_back(self, holds: list[tuple[str, bytes]]) -> None:
        """Holds that were in force before a backup was restored are in force after it."""
        for name, value in holds:
            self._swap(name, lambda _, kept=value: kept)

    def _change(self, key_id: bytes, decide: Any) -> None:
        self._swap(_name(key_id), lambda cell: msgspec.msgpack.encode(decide(_read(cell))))

    def _swap(self, name: str, value_of: Any) -> None:
        backend, now_us = self._core.backend, self._core.runtime.now_us()
        cell = backend.cell(PEOPLE, name, now_us)
        while True:
            value = value_of(cell)
            if cell is not None and cell.value == value:
                return
            try:
                backend.swap(PEOPLE, name, cell.revision if cell is not None else 0, value, now_us)
                return
            except StaleCell as stale:
                cell = stale.actual

    def _entry(self, what: str, reason: str = "") -> Entry:
        return Entry(self._core.runtime.now_us(), what, reason)


def _names(given: Names, what: str) -> tuple[str, ...]:
    """The names in an argument that is one, several, or none."""
    several = [given] if isinstance(given, str) else [] if given is None else given
    check_several(several, what, "names")
    return tuple(sorted({check_name(each, what) for each in several}))


def _joined(known: Scope | None, more: Scope | None) -> Scope | None:
    """What two holds cover together."""
    if known is None or more is None:
        return None
    if known.space != more.space:
        raise InvalidStateError(
            f"values of this person in the namespace {known.space!r} are held already; release that "
            "hold first, or hold all of the person's values"
        )
    return known.joined(more)


def _name(key_id: bytes) -> str:
    return _PREFIX + key_id.hex()


def _is_reason(reason: object) -> bool:
    """Whether it is text that can be kept: without lone surrogates, too."""
    if not isinstance(reason, str) or len(reason) > _REASON_CHARS_MAX:
        return False
    return reason.encode("utf-8", "replace").decode() == reason


def _read(cell: Cell | None) -> Standing:
    return Standing() if cell is None else _decoded(cell.value)


def _decoded(value: bytes) -> Standing:
    try:
        return msgspec.msgpack.decode(value, type=Standing)
    except msgspec.MsgspecError as error:
        raise StateCorruptedError(
            "what is known of a legal hold on this person's data is damaged; nothing was erased", where=PEOPLE
        ) from error
