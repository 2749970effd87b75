"""Key/value data of persons: the public class, which opens the default store if it is given none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from everthread.people.sync.users import UserStore as UsersOfStore
from everthread.working.config import Config
from everthread.working.places import Home

if TYPE_CHECKING:
    from types import TracebackType


class UserStore(UsersOfStore):
    """What is known of each person: ``set``, ``get``, ``keys``, ``delete_user``.

    Every value is sealed under its person's own key. Persons are found through the keyring, so that no name
    of one stands in the store; the keys of their values do, in clear. Apart from all threads: deleting a
    person's data touches no session and no checkpoint, and the other way round.

    ``store`` is an open store, the default one if none is given. Safe to share between threads.
    """

    def __init__(self, store: Any = None) -> None:
        self._home = Home(store, Config())
        super().__init__(self._home.open())

    def close(self) -> None:
        """Give the default store back. A store that was handed in stays open."""
        self._home.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
