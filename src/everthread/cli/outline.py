"""What a document says to someone who knows agents: goal, todos, tasks, decisions; then the rest. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from everthread.briefing.facts import shown
from everthread.sessions.children import CHILDREN, Child, children_in
from everthread.sessions.tasks import OWN

#: How the statuses of todos and tasks are marked.
MARKS = {"completed": "✓", "in_progress": "▶", "cancelled": "✗", "pending": "○"}


#: Those that still need somebody come first.
_ORDER = ("in_progress", "pending", "completed", "cancelled")


#: When an item changed: that comes with every other change of it. Not when an open loop was resolved, which
#: nothing else tells.
_BOOKKEEPING = re.compile(
    r"(todos|tasks|context|constraints)\b.*\.(updated|completed|resolved|verified)_(at|us)"
    r"|open_loops\b.*\.updated_(at|us)"
)


class OutlineRow(NamedTuple):
    """One item: a mark, its text, what else is to be said, and whether it is over and done with."""

    mark: str
    text: str
    hint: str = ""
    over: bool = False


class Part(NamedTuple):
    """One collection of a document, under its key."""

    key: str
    title: str
    lines: tuple[OutlineRow, ...]


def outline(document: Mapping[str, Any]) -> tuple[list[Part], dict[str, Any]]:
    """The parts that are recognised, in the order in which they are read, and the rest of the document."""
    rest = dict(document)
    parts = []
    working = type(document.get("schema_version")) is int
    for key, build in _PARTS.items():
        stored = document.get(key)
        part = build(key, stored)
        if part is not None:
            parts.append(part)
            if key == OWN and (children := children_in(document)):
                parts.append(_subagents(children))
            del rest[key]
        elif working and stored == {}:
            del rest[key]
    if working and parts:
        del rest["schema_version"]
    return parts, rest


def bookkeeping(path: str) -> bool:
    """Whether a place in a document only says when something beside it changed: no change of its own."""
    return _BOOKKEEPING.fullmatch(path) is not None


def item_texts(document: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """The texts of items that are known by an id, by their place in the document."""
    found = {}
    for key, field in _TEXTS.items():
        for id_, item in (_items(document.get(key), field) or {}).items():
            found[key, id_] = str(item[field])
    return found


#: Collections whose items have ids that say nothing, and the field that does.
_TEXTS = {
    "todos": "content",
    "tasks": "subject",
    "open_loops": "description",
    "intentions": "text",
    "constraints": "text",
}


def _items(stored: Any, field: str) -> dict[str, Mapping[str, Any]] | None:
    """The items of a collection; ``None`` if this isn't one."""
    if not isinstance(stored, dict) or not stored:
        return None
    if all(isinstance(item, dict) and field in item for item in stored.values()):
        return stored
    return None


def _goal(key: str, stored: Any) -> Part | None:
    items = _items(stored, "text")
    if items is None:
        return None
    *earlier, newest = (str(item["text"]) for item in items.values())
    lines = [
        OutlineRow("➤", newest),
        *(OutlineRow("·", text, "earlier", over=True) for text in reversed(earlier)),
    ]
    return Part(key, "goal", tuple(lines))


def _constraints(key: str, stored: Any) -> Part | None:
    items = _items(stored, "text")
    if items is None:
        return None
    return Part(key, "constraints", tuple(OutlineRow("!", str(item["text"])) for item in items.values()))


def _todos(key: str, stored: Any) -> Part | None:
    items = _items(stored, "content")
    if items is None:
        return None
    lines = []
    for id_, item in _by_status(items):
        status, priority = item.get("status", "pending"), item.get("priority", "medium")
        hint = id_ if priority == "medium" else f"{priority} {id_}"
        lines.append(_outline_row(status, str(item["content"]), hint))
    return Part(key, f"todos: {_tally(items)}", tuple(lines))


