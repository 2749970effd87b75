# Generated from src/everthread/threads/aio/step.py by tools/twin.py: change that, then run: make twin
"""A step: one unit of work, recorded exactly once, whatever is retried around it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from everthread.arguments import check_name
from everthread.codec import records
from everthread.errors import ConflictError, FencedError, InvalidStateError, InvalidValueError
from everthread.threads.sync.commit import write_alone
from everthread.threads.sync.core import key_hash
from everthread.threads.sync.keys import KeyFinder
from everthread.threads.sync.lost_ack import Landed
from everthread.threads.twins import BlockingFace

if TYPE_CHECKING:
    from types import TracebackType

    from everthread.stores.contract import Line
    from everthread.threads.document import TrackedDict
    from everthread.threads.head_cache import CachedHead
    from everthread.threads.sync.thread import Thread
    from everthread.threads.sync.update import Ticket

#: The log that holds the results; no caller's log can have this name.
STEP_LOG = "\0steps"
#: So many results in a row without a sibling of a slot, and no more of them are looked for.
_SIBLINGS = 256


class StepLog:
    """What a step appends to one log; written, or put in place of what has the same id, when it ends."""

    def __init__(self, step: Step, name: str) -> None:
        self._step = step
        self._handle = step._handle
        self.name = name
        self._items: list[tuple[Any, str]] = []

    def append(self, item: Any) -> Any:
        """Append an item, or replace the one with the same id. Without an id it gets a derived one."""
        self._step._check_open()
        slot = len(self._items)
        derived = self._step.message_id(slot if self.name == "messages" else f"{self.name}/{slot}")
        lowered, item_id, _ = self._handle.log(self.name)._prepare(item, derived)
        self._items.append((self._handle.lift(lowered), derived))
        return item_id

    def extend(self, items: Sequence[Any]) -> list[Any]:
        return [self.append(item) for item in items]

    def __len__(self) -> int:
        return len(self._handle.log(self.name)) + len(self._items)

    def __getitem__(self, index: Any) -> Any:
        both = [*self._handle.log(self.name).read(), *(item for item, _ in self._items)]
        return both[index]

    def __repr__(self) -> str:
        return f"<step log {self.name!r}: {len(self._items)} to write>"


class Step(BlockingFace):
    """Use as a context manager; leaving the block is one transaction.

    If ``done`` is true, an earlier attempt has committed: take ``result`` and leave. Otherwise do the work,
    append to ``messages``, change ``state``, set ``result``. An exception discards everything. The first
    committed result wins; an attempt below the highest one entered raises :class:`FencedError`, on entering
    or when it wakes up and tries to write. Results and fences move with a rewind.

    ``slot`` tells parallel steps of one key apart; whatever the order they finish in, their messages stand
    in the order of their slots.
    """

    def __init__(self, thread: Thread, key: str | Sequence[Any], attempt: int, slot: int | None) -> None:
        self._thread = thread
        self._handle = thread.handle
        self.key = key
        self._text = _key_text(key, slot)
        if type(attempt) is not int or not 1 <= attempt < 2**31:
            raise InvalidValueError("attempt counts from 1", path="attempt")
        if slot is not None and (type(slot) is not int or slot < 0):
            raise InvalidValueError("slot counts from 0", path="slot")
        self.attempt = attempt
        self.slot = slot
        self._hash = key_hash(b"step", self._text)
        self._family = _key_text(key, None)
        self._logs: dict[str, StepLog] = {}
        self._open = False
        #: The hash of the version that the handle stood on then.
        self._entered: bytes | None = None
        self.done = False
        self.result: Any = None

    # ── inside the block ─────────────────────────────────────────────────────────────────────

    @property
    def state(self) -> TrackedDict:
        self._check_open()
        return self._thread.state

    @property
    def messages(self) -> StepLog:
        return self._log("messages")

    def log(self, name: str) -> StepLog:
        return self._log(check_name(name, "log name"))

    def _log(self, name: str) -> StepLog:
        if name not in self._logs:
            self._logs[name] = StepLog(self, name)
        return self._logs[name]

    def message_id(self, slot: Any) -> str:
        """An id derived from thread, key and slot: the same after any retry or engine reset."""
        text = json.dumps([self._thread.name, self._text, str(slot)])
        return sha256(text.encode()).hexdigest()[:32]

    def _check_open(self) -> None:
        if not self._open:
            raise InvalidStateError("a step works inside its with block only")
        if self.done:
            raise InvalidStateError(
                f"the step {self.key!r} is done; take its result, it changes nothing any more"
            )

    # ── entering and leaving ─────────────────────────────────────────────────────────────────

    def __enter__(self) -> Step:
        thread, handle = self._thread, self._handle
        handle.require_clean("step()")
        thread.refresh()
        while True:
            entered = self._look(handle.line, handle.head)
            if self.done or entered >= self.attempt or self.attempt == 1:
                break
            # A higher attempt than any before: from here on the lower ones may not write.
            try:
                fence = (self._text, self.attempt, -1)
                write_alone(handle, "step()", kind=records.FENCE, key_hash=self._hash, step=fence)
                break
            except (Landed, ConflictError):
                handle.drop_changes()
                thread.refresh()
        self._entered = handle.head.hash if handle.head is not None else None
        self._open = True
        return self

    def _look(self, line: Line | None, head: CachedHead | None, leaving: bool = False) -> int:
        """Take note of a recorded result; the highest attempt entered so far. Raises if fenced off.

        On entering, a recorded result is there for every attempt: taking it writes nothing.
        """
        if line is None or head is None:
            return 0
        core = self._thread.core
        heads = KeyFinder(core, line, head).heads(self._hash)
        steps = [each.step for each in heads if each.step is not None]
        highest = max((step[1] for step in steps), default=0)
        recorded = next((step for step in steps if step[2] >= 0), None)
        if highest > self.attempt and (leaving or recorded is None):
            raise FencedError(
                f"attempt {self.attempt} of the step {self.key!r} must stop: attempt {highest} took over",
                attempt=self.attempt,
                newest=highest,
            )
        if recorded is not None:
            at = recorded[2]
            opened = self._handle.open_seal
            (record,) = core.reader.items(line, STEP_LOG, at, at + 1, head.recent.get(STEP_LOG), opened)
            self.done = True
            self.result = record["result"]
        return highest

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        thread, handle = self._thread, self._handle
        if error is not None or self.done:
            changed = error is None and handle.dirty
            handle.drop_changes()
            if changed:
                raise InvalidStateError(f"the step {self.key!r} was done already; its changes were not taken")
            return
        queue, name = thread.core.update_queue, thread.name
        ticket: Ticket | None = None
        try:
            # On a conflict look again, and go on from there unless somebody else was first.
            while not self._finish():
                ticket = ticket or queue.enter(name)
                thread.rebase()
        except BaseException:
            handle.drop_changes()
            raise
        finally:
            if ticket is not None:
                queue.leave(ticket)

    def _finish(self) -> bool:
        """Commit; False if somebody has written meanwhile, but not this step."""
        thread, handle = self._thread, self._handle
        standing = handle.head.hash if handle.head is not None else None
        if standing != self._entered:
            # The handle was moved inside the block, or by a rebase since: is this still our step?
            self._look(handle.line, handle.head, leaving=True)
            if self.done:
                handle.drop_changes()
                return True
            self._entered = standing
        before = {name: log._pending() for name, log in handle.logs.items()}
        self._place()
        steps = handle.log(STEP_LOG)
        ids = [item["id"] for log in self._logs.values() for item, _ in log._items if isinstance(item, dict)]
        record = {"key": self._family, "slot": self.slot, "ids": ids, "result": self.result}
        position = steps._current.count
        steps._add(handle.lower(record, "step"), None)
        try:
            recorded = (self._text, self.attempt, position)
            write_alone(handle, "step()", key_hash=self._hash, step=recorded)
            return True
        except Landed:
            # Something this handle sent before the step; the step itself may or may not be recorded.
            handle.drop_changes()
            thread.refresh()
            self._look(handle.line, handle.head, leaving=True)
            if not self.done:
                raise ConflictError(f"the step {self.key!r} met a version of its own; run it again") from None
            return True
        except ConflictError:
            # Only what the step itself put there is taken back: it finds its place anew.
            for name, log in handle.logs.items():
                log._take_back(before.get(name))
            handle.untouch()
            found = thread.core.find(thread.name)
            if found is not None:
                self._look(found.line, thread.core.head(found), leaving=True)
            if self.done:
                # Somebody else recorded this step first: that result stands.
                handle.drop_changes()
                thread.refresh()
                return True
            return False

    def _place(self) -> None:
        """Put the step's items into the handle's logs: by id where they are known, else in slot order."""
        for name, log in self._logs.items():
            target = self._handle.log(name)
            at = self._place_of_slot(name)
            for item, derived in log._items:
                before = len(target)
                target._upsert(item, derived, at)
                if at is not None and len(target) > before:
                    at += 1

    def _place_of_slot(self, name: str) -> int | None:
        """Before the first item of a sibling with a higher slot; ``None`` for the end."""
        if self.slot is None:
            return None
        steps, target = self._handle.log(STEP_LOG), self._handle.log(name)
        places: list[int | None] = []
        stop, near = len(steps), True
        while stop > 0 and near:
            records, stop = steps.read(max(stop - _SIBLINGS, 0), stop), stop - _SIBLINGS
            siblings = [each for each in records if each["key"] == self._family and each["slot"] is not None]
            near = bool(siblings)
            for record in siblings:
                if record["slot"] > self.slot:
                    places += [target.find(item_id) for item_id in record["ids"]]
        return min((place for place in places if place is not None), default=None)


def _key_text(key: str | Sequence[Any], slot: int | None) -> str:
    """One text per key and slot. NUL, which no name may hold, keeps every form apart from the others."""
    if isinstance(key, str):
        text = check_name(key, "step key")
    elif not isinstance(key, tuple | list) or not key:
        raise InvalidValueError("a step key is text or a tuple such as (turn, step)", path="key")
    elif not all(isinstance(part, str | int) and not isinstance(part, bool) for part in key):
        raise InvalidValueError("the parts of a step key are text or whole numbers", path="key")
    else:
        text = "\0" + check_name(json.dumps(list(key)), "step key")
    return text if slot is None else f"{text}\0{slot}"
