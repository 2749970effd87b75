"""The subagents of a thread, and theirs, as they were where it stands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from everthread.cli.family import session_status
from everthread.cli.output import moment
from everthread.errors import DamageError, NotFoundError
from everthread.sessions.children import Child, children_in

if TYPE_CHECKING:
    from everthread.store import Store

#: As many are shown, and as deep: a document may hold anything.
_SHOWN_MAX, _DEPTH_MAX = 1_000, 20

_SHOWN = ("name", "thread", "version", "mode", "status", "reason", "snapshot", "call", "source")


class Descendants:
    """Reads a tree of subagents; ``complete`` says whether all of it was read."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._left = _SHOWN_MAX
        self.complete = True

    def of(self, document: Mapping[str, Any], depth: int = _DEPTH_MAX) -> list[dict[str, Any]]:
        """The children that a document knows, each with its own."""
        found = []
        for child in children_in(document):
            if not depth or not self._left:
                self.complete = False
                break
            self._left -= 1
            found.append(self._node(child, depth))
        return found

    def _node(self, child: Child, depth: int) -> dict[str, Any]:
        node: dict[str, Any] = {
            name: getattr(child, name)
            for name in (
                "name",
                "thread",
                "version",
                "mode",
                "status",
                "reason",
                "snapshot",
                "call",
                "source",
            )
        }
        node["usage"] = dict(child.usage)
        node["began_at"] = None if child.at_us is None else moment(child.at_us)
        node |= {"session": None, "is_gone": False, "has_gone_on": False, "subagents": []}
        if child.mode == "parent":
            return node
        thread = self._store.thread(child.thread)
        if thread.head is None:
            node["is_gone"] = True
            return node
        node["session"] = session_status(self._store, child.thread)
        try:
            stands = thread.head if child.is_open else thread.at(child.version or "").version
            node["has_gone_on"] = not child.is_open and stands.id != thread.head.id
            node["subagents"] = self.of(thread.at(stands).state, depth - 1)
        except NotFoundError:
            # The thread was deleted and made anew, or the version was pruned.
            node["is_gone"] = True
        except DamageError:
            self.complete = False
        return node


def described(node: Mapping[str, Any]) -> str:
    """What is to be said of a child behind its name."""
    return ", ".join(_parts(node))


def _parts(node: Mapping[str, Any]) -> Iterator[str]:
    status, reason = node["status"], node["reason"]
    if status == "open":
        yield f"open, its run is {node['session']}" if node["session"] else "open"
    else:
        yield status if reason in (None, status) else f"{status} ({reason})"
    if node["mode"] != "parent":
        number = str(node["version"] or "").partition("-")[0]
        yield f"{node['mode']}: {node['thread']}" + (f" v{number}" if number else "")
    else:
        yield "on this thread"
    if node["is_gone"]:
        yield "gone"
    if node["has_gone_on"]:
        yield "went on since"
    if node["usage"]:
        yield " ".join(f"{name}={count:,}" for name, count in node["usage"].items())
