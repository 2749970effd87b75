"""OpenAI Agents SDK: sessions whose items, run state and branches live in a thread.

``EverthreadSession``: what the OpenAI Agents SDK takes for its memory, on a thread."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, NamedTuple

from everthread.adapters.bridge import AnyStore, StoreInUse, framework, id_of, opened, sealed, surely
from everthread.arguments import check_name
from everthread.errors import InvalidValueError
from everthread.messages.model import Notes, laid_open
from everthread.messages.shapes import OPENAI_RESPONSES, is_enclosed
from everthread.messages.view import Shown, view
from everthread.threads.aio.thread import AnyVersion, AsyncThread
from everthread.versions import Version

if TYPE_CHECKING:
    from agents import Agent, RunContextWrapper, TResponseInputItem
    from agents.memory.session import OpenAIResponsesCompactionArgs

with framework("openai-agents"):
    from agents.memory import session_settings as sdk_settings
    from agents.memory.session_settings import SessionSettings, resolve_session_limit
    from agents.run_state import RunState


__all__ = ["EverthreadSession"]

#: Where the document keeps what belongs to this adapter.
PART = "openai_agents"

#: Takes the items, answers with those that shall stand in their place, or ``None`` to leave them.
Compact = Callable[[list[Any]], "Sequence[Any] | Awaitable[Sequence[Any] | None] | None"]


class CompactionSnapshot(NamedTuple):
    """The latest items of a session, and a function that replaces them only if they are still the latest."""

    items: list[Any]
    #: True if these are all items of the session.
    complete: bool
    #: Replace the items from this position of ``items`` on; return False if the session has changed.
    replace_suffix: Callable[[int, Sequence[Any]], Awaitable[bool]]


class EverthreadSession:
    """The memory of an agent: the messages of the thread called ``session_id``.

    ``store`` is an open store of either colour, a URL, or ``None`` for the default place; a store that is
    opened here is closed by :meth:`close`. Items come back exactly as they were added. A thread that another
    framework began is read as Responses items. Every change is one durable version: :meth:`branch` and
    :meth:`rewind` go to any of them.

    With a ``subject`` every item is sealed under that person's key, until ``store.erase(subject)``. Personal
    values that others put into the thread are shown to the model only with ``reveal``. ``compact`` is called
    after a turn with all items, and answers with those to keep instead, or with ``None``.
    """

    session_settings: SessionSettings | None

    def __init__(
        self,
        session_id: str,
        store: AnyStore = None,
        *,
        session_settings: SessionSettings | dict[str, Any] | None = None,
        log: str = "messages",
        subject: str | None = None,
        reveal: bool = False,
        compact: Compact | None = None,
    ) -> None:
        self.session_id = check_name(session_id, "session id")
        self.session_settings = SessionSettings() if session_settings is None else _settings(session_settings)
        self._log = check_name(log, "log name")
        self._subject = None if subject is None else check_name(subject, "subject")
        self._reveal = reveal or subject is not None
        self._items = Items(self._subject, reveal=self._reveal)
        self._compact = compact
        self._in_use = StoreInUse(store)

    async def _thread(self) -> AsyncThread:
        return await self._in_use.store.thread(self.session_id)

    # ── what the SDK asks for ────────────────────────────────────────────────────────────────

    async def get_items(
        self, limit: int | None = None, *, wrapper: RunContextWrapper[Any] | None = None
    ) -> list[TResponseInputItem]:
        """The items, oldest first; with a ``limit`` (or that of the settings) the latest so many."""
        wanted = resolve_session_limit(limit, self.session_settings)
        return await self._items.read((await self._thread()).log(self._log), wanted)

    async def add_items(
        self, items: list[TResponseInputItem], *, wrapper: RunContextWrapper[Any] | None = None
    ) -> None:
        """Append items, all or none; durable when this returns."""
        enclosed = self._items.enclosed(items)
        thread = await self._thread()
        if enclosed:
            await surely(thread.update(lambda draft: draft.log(self._log).extend(enclosed)))

    async def pop_item(self, *, wrapper: RunContextWrapper[Any] | None = None) -> TResponseInputItem | None:
        """Remove and return the latest item, ``None`` if there is none. A rewind brings it back."""
        popped: list[Any] = []

        async def pop(draft: Any) -> None:
            popped[:] = [await self._items.pop(draft.log(self._log))]

        thread = await self._thread()
        if thread.head is not None:
            await surely(thread.update(pop))
        return popped[0] if popped else None

    async def clear_session(self, *, wrapper: RunContextWrapper[Any] | None = None) -> None:
        """Remove all items. The versions before stay, and a rewind brings them back; see :meth:`delete`."""

        async def clear(draft: Any) -> None:
            await clear_log(draft.log(self._log))

        thread = await self._thread()
        if thread.head is not None:
            await surely(thread.update(clear))

    async def run_compaction(
        self,
        args: OpenAIResponsesCompactionArgs | None = None,
        *,
        wrapper: RunContextWrapper[Any] | None = None,
    ) -> None:
        """Put what ``compact`` makes of the items in their place, as one version that can be rewound.

        Without ``compact`` nothing happens; ``OpenAIResponsesCompactionSession`` wraps this session as any
        other.
        """
        if self._compact is None:
            return
        compact = self._compact

        async def replace(draft: Any) -> None:
            log = draft.log(self._log)
            stored = await log.read()
            made = compact(self._items.shown(stored))
            kept = await made if isawaitable(made) else made
            if kept is None:
                return
            enclosed = self._items.enclosed(kept)
            await clear_log(log)
            log.extend(enclosed)

        await surely((await self._thread()).update(replace))

    # OpenAIResponsesCompactionSession looks for the next two methods by name. Without them it removes all
    # items and then adds the compacted ones: a process that is killed in between leaves an empty session, and
    # items that another process added while the model compacted are removed.

    async def _atomic_replace_items(self, items: list[TResponseInputItem]) -> bool:
        """Replace all items, as one version; return False if a subclass has methods of its own for that."""
        if self._has_own_methods():
            return False
        enclosed = self._items.enclosed(items)

        async def replace(draft: Any) -> None:
            log = draft.log(self._log)
            await clear_log(log)
            log.extend(enclosed)

        await surely((await self._thread()).update(replace))
        return True

    async def _get_compaction_snapshot(
        self, limit: int, *, prune_prefix: Callable[[Any], bool] | None = None
    ) -> CompactionSnapshot | None:
        """Return the latest ``limit`` items for compaction; ``None`` if another framework wrote one of them,
        or if a subclass has methods of its own for reading and writing.

        When they are replaced, the oldest items of the session are removed as long as ``prune_prefix``
        returns True.
        """
        if self._has_own_methods():
            return None
        log = (await self._thread()).log(self._log)
        length = len(log)
        stored = await log.read(max(0, length - limit))
        items = self._items.own(stored)
        if items is None:
            return None

        async def replace_suffix(start: int, output: Sequence[Any]) -> bool:
            expected = stored[start:]
            enclosed = self._items.enclosed(output)
            replaced = False

            async def replace(draft: Any) -> None:
                nonlocal replaced
                log = draft.log(self._log)
                replaced = bool(expected) and await log.read(-len(expected)) == expected
                if replaced:
                    log.truncate_from(id_of(expected[0]))
                    if prune_prefix is not None:
                        await self._items.prune(log, prune_prefix)
                    log.extend(enclosed)

            await surely((await self._thread()).update(replace))
            return replaced

        return CompactionSnapshot(items, len(stored) == length, replace_suffix)

    def _has_own_methods(self) -> bool:
        # A subclass may transform items on their way, to redact them for instance.
        names = ("get_items", "add_items", "clear_session")
        return any(getattr(type(self), name) is not getattr(EverthreadSession, name) for name in names)

    # ── what a thread has beyond it ──────────────────────────────────────────────────────────

    async def versions(self, limit: int | None = 20) -> list[Version]:
        """The versions of this session, newest first."""
        return [version async for version in (await self._thread()).history(limit)]

    async def branch(self, session_id: str, at: AnyVersion | None = None) -> EverthreadSession:
        """A session of its own that begins as this one was at a version (by default: now). O(1).

        Raises :class:`ThreadExistsError` if there is one of this name.
        """
        await (await self._thread()).fork(session_id, at=at)
        return EverthreadSession(
            session_id,
            self._in_use.given,
            session_settings=self.session_settings,
            log=self._log,
            subject=self._subject,
            reveal=self._reveal,
            compact=self._compact,
        )

    async def rewind(self, to: AnyVersion | None = None, *, turns: int | None = None) -> Version | None:
        """Go back to a version, or to before the last so many messages of the user; items, run state and all
        else in the thread together. Itself a version: rewinding to the one before undoes it."""
        if (to is None) == (turns is None):
            raise InvalidValueError("rewind() takes a version or turns=…", path="turns")
        thread = await self._thread()
        if to is not None:
            return await surely(thread.rewind(to))
        if turns is None or turns < 1:
            raise InvalidValueError("turns is 1 at least", path="turns")
        length = await self._before_turns(thread, turns)
        async for version in thread.history(None):
            past = (await thread.at(version)).log(self._log)
            if len(past) <= length:
                if len(past) == length:
                    return await surely(thread.rewind(version))
                break
        # Whoever wrote it put several turns into one version.
        log = thread.log(self._log)
        log.truncate_from(id_of((await log.read(length, length + 1))[0]))
        return await surely(thread.commit())

    async def _before_turns(self, thread: AsyncThread, turns: int) -> int:
        """How many messages there were before the user's last so many."""
        stored = await thread.log(self._log).read()
        left = turns
        for at in reversed(range(len(stored))):
            if any(item.get("role") == "user" for item in self._items.shown([stored[at]])):
                left -= 1
                if left == 0:
                    return at
        raise InvalidValueError(f"the session has only {turns - left} messages of the user", path="turns")

    async def delete(self) -> None:
        """Delete the session for good; branches live on."""
        await surely((await self._thread()).delete())

    # ── run state ────────────────────────────────────────────────────────────────────────────

    async def save_run_state(self, state: RunState[Any, Any] | None, **options: Any) -> None:
        """Keep the state of a run that waits (for an approval, say), durably; ``None`` forgets it.

        ``options`` are those of ``RunState.to_json``.
        """
        plain = None if state is None else state.to_json(**options)

        def keep(draft: Any) -> None:
            part = draft.state.setdefault(PART, {})
            if plain is None:
                part.pop("run_state", None)
            else:
                part["run_state"] = sealed(self._subject, plain)

        await surely((await self._thread()).update(keep))

    async def load_run_state(self, agent: Agent[Any], **options: Any) -> RunState[Any, Any] | None:
        """The state that was kept, to be handed to ``Runner.run`` with this session; ``None`` if there is
        none. ``options`` are those of ``RunState.from_json``."""
        part = (await self._thread()).state.plain().get(PART, {})
        plain = opened(part.get("run_state"))
        return await RunState.from_json(agent, plain, **options) if plain else None

    # ── the end ──────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Close the store, if this session has opened it."""
        self._in_use.close()

    def __repr__(self) -> str:
        return f"<session {self.session_id!r}>"


