"""Which parts of a document belong to the session's users: the slice. Pure rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from everthread.errors import InvalidStateError, InvalidValueError

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
    """Tasks and custom state of a plain document."""
    return {name: value for name, value in document.items() if name != OWN and name not in WORKING | RUNTIME}


def custom_part(update: Mapping[str, Any]) -> dict[str, Any]:
    """What an update assigns besides tasks. Raises where it would reach into what has its own calls."""
    custom = {name: value for name, value in update.items() if name != TASKS and name not in RUNTIME}
    for name in custom:
        if name == OWN or name in WORKING:
            raise InvalidValueError(
                f"{name!r} isn't custom state; change it through the session's own calls", path=str(name)
            )
    return custom
