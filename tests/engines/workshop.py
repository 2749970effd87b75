"""A workflow whose tools write files in a sandbox, one after the other and in parallel; and what its sandbox
must hold, by the history of a run.

The workflow carries the snapshot as it carries the pointer to its thread, and each tool goes on from the one
that it is given. Tools in parallel work in sandboxes of their own, which are merged when all are done.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio import activity, workflow
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHistory
from temporalio.common import RetryPolicy
from temporalio.converter import DataConverter

with workflow.unsafe.imports_passed_through():
    from everthread import Store
    from everthread.engines import ThreadRef, latest
    from everthread.engines.temporal import append, blocking_store, end, open_thread, step, store
    from everthread.sandboxes import AsyncLocalSandboxes, Files, LocalSandboxes, SnapshotRef
    from tests.engines.world import World, drawn

#: How many tools each turn has.
TURNS = (1, 3, 1, 2, 1)
#: Where a worker dies: in the directory, after the files were saved, after the step was.
POINTS = ("working", "saved", "recorded", "working-apart", "saved-apart", "merged", "gathered")
RECIPE = "bench with a drawer"
BASE = {"drawer/screws": "a hundred"}
LOG = "log"

LONG: dict[str, Any] = {
    "start_to_close_timeout": timedelta(seconds=60),
    "heartbeat_timeout": timedelta(seconds=2),
    "retry_policy": RetryPolicy(initial_interval=timedelta(milliseconds=100), backoff_coefficient=1.0),
}


@dataclass
class Built:
    """What a tool gives: where thread and files stand, and what it did to files."""

    ref: ThreadRef
    snapshot: dict[str, str]
    written: dict[str, str] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)


def seed(path: str) -> None:
    for name, text in BASE.items():
        _write(path, name, text)


def _write(path: str, name: str, text: str) -> None:
    place = Path(path, name)
    place.parent.mkdir(exist_ok=True)
    place.write_text(text)


class Workshop:
    """The activities. ``root`` is where the directories are; those of another machine are elsewhere."""

    def __init__(self, world: World, root: Path) -> None:
        self.world = world
        self.root = root

    @activity.defn
    async def enter(self, ref: ThreadRef) -> Built:
        async with step(ref, "enter") as s:
            if not s.done:
                sandboxes = AsyncLocalSandboxes(store(), self.root)
                base = await sandboxes.base(RECIPE, self._seed)
                box = await sandboxes.open(ref.thread, source=base, at=base, shutdown="keep")
                s.result = (await box.save()).plain()
                await box.close()
        return Built(s.ref, s.result)

    def _seed(self, path: str) -> None:
        self.world.note("seeded")
        seed(path)

    @activity.defn
    async def build(self, ref: ThreadRef, turn: int, snapshot: dict[str, str]) -> Built:
        """Write a file, add a row to the log that all turns share, and remove what an earlier turn wrote."""
        async with step(ref, "turn", turn) as s:
            if not s.done:
                sandboxes = AsyncLocalSandboxes(store(), self.root)
                at = SnapshotRef.from_plain(snapshot)
                async with await sandboxes.open(ref.thread, at=at, shutdown="keep") as box:
                    async with box.working() as path:
                        written = _rows(path, turn)
                        removed = _remove_oldest(path, turn)
                        await self.world.visit("working")
                    made = await box.save(f"turn {turn}")
                await self.world.visit("saved")
                s.messages.append({"role": "tool", "content": f"built {turn}"})
                s.result = {"snapshot": made.plain(), "written": written, "removed": removed}
        await self.world.visit("recorded")
        return Built(s.ref, **s.result)

    @activity.defn
    def build_apart(self, ref: ThreadRef, turn: int, slot: int, snapshot: dict[str, str]) -> Built:
        """Write a file in a sandbox of its own, which is a fork."""
        with step(ref, "turn", turn, slot=slot) as s:
            if not s.done:
                sandboxes = LocalSandboxes(blocking_store(), self.root)
                at, name = SnapshotRef.from_plain(snapshot), self._apart(ref.thread, turn, slot)
                with sandboxes.open(name, source=at, at=at, shutdown="snapshot") as box:
                    with box.working() as path:
                        written = {f"turn{turn}/slot{slot}": drawn(f"{turn}.{slot}")}
                        for file, text in written.items():
                            _write(path, file, text)
                        self._visit("working-apart")
                    made = box.save()
                self._visit("saved-apart")
                s.messages.append({"role": "tool", "content": f"built {turn}.{slot}"})
                s.result = {"snapshot": made.plain(), "written": written}
        return Built(s.ref, **s.result)

    def _apart(self, thread: str, turn: int, slot: int) -> str:
        # Another run begins from other files.
        return f"{thread}/{activity.info().workflow_run_id}/{turn}.{slot}"

    @activity.defn
    def gather(
        self, ref: ThreadRef, turn: int, snapshot: dict[str, str], apart: list[dict[str, str]]
    ) -> Built:
        """Bring what tools did in parallel into the one sandbox."""
        with step(ref, "turn", turn, "gather") as s:
            if not s.done:
                sandboxes, at = LocalSandboxes(blocking_store(), self.root), SnapshotRef.from_plain(snapshot)
                with sandboxes.open(ref.thread, at=at, shutdown="keep") as box:
                    for each in apart:
                        other = blocking_store().thread(SnapshotRef.from_plain(each).thread)
                        assert other.head is not None
                        assert other.head.id == each["version"]
                        box.files.thread.merge(other)
                    self._visit("merged")
                    box.discard()
                    s.result = box.save().plain()
        self._visit("gathered")
        return Built(s.ref, s.result)

    @activity.defn
    async def leave(self, ref: ThreadRef, snapshot: dict[str, str]) -> Built:
        """No step: the run has ended, and whoever leaves again goes on from the same snapshot."""
        sandboxes, at = AsyncLocalSandboxes(store(), self.root), SnapshotRef.from_plain(snapshot)
        made = await (await sandboxes.open(ref.thread, at=at, shutdown="snapshot")).close()
        assert made is not None
        return Built(ref, made.plain())

    def _visit(self, point: str) -> None:
        asyncio.run(self.world.visit(point))

    @property
    def activities(self) -> list[Any]:
        return [self.enter, self.build, self.build_apart, self.gather, self.leave]


def _rows(path: str, turn: int) -> dict[str, str]:
    log = Path(path, LOG)
    written = {
        f"turn{turn}/only": drawn(f"{turn}"),
        # Whoever goes on from other files than the history says has other rows here.
        LOG: (log.read_text() if log.exists() else "") + drawn(f"{turn}") + "\n",
    }
    for name, text in written.items():
        _write(path, name, text)
    return written


def _remove_oldest(path: str, turn: int) -> list[str]:
    """A turn removes what the third turn before it has written."""
    folder = Path(path, f"turn{turn - 3}")
    if not folder.exists():
        return []
    removed = [f"{folder.name}/{each}" for each in sorted(os.listdir(folder))]
    shutil.rmtree(folder)
    return removed


@workflow.defn
class Builder:
    @workflow.run
    async def run(self, turns: list[int]) -> ThreadRef:
        ref = await open_thread(system="be tidy")
        built: Built = await workflow.execute_activity(Workshop.enter, args=[ref], **LONG)
        for turn, tools in enumerate(turns):
            ask = {"id": f"ask-{turn}", "role": "user", "content": f"turn {turn}"}
            ref, snapshot = await append(built.ref, ask), built.snapshot
            if tools == 1:
                built = await workflow.execute_activity(Workshop.build, args=[ref, turn, snapshot], **LONG)
                continue
            apart: list[Built] = await asyncio.gather(
                *(
                    workflow.execute_activity(Workshop.build_apart, args=[ref, turn, slot, snapshot], **LONG)
                    for slot in range(tools)
                )
            )
            after = latest([each.ref for each in apart])
            snapshots = [each.snapshot for each in apart]
            arguments = [after, turn, snapshot, snapshots]
            built = await workflow.execute_activity(Workshop.gather, args=arguments, **LONG)
        # In the order of run_agent: a run that was reset, and has nothing left to do but this, still brings
        # its files back.
        ref = await end(built.ref)
        await workflow.execute_activity(Workshop.leave, args=[ref, built.snapshot], **LONG)
        return ref


async def told_files(history: WorkflowHistory) -> list[tuple[SnapshotRef, dict[str, str]]]:
    """The snapshots that a run has come to, each with the files that were there, from nothing but its
    history."""
    converter, scheduled, results = DataConverter.default, {}, {}
    for event in history.events:
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            scheduled[event.event_id] = event.activity_task_scheduled_event_attributes.activity_type.name
        elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
            done = event.activity_task_completed_event_attributes
            results[done.scheduled_event_id] = list(done.result.payloads)
    files: dict[str, str] = dict(BASE)
    waiting: dict[str, str] = {}
    told = []
    for at in sorted(results):
        if scheduled[at] not in ("enter", "build", "build_apart", "gather", "leave"):
            continue
        (built,) = await converter.decode(results[at], [Built])
        if scheduled[at] == "build_apart":
            waiting |= built.written
            told.append((SnapshotRef.from_plain(built.snapshot), files | built.written))
            continue
        if scheduled[at] == "gather":
            files, waiting = files | waiting, {}
        files = {name: text for name, text in (files | built.written).items() if name not in built.removed}
        told.append((SnapshotRef.from_plain(built.snapshot), files))
    return told


def check(opened: Store, name: str, told: list[tuple[SnapshotRef, dict[str, str]]]) -> None:
    """The sandbox holds what a history says, now and at each of its snapshots; so does a directory that is
    restored from it."""
    box = Files(opened.thread(f"sandboxes/{name}"))
    for snapshot, expected in told:
        assert _held(Files(opened.thread(snapshot.thread)), snapshot) == expected, snapshot
    _, newest = told[-1]
    assert _held(box) == newest
    with tempfile.TemporaryDirectory() as folder:
        box.restore_directory(Path(folder, "restored"))
        root = Path(folder, "restored")
        found = {str(each.relative_to(root)): each.read_text() for each in root.rglob("*") if each.is_file()}
        assert found == newest
        # As a machine finds it that has never seen it.
        with LocalSandboxes(opened, Path(folder, "boxes")).open(name, shutdown="snapshot") as again:
            assert {
                str(each.relative_to(again.path)) for each in Path(again.path).rglob("*") if each.is_file()
            } == {*newest}
        assert _held(box) == newest


def _held(files: Files, at: SnapshotRef | None = None) -> dict[str, str]:
    view = files if at is None else files.at(at)
    return {each.path: view.read(each.path).decode() for each in view.list() if each.kind == "file"}
