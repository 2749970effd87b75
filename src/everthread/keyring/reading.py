"""What a process knows of the lines of a keyring, kept in step with where they are."""

from __future__ import annotations

from time import monotonic

from everthread.errors import KeyringError
from everthread.keyring.format import TOKEN_KEY_PURPOSE, Wrapping
from everthread.keyring.master import MasterKeeper
from everthread.keyring.medium import Medium, State

#: How long it is good for that the lines were found where they are said to be. Whether those that were read
#: were replaced, or have grown, is asked each time.
_PLACE_S = 1.0
#: How long it is good for that nobody has done anything to them by hand. What other processes do shows each
#: time.
_STAYED_S = 0.005


class KeyLines:
    """The lines as they stand, read anew when they have changed. Not safe to share: one caller at a time."""

    def __init__(self, medium: Medium, masters: MasterKeeper) -> None:
        self._medium = medium
        self._masters = masters
        self.state: State | None = None
        #: When the place was looked at, and when anything was asked.
        self._looked_s = self.asked_s = 0.0
        #: When they were found to be those that were read, by all that tells.
        self._stayed_s = 0.0

    def stays(self, state: State) -> bool:
        """Whether what was read is all there is, as nearly every question finds; for who holds no lock."""
        now_s = monotonic()
        if now_s - self._stayed_s < _STAYED_S and not self._medium.grown(state.seen):
            found = True
        elif now_s - self._looked_s < _PLACE_S:
            found = self._medium.stays(state.generation, state.seen)
            self._stayed_s = now_s if found else 0.0
        else:
            try:
                found = self._medium.look() == (state.generation, state.seen)
            except OSError:
                return False
            self._looked_s = now_s
        # Another thread may have read others meanwhile, and then the question was about those.
        if not found or self.state is not state:
            return False
        self.asked_s = now_s
        return True

    def forget(self) -> None:
        self.state = None
        self._stayed_s = 0.0
        self._medium.forget()

    def current(self) -> State | None:
        """The state as the lines stand now; ``None`` where no keyring has been created yet."""
        state = self.state
        found = self._medium.look()
        if found is None:
            # In a new keyring master.key appears last, so it alone means that the lines were lost.
            if state is None and not self._masters.in_place():
                return None
            if self._medium.look() is not None:
                return self.current()
            raise self._gone()
        if state is not None and (state.generation, state.seen) == found:
            return state
        with self._medium.held():
            return self.load()

    def load(self) -> State:
        found = self._medium.look()
        if found is None:
            raise self._gone()
        generation, size = found
        state = self.state
        # Until it has been read without fault it doesn't count.
        self.state = None
        self._stayed_s = 0.0
        # Lines are only ever added to the same ones, so there the new ones are enough.
        if state is None or state.generation != generation or state.table.end > size:
            self._medium.forget()
            state = State(generation, self._medium.where)
        state.table.read(self._medium.read(state.table.end))
        state.seen = size
        state.sealing.clear()
        self.state = state
        return state

    def _gone(self) -> KeyringError:
        where = self._medium.where
        return KeyringError(f"{where} is gone; put it back from its backup. No new keyring was made")

    def unlocked(self) -> State | None:
        """The current state with its master and token key."""
        state = self.current()
        if state is None or state.master:
            return state
        # Under the lock, because a destruction going on replaces the lines and then the master key.
        with self._medium.held():
            state = self.current()
            if state is not None and not state.master:
                self._unlock(state)
            return state

    def _unlock(self, state: State) -> None:
        table = state.table
        wrapped = bytes.fromhex(table.header.token_key)
        for master, is_next in self._masters.candidates(table.header):
            token_key = Wrapping(master, table.keyring_id).unwrap(wrapped, TOKEN_KEY_PURPOSE)
            if token_key is not None:
                state.master, state.master_is_next, state.token_key = master, is_next, token_key
                return
        raise KeyringError(
            f"the master key doesn't open the keyring {self._medium.where}: it is not the one that its keys "
            "were wrapped with. Nothing was changed"
        )

    def settled(self) -> State | None:
        """The unlocked state, after finishing what a crashed destruction left half done. Needs the lock."""
        state = self.unlocked()
        if state is not None and state.master_is_next:
            self._masters.put_in_place(state.master)
            state.master_is_next = False
        return state

    def make_durable(self, state: State) -> None:
        """Before a key is relied on: whoever wrote its line may have died without syncing it."""
        if state.durable_end < state.table.end:
            self._medium.sync()
            state.durable_end = state.table.end
