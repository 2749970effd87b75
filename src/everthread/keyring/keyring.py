"""Keyrings: where the keys of subjects live, outside every store, its backups and its exports.

The records of a keyring (:mod:`everthread.keyring.format`) are kept by a *medium*: a file, or the cells of a
store of its own. ``docs/internals/sealing.md`` tells the order of writes that makes it safe against crashes.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import urllib.parse
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self, TypeVar

from everthread.arguments import KEYRINGS, check_keyring, check_name
from everthread.codec.seal import ID_BYTES, KEY_BYTES, RandomBytes, SubjectKey
from everthread.errors import KeyringError, StoreClosedError, UnsupportedError
from everthread.keyring.file import FileMedium
from everthread.keyring.format import (
    TOKEN_KEY_PURPOSE,
    HoldRecord,
    KeyRecord,
    KeyringState,
    MasterSource,
    Record,
    UntilRecord,
    Wrapping,
    encode_record,
    key_record,
    next_header,
    store_record,
)
from everthread.keyring.master import MASTER_KEY_VARIABLE, InTheClear, MasterKeeper, MasterKey
from everthread.keyring.parcel import KeyParcel
from everthread.keyring.store import Outdated, StoreMedium
from everthread.stores.contract import Residues
from everthread.stores.urls import KEYRING_VARIABLE, chosen_keyring, kind_of, sqlite_url
from everthread.type_names import type_names

if TYPE_CHECKING:
    from everthread.keyring.backup import KeyringBackup, KeyringContent, KeyringRestored
else:
    _HOMES = {
        "everthread.keyring.backup": "KeyringBackup KeyringContent KeyringRestored",
    }
    globals().update(type_names(_HOMES))


__all__ = [
    "MASTER_KEY_VARIABLE",
    "Captured",
    "Destroyed",
    "FileKeyring",
    "Keyring",
    "MasterKey",
    "MemoryKeyring",
    "StoreKeyring",
    "open_keyring",
]

_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]*://"
#: The kinds of stores whose cells can hold a keyring.
_STORES = ("sqlite", "postgres", "valkey")
_MADE = (
    "the keys of personal values are kept in %s, which was made just now; whoever loses it loses these "
    "values, and no copy of a store holds it: everthread keyring backup FILE makes a copy"
)
#: Each attempt is refused only because somebody else's change came in between.
_ATTEMPTS_MAX = 100

#: What tells the time, in microseconds since 1970; asked only where keys have a time.
Clock = Callable[[], int]
T = TypeVar("T")


def dawn() -> int:
    """A time at which no time is over."""
    return 0


class Captured(NamedTuple):
    """What an erasure notes of keys before it destroys them."""

    #: What stands for the keys, byte for byte, where the keyring is kept.
    traces: list[bytes]
    #: Those of the keys that were destroyed before.
    destroyed: frozenset[bytes]
    #: How many keys are alive in all.
    alive: int


class Destroyed(NamedTuple):
    """What came of destroying keys."""

    #: Those that were alive.
    key_ids: list[bytes]
    #: How many keys are alive now.
    survivors: int
    #: Whether older copies of the records are useless now: the master key was a file, and is another one.
    master_rotated: bool


class Medium(Protocol):
    """Where the records are. Raises :class:`KeyringError`, or :class:`OSError`, which becomes one, and
    :class:`Outdated` if somebody else has changed them since they were read: the caller begins again.

    ``look`` is asked before every use and must be quick. Whoever reads or writes does so within ``held``.
    """

    where: str
    #: The kind of store that could be in the same place, as :func:`everthread.stores.urls.kind_of`.
    kind: str
    #: For this long after the last look a key may seal without another one: the commit looks again.
    trust_s: float

    def look(self) -> tuple[object, int] | None:
        """Which records there are, another value after each :meth:`replace`, and how many bytes they have;
        ``None`` if there never were any."""

    def held(self, *, exclusive: bool = False) -> AbstractContextManager[None]:
        """Nobody else writes meanwhile; ``exclusive``: nor reads. Within itself it does nothing. A medium
        that raises :class:`Outdated` needs no lock."""

    def read(self, offset: int) -> bytes:
        """The records from ``offset`` on."""

    def append(self, records: bytes, end: int) -> None:
        """Put records at ``end``, durably. Bytes that are there already were never promised to anybody."""

    def replace(self, records: Sequence[bytes]) -> None:
        """Put other records in the place of all, durably and at once."""

    def wipe(self) -> None:
        """Get rid of the bytes of records that were replaced, also of those that a crash has left."""

    def make_durable(self, end: int) -> None:
        """Make what was read up to ``end`` last: whoever wrote it may have died before doing so."""

    def create(self) -> None:
        """Make the place for records that don't exist yet."""

    def identity(self) -> str | None:
        """What tells this place from all others, as :meth:`Backend.identity`; ``None`` if it isn't there."""

    def residues(self, needles: Sequence[bytes]) -> Residues:
        """Look for byte strings in everything that is kept there."""

    def forget(self) -> None:
        """Drop what is remembered of the records."""

    def close(self) -> None:
        """Let go of what is open."""


