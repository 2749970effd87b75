"""What a keyring made of lines says of its keys: until when they may be used, and that they are held."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager

from everthread.codec.seal import ID_BYTES
from everthread.errors import KeyringError
from everthread.keyring.format import FORMAT, HOLDS_FORMAT, TIMES_FORMAT, HoldRecord, Record, UntilRecord
from everthread.keyring.medium import Medium, State
from everthread.keyring.reading import KeyLines


class MarkedKeys:
    """A part of :class:`LineKeyring`, which has the rest."""

    _medium: Medium
    _lines: KeyLines

    @abstractmethod
    def _entered(self) -> AbstractContextManager[None]: ...

    @abstractmethod
    def _settled(self) -> State: ...

    @abstractmethod
    def _add(self, state: State, records: Sequence[Record]) -> None: ...

    @abstractmethod
    def _rewrite(
        self, state: State | None, destroyed: Collection[bytes], *, anew: bool = False, at_least: int = FORMAT
    ) -> None: ...

    def times(self) -> dict[bytes, int]:
        """Until when keys may be used, in microseconds since 1970, 0 for ever; only those of which anybody
        ever said so. Needs no master key."""
        with self._entered():
            state = self._lines.current()
            return {} if state is None else dict(state.table.until)

    def set_times(self, until_us: Mapping[bytes, int]) -> None:
        """Say of keys until when they may be used, durably; 0 for ever. Those that aren't alive are left out.

        The first time of a keyring writes it anew, because older code couldn't read it from then on.
        """
        with self._entered():
            state = self._lines.current()
            known = {} if state is None else state.table.until
            told = {key_id: us for key_id, us in until_us.items() if known.get(key_id, -1) != us}
            if state is None or told.keys().isdisjoint(state.table.entries):
                return
            self._allow(TIMES_FORMAT)
            with self._medium.held(exclusive=True):
                state = self._settled()
                alive = [(key_id, us) for key_id, us in told.items() if key_id in state.table.entries]
                self._add(state, [UntilRecord(key_id.hex(), us) for key_id, us in alive])

    def holds(self, key_ids: Collection[bytes]) -> frozenset[bytes]:
        """What was said to hold any of these keys."""
        with self._entered():
            state = self._lines.current()
            found = {} if state is None else state.table.holds
            return frozenset().union(*(found.get(key_id, ()) for key_id in key_ids))

    def set_hold(self, key_id: bytes, by: bytes, *, on: bool) -> bool:
        """Say, durably, that a key is held, or isn't any more; whether it is alive.

        The first hold of a keyring writes it anew, because older code couldn't read it from then on.
        """
        if len(by) != ID_BYTES:
            # A line that nobody could read would bar everybody from their keys.
            raise KeyringError(f"a hold is told by {ID_BYTES} bytes, not {len(by)}; nothing was changed")
        with self._entered():
            state = self._lines.current()
            if state is None or key_id not in state.table.entries:
                return False
            self._allow(HOLDS_FORMAT)
            with self._medium.held(exclusive=True):
                state = self._settled()
                alive = key_id in state.table.entries
                if alive and (by in state.table.holds.get(key_id, ())) is not on:
                    self._add(state, [HoldRecord(key_id.hex(), by.hex(), on)])
                return alive

    def _allow(self, format: int) -> None:
        """The lines in this format, or a later one."""
        with self._medium.held(exclusive=True):
            state = self._settled()
            if state.table.header.format < format:
                self._rewrite(state, (), at_least=format)