def _tasks(key: str, stored: Any) -> Part | None:
    items = _items(stored, "subject")
    if items is None:
        return None
    lines = []
    for id_, item in _by_status(items):
        given = item.get("blocked_by")
        waits = [
            str(items[other]["subject"])
            for other in (given if isinstance(given, list) else ())
            if isinstance(other, str) and other in items and items[other].get("status") != "completed"
        ]
        hint = f"waits for {', '.join(waits[:3])}{' …' if len(waits) > 3 else ''}  {id_}" if waits else id_
        lines.append(_outline_row(item.get("status", "pending"), str(item["subject"]), hint))
    return Part(key, f"tasks: {_tally(items)}", tuple(lines))


def _by_status(items: dict[str, Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    def rank(entry: tuple[str, Mapping[str, Any]]) -> int:
        status = entry[1].get("status", "pending")
        return _ORDER.index(status) if status in _ORDER else len(_ORDER)

    return sorted(items.items(), key=rank)


def _outline_row(status: Any, text: str, hint: str) -> OutlineRow:
    # Anything may stand there, also what no dictionary takes as a key.
    mark = MARKS.get(status, "?") if isinstance(status, str) else "?"
    return OutlineRow(mark, text, hint, over=status in ("completed", "cancelled"))


def _tally(items: dict[str, Mapping[str, Any]]) -> str:
    counts: dict[str, int] = {}
    for _, item in _by_status(items):
        status = str(item.get("status", "pending"))
        counts[status] = counts.get(status, 0) + 1
    return ", ".join(f"{count:,} {status.replace('_', ' ')}" for status, count in counts.items())


def _open_loops(key: str, stored: Any) -> Part | None:
    items = _items(stored, "description")
    if items is None:
        return None
    lines = [
        OutlineRow(
            "✓" if item.get("resolved_at") else "?",
            str(item["description"]),
            id_,
            bool(item.get("resolved_at")),
        )
        for id_, item in items.items()
    ]
    return Part(key, "open loops", tuple(sorted(lines, key=lambda line: line.over)))


def _context(key: str, stored: Any) -> Part | None:
    items = _items(stored, "value")
    if items is None:
        return None
    lines = []
    for name, item in items.items():
        verify = item.get("verify")
        by = verify.get("name") if isinstance(verify, dict) else None
        lines.append(
            OutlineRow("=", f"{name}: {_short_value(item['value'])}", f"verifier {by}" if by else "")
        )
    return Part(key, "context", tuple(lines))


def _session(key: str, stored: Any) -> Part | None:
    if not isinstance(stored, dict) or set(stored) - {"decisions", "inbox", CHILDREN}:
        return None
    if len(stored.get(CHILDREN) or ()) > len(children_in({OWN: stored})):
        # Some of it makes no sense: then all of it is shown as it is.
        return None
    decisions = _items(stored.get("decisions"), "decision") or {}
    lines = [OutlineRow("?", str(item["decision"]), _why(item)) for item in decisions.values()]
    return Part(key, "decided, no outcome", tuple(lines))


def _subagents(found: list[Child]) -> Part:
    rows = (
        OutlineRow(_CHILD_MARKS[child.status], child.text, child.thread, over=not child.is_open)
        for child in found
    )
    # What is open first: sorting keeps the order of those alike.
    lines = tuple(sorted(rows, key=lambda row: row.over))
    return Part(CHILDREN, "subagents", lines)


_CHILD_MARKS = {"open": "?", "completed": "✓", "failed": "✗"}


def _why(decision: Mapping[str, Any]) -> str:
    rationale, rejected = decision.get("rationale"), decision.get("rejected")
    parts = [f"because {rationale}"] if rationale else []
    if isinstance(rejected, list) and rejected:
        parts.append(f"rather than {', '.join(map(str, rejected[:3]))}")
    return ", ".join(parts)


def _short_value(value: Any) -> str:

    return shown(value)


_PARTS: dict[str, Callable[[str, Any], Part | None]] = {
    "intentions": _goal,
    "constraints": _constraints,
    "todos": _todos,
    "tasks": _tasks,
    "session": _session,
    "open_loops": _open_loops,
    "context": _context,
}