class Keyring:
    """The live keys of each subject, shared by any number of threads and processes.

    Nothing is created before the first key. Every method raises :class:`KeyringError` for a missing or wrong
    master key, damage, an I/O error, or modes that let others in, :class:`SchemaVersionError` for a newer
    format, :class:`StoreBusyError` if another process keeps it locked for too long, and
    :class:`StoreClosedError` after ``close``, or in a child that was forked.
    """

    def __init__(self, medium: Medium, masters: MasterKeeper, random_bytes: RandomBytes) -> None:
        self._medium = medium
        self._masters = masters
        self._random_source = random_bytes
        self._mutex = threading.RLock()
        self._process = os.getpid()
        self._closed = False
        self._state: KeyringState | None = None
        #: When the medium was last found unchanged.
        self._looked_s = 0.0
        #: The stores that use this keyring, by identity: none of them may be where it is kept.
        self._users: dict[str, str] = {}
        #: Whether to say so when it is made: nobody has chosen the place of the one at home.
        self.tells_when_made = False

    @property
    def where(self) -> str:
        """What to call it in reports."""
        return self._medium.where

    @property
    def place(self) -> str:
        """What to name it by: what ``keyring=`` takes, but for passwords."""
        return self._medium.where

    def check(self) -> None:
        """Raise what keeps its keys from being used, such as a wrong master key. Makes no keyring."""
        with self._entered():
            self._unlocked()

    def keep_apart(self, url: str, identity: Callable[[], str]) -> None:
        """Note a store that uses this keyring. Raises :class:`KeyringError` if the keyring is kept in the
        very same place: a copy of one would hold the other. Asks for the ``identity`` of the store only if it
        is of the same kind."""
        if kind_of(url) == self._medium.kind:
            with self._entered():
                users = {**self._users, identity(): url}
                self._check_apart(users)
                self._users = users

    def _check_apart(self, users: Mapping[str, str]) -> None:
        if users and (url := users.get(self._medium.identity() or "")) is not None:
            raise KeyringError(
                f"the keyring {self.where} is kept in the same place as the store {url} that uses it, so a "
                "copy of one would hold the other. Give the keyring a directory or a database of its own; "
                "nothing was written"
            )

    # Questions about keys

    @property
    def epoch(self) -> int:
        """Grows whenever any process destroys or re-wraps keys. 0 while there is no keyring. Needs no master
        key."""
        with self._entered():
            state = self._current()
            return 0 if state is None else state.table.header.epoch

    @property
    def rotates_master(self) -> bool:
        """Whether the master key is a file, which ``destroy`` replaces.

        If not, whoever holds an older copy of the records and the same master key can read destroyed keys.
        """
        with self._entered():
            return self._source(self._current()) == "file"

    def key_for(self, subject: str, now_us: Clock = dawn) -> SubjectKey:
        """The key that seals for ``subject``, created on first use and durable when this returns. A key whose
        time is over by ``now_us`` seals nothing more: a new one takes its place, without a time."""
        state = self._state
        if (
            state is not None
            and (key := state.sealing.get(subject)) is not None
            and not self._closed
            and (monotonic() - self._looked_s < self._medium.trust_s or self._is_current(state))
        ):
            return key
        check_name(subject, "subject")
        with self._entered():
            state = self._retried(self._durable_or_none)
            live = [] if state is None else list(state.live_ids(subject))
            if state is None or not live or state.table.is_over(live[-1], now_us()):
                state = self._create_key(subject, besides=live)
            key = state.key(state.live_ids(subject)[-1])
            if not state.table.until.get(key.key_id):
                # A key with a time is looked up each time: it may be over.
                state.sealing[subject] = key
            return key

    def key_ids(self, subject: str) -> list[bytes]:
        """The ids of the live keys of ``subject``: those that came from other keyrings, then its own, the
        oldest first; creates none."""
        check_name(subject, "subject")
        with self._entered():
            state = self._unlocked()
            return [] if state is None else list(state.live_ids(subject))

    def key(self, key_id: bytes) -> SubjectKey | None:
        """The key with this id, or ``None`` if it is unknown here or destroyed."""
        with self._entered():
            state = self._current()
            if state is not None and not state.master and key_id in state.table.entries:
                state = self._unlocked()
            return state.key(key_id) if state is not None and key_id in state.table.entries else None

    def is_destroyed(self, key_id: bytes) -> bool:
        """Whether a key with this id was here and has been destroyed. Needs no master key."""
        return self.is_closed(key_id, dawn)

    def is_closed(self, key_id: bytes, now_us: Clock) -> bool:
        """Whether it was destroyed, or its time is over by ``now_us``. Needs no master key. A commit that
        seals asks this: one look at the medium shows whatever other processes have changed."""
        state = self._state
        # Without the mutex: a state in memory holds as long as the medium hasn't changed.
        if state is None or self._closed or not self._is_current(state):
            with self._entered():
                state = self._current()
            if state is None:
                return False
        table = state.table
        return key_id in table.destroyed or (bool(table.until) and table.is_over(key_id, now_us()))

    def destroyed(self) -> frozenset[bytes]:
        """The ids of all keys that were destroyed here. Needs no master key."""
        with self._entered():
            state = self._current()
            return frozenset() if state is None else frozenset(state.table.destroyed)

    def alive(self) -> int:
        """How many keys are alive. Needs no master key."""
        with self._entered():
            state = self._current()
            return 0 if state is None else len(state.table.entries)

    def held(self) -> frozenset[bytes]:
        """The ids of all keys that are or were here: alive, or destroyed. Needs no master key."""
        with self._entered():
            state = self._current()
            return frozenset() if state is None else frozenset((*state.table.entries, *state.table.destroyed))

    def token(self, subject: str) -> bytes:
        """What stands for ``subject`` where its name must not; only the keyring can tell whose it is. Makes a
        keyring if there is none."""
        check_name(subject, "subject")
        with self._entered():
            return (self._unlocked() or self._change(lambda state: ())).token(subject)

    def sign(self, message: bytes) -> tuple[bytes, bytes]:
        """The public key of this keyring (Ed25519), and its signature of ``message``."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        with self._entered():
            state = self._unlocked() or self._change(lambda state: ())
            private = Ed25519PrivateKey.from_private_bytes(state.signing_key())
            return private.public_key().public_bytes_raw(), private.sign(message)

    # Making and destroying keys

    def rotate(self, subject: str) -> bytes:
        """Make a new key for what is sealed from now on, with the time that the one before has; the older
        ones go on opening what they sealed. Returns its id."""
        check_name(subject, "subject")
        with self._entered():
            before = self.key_ids(subject)
            until_us = self.times().get(before[-1], 0) if before else 0
            return self._create_key(subject, besides=before, until_us=until_us).live_ids(subject)[-1]

    def rotate_master(self) -> None:
        """Wrap all keys anew, under a fresh master key, or under the one that the environment holds now."""
        with self._entered():
            self._retried(lambda: self._rewrite_existing(lambda state: (), always=True))

    def destroy(self, subject: str) -> list[bytes]:
        """Destroy every key of ``subject`` and return their ids; durable when it returns.

        The survivors are wrapped anew, under a fresh master key unless that comes from the environment. The
        link between subject and ids is gone afterwards: whoever needs the ids even if this process dies
        meanwhile asks for ``key_ids`` first. If it raises, call it again.
        """
        check_name(subject, "subject")
        with self._entered():
            return self._retried(lambda: self._rewrite_existing(lambda state: list(state.live_ids(subject))))

    def destroy_keys(self, key_ids: Collection[bytes]) -> list[bytes]:
        """The same for keys by id; returns those that were alive. The others, too, never come to be again."""
        with self._entered():
            return self._retried(lambda: self._rewrite_existing(lambda state: key_ids))

    # What an erasure needs, each in one call

    def capture(self, key_ids: Collection[bytes]) -> Captured:
        """What to note of keys that are about to be destroyed. Needs no master key."""
        with self._entered():
            return Captured(self.traces(key_ids), self.destroyed() & frozenset(key_ids), self.alive())

    def erase(self, key_ids: Collection[bytes]) -> Destroyed:
        """Destroy keys by id, as :meth:`destroy_keys`, and say what came of it."""
        with self._entered():
            return Destroyed(self.destroy_keys(key_ids), self.alive(), self.rotates_master)

    def traces(self, key_ids: Collection[bytes]) -> list[bytes]:
        """What stands for these keys where the keyring is kept: wrapped keys and tokens, as written."""
        with self._entered():
            state = self._current()
            found = [] if state is None else [state.table.entries.get(key_id) for key_id in key_ids]
            parts = (part.hex().encode() for entry in found if entry is not None for part in entry)
            return list(dict.fromkeys(parts))

    def residues(self, needles: Sequence[bytes]) -> Residues:
        """Look for byte strings in everything that is kept there, but for tokens of who has come back."""
        with self._entered():
            state = self._current()
            alive = set() if state is None else {token.hex().encode() for token in state.table.by_token}
            return self._medium.residues([needle for needle in needles if needle not in alive])

    # Times and legal holds

    def times(self) -> dict[bytes, int]:
        """Until when keys may be used, in microseconds since 1970, 0 for ever; only keys that were ever given
        a time. Needs no master key."""
        with self._entered():
            state = self._current()
            return {} if state is None else dict(state.table.until)

    def set_times(self, until_us: Mapping[bytes, int]) -> None:
        """Say of keys until when they may be used, durably; 0 for ever. Those that aren't alive are left
        out."""
        with self._entered():
            state = self._current()
            if state is None or state.table.entries.keys().isdisjoint(until_us):
                return
            self._change(
                lambda state: [
                    UntilRecord(key_id.hex(), us)
                    for key_id, us in until_us.items()
                    if key_id in state.table.entries and state.table.until.get(key_id, -1) != us
                ]
            )

    def holds(self, key_ids: Collection[bytes]) -> frozenset[bytes]:
        """What was said to hold any of these keys: whoever destroys keys asks before."""
        with self._entered():
            state = self._current()
            found = {} if state is None else state.table.holds
            return frozenset().union(*(found.get(key_id, ()) for key_id in key_ids))

    def set_hold(self, key_id: bytes, by: bytes, *, on: bool) -> bool:
        """Say, durably, that a key is held, or isn't any more; ``by`` tells holds apart. Whether the key is
        alive: else nothing was done."""
        if len(by) != ID_BYTES:
            # A record that nobody could read would bar everybody from their keys.
            raise KeyringError(
                f"a hold is told by {ID_BYTES} bytes, not {len(by)}; give it an id of that length. Nothing "
                "was changed"
            )
        with self._entered():
            state = self._current()
            if state is None or key_id not in state.table.entries:
                return False

            def records(state: KeyringState) -> Sequence[Record]:
                differs = (by in state.table.holds.get(key_id, ())) is not on
                is_alive = key_id in state.table.entries
                return [HoldRecord(key_id.hex(), by.hex(), on)] if differs and is_alive else ()

            return key_id in self._change(records).table.entries

    # The stores that use it

    def stores(self) -> list[str]:
        """Where the stores are that have sealed something under keys of this keyring, in the order in which
        they came. One that has moved since, or is gone, is still named. Needs no master key."""
        with self._entered():
            state = self._current()
            return [] if state is None else list(state.table.stores.values())

    def note_store(self, url: str) -> None:
        """Say, durably, that a store uses this keyring; ``url`` without secrets."""
        record = store_record(url)
        with self._entered():
            state = self._current()
            if state is None or bytes.fromhex(record.id) not in state.table.stores:
                self._change(lambda state: () if bytes.fromhex(record.id) in state.table.stores else [record])

    # From one keyring to another

    def lend(self, key_ids: Collection[bytes]) -> list[KeyParcel]:
        """Those of these keys that are alive, in clear, to be taken in by another keyring."""
        with self._entered():
            state = self._unlocked()
            return [] if state is None else state.lend(key_ids)

    def take_in(self, parcels: Sequence[KeyParcel]) -> int:
        """Add keys of other keyrings, durably, but for destroyed ones; how many are new."""
        if not any(parcel.keys for parcel in parcels):
            return 0
        count = 0

        def records(state: KeyringState) -> Sequence[Record]:
            nonlocal count
            found = state.taken_in(parcels, self._random)
            # A second attempt finds those that the first one has added.
            count = max(count, sum(isinstance(record, KeyRecord) for record in found))
            return found

        with self._entered():
            self._change(records)
            return count

    def refuse(self, key_ids: Collection[bytes]) -> list[bytes]:
        """Destroy keys by id, and never take them in; makes a keyring to note that if there is none. Returns
        those that were alive."""
        with self._entered():
            if not key_ids or self.destroyed().issuperset(key_ids):
                return []
            if self._current() is None:
                self._change(lambda state: ())
            return self.destroy_keys(key_ids)

    # A copy of it in a file

    def backup(self, path: str | os.PathLike[str], passphrase: str | bytes) -> KeyringBackup:
        """Write all keys, their times and holds, and the ids of destroyed ones to ``path``, which must not
        exist, encrypted under a passphrase of 12 characters or more, or 32 random bytes.

        Who has both opens everything that these keys seal, also of persons who are erased later: replace it
        after an erasure.
        """
        from everthread.keyring.backup import write_backup

        return write_backup(self, path, passphrase)

    def restore(
        self, path: str | os.PathLike[str], passphrase: str | bytes, *, erased: Collection[bytes] = ()
    ) -> KeyringRestored:
        """Bring the keys of a backup into this keyring, beside those that are here.

        A key that was destroyed here, or where the backup was made, or that is among the ``erased``, such as
        the ledger of a store lists, doesn't come back; if it is alive here, it is destroyed, unless a legal
        hold is on it. Raises :class:`KeyringError` if the backup doesn't open with the passphrase; nothing
        was changed then.
        """
        from everthread.keyring.backup import restore_backup

        return restore_backup(self, path, passphrase, erased)

    def content(self) -> KeyringContent:
        """All that a backup holds, in clear."""
        from everthread.keyring.backup import KeyringContent

        with self._entered():
            state = self._unlocked()
            if state is None:
                return KeyringContent([], [], {})
            table = state.table
            holds = {key_id: sorted(by) for key_id, by in table.holds.items() if key_id in table.entries}
            return KeyringContent(state.lend(list(table.entries)), sorted(table.destroyed), holds)

    def random_id(self) -> bytes:
        """An id that nothing else has."""
        return self._random(ID_BYTES)

    def close(self) -> None:
        """Forget every key held in memory. May be called twice."""
        with self._mutex:
            self._closed = True
            self._forget()
            self._medium.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # The state in memory, kept in step with the medium

    def _is_current(self, state: KeyringState) -> bool:
        """Whether the medium is as it was when ``state`` was read. Needs no mutex."""
        now_s = monotonic()
        if self._process != os.getpid():
            return False
        try:
            found = self._medium.look()
        except (OSError, KeyringError):
            return False
        # Another thread may have read more meanwhile.
        if found != (state.generation, state.size) or self._state is not state:
            return False
        self._looked_s = now_s
        return True

    def _current(self) -> KeyringState | None:
        """The state as the records are now; ``None`` where no keyring has been created yet."""
        state, found = self._state, self._medium.look()
        if found is None:
            # In a new keyring the master key appears last, so it alone means that the records were lost.
            if state is None and not self._masters.in_place():
                return None
            if self._medium.look() is not None:
                return self._current()
            raise self._gone()
        if state is not None and (state.generation, state.size) == found:
            return state
        return self._retried(self._load_held)

    def _load_held(self) -> KeyringState:
        with self._medium.held():
            return self._load()

    def _load(self) -> KeyringState:
        found = self._medium.look()
        if found is None:
            raise self._gone()
        generation, size = found
        state = self._state
        # Until it has been read without fault it doesn't count.
        self._state = None
        # Records are only ever added to a generation, so the new ones are enough.
        if state is None or state.generation != generation or state.table.end > size:
            self._medium.forget()
            state = KeyringState(generation, self._medium.where)
        state.table.read(self._medium.read(state.table.end))
        state.size = size
        state.sealing.clear()
        self._state = state
        return state

    def _gone(self) -> KeyringError:
        where = self._medium.where
        return KeyringError(
            f"{where} is gone; put it back from its copy, or move what is left of the keyring aside and "
            "bring the keys into a new one: everthread keyring restore FILE. No new keyring was made"
        )

    def _forget(self) -> None:
        self._state = None
        self._medium.forget()

    def _unlocked(self) -> KeyringState | None:
        """The current state with its master and token key."""
        state = self._current()
        if state is None or state.master:
            return state
        # Under the lock, because a destruction replaces the records and then the master key.
        with self._medium.held():
            state = self._current()
            if state is not None and not state.master:
                self._unlock(state)
            return state

    def _unlock(self, state: KeyringState) -> None:
        table = state.table
        wrapped = bytes.fromhex(table.header.token_key)
        for master, is_next in self._masters.candidates(table.header):
            token_key = Wrapping(master, table.keyring_id).unwrap(wrapped, TOKEN_KEY_PURPOSE)
            if token_key is not None:
                state.master, state.master_is_next, state.token_key = master, is_next, token_key
                return
        raise KeyringError(
            f"the master key doesn't open the keyring {self._medium.where}: it is not the one that its keys "
            "were wrapped with. Put that one back (a file beside the keys, or the environment), or move this "
            "keyring aside and bring the keys into a new one: everthread keyring restore FILE. Nothing was "
            "changed"
        )

    def _settled_or_none(self) -> KeyringState | None:
        """The unlocked state, after finishing what a crashed destruction left half done. Needs the lock."""
        state = self._unlocked()
        if state is not None and state.master_is_next:
            self._masters.put_in_place(state.master)
            state.master_is_next = False
        return state

    def _settled(self) -> KeyringState:
        state = self._settled_or_none()
        assert state is not None
        return state

    def _durable(self, state: KeyringState) -> KeyringState:
        """Before a key is relied on: whoever wrote its record may have died before it was durable."""
        if state.durable_end < state.table.end:
            self._medium.make_durable(state.table.end)
            state.durable_end = state.table.end
        return state

    def _durable_or_none(self) -> KeyringState | None:
        state = self._unlocked()
        return None if state is None else self._durable(state)

    # Writing

    def _retried(self, attempt: Callable[[], T]) -> T:
        for _ in range(_ATTEMPTS_MAX):
            try:
                return attempt()
            except Outdated:
                self._forget()
        raise KeyringError(
            f"others have changed the keyring {self.where} {_ATTEMPTS_MAX} times while it was being used; "
            "try again"
        )

    def _change(self, records: Callable[[KeyringState], Sequence[Record]]) -> KeyringState:
        """Add what ``records`` finds to be missing, durably and at once; makes a keyring if there is none."""

        def attempt() -> KeyringState:
            if self._current() is None:
                self._medium.create()
                self._check_apart(self._users)
            with self._medium.held(exclusive=True):
                if self._settled_or_none() is None:
                    self._rewrite(None, ())
                state = self._durable(self._settled())
                if missing := records(state):
                    self._medium.append(state.table.encode_next(missing), state.table.end)
                    state = self._load()
                    state.durable_end = state.table.end
                return state

        return self._retried(attempt)

    def _create_key(self, subject: str, besides: Sequence[bytes], until_us: int = 0) -> KeyringState:
        """Make a key, unless another process has made one since these were all."""

        def records(state: KeyringState) -> Sequence[Record]:
            if state.live_ids(subject) != list(besides):
                return ()
            key = SubjectKey(self._random(ID_BYTES), self._random(KEY_BYTES))
            if key.key_id in state.table.entries or key.key_id in state.table.destroyed:
                raise KeyringError(
                    "the source of randomness repeats itself; check random_bytes=, or leave it out. "
                    "Nothing was written"
                )
            made = key_record(state.wrapping, key.key_id, key.key, state.token(subject), self._random)
            # Its time first: after a torn write there is no key that lacks one.
            return [UntilRecord(made.id, until_us), made] if until_us else [made]

        return self._change(records)

    def _rewrite_existing(
        self, chosen: Callable[[KeyringState], Collection[bytes]], *, always: bool = False
    ) -> list[bytes]:
        """Destroy the ``chosen`` keys, if any of them isn't destroyed yet; returns those that were alive."""
        if self._current() is None:
            return []
        with self._medium.held(exclusive=True):
            state = self._durable(self._settled())
            key_ids = chosen(state)
            alive = [key_id for key_id in key_ids if key_id in state.table.entries]
            if always or not state.table.destroyed.issuperset(key_ids):
                self._rewrite(state, key_ids, fresh_master=always)
            else:
                # Whoever destroyed them may have died before the old records were gone.
                self._medium.wipe()
            return alive

    def _rewrite(
        self, state: KeyringState | None, destroyed: Collection[bytes], *, fresh_master: bool = False
    ) -> None:
        """Write all keys but the ``destroyed`` ones anew, or an empty keyring. Needs the exclusive lock.

        ``fresh_master``: under the master key that the environment holds by now, if it comes from there.
        """
        source, current = self._source(state), b"" if state is None or fresh_master else state.master
        master, wrapped_master = self._masters.prepare(source, current, self._random(KEY_BYTES))
        keyring_id = self._random(ID_BYTES) if state is None else state.table.keyring_id
        wrapping = Wrapping(master, keyring_id)
        records = [encode_record(next_header(state, wrapping, source, wrapped_master, self._random))]
        if state is not None:
            records += map(encode_record, state.survivors(destroyed, wrapping, self._random))
        self._medium.replace(records)
        if source == "file":
            self._masters.put_in_place(master)
        self._medium.wipe()
        self._forget()
        if state is None and self.tells_when_made:
            logging.getLogger("everthread").warning(_MADE, self.place)

    def _source(self, state: KeyringState | None) -> MasterSource:
        return self._masters.source if state is None else state.table.header.master

    def _random(self, size: int) -> bytes:
        data = self._random_source(size)
        if len(data) != size:
            raise KeyringError(
                f"the source of randomness gave {len(data)} bytes, not {size}; check random_bytes=, or "
                "leave it out"
            )
        return data

    @contextmanager
    def _entered(self) -> Iterator[None]:
        if self._process != os.getpid():
            raise StoreClosedError("the keyring was opened before this process was forked; open it again")
        with self._mutex:
            if self._closed:
                raise StoreClosedError("the keyring was closed; open it again")
            try:
                yield
            except OSError as error:
                # What the kernel holds after a failed write is unknown, so it is read again.
                self._forget()
                raise KeyringError(
                    f"the keyring {self.where} can't be used ({error}); put that right and try again, or "
                    f"name another place: keyring=…, ${KEYRING_VARIABLE}"
                ) from error


