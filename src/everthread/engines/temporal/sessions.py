"""Conversations of frameworks inside workflows: the workflow holds a pointer, the thread holds the words.

``ThreadSession`` is what the OpenAI Agents SDK takes for its memory; ``load_conversation`` and
``save_conversation`` are for the ``message_history`` of Pydantic AI.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from temporalio import workflow

from everthread.engines.pointers import ThreadRef
from everthread.engines.temporal.log_activities import (
    Place,
    Popped,
    add_items_activity,
    clear_activity,
    get_items_activity,
    load_conversation_activity,
    pop_item_activity,
    save_conversation_activity,
)
from everthread.engines.temporal.verbs import call
from everthread.errors import InvalidValueError

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage

__all__ = ["ThreadSession", "load_conversation", "save_conversation"]


class ThreadSession:
    """A session of the OpenAI Agents SDK in the code of a workflow: ``Runner.run(agent, text, session=…)``.

    Its items are the messages of the thread that ``ref`` points to, as ``EverthreadSession`` keeps them:
    either can go on with what the other has written. Each change is a step, once, whatever is replayed.
    :attr:`ref` moves with it: hand it to steps of your own, and to the run that goes on after
    continue-as-new.

    With a ``subject`` items are sealed under that person's key in the store. What a workflow is told is in
    its history as well: see ``EverthreadPlugin(payloads_over=…)``. ``options`` are those of
    ``workflow.execute_activity()``.
    """

    def __init__(
        self,
        ref: ThreadRef,
        *,
        session_settings: Any = None,
        log: str = "messages",
        subject: str | None = None,
        reveal: bool = False,
        **options: Any,
    ) -> None:
        if not isinstance(ref, ThreadRef):
            raise InvalidValueError(f"ref is what open_thread() gives, not {type(ref).__name__}", path="ref")
        self.ref = ref
        self.session_id = ref.thread
        self.session_settings = session_settings
        self._place = Place(log, subject, reveal)
        self._options = options

    async def get_items(self, limit: int | None = None, **_: Any) -> list[Any]:
        """The items, oldest first; with a ``limit`` (or that of the settings) the latest so many."""
        wanted = getattr(self.session_settings, "limit", None) if limit is None else limit
        found: list[Any] = await call(get_items_activity, [self.ref, wanted, self._place], self._options)
        return found

    async def add_items(self, items: list[Any], **_: Any) -> None:
        """Append items, all or none."""
        if items:
            self.ref = await call(add_items_activity, [self.ref, list(items), self._place], self._options)

    async def pop_item(self, **_: Any) -> Any:
        """Remove and return the latest item, ``None`` if there is none."""
        popped: Popped = await call(pop_item_activity, [self.ref, self._place], self._options)
        self.ref = popped.ref
        return popped.item

    async def clear_session(self, **_: Any) -> None:
        """Remove all items. The versions before stay."""
        self.ref = await call(clear_activity, [self.ref, self._place], self._options)

    def __repr__(self) -> str:
        return f"<session {self.session_id!r}>"


async def load_conversation(
    ref: ThreadRef,
    *,
    log: str = "messages",
    subject: str | None = None,
    reveal: bool = False,
    **options: Any,
) -> list[ModelMessage]:
    """The history at ``ref``, for ``agent.run(…, message_history=…)``. What other frameworks wrote is
    converted; personal values of theirs are shown only with ``reveal``."""
    data = await call(load_conversation_activity, [ref, Place(log, subject, reveal)], options)
    with workflow.unsafe.imports_passed_through():
        from everthread.adapters.pydantic_ai.history import built
    return built(data)


async def save_conversation(
    ref: ThreadRef,
    messages: Sequence[ModelMessage],
    *,
    log: str = "messages",
    subject: str | None = None,
    **options: Any,
) -> ThreadRef:
    """Keep ``result.all_messages()`` as the messages of the thread, as one step; where it stands then. Only
    what is new is written, and what was rewritten takes the place of the old. With a ``subject`` messages are
    sealed under that person's key."""
    with workflow.unsafe.imports_passed_through():
        from everthread.adapters.pydantic_ai.history import dumped
    arguments = [ref, dumped(messages), Place(log, subject)]
    saved: ThreadRef = await call(save_conversation_activity, arguments, options)
    return saved
