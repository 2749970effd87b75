"""A deliberately naive store, to compare real ones with.

It knows the public rules of threads and nothing of how a store keeps them: every version holds a whole
copy of the document, the logs and the step results, and every question is answered by walking from version
to version. (The items of logs never change, so copies of a log share them; that they are the very same
object is what tells an item that stayed from one that was removed and appended again.) Errors are those of
the library, so that both sides can be held to raise the same.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from everthread.errors import (
    ConflictError,
    InvalidStateError,
    InvalidValueError,
    MergeConflictError,
    ThreadDeletedError,
    ThreadExistsError,
    ThreadNotFoundError,
    VersionNotFoundError,
)
from everthread.testing.model_joining import (
    NOTHING,
    Path,
    copied,
    find,
    join_documents,
    merge_logs,
    rebase_log,
    same,
)
from everthread.testing.model_versions import ModelVersion, find_key, merge_base

if TYPE_CHECKING:
    from everthread.testing.model_step import ModelStep

__all__ = ["ModelStore", "ModelThread"]


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
        del holder[path[-1]]

    def increment(self, path: Path, by: Any) -> None:
        holder = self._holder(path)
        if path[-1] in holder and not any(path[: len(place)] == place for place in self._assigned):
            added = self._increments.pop(path, 0) + by
            if added:
                self._increments[path] = added
        else:
            self._assign(path)
        holder[path[-1]] = holder.get(path[-1], 0) + by

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
        if label is None and metadata is None and not self.dirty:
            return self._version
        return self._write(key=key, label=label, metadata=dict(metadata or {}))

    def _write(self, **more: Any) -> ModelVersion:
        line = self._newest()
        if line is not None and line.newest is not self._version:
            raise ConflictError(self.name, expected=self._version, actual=line.newest)
        before = self._version
        fields: dict[str, Any] = {
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
        self._assigned = {p for p in assigned if not same(_value(document, p), _value(newest.document, p))}

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
            return self._write(steps=dict(target.steps), origin=target, kind="rewind")
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
        document = join_documents(was, ours.document, theirs.document, conflicts, {})
        logs = {}
        for name in {*ours.logs, *theirs.logs}:
            us, them = ours.logs.get(name, []), theirs.logs.get(name, [])
            old = base.logs.get(name, []) if base else []
            logs[name] = merge_logs(old, us, them, name, conflicts)
        if not conflicts:
            self._state, self._logs = document, logs
            try:
                self._write(merged=theirs, kind="merge")
            except BaseException:
                self.discard()
                raise
        return conflicts

    def delete(self) -> None:
        line, _ = self._require()
        if not line.deleted:
            line.deleted = True
            del self._store.lines[self.name]
        self.discard()

    def step(self, key: Any, attempt: int = 1, slot: int | None = None) -> ModelStep:
        from everthread.testing.model_step import ModelStep

        return ModelStep(self, key, attempt, slot)


def _filled(logs: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {name: items for name, items in logs.items() if items}


def _value(document: Any, path: Path) -> Any:
    for key in path:
        if not isinstance(document, dict) or key not in document:
            return NOTHING
        document = document[key]
    return document