class FileKeyring(Keyring):
    """A keyring in a directory of its own: ``master.key``, ``keys.jsonl`` and a lock file.

    The master key comes from ``master`` if given, else from the environment variable
    ``EVERTHREAD_MASTER_KEY`` if set, else from the file ``master.key``; a keyring stays with the source it
    was created with. Another process is waited for up to ``lock_timeout_ms``.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        master: MasterKey | None = None,
        random_bytes: RandomBytes = os.urandom,
        *,
        lock_timeout_ms: int = 10_000,
    ) -> None:
        self.directory = Path(os.path.abspath(directory))
        medium = FileMedium(self.directory, lock_timeout_ms)
        super().__init__(medium, MasterKeeper(self.directory / "master.key", master), random_bytes)

    @property
    def place(self) -> str:
        return str(self.directory)

    def __repr__(self) -> str:
        return f"FileKeyring({str(self.directory)!r})"


class StoreKeyring(Keyring):
    """A keyring in a store of its own, which ``url`` names: ``sqlite:///``, ``postgresql://``, ``valkey://``.

    A SQLite file may have its master key in a file beside it (``….master``); on a server it comes from the
    environment or from ``master``, because every host needs it.
    """

    def __init__(
        self,
        url: str,
        master: MasterKey | None = None,
        random_bytes: RandomBytes = os.urandom,
        *,
        lock_timeout_ms: int = 10_000,
    ) -> None:
        self.path = _database_file(url) if url.startswith("sqlite:") else None
        place = url if self.path is None else sqlite_url(str(self.path))
        medium = StoreMedium(place, self.path, lock_timeout_ms)
        beside = None if self.path is None else self.path.with_name(self.path.name + ".master")
        super().__init__(medium, MasterKeeper(beside, master, medium.where), random_bytes)

    def __repr__(self) -> str:
        return f"StoreKeyring({self.where!r})"


class MemoryKeyring(Keyring):
    """A keyring that is gone with its process."""

    def __init__(self, random_bytes: RandomBytes = os.urandom) -> None:
        from everthread.records.opening import open_memory

        medium = StoreMedium("memory:", backend=open_memory())
        super().__init__(medium, MasterKeeper(None, InTheClear(), "memory:"), random_bytes)

    @property
    def rotates_master(self) -> bool:
        """Always: no copy of it can be older."""
        return True


def open_keyring(spec: str | os.PathLike[str] | Keyring | None = None) -> Keyring:
    """The keyring that ``spec`` names: a directory, as a path or ``file://`` URL, a store of its own, as
    ``sqlite:///``, ``postgresql://`` or ``valkey://`` URL, or ``memory:``.

    ``None`` is ``$EVERTHREAD_KEYRING``, else ``~/.everthread/keyring``, with ``HOME`` as it is now. A
    keyring object is handed back as it is. Nothing is read or created yet. Raises :class:`UnsupportedError`
    for any other scheme, :class:`InvalidValueError` for what is nothing of this.
    """
    check_keyring(spec)
    spec = chosen_keyring(spec)
    at_home = spec is None
    if spec is None:
        spec = "~/.everthread/keyring"
    if isinstance(spec, str):
        if spec == "memory:":
            return MemoryKeyring()
        if re.match(_SCHEME, spec) and kind_of(spec) in _STORES:
            return StoreKeyring(spec)
        spec = _path_of(spec)
    if not isinstance(spec, os.PathLike):
        return spec
    try:
        found = FileKeyring(Path(spec).expanduser())
        found.tells_when_made = at_home
        return found
    except RuntimeError as error:
        raise KeyringError(
            f"the home directory is unknown ({error}), so name the keyring's directory: keyring=…, "
            f"${KEYRING_VARIABLE}"
        ) from error


def _path_of(spec: str) -> Path:
    if not re.match(_SCHEME, spec):
        path = spec
    else:
        url = urllib.parse.urlsplit(spec)
        if url.scheme != "file":
            raise UnsupportedError(f"no keyring opens {url.scheme}:// URLs; {KEYRINGS}")
        if url.netloc not in ("", "localhost") or url.query or url.fragment:
            raise UnsupportedError(f"a keyring URL holds an absolute path and nothing else; {KEYRINGS}")
        path = urllib.parse.unquote(url.path)
    if not path or "\0" in path:
        raise UnsupportedError(f"this names no directory for a keyring; {KEYRINGS}")
    return Path(path)


def _database_file(url: str) -> Path:
    location = urllib.parse.unquote(url.partition(":")[2])
    if not location.startswith("///") or len(location) == 3 or "?" in url or "\0" in location:
        raise UnsupportedError(f"write sqlite:///keys.db or sqlite:////absolute/keys.db; {KEYRINGS}")
    return Path(os.path.abspath(location[3:]))
