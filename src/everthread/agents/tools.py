"""The tools of the MCP server: what each is called with, and what it does to a store.

Each call is durable when it returns. There is no tool that deletes, rewinds, erases or adds a constraint,
none that reaches another namespace, and none that runs a stored command or uses the network.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from everthread.agents.project import THREAD_VARIABLE, chosen_thread, find_item
from everthread.agents.quoting import fill_page, plain, quoted
from everthread.errors import (
    ConflictError,
    EverthreadError,
    InvalidValueError,
    NotFoundError,
    SessionBusyError,
    ThreadNotFoundError,
    UsageError,
)

if TYPE_CHECKING:
    from everthread.store import Store

#: Tokens of a briefing, as the briefing itself estimates them.
BRIEFING_TOKENS: Final = 1_800
#: Characters of one argument.
TEXT_CHARACTERS_MAX: Final = 20_000
#: Seconds to wait for a run that holds the thread. Decisions and tasks need the thread for themselves.
_WAIT_S = 2.0
_COMMIT_TRIES = 20
_HITS_PER_PAGE = 20
_VERSIONS_PER_PAGE = 50
_LABEL_CHARACTERS = 200

KINDS: Final = ("todo", "task", "loop", "decision", "goal")
STATUSES: Final = ("pending", "in_progress", "completed", "cancelled", "failed")

#: The arguments of each tool and whether they are required. Every one is a text.
_ARGUMENTS: Final[dict[str, dict[str, bool]]] = {
    "resume": {"thread": False},
    "note": {"key": True, "text": True, "thread": False},
    "update": {
        "kind": True, "text": False, "id": False, "status": False, "outcome": False, "reason": False,
        "thread": False,
    },
    "checkpoint": {"label": True, "thread": False},
    "find": {"text": True, "cursor": False},
    "show": {"version": False, "log": False, "cursor": False, "thread": False},
    "history": {"cursor": False, "thread": False},
    "fork": {"name": True, "version": False, "thread": False},
}  # fmt: skip
_DESCRIPTIONS: Final = {
    "resume": "Read the briefing: goal, open work, facts, calls in doubt. Call first.",
    "note": "Record a fact for later sessions under a key.",
    "update": "Without id: add text. With id (or its start): set status or a decision's outcome.",
    "checkpoint": "Label this version.",
    "find": "Find words in all threads.",
    "show": "Read a thread's state, or one of its logs, newest first.",
    "history": "List versions, newest first.",
    "fork": "Start a new thread from a version.",
}
_ENUMS: Final[dict[str, tuple[str, ...]]] = {"kind": KINDS, "status": STATUSES}
_READING = ("resume", "find", "show", "history")
#: Words of advice that a model must not be given.
_DESTRUCTIVE = re.compile(
    r"\b(accept_loss|delete|doubt|erase|gc|prune|redact|restore|rewind|salvage|settle|take_over)\b"
)


class BadArgumentsError(ValueError):
    """Arguments that don't fit a tool's schema; nothing was changed."""


def list_tools() -> list[dict[str, Any]]:
    """Return the tools as `tools/list` shows them."""
    return [_tool(name) for name in _ARGUMENTS]


def _tool(name: str) -> dict[str, Any]:
    arguments = _ARGUMENTS[name]
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            each: {"type": "string"} | ({"enum": list(_ENUMS[each])} if each in _ENUMS else {})
            for each in arguments
        },
    }
    if required := [each for each, needed in arguments.items() if needed]:
        schema["required"] = required
    tool: dict[str, Any] = {"name": name, "description": _DESCRIPTIONS[name], "inputSchema": schema}
    if name in _READING:
        tool["annotations"] = {"readOnlyHint": True}
    else:
        tool["annotations"] = {"destructiveHint": False}
    if name == "resume":
        # Claude Code hides other tools behind a search until they are needed.
        tool["_meta"] = {"anthropic/alwaysLoad": True}
    return tool


def check_arguments(tool: str, given: Any) -> dict[str, str]:
    """Return the arguments of a call. Raises :class:`BadArgumentsError`."""
    known = _ARGUMENTS[tool]
    if given is None:
        given = {}
    if not isinstance(given, Mapping):
        raise BadArgumentsError("arguments must be an object")
    for name, value in given.items():
        if name not in known:
            raise BadArgumentsError(f"{tool} has no argument {quoted(name, 40)}; it has {', '.join(known)}")
        if not isinstance(value, str) or not value.strip():
            raise BadArgumentsError(f"{name} must be a non-empty text")
        if len(value) > TEXT_CHARACTERS_MAX:
            raise BadArgumentsError(f"{name} must have at most {TEXT_CHARACTERS_MAX:,} characters")
        if name in _ENUMS and value not in _ENUMS[name]:
            raise BadArgumentsError(f"{name} must be one of {', '.join(_ENUMS[name])}")
    for name, needed in known.items():
        if needed and name not in given:
            raise BadArgumentsError(f"{tool} needs the argument {name}")
    return dict(given)


def error_text(error: EverthreadError) -> str:
    """Return what an error says, without advice that is destructive: to end another run, to erase."""
    words = str(error)
    if isinstance(error, SessionBusyError) or _DESTRUCTIVE.search(words):
        words = words.partition("; ")[0]
    if _DESTRUCTIVE.search(words):
        words = f"{type(error).__name__}: ask the user to look at the store with everthread doctor"
    # Names and texts in it may come from the store.
    return quoted(words, 1_000)


class Toolbox:
    """The tools on one store, which is opened at the first call.

    `open_store` gets True if the store may be created; otherwise it raises :class:`NotFoundError` if there is
    none. `origin` names the client in what it records.
    """

    def __init__(self, open_store: Callable[[bool], Store], origin: str = "mcp") -> None:
        self._open_store = open_store
        self._opened: Store | None = None
        self.origin = origin

    def close(self) -> None:
        """Close the store, if it was opened."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def call(self, tool: str, given: Any) -> str:
        """Return the answer of a tool. Raises :class:`BadArgumentsError` and :class:`EverthreadError`."""
        arguments = check_arguments(tool, given)
        answer: str = getattr(self, f"_{tool}")(**arguments)
        return answer

    def briefing(self, thread: str | None = None) -> str:
        """Return the briefing of a thread; stored commands and checks over the network don't run."""
        name = _thread(thread)
        try:
            store = self._store(create=False)
            return str(store.briefing(name, BRIEFING_TOKENS, allow_commands=False, allow_network=False))
        except ThreadNotFoundError:
            return f"Nothing is recorded on thread {quoted(name, 200)} yet."
        except NotFoundError:
            return (
                f"Nothing is recorded yet; thread {quoted(name, 200)} starts with the first note or update."
            )

    def show(self, thread: str | None = None, **options: str) -> str:
        """Return a page of a thread's state."""
        return self._show(thread, **options)

    def _store(self, *, create: bool) -> Store:
        if self._opened is None:
            self._opened = self._open_store(create)
        return self._opened

    # ── the tools ────────────────────────────────────────────────────────────────────────────

    def _resume(self, thread: str | None = None) -> str:
        return self.briefing(thread)

    def _note(self, key: str, text: str, thread: str | None = None) -> str:
        name = _thread(thread)
        with self._working_state(name) as state:
            state.set_context(key, text, metadata={"origin": self.origin})
        return f"Noted {quoted(key, 200)} on thread {quoted(name, 200)}."

    def _update(self, kind: str, thread: str | None = None, **given: str) -> str:
        name = _thread(thread)
        id_ = given.pop("id", None)
        if id_ is None:
            takes = {"text", "reason"} if kind == "decision" else {"text"}
            if "text" not in given or set(given) - takes:
                names = " and ".join(sorted(takes, reverse=True))
                raise BadArgumentsError(f"a new {kind} takes {names} only; give id to change one")
            made = self._add(kind, name, **given)
            return f"Added {kind} {quoted(made, 200)} to thread {quoted(name, 200)}."
        if kind == "goal":
            raise BadArgumentsError("a goal is replaced by a new one: give text, without id")
        takes = {"status", "outcome"} if kind == "decision" else {"status"}
        if not given or set(given) - takes:
            raise BadArgumentsError(f"with id a {kind} takes {' and '.join(sorted(takes))} only")
        changed = self._change(kind, name, id_, **given)
        return f"Updated {kind} {quoted(changed, 200)} on thread {quoted(name, 200)}."

    def _checkpoint(self, label: str, thread: str | None = None) -> str:
        name = _thread(thread)
        store = self._store(create=True)
        for left in range(_COMMIT_TRIES, 0, -1):
            try:
                version = store.thread(name).commit(label=label, metadata={"origin": self.origin})
                break
            except ConflictError:
                if left == 1:
                    raise
        return f"Version {version.seq} of thread {quoted(name, 200)} has the label {quoted(label, 200)}."

    def _find(self, text: str, cursor: str | None = None) -> str:
        (start,) = _cursor(cursor, 1) or (0,)
        hits = self._store(create=False).search(text, limit=start + _HITS_PER_PAGE + 1)
        entries = [
            (
                _origin(hit.kind.replace("_", " "), hit.thread),
                {"thread": _cut(hit.thread), "id": _cut(hit.id), "excerpt": _cut(hit.excerpt, 500)},
            )
            for hit in hits[start:]
        ]
        page = fill_page(entries[:_HITS_PER_PAGE], start)
        following = start + len(page.lines)
        skipped = (
            f" {len(hits.skipped)} damaged or archived threads were not searched." if hits.skipped else ""
        )
        about = (
            f"{len(page.lines)} hits from {start + 1} on.{skipped}"
            if page.lines
            else f"Nothing found.{skipped}"
        )
        return page.text(about, str(following) if following < len(hits) else None)

    def _show(
        self,
        thread: str | None = None,
        version: str | None = None,
        log: str | None = None,
        cursor: str | None = None,
    ) -> str:
        handle = self._existing(thread)
        seq, entry, offset = _cursor(cursor, 3) or (None, 0, 0)
        past = handle.at(seq if seq is not None else version if version is not None else "head")
        if log is None:
            entries = list(_document(past.state.plain(), handle.name))
            total = len(entries)
            remaining: Iterator[tuple[str, dict[str, Any]]] = iter(entries[entry:])
        else:
            if log not in past.logs:
                known = ", ".join(quoted(each, 40) for each in past.logs) or "none"
                raise NotFoundError(f"there is no log {quoted(log, 40)}; there is {known}")
            items = past.log(log)
            total = len(items)
            remaining = (_item(items[at], at, log, handle.name) for at in range(total - 1 - entry, -1, -1))
        page = fill_page(remaining, entry, offset)
        logs = ", ".join(f"{quoted(each, 40)} ({len(past.log(each))})" for each in past.logs[:10]) or "none"
        about = (
            f"Thread {quoted(handle.name, 200)}, version {past.version.seq}, {total} entries. Logs: {logs}."
        )
        is_last = page.entry is None or page.entry >= total
        return page.text(about, None if is_last else f"{past.version.seq}:{page.entry}:{page.offset}")

    def _history(self, thread: str | None = None, cursor: str | None = None) -> str:
        handle = self._existing(thread)
        (before,) = _cursor(cursor, 1) or (None,)
        versions = list(islice(handle.history(limit=None, before=before), _VERSIONS_PER_PAGE + 1))
        entries = [
            (
                _origin("version", handle.name),
                {
                    "seq": each.seq,
                    "at": each.at.isoformat(timespec="seconds"),
                    "kind": each.kind,
                    "label": _cut(each.label or ""),
                    "by": _cut(str(each.metadata.get("origin", ""))),
                },
            )
            for each in versions
        ]
        page = fill_page(entries[:_VERSIONS_PER_PAGE])
        shown = len(page.lines)
        about = f"{shown} versions of thread {quoted(handle.name, 200)}."
        return page.text(about, str(versions[shown - 1].seq) if shown < len(versions) else None)

    def _fork(self, name: str, version: str | None = None, thread: str | None = None) -> str:
        source = self._existing(thread)
        made = source.fork(name, at=version)
        assert made.head is not None, "a fork has a version"
        return (
            f"Thread {quoted(name, 200)} starts from version {made.head.seq} of {quoted(source.name, 200)}."
        )

    # ── what they share ──────────────────────────────────────────────────────────────────────

    def _existing(self, thread: str | None) -> Any:
        name = _thread(thread)
        handle = self._store(create=False).thread(name)
        if handle.head is None:
            raise ThreadNotFoundError(f"there is no thread {name!r}: nothing is recorded on it yet")
        return handle

    def _working_state(self, name: str) -> Any:
        from everthread.working.sync.state import WorkingState

        return WorkingState(store=self._store(create=True), thread=name, auto_save=True)

    def _add(self, kind: str, name: str, text: str, reason: str = "") -> str:
        if kind in ("task", "decision"):
            if kind == "task":
                return str(self._in_session(name, lambda s: s.tasks.add(text)).id)
            return str(self._in_session(name, lambda s: s.decide(text, rationale=reason)).id)
        with self._working_state(name) as state:
            add = {"todo": state.add_todo, "loop": state.add_open_loop, "goal": state.set_intention}[kind]
            return str(add(text).id)

    def _change(
        self, kind: str, name: str, given: str, status: str | None = None, outcome: str | None = None
    ) -> str:
        if kind == "decision":
            return self._settle_decision(name, given, status, outcome)
        assert status is not None, "checked by the caller"
        if kind == "task":
            if status not in STATUSES[:3]:
                raise BadArgumentsError(f"a task can't be {status}: status must be {', '.join(STATUSES[:3])}")
            tasks = self._store(create=False).session_records(name).tasks
            id_ = find_item(tasks.all(), given, "task", lambda item: item.subject).id
            self._in_session(name, lambda s: s.tasks.update(id_, status=status))
            return str(id_)
        self._store(create=False)
        with self._working_state(name) as state:
            if kind == "loop":
                if status != "completed":
                    raise BadArgumentsError("an open loop can only be set to completed")
                loop = find_item(state.open_loops, given, "open loop", lambda item: item.description)
                return str(state.resolve_open_loop(loop.id).id)
            if status == "failed":
                raise BadArgumentsError("a todo can't be failed: cancel it, and add what to do instead")
            todo = find_item(state.todos, given, "todo", lambda item: item.content)
            move = {
                "pending": state.reopen_todo,
                "in_progress": state.start_todo,
                "completed": state.complete_todo,
                "cancelled": state.cancel_todo,
            }[status]
            return str(move(todo.id).id)

    def _settle_decision(self, name: str, given: str, status: str | None, outcome: str | None) -> str:
        if outcome is None or status not in (None, "completed", "failed"):
            raise BadArgumentsError("a decision takes an outcome, and status completed or failed")
        decisions = self._store(create=False).session_records(name).open_decisions()
        id_ = find_item(decisions, given, "open decision", lambda item: item.decision).id
        self._in_session(name, lambda s: s.record_outcome(id_, outcome, failed=status == "failed"))
        return str(id_)

    def _in_session(self, name: str, act: Callable[[Any], Any]) -> Any:
        """Do something in a short run of its own. A refusal is raised after the run has ended, so that it
        doesn't count as failed."""
        refused: EverthreadError | None = None
        result = None
        with self._store(create=True).session(name, agent=self.origin, wait_s=_WAIT_S) as session:
            try:
                result = act(session)
            except UsageError as error:
                refused = error
        if refused is not None:
            raise refused
        return result


