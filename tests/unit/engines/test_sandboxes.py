"""Sandboxes that steps of a workflow open without a snapshot: files are what the history says."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import everthread
from everthread.engines import Execution, ThreadRef
from everthread.engines.steps import enter_step, open_thread
from everthread.engines.sync import steps as blocking
from everthread.sandboxes import AsyncLocalSandboxes, Files, LocalSandboxes

A = Execution("run-a", started=1000.0, scheduler="run-a", origin="run-a", owner="w")
#: The same workflow, reset.
B = dataclasses.replace(A, run="run-b", scheduler="run-b", started=2000.0)
C = dataclasses.replace(A, run="run-c", scheduler="run-c", started=3000.0)


def put(path: str, name: str) -> None:
    Path(path, name).write_text("text")


def seed(path: str) -> None:
    Path(path, "base").write_text("base")


def written(store: Any) -> set[str]:
    return {each.path for each in Files(store.thread("sandboxes/box")).list()}


def test_a_reset_run_opens_its_sandbox_with_the_files_that_its_history_knows(tmp_path: Path) -> None:
    async def write(store: Any, ref: ThreadRef, turn: int, where: Execution) -> ThreadRef:
        async with enter_step(store, ref, ("turn", turn), where) as step:
            if not step.done:
                sandboxes = AsyncLocalSandboxes(store, tmp_path / "boxes")
                base = await sandboxes.base("a base", seed)
                opened = await sandboxes.open("box", source=base, shutdown="keep")
                async with opened as box, box.working() as path:
                    put(path, f"{where.run}.{turn}")
        return step.ref

    url = f"sqlite:///{tmp_path}/s.db"

    async def scenario() -> None:
        async with everthread.open_async(url) as store:
            refs = [await open_thread(store, A, name="t")]
            for turn in range(3):
                refs.append(await write(store, refs[-1], turn, A))
            # To the middle, to the same point again, and to the beginning: there is only the base then.
            await write(store, refs[1], 1, B)
            with everthread.open(url) as seen:
                assert written(seen) == {"base", "run-a.0", "run-b.1"}
            await write(store, refs[1], 1, C)
            with everthread.open(url) as seen:
                assert written(seen) == {"base", "run-a.0", "run-c.1"}
            again = dataclasses.replace(C, run="run-d", scheduler="run-d", started=4000.0)
            await write(store, await open_thread(store, again, name="t"), 0, again)
            with everthread.open(url) as seen:
                assert written(seen) == {"base", "run-d.0"}
            # Back to what the first run had, which the others have left out.
            last = dataclasses.replace(C, run="run-e", scheduler="run-e", started=5000.0)
            await write(store, refs[2], 2, last)
            with everthread.open(url) as seen:
                assert written(seen) == {"base", "run-a.0", "run-a.1", "run-e.2"}

    asyncio.run(scenario())


def test_a_blocking_step_that_is_tried_again_does_not_find_the_files_of_the_try_that_died(
    tmp_path: Path,
) -> None:
    with everthread.open(f"sqlite:///{tmp_path}/s.db") as store:
        sandboxes = LocalSandboxes(store, tmp_path / "boxes")
        ref = blocking.open_thread(store, A, name="t")
        for attempt in (1, 2):
            where = dataclasses.replace(A, attempt=attempt)
            with blocking.enter_step(store, ref, ("turn",), where) as step:
                for part in ("first", "second"):
                    # Within one try it is the same sandbox.
                    with sandboxes.open("box", shutdown="keep") as box, box.working() as path:
                        Path(path, f"{attempt}.{part}").write_text("text")
                if attempt == 1:
                    step.leave()
        assert written(store) == {"2.first", "2.second"}
        # Outside of a workflow a sandbox goes on with its newest version.
        with sandboxes.open("box", shutdown="keep"):
            assert written(store) == {"2.first", "2.second"}
