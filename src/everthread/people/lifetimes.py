"""How long what belongs to a person is kept: when that is over it is erased, as if somebody had asked for it.

The times stand in the keyring, with the keys: whoever opens a value asks it anyway, so nobody is shown what
is over, in whichever store it is. A store that was told a time remembers whom it has to erase, in a thread of
its own, which no public name reaches, under the ids of keys; names are sealed like anything else. No daemon:
the next open, ``gc()``, ``sweep()`` or write of user data erases what is due.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from everthread.arguments import check_name
from everthread.errors import EverthreadError
from everthread.maintenance.unfinished import note_lifetimes
from everthread.threads.lifetimes import Lifetime, ttl_us
from everthread.threads.sync.journals import beside
from everthread.threads.sync.thread import Thread
from everthread.values import Personal

if TYPE_CHECKING:
    from everthread.threads.sealing import Vault
    from everthread.threads.sync.core import Core

SPACE = NAME = "lifetimes"
_PAGE = 100


class Lifetimes:
    """The times of one store."""

    def __init__(self, core: Core) -> None:
        self._core = beside(core, SPACE)
        self._now_us = core.runtime.now_us
        #: Whether this store was ever told of a time, as far as :meth:`due` has seen.
        self.told = False

    def _threads(self) -> list[Thread]:
        """The threads that hold them: one, and those that came with archives."""
        found = self._core.backend.lines(self._core.space, NAME, None, _PAGE)
        return [self._loaded(each.line.name) for each in found]

    def _loaded(self, name: str = NAME) -> Thread:
        return Thread(self._core, name)

    def set(self, subject: str, ttl: Lifetime, of: str | None = None) -> None:
        """Let everything of a subject end so long from now; ``None`` for never. ``of`` is whose it is, if the
        subject stands for a single value: a hold of theirs counts for it."""
        keyring = self._core.vault.keyring
        key = self._core.vault.key_for(check_name(subject, "subject")).key_id.hex()
        key_ids = keyring.key_ids(subject)
        if ttl is None:
            keyring.set_times(dict.fromkeys(key_ids, 0))
            self.done(key_ids)
            return
        until_us = self._now_us() + (ttl_us(ttl) or 0)
        self._tell(subject, key, until_us, of)
        keyring.set_times(dict.fromkeys(key_ids, until_us))

    def _tell(self, subject: str, key: str, until_us: int, of: str | None) -> None:
        """Note whom to erase, before anybody is hidden: who is hidden is erased one day, too."""
        told = {"until_us": until_us, "subject": Personal(subject, subject)}
        if of is not None:
            # Under both keys: no name of a person outlives their erasure.
            told["of"] = Personal([subject, of], of)
        self.mark()
        self._loaded().update(lambda draft: draft.state.update({key: told}))

    def _forget(self, key: str) -> None:
        for thread in self._threads():
            if key in thread.state:
                thread.update(lambda draft: draft.state.pop(key, None))

    def over(self) -> frozenset[bytes]:
        """The ids of the keys whose time is over. What needs one of them is shown to nobody."""
        return self._core.vault.over()

    def due(self, *, repair: bool = True) -> dict[str, str | None]:
        """The subjects whose time is over, and of single values, whose these are. What the keyring doesn't
        know of times, because it is an older copy or the keys came with an archive, it is told, and what
        needn't be known any more is forgotten; without ``repair`` nothing is changed."""
        threads = self._threads()
        found: dict[str, str | None] = {}
        self.told = bool(threads)
        times = self._core.vault.keyring.times() if threads else {}
        for thread in threads:
            for key, told in list(thread.state.items()):
                name = self._due(bytes.fromhex(key), told, times, repair)
                if name is not None:
                    found[name] = _name(self._core.vault, told.get("of"))
        return found

    def _due(self, key_id: bytes, told: Any, times: Mapping[bytes, int], repair: bool) -> str | None:
        """The name of a subject whose time is over."""
        vault = self._core.vault
        until_us = times.get(key_id)
        if until_us == 0 or vault.is_destroyed(key_id):
            # Somebody took the time back through another store, or erased them in the meantime.
            if repair:
                self._forget(key_id.hex())
            return None
        if until_us is not None and until_us > self._now_us():
            return None
        name = _name(vault, told["subject"])
        if name is not None and until_us is None:
            until_us = int(told["until_us"])
            key_ids = vault.keyring.key_ids(name)
            if repair:
                vault.keyring.set_times({k: until_us for k in key_ids if k not in times})
        return name if until_us is not None and until_us <= self._now_us() else None

    def kept(self) -> dict[str, str | None]:
        """The subjects who have a time, as of :meth:`due`: it is to outlive a restored backup, which may not
        know of it."""
        vault, found = self._core.vault, dict[str, str | None]()
        for thread in self._threads():
            for told in list(thread.state.values()):
                name = _name(vault, told["subject"])
                if name is not None:
                    found[name] = _name(vault, told.get("of"))
        return found

    def put_back(self, subjects: Mapping[str, str | None]) -> None:
        """Remember them again, with the times that the keyring has."""
        keyring = self._core.vault.keyring
        for subject, of in subjects.items():
            times = keyring.times()
            for key_id in keyring.key_ids(subject):
                if times.get(key_id, 0) > self._now_us():
                    self._tell(subject, key_id.hex(), times[key_id], of)

    def mark(self) -> None:
        """See to it that opening this store looks for what is due."""
        note_lifetimes(self._core)

    def done(self, keys: Iterable[bytes]) -> None:
        """A subject was erased: its time needn't be known any more."""
        for key in keys:
            self._forget(key.hex())


def _name(vault: Vault, sealed: Any) -> str | None:
    """Whose time it is. None if that can't be told with this keyring: perhaps it is another one."""
    try:
        name = vault.open_due(sealed.sealed)
    except (EverthreadError, AttributeError):
        return None
    return name if isinstance(name, str) else None
