"""The messages of a session: durable when the call returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

from everthread.errors import InvalidValueError
from everthread.sessions.slices import OWN, own_part

if TYPE_CHECKING:
    from everthread.sessions.held import HeldThread

INBOX = "inbox"


class Messages(Sequence[Any]):
    """A log of the session's thread, or the log ``messages``; each change is a version of its own."""

    def __init__(
        self, thread: HeldThread, name: str = "messages", permit: Callable[[], None] | None = None
    ) -> None:
        self._thread = thread
        self.name = name
        self._permit = permit

    def append(self, item: Any) -> Any:
        """Add one item and return its id; as ``thread.messages.append``, and committed."""
        with self._thread.writing():
            self._check()
            return self._thread.log(self.name).append(item)

    def extend(self, items: Iterable[Any]) -> list[Any]:
        """Append several, all or none, as one version; their ids."""
        with self._thread.writing():
            self._check()
            return self._thread.log(self.name).extend(items)

    def truncate_from(self, message_id: Any) -> int:
        """Remove the item with this id and all after it; how many went."""
        with self._thread.writing():
            self._check()
            return self._thread.log(self.name).truncate_from(message_id)

    def _check(self) -> None:
        if self._permit is not None:
            self._permit()

    def find(self, message_id: Any) -> int | None:
        """The index of the item with this id, or ``None``."""
        with self._thread.lock:
            return self._thread.log(self.name).find(message_id)

    def __len__(self) -> int:
        with self._thread.lock:
            return len(self._thread.log(self.name))

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        with self._thread.lock:
            return self._thread.log(self.name)[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._thread.log(self.name))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<log {self.name!r}: {len(self)} items>"


def post(thread: HeldThread, message: Any) -> None:
    """Let a message wait until the turn that is under way has ended."""
    with thread.writing():
        own_part(thread.state).setdefault(INBOX, []).append(message)


def deliver(thread: HeldThread) -> None:
    """Append what waits; part of the caller's write."""
    own = thread.state.get(OWN)
    waiting = own.get(INBOX) if own is not None and hasattr(own, "get") else None
    if not waiting:
        return
    for message in waiting.plain():
        try:
            thread.messages.append(message)
        except InvalidValueError:
            # Meanwhile another message has got its id: it is kept all the same, under a new one.
            thread.messages.append({name: value for name, value in message.items() if name != "id"})
    del own[INBOX]