def _thread(given: str | None) -> str:
    name = chosen_thread(given)
    if not name:
        raise UsageError(
            f"no thread was chosen: name one, or let the user set ${THREAD_VARIABLE} or run everthread init"
        )
    return name


def _cursor(given: str | None, parts: int) -> tuple[int, ...] | None:
    if given is None:
        return None
    found = given.split(":")
    if len(found) != parts or not all(re.fullmatch(r"[0-9]{1,15}", each) for each in found):
        raise InvalidValueError("cursor must be one that an earlier answer gave", path="cursor")
    return tuple(map(int, found))


def _cut(text: Any, characters_max: int = _LABEL_CHARACTERS) -> str:
    words = str(text)
    return words if len(words) <= characters_max else words[: characters_max - 1] + "…"


def _origin(what: str, thread: str) -> str:
    return f"{what} of thread {_cut(thread, 100)}"


def _document(state: Mapping[str, Any], thread: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the parts of a document: one for each child of what is at its top."""
    for top, value in state.items():
        if isinstance(value, Mapping) and value:
            children: Any = value.items()
        elif isinstance(value, list) and value:
            children = enumerate(value)
        else:
            yield _origin("document", thread), {"path": f"/{top}", "value": plain(value)}
            continue
        for key, child in children:
            yield _origin("document", thread), {"path": f"/{top}/{key}", "value": plain(child)}


def _item(item: Any, index: int, log: str, thread: str) -> tuple[str, dict[str, Any]]:
    role = f" by {_cut(item['role'], 40)}" if isinstance(item, Mapping) and "role" in item else ""
    return _origin(f"log {_cut(log, 40)}{role}", thread), {"index": index, "value": plain(item)}