# ── items and what is stored ─────────────────────────────────────────────────────────────────────


class Items:
    """Items of the SDK in a log: sealed under their ``subject``'s key, if there is one."""

    def __init__(self, subject: str | None = None, *, reveal: bool = False) -> None:
        self._subject = subject
        self._reveal = reveal or subject is not None

    def enclosed(self, items: Sequence[Any]) -> list[dict[str, Any]]:
        """The items as the log keeps them. Their own ids may come again, so that the log gives others."""
        for item in items:
            if not isinstance(item, dict):
                raise InvalidValueError(f"an item is a dictionary, not {type(item).__name__}", path="items")
        return [{"shape": OPENAI_RESPONSES, "message": sealed(self._subject, item)} for item in items]

    def shown(self, stored: list[Any]) -> list[Any]:
        """Return what is stored, as items."""
        return [item for each in self._view(stored) for item in each.messages]

    def _view(self, stored: list[Any]) -> list[Shown]:
        return view(stored, OPENAI_RESPONSES, self._own, reveal=self._reveal)

    def _own(self, item: Any) -> list[Any] | None:
        if not (is_enclosed(item) and item.get("shape") == OPENAI_RESPONSES):
            return None
        message = laid_open(item["message"], self._reveal, Notes())
        # What was erased as a whole is text.
        return [message] if isinstance(message, dict) else None

    def own(self, stored: Sequence[Any]) -> list[Any] | None:
        """Return what is stored, as items; ``None`` if any of it isn't an item that can be read as one."""
        found = [self._own(each) for each in stored]
        return None if None in found else [item for own in found for item in own or ()]

    async def prune(self, log: Any, expired: Callable[[Any], bool]) -> None:
        """Remove the oldest items as long as they are ``expired``."""
        stored = await log.read()
        items = self.own(stored)
        if items is None:
            return
        count = next((at for at, item in enumerate(items) if not expired(item)), len(items))
        if count:
            log.truncate_from(id_of(stored[0]))
            log.extend(stored[count:])

    async def read(self, log: Any, wanted: int | None) -> list[Any]:
        """Return the items of a log, or the latest so many of them."""
        if wanted is None or wanted < 0:
            return self.shown(await log.read())
        if wanted == 0:
            return []
        stored = await log.read(max(0, len(log) - wanted))
        if len(stored) < len(log) and any(self._own(item) is None for item in stored):
            # What others wrote may be several items, or none, and the calls that it answers are further back.
            stored = await log.read()
        return self.shown(stored)[-wanted:]

    async def pop(self, log: Any) -> Any:
        """Take the latest item out of a log; ``None`` if there is none."""
        stored = await log.read(-1)
        if not stored:
            return None
        if (own := self._own(stored[0])) is not None:
            log.truncate_from(id_of(stored[0]))
            return own[0]
        tail: list[Any] = []
        first = stored[0]
        for each in reversed(self._view(await log.read())):
            first = each.item
            tail[:0] = each.messages
            if any(not str(item.get("type")).endswith("_output") for item in tail):
                break
        # What another framework wrote as one item, or as calls and their results, loses only its last part.
        log.truncate_from(id_of(first))
        log.extend(self.enclosed(tail[:-1]))
        return tail[-1] if tail else None


async def clear_log(log: Any) -> None:
    """Take everything out of a log."""
    if first := await log.read(0, 1):
        log.truncate_from(id_of(first[0]))


def _settings(given: SessionSettings | dict[str, Any]) -> SessionSettings:
    if isinstance(given, SessionSettings):
        return given
    # Older releases take no dictionaries themselves.
    coerce = getattr(sdk_settings, "coerce_session_settings", None)
    settings: SessionSettings = SessionSettings(**given) if coerce is None else coerce(given)
    return settings
