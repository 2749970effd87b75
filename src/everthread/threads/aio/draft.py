"""What a function that changes a thread gets to work on."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everthread.threads.aio.log import AsyncLog
    from everthread.threads.aio.thread import AsyncThread
    from everthread.threads.document import TrackedDict


class AsyncDraft(MutableMapping[Any, Any]):
    """Document and logs of one attempt.

    Most updates touch the document only, so a draft is the document as well: ``draft["n"] += 1`` and
    ``draft.state["n"] += 1`` are the same.
    """

    def __init__(self, thread: AsyncThread) -> None:
        self._thread = thread

    @property
    def state(self) -> TrackedDict:
        return self._thread.state

    @property
    def messages(self) -> AsyncLog:
        return self._thread.messages

    def log(self, name: str) -> AsyncLog:
        return self._thread.log(name)

    def plain(self) -> Any:
        return self.state.plain()

    def increment(self, key: Any, by: int | float = 1) -> Any:
        return self.state.increment(key, by)

    def __getitem__(self, key: Any) -> Any:
        return self.state[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.state[key] = value

    def __delitem__(self, key: Any) -> None:
        del self.state[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.state)

    def __len__(self) -> int:
        return len(self.state)

    def __repr__(self) -> str:
        return f"<draft of {self._thread.name!r}: {self.state!r}>"
