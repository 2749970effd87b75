"""A deliberately naive store, to compare real ones with.

It knows the public rules of threads and nothing of how a store keeps them: every version holds a whole
copy of the document, the logs and the step results, and every question is answered by walking from version
to version. (The items of logs never change, so copies of a log share them; that they are the very same
object is what tells an item that stayed from one that was removed and appended again.) Errors are those of
the library, so that both sides can be held to raise the same.
"""

from __future__ import annotations

import copy
import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from everthread.errors import (
    ConflictError,
    FencedError,
    InvalidStateError,
    InvalidValueError,
    KeyReusedError,
    MergeConflictError,
    ThreadDeletedError,
    ThreadExistsError,
    ThreadNotFoundError,
    VersionNotFoundError,
)

__all__ = ["ModelStore", "ModelThread"]


# Versions of the model: each holds everything, and knows where it came from.


StepKey = tuple[Any, int | None]


class Ambiguous(Exception):  # noqa: N818 - not a failure: the caller asks something else
    """The rules leave this open, for example a merge of lines that have merged each other crosswise."""


@dataclass(frozen=True)
class Recorded:
    """What is known of a step: the highest attempt that entered, and its result once there is one."""

    attempt: int
    done: bool = False
    result: Any = None
    ids: tuple[tuple[str, Any], ...] = ()


@dataclass(eq=False)
class ModelVersion:
    """A version with everything in it.

    ``previous`` is the version before it in time, ``origin`` the one it goes on from: they differ where a
    rewind went back.
    """

    seq: int
    document: dict[str, Any]
    logs: dict[str, list[Any]]
    steps: dict[StepKey, Recorded]
    previous: ModelVersion | None
    origin: ModelVersion | None
    merged: ModelVersion | None = None
    kind: str = "commit"
    key: str | None = None
    label: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    #: Places whose number was added to, and places that were changed in another way.
    added: frozenset[Path] = frozenset()
    assigned: frozenset[Path] = frozenset()

    def history(self) -> Iterator[ModelVersion]:
        """This version and all before it in time, those left behind by a rewind included."""
        version: ModelVersion | None = self
        while version is not None:
            yield version
            version = version.previous

    def path(self) -> Iterator[ModelVersion]:
        """This version and those that led to it."""
        version: ModelVersion | None = self
        while version is not None:
            yield version
            version = version.origin

    def contained(self) -> set[ModelVersion]:
        """Every version whose changes are in this one, through merges too."""
        found: set[ModelVersion] = set()
        pending: list[ModelVersion | None] = [self]
        while pending:
            version = pending.pop()
            if version is not None and version not in found:
                found.add(version)
                pending += (version.origin, version.merged)
        return found


def find_key(head: ModelVersion, key: str) -> ModelVersion | None:
    """The version on the way to ``head`` that carries the key. Raises if it was left behind."""
    carriers = [version for version in head.history() if version.key == key]
    for version in carriers:
        if version in head.path():
            return version
    if carriers:
        rewind = next(version for version in head.path() if version.kind == "rewind")
        raise KeyReusedError(key, key=key, version=carriers[0], rewind=rewind)
    return None


def merge_base(ours: ModelVersion, theirs: ModelVersion) -> ModelVersion | None:
    """The one version that both contain and that contains all others which both contain."""
    shared = ours.contained() & theirs.contained()
    if not shared:
        return None
    for version in shared:
        if version.contained() >= shared:
            return version
    raise Ambiguous("several versions could be the base of this merge")


def additions(version: ModelVersion, base: ModelVersion | None) -> dict[Path, Any]:
    """By how much numbers grew since ``base`` that were only added to."""
    own = []
    known = base.contained() if base is not None else set()
    step: ModelVersion | None = version
    while step is not None and step not in known:
        own.append(step)
        step = step.origin
    if base is None:
        return {}
    others = {path for each in own for path in each.assigned}
    found = {}
    for path in {path for each in own for path in each.added}:
        if not any(path[: len(other)] == other for other in others):
            was, now = (_value(each.document, path) for each in (base, version))
            was = 0 if was is NOTHING and isinstance(_value(base.document, path[:-1]), dict) else was
            if type(was) in (int, float) and type(now) in (int, float):
                found[path] = now - was
    return found


