"""A keyring made of lines, wherever these are kept: in a file, or in a table of a database.

What stands in the lines is the business of :mod:`everthread.keyring.format`, where they are that of a
*medium*. The order of writes that makes it safe against crashes is told in ``docs/internals/sealing.md``.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any

from everthread import process
from everthread.arguments import check_name
from everthread.codec.seal import ID_BYTES, KEY_BYTES, RandomBytes, SubjectKey
from everthread.errors import KeyringError, StoreClosedError
from everthread.keyring.format import (
    FORMAT,
    TIMES_FORMAT,
    KeyRecord,
    MasterSource,
    Record,
    UntilRecord,
    Wrapping,
    encode_record,
)
from everthread.keyring.lending import key_line, lent, survivors, taken_in
from everthread.keyring.marks import MarkedKeys
from everthread.keyring.master import MasterKeeper
from everthread.keyring.medium import Clock, Medium, State, dawn, next_header
from everthread.keyring.parcel import KeyParcel
from everthread.keyring.reading import KeyLines
from everthread.stores.contract import Residues

#: For so long after the last question a key is sealed with unasked: the commit asks.
_UNASKED_S = 0.002


class LineKeyring(MarkedKeys):
    """Keys of subjects, shared by any number of threads and processes.

    Nothing is created before the first ``key_for``. Every method raises :class:`KeyringError` for a missing
    or wrong master key, damage, an I/O error, or modes that let others in, :class:`SchemaVersionError` for a
    newer format, :class:`StoreBusyError` if another process keeps it locked for too long, and
    :class:`StoreClosedError` after ``close``.
    """

    def __init__(self, medium: Medium, masters: MasterKeeper, random_bytes: RandomBytes) -> None:
        self._medium = medium
        self._masters = masters
        self._random_source = random_bytes
        self._mutex: Any = threading.RLock()
        self._generation = process.generation
        self._lines = KeyLines(medium, masters)
        self._closed = False

    @property
    def where(self) -> str:
        """What to call it in reports."""
        return self._medium.where

    # ── reading ──────────────────────────────────────────────────────────────────────────────

    @property
    def epoch(self) -> int:
        """Grows whenever any process destroys keys. 0 while there is no keyring. Needs no master key."""
        with self._entered():
            state = self._lines.current()
            return 0 if state is None else state.table.header.epoch

    @property
    def rotates_master(self) -> bool:
        """Whether the master key is a file of ours, which ``destroy`` replaces.

        If not, who holds an older copy of the lines and the same master key can read destroyed keys.
        """
        with self._entered():
            return self._source(self._lines.current()) == "file"

    def key_for(self, subject: str, now_us: Clock = dawn) -> SubjectKey:
        """The live key of ``subject``. The first call creates it; it is on disk when this returns. One whose
        time is over by ``now_us`` seals nothing more: a new one takes its place, without a time."""
        state = self._lines.state
        if (
            state is not None
            and (key := state.sealing.get(subject)) is not None
            and not self._closed
            and self._generation == process.generation
            and (monotonic() - self._lines.asked_s < _UNASKED_S or self._lines.stays(state))
        ):
            # Enough for now: whether the key is still alive is asked again when it is committed.
            return key
        check_name(subject, "subject")
        with self._entered():
            state = self._lines.unlocked()
            live = [] if state is None else state.live_ids(subject)
            if state is None or not live or state.table.is_over(live[-1], now_us()):
                state = self._create_key(subject, besides=tuple(live))
            self._lines.make_durable(state)
            key = state.key(state.live_ids(subject)[-1])
            if not state.table.until.get(key.key_id):
                # The others are asked for each time: their time may come.
                state.sealing[subject] = key
            return key

    def key_ids(self, subject: str) -> list[bytes]:
        """The ids of the live keys of ``subject``: those that came from other keyrings, then its own, the
        oldest first; creates none."""
        check_name(subject, "subject")
        with self._entered():
            state = self._lines.unlocked()
            return [] if state is None else list(state.live_ids(subject))

    def key(self, key_id: bytes) -> SubjectKey | None:
        """The key with this id; ``None`` if this keyring doesn't hold it, or no longer."""
        with self._entered():
            state = self._lines.current()
            if state is not None and not state.master and key_id in state.table.entries:
                state = self._lines.unlocked()
            return state.key(key_id) if state is not None and key_id in state.table.entries else None

    def is_destroyed(self, key_id: bytes) -> bool:
        """Whether a key with this id was destroyed here. Needs no master key."""
        return self.is_closed(key_id, dawn)

    def is_closed(self, key_id: bytes, now_us: Clock) -> bool:
        """Whether a key with this id was destroyed here, or its time is over. Needs no master key."""
        state = self._lines.state
        # What is in memory holds if it is all there is, which nearly every question finds. It needs no lock:
        # what was read doesn't change.
        known = state is not None and not self._closed and self._generation == process.generation
        if state is None or not known or not self._lines.stays(state):
            with self._entered():
                state = self._lines.current()
            if state is None:
                return False
        table = state.table
        return key_id in table.destroyed or (bool(table.until) and table.is_over(key_id, now_us()))

    def destroyed(self) -> frozenset[bytes]:
        """The ids of all keys that were destroyed here. Needs no master key."""
        with self._entered():
            state = self._lines.current()
            return frozenset() if state is None else frozenset(state.table.destroyed)

    def alive(self) -> int:
        """How many keys are alive. Needs no master key."""
        with self._entered():
            state = self._lines.current()
            return 0 if state is None else len(state.table.entries)

    def held(self) -> frozenset[bytes]:
        """The ids of all keys that are or were here. Needs no master key."""
        with self._entered():
            state = self._lines.current()
            return frozenset() if state is None else frozenset((*state.table.entries, *state.table.destroyed))

    def token(self, subject: str) -> bytes:
        """What stands for ``subject`` in the lines. Makes a keyring if there is none."""
        check_name(subject, "subject")
        with self._entered():
            state = self._lines.unlocked() or self._settle_signing_key()
            return state.token(subject)

    def traces(self, key_ids: Collection[bytes]) -> list[bytes]:
        """What stands for these keys where the keyring is kept: wrapped keys and tokens, as written."""
        with self._entered():
            state = self._lines.current()
            found = [] if state is None else [state.table.entries.get(key_id) for key_id in key_ids]
            parts = (part.hex().encode() for entry in found if entry is not None for part in entry)
            return list(dict.fromkeys(parts))

    def residues(self, needles: Sequence[bytes]) -> Residues:
        """Look for byte strings in everything that is kept there, but for tokens of who has come back."""
        with self._entered():
            state = self._lines.current()
            alive = set() if state is None else {token.hex().encode() for token in state.table.by_token}
            return self._medium.residues([needle for needle in needles if needle not in alive])

    def sign(self, message: bytes) -> tuple[bytes, bytes]:
        """The public key of this keyring (Ed25519), and its signature of ``message``."""
        with self._entered():
            state = self._lines.unlocked()
            if state is None or not state.table.header.signing_key:
                state = self._settle_signing_key()
            return state.sign(message)

    # ── changing ─────────────────────────────────────────────────────────────────────────────

    def rotate(self, subject: str) -> bytes:
        """Make a new key for what is sealed from now on, with the time that the one before has; the older
        ones go on opening what they sealed.

        Returns the id of the new key.
        """
        check_name(subject, "subject")
        with self._entered():
            before = self.key_ids(subject)
            until_us = self.times().get(before[-1], 0) if before else 0
            state = self._create_key(subject, besides=before, until_us=until_us)
            self._lines.make_durable(state)
            return state.live_ids(subject)[-1]

    def rotate_master(self) -> None:
        """Wrap all keys anew, under a fresh master key, or under the one that the environment holds now."""
        with self._entered(), self._rewriting() as state:
            if state is not None:
                self._rewrite(state, (), anew=True)

    def destroy(self, subject: str) -> list[bytes]:
        """Destroy the keys of ``subject`` and return their ids; durable when it returns.

        The survivors are wrapped anew, under a fresh master key unless that comes from the environment. The
        link between subject and ids is gone afterwards: whoever needs the ids even if this process dies
        meanwhile asks for ``key_ids`` first. If it raises, call it again.
        """
        check_name(subject, "subject")
        with self._entered(), self._rewriting() as state:
            key_ids = [] if state is None else list(state.live_ids(subject))
            if state is not None and key_ids:
                self._rewrite(state, key_ids)
            return key_ids

    def destroy_keys(self, key_ids: Collection[bytes]) -> list[bytes]:
        """The same for keys by id; returns those that were alive. The others, too, never come to be again."""
        with self._entered(), self._rewriting() as state:
            if state is None:
                return []
            alive = [key_id for key_id in key_ids if key_id in state.table.entries]
            if not state.table.destroyed.issuperset(key_ids):
                self._rewrite(state, key_ids)
            return alive

    # ── from one keyring to another ──────────────────────────────────────────────────────────

    def lend(self, key_ids: Collection[bytes]) -> list[KeyParcel]:
        """Those of these keys that are alive, in clear, to be taken in by another keyring."""
        with self._entered():
            state = self._lines.unlocked()
            return [] if state is None else lent(state, key_ids)

    def take_in(self, parcels: Sequence[KeyParcel]) -> int:
        """Add keys of other keyrings, durably, but for destroyed ones; how many are new."""
        if not any(parcel.keys for parcel in parcels):
            return 0
        with self._entered():
            self._make_place()
            if any(parcel.until for parcel in parcels):
                self._allow(TIMES_FORMAT)
            with self._medium.held(exclusive=True):
                state = self._settled()
                records = taken_in(state, parcels, self._random)
                self._add(state, records)
                return sum(isinstance(record, KeyRecord) for record in records)

    def close(self) -> None:
        """Forget every key held in memory. May be called twice."""
        with self._mutex:
            self._closed = True
            self._lines.forget()

    @contextmanager
    def _rewriting(self) -> Iterator[State | None]:
        """The state, with the exclusive lock, about to be replaced; ``None`` where there is no keyring."""
        if self._lines.current() is None:
            yield None
            return
        with self._medium.held(exclusive=True):
            yield self._lines.settled()

    def _make_place(self) -> None:
        self._medium.create()
        with self._medium.held(exclusive=True):
            if self._lines.settled() is None:
                self._begin()

    def _add(self, state: State, records: Sequence[Record]) -> None:
        """Put lines at the end, durably and at once. Needs the exclusive lock, which may be gone after it."""
        if records:
            self._lines.make_durable(state)
            rest = b"".join(map(encode_record, records[1:]))
            self._medium.append(state.table.next_line(records[0]) + rest, state.table.end)
            self._lines.load()
            state.durable_end = state.table.end

    def _create_key(self, subject: str, besides: Sequence[bytes] = (), until_us: int = 0) -> State:
        self._make_place()
        # Anew: what was written may have been committed, and others may have had their turn.
        with self._medium.held(exclusive=True):
            state = self._settled()
            # Looked up again: another process may have created it before this one got the lock.
            if state.live_ids(subject) == list(besides):
                self._add(state, self._new_key(state, subject, until_us))
            return state

    def _settle_signing_key(self) -> State:
        self._medium.create()
        with self._medium.held(exclusive=True):
            state = self._lines.settled()
            if state is None:
                return self._begin()
            if not state.table.header.signing_key:
                self._rewrite(state, ())
            return self._settled()

    def _begin(self) -> State:
        self._rewrite(None, ())
        return self._settled()

    def _settled(self) -> State:
        state = self._lines.settled()
        assert state is not None
        return state

    @contextmanager
    def _entered(self) -> Iterator[None]:
        if self._generation != process.generation:
            # Another thread of the parent may have been inside at the fork: its locks are not ours.
            self._medium.forget(forked=True)
            self._lines.state = None
            self._mutex, self._generation = threading.RLock(), process.generation
        with self._mutex:
            if self._closed:
                raise StoreClosedError("the keyring was closed; open it again")
            try:
                yield
            except OSError as error:
                # What the kernel holds after a failed write is unknown, so it is read again.
                self._lines.forget()
                raise KeyringError(f"the keyring {self.where} can't be used: {error}") from error

    def _source(self, state: State | None) -> MasterSource:
        return self._masters.source if state is None else state.table.header.master

    def _new_key(self, state: State, subject: str, until_us: int) -> list[Record]:
        key = SubjectKey(self._random(ID_BYTES), self._random(KEY_BYTES))
        if key.key_id in state.table.entries or key.key_id in state.table.destroyed:
            raise KeyringError("the source of randomness repeats itself; nothing was written")
        line = key_line(state.wrapping, key.key_id, key.key, state.token(subject), self._random)
        # Its time first: after a torn write there is no key that lacks one.
        return [UntilRecord(line.id, until_us), line] if until_us else [line]

    def _rewrite(
        self,
        state: State | None,
        destroyed: Collection[bytes],
        *,
        anew: bool = False,
        at_least: int = FORMAT,
    ) -> None:
        """Write all keys but the ``destroyed`` ones anew, or an empty keyring. Needs the exclusive lock.

        ``anew``: under the master key that the environment holds by now, if it comes from there.
        ``at_least``: in this format, or the later one that it has.
        """
        source, current = self._source(state), b"" if state is None or anew else state.master
        master, wrapped_master = self._masters.prepare(source, current, self._random(KEY_BYTES))
        keyring_id = self._random(ID_BYTES) if state is None else state.table.keyring_id
        wrapping = Wrapping(master, keyring_id)
        lines = [encode_record(next_header(state, wrapping, source, wrapped_master, self._random, at_least))]
        if state is not None:
            lines += map(encode_record, survivors(state, destroyed, wrapping, self._random))
        wipe = self._medium.replace(lines)
        if source == "file":
            self._masters.put_in_place(master)
        wipe()
        self._lines.forget()

    def _random(self, size: int) -> bytes:
        data = self._random_source(size)
        if len(data) != size:
            raise KeyringError(f"the source of randomness gave {len(data)} bytes, not {size}")
        return data
