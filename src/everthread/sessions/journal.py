"""The journal: what a rewind of the thread never moves.

Its document holds the run that is under way or was last, what all runs of the line used up, and the effects
that are open; its logs the runs before, the settled effects, and what went wrong. It is never rewound, so
that a position in one of its logs stays what it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from everthread.errors import SchemaVersionError
from everthread.sessions.beside import beside
from everthread.threads.sync.companions import LOSSY_FORMAT

if TYPE_CHECKING:
    from everthread.sessions.held import HeldThread, Hold
    from everthread.threads.sync.core import Core
    from everthread.threads.sync.thread import Thread
    from everthread.versions import Version

#: What this code understands. A journal that lost nothing is written as the first format, so that older code
#: goes on with it; one that did must not be taken for whole by code that knows nothing of that.
FORMAT: Final = LOSSY_FORMAT
FORMAT_WHOLE: Final = 1

# In the document.
LINE: Final = "line"
RUN: Final = "run"
RUNS: Final = "runs"
CHANGES: Final = "changes"
TURNS: Final = "turns"
USAGE: Final = "usage"
OPEN: Final = "open"
#: Subagents whose end isn't recorded, each with what it had used before; and what all others have used.
CHILDREN: Final = "children"
CHILD_USAGE: Final = "child_usage"
CHILD_TURNS: Final = "child_turns"

# Logs.
RUN_LOG: Final = "runs"
EFFECT_LOG: Final = "effects"
ERROR_LOG: Final = "errors"


def open_journal(core: Core, uid: str, hold: Hold) -> HeldThread:
    """The journal of a line, to be written by the run that holds it."""
    from everthread.sessions.held import HeldThread

    return HeldThread(beside(core), uid, hold, private=True)


def read_journal(core: Core, uid: str) -> Thread:
    """The journal of a line, to be read. It may not exist yet."""
    from everthread.threads.sync.thread import Thread

    return Thread(beside(core), uid)


def check_format(document: Mapping[str, Any]) -> None:
    """Raises :class:`SchemaVersionError` if newer code wrote this journal."""
    found = document.get("format", FORMAT_WHOLE)
    if type(found) is not int or found > FORMAT:
        raise SchemaVersionError(
            f"this session was written by a newer Everthread (journal format {found}); upgrade to go on",
            found=found,
            supported=FORMAT,
        )


def own_part(document: Mapping[str, Any], uid: str) -> Mapping[str, Any]:
    """The document, if this line wrote it. What a fork took along counts nothing but its open effects: runs,
    turns and usage are its source's."""
    if document.get(LINE) == uid:
        return document
    return {OPEN: document.get(OPEN, {})}


def find_keyed(thread: Thread, key: str) -> Version | None:
    """The version that carries a commit key, looked up in the index: nothing is written."""
    assert not thread.dirty, "a look-up must not commit anything"
    version = thread.commit(key=key)
    return version if version is not None and version.key == key else None
