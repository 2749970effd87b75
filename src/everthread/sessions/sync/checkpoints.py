# Generated from src/everthread/sessions/aio/checkpoints.py by tools/twin.py: change that, then run: make twin
"""Checkpoints of a session: parts of its scratch memory, kept in the thread under a label."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from everthread.arguments import check_name, check_several
from everthread.errors import InvalidValueError, NotFoundError
from everthread.sessions.records import CheckpointRecord, checkpoint_of
from everthread.sessions.sync.journal import find_keyed
from everthread.sessions.sync.logs import newest_first

if TYPE_CHECKING:
    from everthread.sessions.sync.fenced_thread import FencedThread
    from everthread.threads.sync.thread import Thread
    from everthread.versions import Version

LOG = "session/checkpoints"


class Checkpoints:
    """The checkpoints of a session. They move with the thread: a rewind goes back before the later ones."""

    def __init__(self, thread: FencedThread, scratch: dict[str, Any]) -> None:
        self._thread = thread
        self._scratch = scratch

    def make(self, label: str, include_keys: Iterable[str] | None) -> str:
        check_name(label, "label")
        if include_keys is not None:
            check_several(include_keys, "include_keys", "keys")
        keys = list(self._scratch if include_keys is None else dict.fromkeys(include_keys))
        missing = [key for key in keys if key not in self._scratch]
        if missing:
            raise InvalidValueError(
                f"the working state holds no {', '.join(map(repr, missing))}; no checkpoint was made",
                path="include_keys",
            )
        made = self._thread.new_id()
        item = {
            "checkpoint_id": made,
            "label": label,
            "kept": {key: self._scratch[key] for key in keys},
            "at_us": self._thread.now_us(),
        }
        with self._thread.writing(label=label, key=_key(made)):
            self._thread.log(LOG).append(item)
        return made

    def version_of(self, label: str) -> Version:
        """The version that the newest checkpoint with this label made. Raises :class:`NotFoundError`."""
        for item in newest_first(self._thread.log(LOG)):
            if isinstance(item, Mapping) and item.get("label") == label:
                found = find_keyed(self._thread, _key(str(item.get("checkpoint_id"))))
                if found is not None:
                    return found
        raise NotFoundError(f"there is no checkpoint {label!r}")


def checkpoint_parts(thread: Thread, label: str) -> dict[str, Any] | None:
    """What the newest checkpoint with this label kept."""
    for item in newest_first(thread.log(LOG)):
        if isinstance(item, Mapping) and item.get("label") == label:
            parts = item.get("kept")
            return dict(parts) if isinstance(parts, Mapping) else {}
    return None


def read_checkpoints(thread: Thread, limit: int = sys.maxsize) -> list[CheckpointRecord]:
    """The checkpoints, oldest first; with a limit the newest of them."""
    log = thread.log(LOG)
    items = log.read(max(0, len(log) - limit))
    return [checkpoint_of(item) for item in items if isinstance(item, Mapping)]


def _key(checkpoint_id: str) -> str:
    return f"checkpoint:{checkpoint_id}"
