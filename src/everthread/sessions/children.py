"""Subagents, as the document of their parent's thread knows them: rules without I/O."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from everthread.sessions.records import moment_or_none
from everthread.sessions.tasks import OWN, own_part
from everthread.sessions.usage import Usage
from everthread.threads.document import TrackedDict

#: In the session's own part of the document: an entry for each child, by the key of its newest task.
CHILDREN: Final = "subagents"

ThreadMode = Literal["new", "continue", "fork", "parent"]
MODES: Final[tuple[ThreadMode, ...]] = ("new", "continue", "fork", "parent")
ChildStatus = Literal["open", "completed", "failed"]


class Child(msgspec.Struct, frozen=True, kw_only=True):
    """A subagent of a thread, as it was where the thread stands.

    ``thread`` is what it works on, and ``version`` what that was when it ended; of an open one, what it began
    with. ``call`` is the id of the tool call that began it. ``reason`` is why its run ended, ``snapshot``
    what it left of its sandbox. ``source`` is the thread that its own was forked from. ``parent`` is the uid
    of the thread that began it: another one's, if this is a fork of that.
    """

    key: str
    name: str
    call: str
    thread: str
    mode: ThreadMode
    status: ChildStatus = "open"
    version: str | None = None
    source: str | None = None
    usage: Usage = msgspec.field(default_factory=Usage)
    reason: str | None = None
    snapshot: Any = None
    parent: str = ""
    parent_version: str | None = None
    print: str = ""
    at_us: int | None = None

    @property
    def is_open(self) -> bool:
        """Whether it has no result yet."""
        return self.status == "open"

    @property
    def began_at(self) -> datetime.datetime | None:
        return moment_or_none(self.at_us)

    @property
    def text(self) -> str:
        """One line that says what it is."""
        why = f" ({self.reason})" if self.reason not in (None, self.status) else ""
        return f"{self.name}: {self.status}{why}"


_TEXTS = ("name", "call", "thread")
_OPTIONAL = ("version", "source", "reason", "parent", "parent_version", "print")


def children_in(document: Mapping[str, Any]) -> list[Child]:
    """The children that a document knows, tracked or plain, the oldest first. What makes no sense there is
    left out."""
    own = document.get(OWN)
    stored = own.get(CHILDREN) if isinstance(own, Mapping) else None
    if not isinstance(stored, Mapping):
        return []
    # A tracked one is read as a whole at once; the rest of the document may be large.
    plain = stored.plain() if isinstance(stored, TrackedDict) else stored
    found = (_child(key, fields) for key, fields in plain.items())
    return [child for child in found if child is not None]


def _child(key: Any, fields: Any) -> Child | None:
    if not isinstance(key, str) or not isinstance(fields, Mapping):
        return None
    found: dict[str, Any] = {name: fields.get(name) for name in (*_TEXTS, *_OPTIONAL)}
    found = {name: text for name, text in found.items() if isinstance(text, str) and text}
    mode, status, usage, at_us = (fields.get(name) for name in ("mode", "status", "usage", "at_us"))
    if mode not in MODES or not all(name in found for name in _TEXTS):
        return None
    return Child(
        key=key,
        mode=mode,
        status=status if status in ("completed", "failed") else "open",
        usage=Usage(usage if isinstance(usage, Mapping) else {}),
        snapshot=fields.get("snapshot"),
        at_us=at_us if type(at_us) is int else None,
        **found,
    )


def put_child(state: Any, child: Child) -> None:
    """Write what is known of a child into a tracked document. Once it has ended, what was known of its thread
    before goes: there is one entry for each child."""
    stored = own_part(state).setdefault(CHILDREN, {})
    if not child.is_open:
        for other in children_in(state):
            same = (other.name, other.thread) == (child.name, child.thread)
            if other.key != child.key and same and not other.is_open:
                del stored[other.key]
    fields = {name: getattr(child, name) for name in child.__struct_fields__ if name != "key"}
    fields["usage"] = dict(child.usage)
    stored[child.key] = {name: value for name, value in fields.items() if value not in (None, "", {})}


def drop_children(state: Any) -> bool:
    """Forget all children; whether there were any."""
    own = state.get(OWN)
    if not isinstance(own, Mapping) or CHILDREN not in own:
        return False
    del own[CHILDREN]  # type: ignore[attr-defined]
    return True


def remove_child(state: Any, key: str) -> None:
    """Forget one."""
    own_part(state).setdefault(CHILDREN, {}).pop(key, None)
