"""Which keys the sealed values of a store need, and how many of these values can't be opened here.

A copy of a store holds sealed values and no keys: whoever makes one is told what else to take along, and
whoever looks at one is told what is missing.
"""

from __future__ import annotations

import warnings
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from everthread.arguments import counted
from everthread.errors import DamageError, EverthreadError
from everthread.stores.contract import NOTED, split_keys

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from everthread.threads.sync.core import Core

_PAGE = 200

BRING = (
    "where the keys are, everthread keyring backup FILE writes them into a file, and everthread keyring "
    "restore FILE brings them in here; if they are here already, name their keyring (keyring=…, --keyring, "
    "$EVERTHREAD_KEYRING)"
)


class KeyNeeds(msgspec.Struct, frozen=True, kw_only=True):
    """What it takes to open the sealed values of a store or of a copy. True if all of them open here.

    ``keyring`` is where keys are looked for, empty if nothing is sealed. ``values`` need ``keys``, of which
    ``missing`` aren't there: ``unopened`` of the values can't be opened. Values of persons who were erased
    need nothing any more. ``problem`` says why the keyring can't be used at all. Not ``complete``: only the
    first values were looked at, or damage kept the rest from it.
    """

    keyring: str = ""
    values: int = 0
    keys: int = 0
    missing: int = 0
    unopened: int = 0
    problem: str = ""
    complete: bool = True

    def __bool__(self) -> bool:
        return not self.unopened

    def __str__(self) -> str:
        if not self.values:
            return "nothing is sealed" if self.complete else "whether anything is sealed isn't known"
        least = "" if self.complete else "at least "
        if not self.unopened:
            return f"{least}{counted(self.values, 'sealed value')} open with {counted(self.keys, 'key')}"
        found = f"{least}{self.unopened:,} of {counted(self.values, 'sealed value')} can't be opened"
        if self.problem:
            return f"{found}: {self.problem}"
        verb = "isn't" if self.missing == 1 else "aren't"
        return f"{found}: {counted(self.missing, 'key')} that they need {verb} in the keyring {self.keyring}"

    @property
    def advice(self) -> str:
        """What to do so that all values open; empty if they do. A keyring that can't be used says itself what
        is wrong with it."""
        return BRING if self.unopened and not self.problem else ""

    @property
    def to_take_along(self) -> str:
        """What a copy needs that isn't in it; empty if nothing in it is sealed."""
        if not self.keys:
            return ""
        values, keys = counted(self.values, "sealed value"), counted(self.keys, "key")
        lacking = f" ({self.missing:,} of them aren't even there)" if self.missing else ""
        return (
            f"{values} in it need {keys} of the keyring {self.keyring}{lacking}, which isn't in it: "
            "everthread keyring backup FILE writes the keys into a file of its own; keep that one, too, "
            "and apart"
        )


class KeyCounter:
    """Counts what values need, by the ids of their keys, as these come by."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._values = self._unopened = 0
        self._needed: set[bytes] = set()
        self._alive: Collection[bytes] | None = None
        self._gone: Collection[bytes] = ()
        self._keyring = self._problem = ""

    def add(self, key_ids: Iterable[bytes]) -> None:
        """A value that is sealed under all of these."""
        alive = self._look() if self._alive is None else self._alive
        needed = frozenset(key_ids)
        if not needed.isdisjoint(self._gone):
            return
        self._values += 1
        self._unopened += not needed.issubset(alive)
        self._needed |= needed

    def needs(self, *, complete: bool = True) -> KeyNeeds:
        missing = len(self._needed.difference(self._alive or ()))
        return KeyNeeds(
            keyring=self._keyring,
            values=self._values,
            keys=len(self._needed),
            missing=missing,
            unopened=self._unopened,
            problem=self._problem,
            complete=complete,
        )

    def _look(self) -> Collection[bytes]:
        """The keys that are in the keyring. It is opened for the first value: most stores have none."""
        # A key that is noted, and no more, may still be alive in the keyring of whoever began to erase it.
        self._gone = {entry.key_id for entry in self._core.backend.erasures() if entry.phase > NOTED}
        try:
            keyring = self._core.vault.keyring
            self._keyring = keyring.place
            keyring.check()
            destroyed = keyring.destroyed()
            self._gone |= destroyed
            self._alive = keyring.held() - destroyed
        except EverthreadError as error:
            self._problem, self._alive = str(error), frozenset()
        return self._alive


def warn_of_new_keyring(core: Core) -> None:
    """Warn if the keyring never had a key, and the store holds sealed values: another keyring was used for
    them. What this one seals then, that one can neither open nor erase."""
    with suppress(EverthreadError):
        if not core.backend.sealed_under(None, b"", 1):
            return
        keyring = core.vault.keyring
        keyring.check()
        if not keyring.held() and not keyring.destroyed():
            warnings.warn(
                f"{core.backend.url} holds sealed values, and the keyring {keyring.place} is new: erasing a "
                "person reaches only what this keyring has sealed. Let all programs of a store share one "
                f"keyring: {BRING}",
                stacklevel=3,
            )


def count_keys(core: Core, most: int | None = None, *, strict: bool = False) -> KeyNeeds:
    """What the sealed values of a store need, of all namespaces. Reads them all, or ``most`` of them, those
    that were sealed first; opens none. Damage makes it incomplete, or is raised if it is ``strict``."""
    counter = KeyCounter(core)
    after, seen = b"", 0
    try:
        while page := core.backend.sealed_under(None, after, _PAGE):
            for value_id, joined, _ in page:
                if most is not None and seen >= most:
                    return counter.needs(complete=False)
                counter.add(split_keys(joined))
                after, seen = value_id, seen + 1
    except DamageError:
        if strict:
            raise
        # verify() and doctor say what is damaged.
        return counter.needs(complete=False)
    return counter.needs()