def changed(old: Any, new: Any, path: Path = ()) -> set[Path]:
    """The places at which two documents differ, as far inside of dictionaries as both have them."""
    if isinstance(old, dict) and isinstance(new, dict):
        found: set[Path] = set()
        for key in {**old, **new}:
            found |= changed(old.get(key, NOTHING), new.get(key, NOTHING), (*path, key))
        return found
    return set() if same(old, new) else {path}


# The rules for bringing two sides together, told as plainly as possible. Part of the model.


Path = tuple[Any, ...]


class _Mark(enum.Enum):
    NOTHING = enum.auto()


#: Where a side has no value. A member of an enumeration, which stays itself when copied.
NOTHING: Any = _Mark.NOTHING


def same(a: Any, b: Any) -> bool:
    """Equality of plain data that tells 1, 1.0 and True apart and ignores the order of keys."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def join_documents(
    base: Any, ours: Any, theirs: Any, conflicts: list[Path], increments: Mapping[Path, Any], path: Path = ()
) -> Any:
    """Three-way merge of plain data without lists of identified items; ours where it adds to ``conflicts``.

    ``increments`` maps paths to what ours added there: that much is added to theirs.
    """
    inside = any(len(place) > len(path) and place[: len(path)] == path for place in increments)
    if same(theirs, base):
        return copy.deepcopy(ours)
    if path in increments and all(type(side) in (int, float) for side in (ours, theirs)):
        first = base is NOTHING and ours == increments[path]
        if first or type(base) in (int, float):
            return theirs + increments[path]
    if not inside and same(ours, base):
        return copy.deepcopy(theirs)
    if not inside and same(ours, theirs):
        return copy.deepcopy(ours)
    if isinstance(ours, dict) and isinstance(theirs, dict):
        before = base if isinstance(base, dict) else {}
        joined = {}
        for key in {**before, **theirs, **ours}:
            was, us, them = (side.get(key, NOTHING) for side in (before, ours, theirs))
            value = join_documents(was, us, them, conflicts, increments, (*path, key))
            if value is not NOTHING:
                joined[key] = value
        return joined
    lists = all(isinstance(side, list) for side in (base, ours, theirs))
    if lists and begins(ours, base) and begins(theirs, base):
        return copy.deepcopy(theirs + ours[len(base) :])
    conflicts.append(path)
    return copy.deepcopy(ours)


def begins(items: list[Any], prefix: list[Any]) -> bool:
    """Whether ``prefix`` is how ``items`` begins."""
    return same(items[: len(prefix)], prefix)


def copied(logs: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """A copy whose lists can be changed; the items are the same objects."""
    return {name: list(items) for name, items in logs.items()}


def rebase_log(
    base: list[Any], ours: list[Any], theirs: list[Any], name: str, conflicts: list[Path]
) -> list[Any]:
    """Theirs, then what we appended, unless one side truncated what the other went on from."""
    if _identical(theirs, base):
        return list(ours)
    if _identical(ours, base):
        return list(theirs)
    appended = _identical(ours[: len(base)], base)
    if appended and (not base or any(item is base[-1] for item in theirs)):
        return join_tails(theirs, ours[len(base) :], lambda item_id: conflicts.append((name, item_id)))
    conflicts.append((name,))
    return list(ours)


def merge_logs(
    base: list[Any], ours: list[Any], theirs: list[Any], name: str, conflicts: list[Path]
) -> list[Any]:
    """Base, what they appended, what we appended. Where one side did anything else, only that side counts."""
    if begins(ours, base) and begins(theirs, base):
        tails = theirs[len(base) :], ours[len(base) :]
        joined = base + join_tails(*tails, lambda item_id: conflicts.append((name, item_id)))
    elif same(ours, base):
        joined = theirs
    elif same(theirs, base) or same(ours, theirs):
        joined = ours
    else:
        conflicts.append((name,))
        joined = ours
    return _keeping(ours, joined)


def _identical(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))


def _keeping(ours: list[Any], joined: list[Any]) -> list[Any]:
    """The joined list with our own items where it begins or ends as our log does: those stay."""
    shorter = min(len(ours), len(joined))
    head = 0
    while head < shorter and same(ours[head], joined[head]):
        head += 1
    tail = 0
    while tail < shorter - head and same(ours[-1 - tail], joined[-1 - tail]):
        tail += 1
    return [*ours[:head], *joined[head : len(joined) - tail], *ours[len(ours) - tail :]]


def join_tails(theirs: list[Any], ours: list[Any], conflict: Callable[[Any], None]) -> list[Any]:
    """What both appended, theirs first, each id once; ``conflict`` is told an id whose contents differ."""
    joined = list(theirs)
    for item in ours:
        item_id = item.get("id") if isinstance(item, dict) else None
        twin = None if item_id is None else find(joined, item_id)
        if twin is None:
            joined.append(item)
        elif not same(joined[twin], item):
            conflict(item_id)
    return joined


def find(items: list[Any], item_id: Any) -> int | None:
    """Where the item with this id stands."""
    for index, item in enumerate(items):
        if isinstance(item, dict) and item.get("id") == item_id:
            return index
    return None


@dataclass(eq=False)
class ModelLine:
    """One incarnation of a thread."""

    name: str
    newest: ModelVersion
    deleted: bool = False


class ModelStore:
    """Live threads by name."""

    def __init__(self) -> None:
        self.lines: dict[str, ModelLine] = {}

    def thread(self, name: str) -> ModelThread:
        return ModelThread(self, name)


class ModelThread:
    """A handle: where it stands, and a copy of the state there, to be changed and committed.

    Change the document with :meth:`put`, :meth:`remove` and :meth:`increment`, logs with :meth:`append` and
    :meth:`truncate_from`; read ``state`` and :meth:`log`.
    """

    def __init__(self, store: ModelStore, name: str) -> None:
        self._store = store
        self.name = name
        self._pinned = False
        self._stand(None, None)
        self._pinned = False

    # ── standing ─────────────────────────────────────────────────────────────────────────────

    def _stand(self, line: ModelLine | None, version: ModelVersion | None) -> None:
        self._line, self._version, self._pinned = line, version, True
        self._state: dict[str, Any] = copy.deepcopy(version.document) if version else {}
        self._logs: dict[str, list[Any]] = copied(version.logs) if version else {}
        #: What was added to committed numbers, and which places were assigned or deleted instead.
        self._increments: dict[Path, Any] = {}
        self._assigned: set[Path] = set()

    def _load(self) -> None:
        if not self._pinned:
            line = self._store.lines.get(self.name)
            self._stand(line, line.newest if line else None)

    def _require(self) -> tuple[ModelLine, ModelVersion]:
        self._load()
        if self._line is None or self._version is None:
            raise ThreadNotFoundError(self.name)
        return self._line, self._version

    def _require_clean(self) -> None:
        if self.dirty:
            raise InvalidStateError("uncommitted changes")

    def _check_alive(self) -> None:
        if self._line is not None and self._line.deleted:
            raise ThreadDeletedError(self.name)

    def _newest(self) -> ModelLine | None:
        """The line as it is now; one that appeared since this handle looked is its line as well."""
        self._check_alive()
        return self._line or self._store.lines.get(self.name)

    @property
    def head(self) -> ModelVersion | None:
        self._load()
        return self._version

    @property
    def stale(self) -> bool:
        """Whether a commit would conflict."""
        self._load()
        line = self._line or self._store.lines.get(self.name)
        return line is not None and line.newest is not self._version

    @property
    def deleted(self) -> bool:
        return self._line is not None and self._line.deleted

    @property
    def dirty(self) -> bool:
        document, logs = (self._version.document, self._version.logs) if self._version else ({}, {})
        return not (same(self._state, document) and same(_filled(self._logs), _filled(logs)))

    # ── document and logs ────────────────────────────────────────────────────────────────────

    @property
    def state(self) -> dict[str, Any]:
        self._load()
        return self._state

    def put(self, path: Path, value: Any) -> None:
        holder = self._holder(path)
        untouched = path not in self._assigned and path not in self._increments
        if untouched and not isinstance(value, dict | list) and same(holder.get(path[-1], NOTHING), value):
            return
        self._assign(path)
        holder[path[-1]] = copy.deepcopy(value)

    def remove(self, path: Path) -> None:
        holder = self._holder(path)
        self._assign(path)
        if self._committed(path) is NOTHING:
            # It came and went.
            self._assigned.discard(path)
        del holder[path[-1]]

    def increment(self, path: Path, by: Any) -> None:
        holder = self._holder(path)
        above = [path[:length] for length in range(1, len(path)) if path[:length] in self._assigned]
        if path not in self._assigned and all(self._committed(place) is NOTHING for place in above):
            added = self._increments.pop(path, 0) + by
            if added or self._committed(path) is NOTHING:
                self._increments[path] = added
        else:
            self._assign(path)
        holder[path[-1]] = holder.get(path[-1], 0) + by

    def _committed(self, path: Path) -> Any:
        return _value(self._version.document if self._version else {}, path)

    def _holder(self, path: Path) -> Any:
        self._load()
        holder: Any = self._state
        for key in path[:-1]:
            holder = holder[key]
        return holder

    def _assign(self, path: Path) -> None:
        """An assignment overrides the increments made at its place and below."""
        self._assigned.add(path)
        self._increments = {p: n for p, n in self._increments.items() if p[: len(path)] != path}

    def log(self, name: str) -> list[Any]:
        self._load()
        return self._logs.get(name, [])

    def append(self, log: str, item: Any) -> None:
        self._load()
        items = self._logs.setdefault(log, [])
        twin = find(items, item["id"]) if isinstance(item, dict) and "id" in item else None
        if twin is None:
            items.append(copy.deepcopy(item))
        elif not same(items[twin], item):
            raise InvalidValueError("the same id with other content")

    def truncate_from(self, log: str, item_id: Any) -> int:
        items = self.log(log)
        at = find(items, item_id)
        removed = 0 if at is None else len(items) - at
        del items[len(items) - removed :]
        return removed

    # ── committing ───────────────────────────────────────────────────────────────────────────

    def commit(
        self, label: str | None = None, metadata: Mapping[str, Any] | None = None, key: str | None = None
    ) -> ModelVersion | None:
        self._load()
        if key is not None:
            line = self._store.lines.get(self.name) if self._line is None else self._line
            known = find_key(line.newest, key) if line else None
            if known is not None:
                self.discard()
                self.refresh()
                return known
        if self._version is not None and label is None and metadata is None and not self.dirty:
            return self._version
        return self._write(key=key, label=label, metadata=dict(metadata or {}))

    def _write(self, **more: Any) -> ModelVersion:
        line = self._newest()
        if line is not None and line.newest is not self._version:
            raise ConflictError(self.name, expected=self._version, actual=line.newest)
        before = self._version
        was = before.document if before else {}
        fields: dict[str, Any] = {
            "added": frozenset(self._increments),
            "assigned": frozenset({*self._assigned, *(changed(was, self._state) - {*self._increments})}),
            "document": copy.deepcopy(self._state),
            "logs": copied(self._logs),
            "steps": dict(before.steps) if before else {},
            "previous": before,
            "origin": before,
            **more,
        }
        version = ModelVersion(before.seq + 1 if before else 1, **fields)
        if line is None:
            line = self._store.lines[self.name] = ModelLine(self.name, version)
        line.newest = version
        self._stand(line, version)
        return version

    # ── moving the handle ────────────────────────────────────────────────────────────────────

    def discard(self) -> None:
        if self._pinned:
            self._stand(self._line, self._version)

    def refresh(self) -> None:
        self._require_clean()
        line = self._newest()
        self._stand(line, line.newest if line else None)

    def rebase(self) -> None:
        self._load()
        line = self._newest()
        if line is None or line.newest is self._version:
            return
        newest = line.newest
        conflicts: list[Path] = []
        base = self._version.document if self._version else {}
        document = join_documents(base, self._state, newest.document, conflicts, self._increments)
        logs = {}
        for name in {*self._logs, *newest.logs}:
            before = self._version.logs.get(name, []) if self._version else []
            ours, theirs = self._logs.get(name, []), newest.logs.get(name, [])
            logs[name] = rebase_log(before, ours, theirs, name, conflicts)
        if conflicts:
            raise MergeConflictError(self.name, conflicts=conflicts, expected=self._version, actual=newest)
        increments, assigned = self._increments, self._assigned
        self._stand(line, newest)
        self._state, self._logs, self._increments = document, logs, increments
        self._assigned = {
            inside
            for p in assigned
            for inside in changed(_value(newest.document, p), _value(document, p), p)
            if inside not in increments
        }

    # ── the past, and branching ──────────────────────────────────────────────────────────────

    def history(self) -> list[ModelVersion]:
        return list(self.head.history()) if self.head else []

    def fork(self, name: str, at: ModelVersion | None = None) -> ModelThread:
        self._require_clean()
        _, head = self._require()
        self._check_alive()
        if at is not None and at not in head.history():
            raise VersionNotFoundError(name)
        if name in self._store.lines:
            raise ThreadExistsError(name)
        self._store.lines[name] = ModelLine(name, at or head)
        other = self._store.thread(name)
        other._load()
        return other

    def rewind(self, target: ModelVersion) -> ModelVersion:
        self._require_clean()
        _, head = self._require()
        if target not in head.history():
            raise VersionNotFoundError(self.name)
        self._state, self._logs = copy.deepcopy(target.document), copied(target.logs)
        try:
            nothing: Any = {"added": frozenset(), "assigned": frozenset()}
            return self._write(steps=dict(target.steps), origin=target, kind="rewind", **nothing)
        except BaseException:
            self.discard()
            raise

    def merge(self, other: ModelThread) -> list[Path]:
        """The conflicts; with none, the merge is committed, or there was nothing to merge."""
        self._require_clean()
        other._require_clean()
        _, ours = self._require()
        _, theirs = other._require()
        if theirs in ours.contained():
            return []
        base = merge_base(ours, theirs)
        conflicts: list[Path] = []
        was = base.document if base else {}
        ours_added, theirs_added = additions(ours, base), additions(theirs, base)
        document = join_documents(was, ours.document, theirs.document, conflicts, ours_added)
        logs = {}
        for name in {*ours.logs, *theirs.logs}:
            us, them = ours.logs.get(name, []), theirs.logs.get(name, [])
            old = base.logs.get(name, []) if base else []
            logs[name] = merge_logs(old, us, them, name, conflicts)
        if not conflicts:
            self._state, self._logs = document, logs
            different = changed(ours.document, document)
            kept = {p for p in different if p in theirs_added and self._comes_to(p, theirs_added[p])}
            edits: Any = {"added": frozenset(kept), "assigned": frozenset(different - kept)}
            try:
                self._write(merged=theirs, kind="merge", **edits)
            except BaseException:
                self.discard()
                raise
        return conflicts

    def _comes_to(self, path: Path, number: Any) -> bool:
        """Whether what a merge made of a number is what adding to it comes to."""
        before = self._committed(path)
        before = 0 if before is NOTHING else before
        return type(before) in (int, float) and same(before + number, _value(self._state, path))

    def delete(self) -> None:
        line, _ = self._require()
        if not line.deleted:
            line.deleted = True
            del self._store.lines[self.name]
        self.discard()

    def step(self, key: Any, attempt: int = 1, slot: int | None = None) -> ModelStep:

        return ModelStep(self, key, attempt, slot)


def _filled(logs: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {name: items for name, items in logs.items() if items}


def _value(document: Any, path: Path) -> Any:
    for key in path:
        if not isinstance(document, dict) or key not in document:
            return NOTHING
        document = document[key]
    return document


# Steps of the model.


class ModelStep:
    """A step in slow motion: enter, then append and change the thread's document, then finish."""

    def __init__(self, thread: ModelThread, key: Any, attempt: int, slot: int | None) -> None:
        self._thread = thread
        self._key: StepKey = (key, slot)
        self._attempt = attempt
        self._items: list[tuple[str, Any]] = []
        self._entered: ModelVersion | None = None
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
        self._entered = self._thread.head

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
        if self._entered is not None and newest.head and self._entered not in newest.head.path():
            # A rewind has left behind what the step was entered on.
            raise FencedError(str(self._key), attempt=self._attempt, newest=self._attempt)
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
