"""The messages of a session: durable when the call returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

from everthread.errors import InvalidValueError
from everthread.messages.pairing import Orphans
from everthread.messages.sending import (
    Request,
    for_anthropic,
    for_google,
    for_langchain,
    for_openai_chat,
    for_openai_responses,
)
from everthread.messages.shapes import enclose
from everthread.sessions.slices import OWN, own_part

if TYPE_CHECKING:
    from everthread.sessions.held import HeldThread

INBOX = "inbox"


class Options(TypedDict, total=False):
    """What every ``for_…`` takes."""

    shape: str | None
    orphans: Orphans
    reveal: bool


class AnthropicOptions(Options, total=False):
    cache: str | None


class Messages(Sequence[Any]):
    """A log of the session's thread, or the log ``messages``; each change is a version of its own."""

    def __init__(
        self, thread: HeldThread, name: str = "messages", permit: Callable[[], None] | None = None
    ) -> None:
        self._thread = thread
        self.name = name
        self._permit = permit

    def append(self, item: Any, shape: str | None = None) -> Any:
        """Add one item and return its id; as ``thread.messages.append``, and committed.

        With a ``shape`` (one of ``everthread.messages.SHAPES``) the item is a provider's own message: it is
        kept as it is, and its shape with it.
        """
        item = item if shape is None else enclose(item, shape)
        with self._thread.writing():
            self._check()
            return self._thread.log(self.name).append(item)

    def extend(self, items: Iterable[Any], shape: str | None = None) -> list[Any]:
        """Append several, all or none, as one version; their ids."""
        items = items if shape is None else [enclose(item, shape) for item in items]
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

    # ── for a provider ───────────────────────────────────────────────────────────────────────

    def for_anthropic(self, **options: Unpack[AnthropicOptions]) -> Request:
        """All messages, ready for ``client.messages.create``, with cache points."""
        return for_anthropic(self, **options)

    def for_openai_chat(self, **options: Unpack[Options]) -> Request:
        """All messages, ready for ``client.chat.completions.create``."""
        return for_openai_chat(self, **options)

    def for_openai_responses(self, **options: Unpack[Options]) -> Request:
        """All messages, ready for ``client.responses.create``."""
        return for_openai_responses(self, **options)

    def for_google(self, **options: Unpack[Options]) -> Request:
        """All messages, ready for ``client.models.generate_content``."""
        return for_google(self, **options)

    def for_langchain(self, **options: Unpack[Options]) -> Request:
        """All messages as LangChain stores them, for ``messages_from_dict``."""
        return for_langchain(self, **options)

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
