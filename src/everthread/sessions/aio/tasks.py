"""The tasks of a session: looking at them, and the calls that change them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

from everthread.errors import InvalidStateError
from everthread.sessions.tasks import TASKS, Edit, Task, TaskGraph, TaskStatus, subject_text, text
from everthread.threads.nodes import plain_of

if TYPE_CHECKING:
    from everthread.sessions.aio.fenced_thread import AsyncFencedThread
    from everthread.threads.aio.past import AsyncPast
    from everthread.threads.aio.thread import AsyncThread
    from everthread.values import Personal


class TaskView:
    """The tasks of a thread, or of a moment of its past, read only."""

    def __init__(self, thread: AsyncThread | AsyncPast) -> None:
        self._document = thread

    def _graph(self) -> TaskGraph:
        return TaskGraph(plain_of(self._document.state.get(TASKS)))

    def all(self) -> list[Task]:
        """All of them, in the order in which they were added."""
        return self._graph().all()

    def ready(self) -> list[Task]:
        """Pending tasks that nothing blocks any more: what can be started now."""
        return self._graph().ready()

    def blocked(self) -> list[Task]:
        """Unfinished tasks that wait for others."""
        return self._graph().blocked()

    def get(self, task_id: str) -> Task | None:
        graph = self._graph()
        return graph.task(task_id) if task_id in graph else None

    def __getitem__(self, task_id: str) -> Task:
        return self._graph().task(task_id)

    def __contains__(self, task_id: object) -> bool:
        return task_id in self._graph()

    def __iter__(self) -> Iterator[Task]:
        return iter(self.all())

    def __len__(self) -> int:
        return len(self._graph())

    def __repr__(self) -> str:
        return f"<tasks: {len(self)}, {len(self.ready())} ready>"


class AsyncTasks(TaskView):
    """The tasks of a session. Every change is durable when its call returns; one that raises changes nothing.

    A task that waits for others can be neither started nor completed.
    """

    def __init__(self, thread: AsyncFencedThread) -> None:
        super().__init__(thread)
        self._thread = thread
        #: The graph at a committed version: kept, because building it costs as much as there are tasks.
        self._cached: tuple[Any, TaskGraph] | None = None

    def _graph(self) -> TaskGraph:
        head = self._thread.head
        if self._cached is not None and self._cached[0] is head and not self._thread.dirty:
            return self._cached[1]
        graph = super()._graph()
        self._cached = None if self._thread.dirty else (head, graph)
        return graph

    async def add(
        self,
        subject: str | Personal,
        description: str | Personal = "",
        *,
        active_form: str | Personal = "",
        metadata: Mapping[str, Any] | None = None,
        blocked_by: Iterable[str] = (),
        blocks: Iterable[str] = (),
    ) -> Task:
        """A new pending task. Raises :class:`NotFoundError` where a task it is tied to is unknown, and
        :class:`InvalidStateError` where tasks would wait for each other in a circle."""
        async with self._thread.mutex:
            now = self._thread.now_us()
            fields = {
                "subject": subject_text(subject),
                "description": text(description, "description"),
                "active_form": text(active_form, "active_form"),
                "status": "pending",
                "metadata": dict(metadata or {}),
                "created_us": now,
                "updated_us": now,
            }
            task_id = self._thread.new_id()
            graph = await self._change(lambda graph: graph.adding(task_id, fields, blocked_by, blocks))
            return graph.task(task_id)

    async def update(
        self,
        task_id: str,
        *,
        subject: str | Personal | None = None,
        description: str | Personal | None = None,
        active_form: str | Personal | None = None,
        status: TaskStatus | None = None,
        metadata: Mapping[str, Any] | None = None,
        blocked_by: Iterable[str] | None = None,
        blocks: Iterable[str] | None = None,
    ) -> Task:
        """Change what is given. ``blocked_by`` and ``blocks`` replace the edges of that side; ``metadata`` is
        merged key by key, ``None`` deletes a key."""
        texts = {"subject": subject, "description": description, "active_form": active_form}

        def edits(graph: TaskGraph) -> list[Edit]:
            task = graph.task(task_id)
            made: list[Edit] = []
            if metadata is not None:
                # First: the only value that may turn out not to be storable.
                merged = {**task.metadata, **metadata}
                made.append((task_id, "metadata", {k: v for k, v in merged.items() if v is not None}))
            wired = graph.wiring(task_id, blocked_by, blocks)
            if status is not None:
                made.append(graph.setting_status(task_id, status, {edit[0]: edit[2] for edit in wired}))
            made += wired
            if subject is not None:
                subject_text(subject)
            made += [(task_id, name, text(new, name)) for name, new in texts.items() if new is not None]
            return [*made, (task_id, "updated_us", self._thread.now_us())]

        async with self._thread.mutex:
            return (await self._change(edits)).task(task_id)

    async def start(self, task_id: str) -> Task:
        """Raises :class:`InvalidStateError` while it is blocked."""
        return await self.update(task_id, status="in_progress")

    async def complete(self, task_id: str) -> Task:
        """Raises :class:`InvalidStateError` while it is blocked."""
        return await self.update(task_id, status="completed")

    async def reopen(self, task_id: str) -> Task:
        return await self.update(task_id, status="pending")

    async def block(self, task_id: str, *, by: str) -> Task:
        """Let a task wait for another one."""
        async with self._thread.mutex:
            return await self.update(task_id, blocked_by=[*self[task_id].blocked_by, by])

    async def unblock(self, task_id: str, *, by: str) -> Task:
        """Let a task no longer wait for another one."""
        async with self._thread.mutex:
            return await self.update(
                task_id, blocked_by=[one for one in self[task_id].blocked_by if one != by]
            )

    async def delete(self, task_id: str) -> None:
        """Remove a task; nothing is blocked by it any more."""
        async with self._thread.mutex:
            await self._change(lambda graph: graph.removing(task_id))

    async def _change(self, plan: Callable[[TaskGraph], list[Edit]]) -> TaskGraph:
        """Check everything, then edit the document, then save."""
        async with self._thread.writing():
            graph, before = self._graph(), self._thread.head
            edits = plan(graph)
            self._cached = None
            tasks = self._thread.state.setdefault(TASKS, {})
            if not isinstance(tasks, MutableMapping):
                raise InvalidStateError(
                    f"state[{TASKS!r}] is the place of the session's tasks, and something else stands there; "
                    "keep your own under another key, or use a thread of its own for it"
                )
            for id_, field, value in edits:
                if field is not None:
                    tasks[id_][field] = value
                elif value is None:
                    del tasks[id_]
                else:
                    tasks[id_] = value
        graph.apply(edits)
        head = self._thread.head
        if before is not None and head is not None and head.parent == before.id:
            # Nothing of others came in between.
            self._cached = (head, graph)
        return graph
