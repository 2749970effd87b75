"""Tasks and what blocks them, and which parts of a document are whose: rules without I/O."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal

import msgspec

from everthread.errors import InvalidStateError, InvalidValueError, NotFoundError
from everthread.sessions.records import moment_or_none
from everthread.values import Erased, Personal, check_text
from everthread.versions import NO_METADATA

# ── which keys of a document belong to whom ─────────────────────────────────────────────────────────


TASKS: Final = "tasks"
#: What a session keeps for itself in the document: open decisions, messages that wait for the turn's end.
OWN: Final = "session"
#: The working state's parts; they are changed through ``session.work``.
WORKING: Final = frozenset({"schema_version", "todos", "open_loops", "intentions", "constraints", "context"})
#: Bookkeeping of a run. It lives in the journal, and is stripped where it comes along in an update.
RUNTIME: Final = frozenset(
    {"status", "version", "turns", "max_turns", "usage", "tools", "prompt", "system_prompt", "exit_reason"}
)


def own_part(state: Any) -> Any:
    """The session's own place in the tracked document, made if it isn't there."""
    own = state.setdefault(OWN, {})
    if not isinstance(own, Mapping):
        raise InvalidStateError(
            f"state[{OWN!r}] belongs to the session; move what stands there to another key"
        )
    return own


def slice_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """Tasks and custom state of a plain document. Tasks are pairs of id and fields, with edges of both
    sides."""
    found = {name: value for name, value in document.items() if name != OWN and name not in WORKING | RUNTIME}
    if isinstance(found.get(TASKS), Mapping):
        found[TASKS] = task_pairs(found[TASKS])
    return found


def custom_part(update: Mapping[str, Any]) -> dict[str, Any]:
    """What an update assigns. Raises where it would reach into what has its own calls, and for tasks that
    make no sense."""
    custom = {name: value for name, value in update.items() if name not in RUNTIME}
    for name in custom:
        if name == OWN or name in WORKING:
            raise InvalidValueError(
                f"{name!r} isn't custom state; change it through the session's own calls", path=str(name)
            )
    if TASKS in custom:
        custom[TASKS] = checked_map(custom[TASKS])
    return custom


# ── tasks and what blocks them: rules without I/O ───────────────────────────────────────────────────
# Only ``blocked_by`` is stored and ``blocks`` derived from it, so that the two sides agree whatever was
# merged. What is blocked by a task that is gone isn't blocked by it.


TaskStatus = Literal["pending", "in_progress", "completed"]
STATUSES: Final = ("pending", "in_progress", "completed")

#: A field of a task to set; the field ``None`` stands for the whole task, and no value for removing it.
Edit = tuple[str, str | None, Any]


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A task as it stands. ``blocked_by`` are all tasks it waits for, finished ones included; ``blocks`` is
    the same from the other side. Its words are text, or a ``Personal`` with text in it."""

    id: str
    subject: Any
    description: Any = ""
    active_form: Any = ""
    status: TaskStatus = "pending"
    metadata: Mapping[str, Any] = NO_METADATA
    blocked_by: tuple[str, ...] = ()
    blocks: tuple[str, ...] = ()
    created_us: int | None = None
    updated_us: int | None = None

    @property
    def text(self) -> str:
        """One line that says what it is."""
        return str(self.subject)

    @property
    def created_at(self) -> datetime.datetime | None:
        return moment_or_none(self.created_us)

    @property
    def updated_at(self) -> datetime.datetime | None:
        return moment_or_none(self.updated_us)


