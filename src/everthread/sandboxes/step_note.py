"""Which step of an engine's workflow saved a version of a sandbox, so that a reset of the workflow leaves out
the versions that its history doesn't know."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from everthread.threads.sync.store import ThreadStore
    from everthread.threads.sync.thread import Thread

#: In the metadata of a version that a sandbox saved within a step.
NOTE = "saved_in"


class StepNote(msgspec.Struct, frozen=True):
    """A step, and the attempt of it, that code runs in: ``thread`` is the one that records the step."""

    thread: str
    key: str | tuple[str | int, ...]
    slot: int | None
    run: str
    attempt: int

    @property
    def metadata(self) -> dict[str, Any]:
        return {NOTE: msgspec.to_builtins(self)}


#: The step of an engine that this code runs in. Engines set it.
current_step: ContextVar[StepNote | None] = ContextVar("everthread.current_step", default=None)


def version_in_history(store: ThreadStore, sandbox: Thread, here: StepNote) -> str | None:
    """Return the version of a sandbox that a step must go on from because the versions after it were saved by
    steps that the workflow was reset behind; ``None`` for the newest.

    Only versions that steps on the same thread saved are judged. What was written on top of one that is left
    out is left out with it.
    """
    target: str | None = None
    below: int | None = None
    for version in sandbox.history(limit=None):
        if below is not None and version.seq > below:
            # Left behind by a rewind.
            continue
        if version.kind == "rewind" and version.source is not None:
            below = int(version.source.partition("-")[0])
            continue
        note = version.metadata.get(NOTE)
        if not isinstance(note, Mapping) or note.get("thread") != here.thread:
            continue
        saved_in = msgspec.convert(dict(note), StepNote)
        if saved_in == here or _is_recorded(store, saved_in):
            break
        target = version.parent
    return target


def _is_recorded(store: ThreadStore, note: StepNote) -> bool:
    """Return True if the thread, where it stands, holds this step as the run of the note made it."""
    for recorded in store.thread(note.thread).steps():
        if (recorded.key, recorded.slot) == (note.key, note.slot):
            return recorded.version.metadata.get("run") == note.run
    return False
