"""Steps of the model."""

from __future__ import annotations

import copy
from typing import Any

from everthread.errors import FencedError
from everthread.testing.model import ModelThread
from everthread.testing.model_joining import find, same
from everthread.testing.model_versions import Recorded, StepKey


class ModelStep:
    """A step in slow motion: enter, then append and change the thread's document, then finish."""

    def __init__(self, thread: ModelThread, key: Any, attempt: int, slot: int | None) -> None:
        self._thread = thread
        self._key: StepKey = (key, slot)
        self._attempt = attempt
        self._items: list[tuple[str, Any]] = []
        self.done = False
        self.result: Any = None

    def _known(self) -> Recorded:
        head = self._thread.head
        return head.steps.get(self._key, Recorded(0)) if head else Recorded(0)

    def _look(self, leaving: bool = False) -> None:
        known = self._known()
        if known.attempt > self._attempt and (leaving or not known.done):
            raise FencedError(str(self._key), attempt=self._attempt, newest=known.attempt)
        if known.done:
            self.done, self.result = True, copy.deepcopy(known.result)

    def enter(self) -> None:
        self._thread.refresh()
        self._look()
        if not self.done and self._attempt > max(self._known().attempt, 1):
            self._record(Recorded(self._attempt), "fence")

    def append(self, log: str, item: Any) -> None:
        self._items.append((log, copy.deepcopy(item)))

    def finish(self, result: Any) -> None:
        thread = self._thread
        try:
            if not self.done and thread.stale:
                self._catch_up()
            if not self.done:
                self._place()
                self.result = result
                ids = tuple((log, item["id"]) for log, item in self._items)
                self._record(Recorded(self._attempt, True, copy.deepcopy(result), ids), "commit")
        finally:
            thread.discard()

    def _catch_up(self) -> None:
        """Somebody committed meanwhile: perhaps this very step, perhaps a newer attempt of it."""
        thread = self._thread
        thread._check_alive()
        newest = thread._store.thread(thread.name)
        again = ModelStep(newest, self._key[0], self._attempt, self._key[1])
        again._look(leaving=True)
        if again.done:
            self.done, self.result = True, again.result
            thread.discard()
            thread.refresh()
        else:
            thread.rebase()

    def _record(self, recorded: Recorded, kind: str) -> None:
        thread = self._thread
        known = thread.head.steps if thread.head else {}
        thread._write(steps={**known, self._key: recorded}, kind=kind)

    def _place(self) -> None:
        """By id where an item of that id is; else before what siblings of a higher slot wrote; else last."""
        key, slot = self._key
        steps = self._thread.head.steps if self._thread.head else {}
        for log in dict.fromkeys(log for log, _ in self._items):
            items = self._thread._logs.setdefault(log, [])
            higher = [
                find(items, item_id)
                for (other, place), recorded in steps.items()
                for name, item_id in recorded.ids
                if other == key and slot is not None and place is not None and place > slot and name == log
            ]
            at = min((place for place in higher if place is not None), default=len(items))
            for item in (item for name, item in self._items if name == log):
                twin = find(items, item["id"])
                if twin is not None:
                    items[twin] = items[twin] if same(items[twin], item) else copy.deepcopy(item)
                else:
                    items.insert(at, copy.deepcopy(item))
                    at += 1