class TaskGraph:
    """All tasks of a document and the edges between them. Tolerates whatever stands there."""

    def __init__(self, stored: Any) -> None:
        found = stored if isinstance(stored, Mapping) else {}
        self._stored: dict[str, dict[str, Any]] = {
            id_: dict(task)
            for id_, task in found.items()
            if isinstance(id_, str) and isinstance(task, Mapping)
        }
        #: Blocker → what it blocks, in the order in which it came about.
        self._blocks: dict[str, dict[str, None]] = {}
        for id_ in self._stored:
            self._note(id_)

    def __len__(self) -> int:
        return len(self._stored)

    def _given(self, id_: str) -> list[str]:
        given = self._stored.get(id_, {}).get("blocked_by")
        return [one for one in given if isinstance(one, str)] if isinstance(given, list | tuple) else []

    def _note(self, id_: str) -> None:
        for blocker in self._given(id_):
            self._blocks.setdefault(blocker, {})[id_] = None

    def blockers(self, id_: str) -> list[str]:
        return [one for one in self._given(id_) if one in self._stored]

    def task(self, id_: str) -> Task:
        """Raises :class:`NotFoundError` if there is no such task."""
        stored = self._stored.get(id_) if isinstance(id_, str) else None
        if stored is None:
            raise NotFoundError(f"there is no task {id_!r}")
        status, metadata = stored.get("status"), stored.get("metadata")
        return Task(
            id=id_,
            subject=_words(stored.get("subject", "")),
            description=_words(stored.get("description", "")),
            active_form=_words(stored.get("active_form", "")),
            status=status if status in STATUSES else "pending",
            metadata=MappingProxyType(dict(metadata)) if isinstance(metadata, Mapping) else NO_METADATA,
            blocked_by=tuple(self.blockers(id_)),
            blocks=tuple(self._blocks.get(id_, ())),
            created_us=_time(stored.get("created_us")),
            updated_us=_time(stored.get("updated_us")),
        )

    def __contains__(self, id_: object) -> bool:
        return id_ in self._stored

    def all(self) -> list[Task]:
        return [self.task(id_) for id_ in self._stored]

    def waiting_for(self, id_: str, blockers: list[str] | None = None) -> list[str]:
        """The unfinished tasks that block this one."""
        blockers = self.blockers(id_) if blockers is None else blockers
        return [one for one in blockers if self._stored[one].get("status") != "completed"]

    def ready(self) -> list[Task]:
        """Pending tasks that nothing blocks, in the order in which they were added."""
        return [task for task in self.all() if task.status == "pending" and not self.waiting_for(task.id)]

    def blocked(self) -> list[Task]:
        """Unfinished tasks that wait for others."""
        return [task for task in self.all() if task.status != "completed" and self.waiting_for(task.id)]

    # ── what a change comes to ───────────────────────────────────────────────────────────────

    def known(self, ids: Iterable[str]) -> list[str]:
        """The ids, each once. Raises :class:`NotFoundError` for one that isn't there."""
        if isinstance(ids, str):
            raise InvalidValueError("several task ids are given as a list", path="blocked_by")
        return [self.task(id_).id for id_ in dict.fromkeys(ids)]

    def adding(
        self, id_: str, fields: dict[str, Any], blocked_by: Iterable[str], blocks: Iterable[str]
    ) -> list[Edit]:
        blockers, blocked = self.known(blocked_by), self.known(blocks)
        for other in blocked:
            for blocker in blockers:
                # The new task would stand between the two.
                if self._waits(blocker, other):
                    raise _circle(other, id_)
        edits: list[Edit] = [(id_, None, {**fields, "blocked_by": blockers})]
        return edits + [(other, "blocked_by", [*self.blockers(other), id_]) for other in blocked]

    def wiring(self, id_: str, blocked_by: Iterable[str] | None, blocks: Iterable[str] | None) -> list[Edit]:
        """What replacing the edges of one or both sides of a task comes to; circles are refused."""
        edits: dict[str, list[str]] = {}
        if blocked_by is not None:
            edits[id_] = self.known(blocked_by)
        if blocks is not None:
            blocked = self.known(blocks)
            for other in self.task(id_).blocks:
                if other not in blocked:
                    edits[other] = [one for one in self.blockers(other) if one != id_]
            for other in blocked:
                before = edits.get(other, self.blockers(other))
                edits[other] = before if id_ in before else [*before, id_]
        for other, blockers in edits.items():
            for blocker in blockers:
                if self._waits(blocker, other, edits):
                    raise _circle(other, blocker)
        return [(other, "blocked_by", blockers) for other, blockers in edits.items()]

    def setting_status(self, id_: str, status: str, wired: Mapping[str, list[str]]) -> Edit:
        """``wired``: edges that are about to change with it."""
        if status not in STATUSES:
            raise InvalidValueError(f"a task is {', '.join(STATUSES)}, not {status!r}", path="status")
        if status != "pending" and (waiting := self.waiting_for(id_, wired.get(id_))):
            raise InvalidStateError(
                f"the task {id_!r} waits for {', '.join(waiting)}; finish these first, or unblock() it"
            )
        return id_, "status", status

    def removing(self, id_: str) -> list[Edit]:
        edits: list[Edit] = [
            (other, "blocked_by", [one for one in self.blockers(other) if one != id_])
            for other in self.task(id_).blocks
        ]
        return [*edits, (id_, None, None)]

    def _waits(self, start: str, goal: str, edits: Mapping[str, list[str]] | None = None) -> bool:
        """Whether ``start`` waits, over any number of others, for ``goal``."""
        visited, todo = {start}, [start]
        while todo:
            at = todo.pop()
            if at == goal:
                return True
            next_ = edits[at] if edits and at in edits else self.blockers(at)
            todo.extend(one for one in next_ if one not in visited)
            visited.update(next_)
        return False

    def apply(self, edits: Iterable[Edit]) -> None:
        """Follow what was done to the document."""
        for id_, field, value in edits:
            if field in (None, "blocked_by"):
                for blocker in self._given(id_):
                    self._blocks.get(blocker, {}).pop(id_, None)
            if field is not None:
                self._stored[id_][field] = value
            elif value is None:
                del self._stored[id_]
            else:
                self._stored[id_] = dict(value)
            if field in (None, "blocked_by"):
                self._note(id_)


