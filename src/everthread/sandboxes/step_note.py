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
    out is left out with it. If the workflow was reset to a run whose files another run had left out, the
    version that they were saved in counts again.
    """
    recorded = _Recorded(store, here)
    target: str | None = None
    #: The newest version that a rewind left out, and that the thread knows again.
    again: str | None = None
    below: int | None = None
    for version in sandbox.history(limit=None):
        is_left_out = below is not None and version.seq > below
        if version.kind == "rewind" and version.source is not None:
            if not is_left_out:
                below = int(version.source.partition("-")[0])
            continue
        if is_left_out and again is not None:
            continue
        note = version.metadata.get(NOTE)
        if not isinstance(note, Mapping) or note.get("thread") != here.thread:
            continue
        is_known = recorded.has(msgspec.convert(dict(note), StepNote))
        if is_left_out:
            again = version.id if is_known else None
        elif is_known:
            break
        else:
            target = version.parent
    return None if target is None else again or target


class _Recorded:
    """The steps that a thread holds, where it stands, and the run that made each; read when first needed."""

    def __init__(self, store: ThreadStore, here: StepNote) -> None:
        self._store, self._here = store, here
        self._runs: dict[tuple[Any, int | None], Any] | None = None

    def has(self, note: StepNote) -> bool:
        if note == self._here:
            return True
        if self._runs is None:
            self._runs = {}
            for each in self._store.thread(note.thread).steps():
                self._runs.setdefault((each.key, each.slot), each.version.metadata.get("run"))
        return self._runs.get((note.key, note.slot)) == note.run
