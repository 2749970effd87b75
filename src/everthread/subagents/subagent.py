"""``Subagent``: a tool over whatever function, coroutine or child workflow does the work."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, overload

from everthread.arguments import check_function, check_name
from everthread.errors import InvalidValueError
from everthread.sessions.children import MODES, Child, ThreadMode, children_in
from everthread.subagents.results import Wanted, check_wanted
from everthread.subagents.task import Outcome, Task
from everthread.threads.twins import AwaitedFace

if TYPE_CHECKING:
    from everthread.subagents.aio.calls import AsyncParent
    from everthread.subagents.sync.calls import Parent
    from everthread.threads.aio.store import AsyncThreadStore
    from everthread.threads.sync.store import ThreadStore
    from everthread.threads.sync.thread import AnyVersion


class Subagent:
    """A tool whose work is done by another agent. ``start(task)`` does it: a function, a coroutine function,
    or what starts a child workflow and gives something to await. It returns a value, or an
    :class:`Outcome`.

    ``thread`` says what the child works on: a ``"new"`` thread; ``"continue"``, the thread that the child of
    this name had last; ``"fork"``, a fork of that or, if there is none, of the parent, as it was before it
    asked; or ``"parent"``, the parent's own thread, with a log of its own. ``result`` is the form that the
    value must have: a pydantic model, a msgspec Struct, a dataclass, a type such as ``list[int]``, or a
    function that gives the value to take, or raises. ``sandbox`` is handed on as it is.
    """

    def __init__(
        self,
        name: str,
        start: Callable[[Task], Any],
        *,
        thread: ThreadMode = "new",
        result: Wanted = None,
        sandbox: Any = None,
    ) -> None:
        self.name = check_name(name, "the name of a subagent")
        check_function(start, "start")
        self.start = start
        if thread not in MODES:
            raise InvalidValueError(f"thread is one of {', '.join(MODES)}, not {thread!r}", path="thread")
        check_wanted(result)
        self.thread = thread
        self.result = result
        self.sandbox = sandbox
        #: What the effect ledger calls it.
        self.__name__ = name

    @overload
    def call(
        self,
        parent: AsyncParent,
        call_id: str,
        prompt: Any = None,
        *,
        of: str | None = None,
        before: AnyVersion | None = None,
    ) -> Awaitable[Outcome]: ...

    @overload
    def call(
        self,
        parent: Parent,
        call_id: str,
        prompt: Any = None,
        *,
        of: str | None = None,
        before: AnyVersion | None = None,
    ) -> Outcome: ...

    def call(
        self,
        parent: Any,
        call_id: str,
        prompt: Any = None,
        *,
        of: str | None = None,
        before: AnyVersion | None = None,
    ) -> Any:
        """Let the child do what a model has asked for; what came of it. ``parent`` is a session, a thread
        without uncommitted changes, or a step; of an async store, await it.

        ``call_id`` is the id of the model's tool call, unique in the parent's thread. The same call again
        gives what was recorded or, after a kill, goes on with the same child: ``start`` gets the same task.
        What ``start`` raises, and a value that doesn't fit ``result``, come back as ``outcome.error``.
        ``of`` names the child to continue or to fork, by its thread or its call; the parent's own thread, to
        fork that. ``before`` is the version of the parent to fork; by default the one before the message
        that asks for this call.

        Raises :class:`EffectMismatchError` if the call was begun with another prompt, and what ``start``
        raises if another run has taken the child over or the store can't be written.
        """
        code = _code(parent)
        return code.call(self._spec(code), self.start, parent, call_id, prompt, of, before)

    def __call__(self, parent: Any, call_id: str, prompt: Any = None, **options: Any) -> Any:
        """The same, as the text of a tool's message: for ``session.call(key, subagent, session, call_id,
        prompt, verify=subagent.verify)``, whose result is recorded."""
        made = self.call(parent, call_id, prompt, **options)
        return _text_of(made) if isinstance(parent, AwaitedFace) else made.text

    def verify(self, *args: Any, **kwargs: Any) -> bool:
        """For the effect ledger: a call that was cut short is made again, because it goes on with the child
        that was begun."""
        return False

    # ── in two parts, where the work is a workflow's ─────────────────────────────────────────

    @overload
    def begin(
        self,
        parent: AsyncParent,
        call_id: str,
        prompt: Any = None,
        *,
        of: str | None = None,
        before: AnyVersion | None = None,
    ) -> Awaitable[Task]: ...

    @overload
    def begin(
        self,
        parent: Parent,
        call_id: str,
        prompt: Any = None,
        *,
        of: str | None = None,
        before: AnyVersion | None = None,
    ) -> Task: ...

    def begin(
        self,
        parent: Any,
        call_id: str,
        prompt: Any = None,
        *,
        of: str | None = None,
        before: AnyVersion | None = None,
    ) -> Any:
        """The first part of :meth:`call`: the child stands in the parent's document as open, its thread is
        there. In a step, for engines: the step's commit makes it durable. Raises :class:`NotFoundError` if
        there is no child that ``of`` names."""
        code = _code(parent)
        return code.begin(self._spec(code), parent, call_id, prompt, of, before)

    @overload
    def end(self, parent: AsyncParent, task: Task, answer: Any) -> Awaitable[Outcome]: ...

    @overload
    def end(self, parent: Parent, task: Task, answer: Any) -> Outcome: ...

    def end(self, parent: Any, task: Task, answer: Any) -> Any:
        """The last part: check what ``start`` has answered, a value, an :class:`Outcome` or an exception, and
        record it."""
        code = _code(parent)
        return code.end(self._spec(code), parent, task, answer)

    def _spec(self, code: Any) -> Any:
        return code.Spec(name=self.name, mode=self.thread, result=self.result, sandbox=self.sandbox)

    def __repr__(self) -> str:
        return f"<subagent {self.name!r}, thread={self.thread!r}>"


async def _text_of(made: Awaitable[Outcome]) -> str:
    return (await made).text


def _code(parent: Any) -> Any:
    """What fits the colour of the parent. Loaded when it is used: code of workflows has no store."""
    if isinstance(parent, AwaitedFace):
        from everthread.subagents.aio import calls as awaited

        return awaited
    from everthread.subagents.sync import calls as blocking

    return blocking


def subagents_of(thread: Any) -> list[Child]:
    """The children of a thread where it stands, the oldest first: of a thread, a session, or what
    ``thread.at(version)`` gives."""
    return children_in(thread.state)


@overload
def delete_with_children(store: AsyncThreadStore, name: str) -> Awaitable[list[str]]: ...


@overload
def delete_with_children(store: ThreadStore, name: str) -> list[str]: ...


def delete_with_children(store: Any, name: str) -> Any:
    """Delete a thread and the threads of all children that it has begun, and theirs; the names of what went.

    Children that another thread has continued since are that one's, and stay, as forks do. The parent goes
    last: cut short, it is simply done again. Raises :class:`ThreadNotFoundError` if there is no such thread.
    """
    return _code(store).delete_with_children(store, name)