def checked_map(given: Any) -> dict[str, dict[str, Any]]:
    """Tasks as a caller hands them in, pairs of id and fields or a dictionary of these, made whole: edges
    from both sides in one, no circles. Edges to tasks that aren't there are kept."""
    tasks = {id_: {**task, "blocked_by": _ids(id_, task, "blocked_by")} for id_, task in _pairs(given)}
    for id_, task in tasks.items():
        task["subject"] = text(task.get("subject", ""), f"{TASKS}.{id_}.subject")
        if task.setdefault("status", "pending") not in STATUSES:
            raise InvalidValueError(
                f"a task is {', '.join(STATUSES)}, not {task['status']!r}", path=f"{TASKS}.{id_}.status"
            )
        unknown = []
        for other in _ids(id_, task, "blocks"):
            if other not in tasks:
                unknown.append(other)
            elif id_ not in tasks[other]["blocked_by"]:
                tasks[other]["blocked_by"].append(id_)
        task.pop("blocks", None)
        if unknown:
            task["blocks"] = unknown
    graph = TaskGraph(tasks)
    for id_ in tasks:
        graph.wiring(id_, graph.blockers(id_), None)
    return tasks


def _pairs(given: Any) -> list[tuple[str, Mapping[str, Any]]]:
    pairs = list(given.items()) if isinstance(given, Mapping) else given
    sound = isinstance(pairs, list | tuple) and all(
        isinstance(pair, list | tuple)
        and len(pair) == 2
        and isinstance(pair[0], str)
        and isinstance(pair[1], Mapping)
        for pair in pairs
    )
    if not sound or len({pair[0] for pair in pairs}) < len(pairs):
        raise InvalidValueError("tasks are pairs of id and fields, each id once", path=TASKS)
    return [(pair[0], pair[1]) for pair in pairs]


def _ids(id_: str, task: Mapping[str, Any], side: str) -> list[str]:
    found = task.get(side) or ()
    if not isinstance(found, list | tuple) or not all(isinstance(other, str) for other in found):
        raise InvalidValueError(f"{side} is a list of task ids", path=f"{TASKS}.{id_}.{side}")
    return list(dict.fromkeys(found))


def task_pairs(stored: Mapping[str, Any]) -> list[list[Any]]:
    """The tasks of a plain document as pairs of id and fields, which say what they block, too."""
    graph = TaskGraph(stored)
    pairs = []
    for task in graph.all():
        fields = dict(stored[task.id])
        waits, known = fields.get("blocked_by"), fields.get("blocks")
        # Edges to tasks that aren't there count for nothing, and are kept.
        fields["blocked_by"] = list(waits) if isinstance(waits, list | tuple) else []
        elsewhere = [other for other in known if other not in stored] if isinstance(known, list) else []
        fields["blocks"] = [*task.blocks, *elsewhere]
        pairs.append([task.id, fields])
    return pairs


def _words(stored: Any) -> Any:
    return stored if isinstance(stored, Personal | Erased) else str(stored)


def text(value: Any, name: str) -> Any:
    """Text, or a personal value with text in it, which stays as it is."""
    inner = value.value if isinstance(value, Personal) and value.sealed is None else value
    if not isinstance(inner, str | Personal):
        raise InvalidValueError(f"{name} must be text, not {type(value).__name__}", path=name)
    return value


def _circle(id_: str, blocker: str) -> InvalidStateError:
    return InvalidStateError(
        f"{id_!r} can't wait for {blocker!r}, which waits for it already; nothing was changed"
    )


def _time(value: Any) -> int | None:
    return value if type(value) is int else None


def subject_text(value: Any) -> Any:
    """What a task is called: text that says something."""
    return check_text(text(value, "subject"), "the subject of a task", "subject")
