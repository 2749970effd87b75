"""A scripted agent on DBOS, and traps in which its process dies, stops or waits.

Every text ends with a number that is drawn when it is made: whatever is made twice, or by somebody else,
shows."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dbos import DBOS, SetWorkflowID

from everthread import FencedError
from everthread.engines import ThreadRef, latest
from everthread.engines import dbos as engine

PROMPT = {"id": "prompt", "role": "user", "content": "go on"}


@dataclass
class Said:
    ref: ThreadRef
    text: str


class World:
    """Outside of the agent: notes of what was done there, and traps, each for one visitor."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self._held: dict[str, tuple[threading.Event, threading.Event]] = {}

    def note(self, what: str, **more: Any) -> None:
        assert self.folder is not None
        handle = os.open(self.folder / "notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(handle, (json.dumps({"what": what, "pid": os.getpid(), **more}) + "\n").encode())
        os.close(handle)

    def notes(self, what: str) -> list[dict[str, Any]]:
        assert self.folder is not None
        path = self.folder / "notes"
        rows = [json.loads(row) for row in path.read_text().splitlines()] if path.exists() else []
        return [row for row in rows if row["what"] == what]

    def hold(self, point: str) -> tuple[threading.Event, threading.Event]:
        """Let the next visitor wait: set when it has come, and to be set to let it go."""
        self._held[point] = (threading.Event(), threading.Event())
        return self._held[point]

    def visit(self, point: str) -> None:
        assert self.folder is not None
        with contextlib.suppress(FileNotFoundError):
            (self.folder / f"kill.{point}").unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        with contextlib.suppress(FileNotFoundError):
            (self.folder / f"stop.{point}").unlink()
            self.note("trapped", point=point)
            # Whoever sees the note stops this process.
            while not (self.folder / "woken").exists():
                time.sleep(0.01)
        if point in self._held:
            reached, free = self._held.pop(point)
            reached.set()
            free.wait()


world = World()


def drawn(text: str) -> str:
    return f"{text} #{os.urandom(6).hex()}"


async def visit(point: str) -> None:
    await asyncio.to_thread(world.visit, point)


@DBOS.step()
async def ask_model(ref: ThreadRef, turn: int) -> Said:
    text = drawn(f"turn {turn}")
    await visit(f"enter-model-{turn}")
    try:
        async with engine.step(ref, "turn", turn) as s:
            if not s.done:
                await visit(f"before-model-{turn}")
                world.note("model", turn=turn, text=text)
                s.messages.append({"role": "assistant", "content": text})
                s.state["turns"] = s.state.get("turns", 0) + 1
                s.result = text
    except FencedError:
        world.note("fenced", turn=turn)
        raise
    await visit(f"after-model-{turn}")
    return Said(s.ref, s.result)


@DBOS.step()
async def use_tool(ref: ThreadRef, turn: int, slot: int) -> Said:
    text = drawn(f"tool {turn}.{slot}")
    async with engine.step(ref, "tools", turn, slot=slot) as s:
        if not s.done:
            # They end in another order than they begin.
            await asyncio.sleep(0.01 * (3 - slot % 3))
            world.note("tool", turn=turn, slot=slot, text=text)
            await visit(f"in-tool-{slot}")
            s.messages.append({"role": "tool", "content": text})
            s.state.increment("tools")
            s.result = text
    await visit(f"after-tool-{slot}")
    return Said(s.ref, s.result)


@DBOS.workflow()
async def agent(turns: int, tools: int, name: str | None = None, mode: Any = "new") -> ThreadRef:
    ref = await engine.open_thread(name, mode=mode, system="be brief")
    ref = await engine.append(ref, PROMPT)
    for turn in range(turns):
        ref = (await ask_model(ref, turn)).ref
        ref = latest(
            [each.ref for each in await asyncio.gather(*(use_tool(ref, turn, slot) for slot in range(tools)))]
        )
    ref = (await ask_model(ref, turns)).ref
    return await engine.end(ref)


@DBOS.workflow()
async def second_thoughts() -> ThreadRef:
    """Takes its first answer back."""
    before = await engine.open_thread(system="be brief")
    ref = (await ask_model(before, 0)).ref
    ref = await engine.rewind(ref, before)
    ref = (await ask_model(ref, 1)).ref
    return await engine.end(ref)


@DBOS.step()
def ask_blocking(ref: ThreadRef, turn: int) -> Said:
    text = drawn(f"turn {turn}")
    with engine.step(ref, "turn", turn) as s:
        if not s.done:
            assert len(engine.blocking_store().thread(ref.thread).messages) >= turn
            s.messages.append({"role": "assistant", "content": text})
            s.result = text
    return Said(s.ref, s.result)


@DBOS.workflow()
def blocking_agent(turns: int) -> ThreadRef:
    before = engine.blocking.open_thread(system="be brief")
    ref = engine.blocking.append(before, PROMPT)
    for turn in range(turns):
        ref = ask_blocking(ref, turn).ref
    ref = engine.blocking.rewind(ask_blocking(ref, turns).ref, ref)
    return engine.blocking.end(ref)


def launch(folder: Path, database: str, store: Any, **options: Any) -> None:
    """Begin to be a process of the application."""
    world.folder = folder
    config: Any = {"name": "agent", "application_version": "1", "log_level": "CRITICAL"}
    DBOS(config={**config, "system_database_url": database, **options})
    engine.use(store)
    DBOS.launch()


def leave() -> None:
    DBOS.destroy(workflow_completion_timeout_sec=0)
    engine.close()


async def run(workflow: str, begins: bool, turns: int, tools: int) -> None:
    if begins:
        with SetWorkflowID(workflow):
            handle = await DBOS.start_workflow_async(agent, turns, tools)
    else:
        handle = await DBOS.retrieve_workflow_async(workflow)
    await handle.get_result(polling_interval_sec=0.05)
    world.note("ended", workflow=workflow)


def play(
    folder: Path, database: str, schema: str, store: str, workflow: str, begins: bool, turns: int, tools: int
) -> None:
    """Be a process of the application: begin a workflow, or recover it, and end when it has ended."""
    launch(folder, database, {"url": store, "durability": "process"}, dbos_system_schema=schema)
    asyncio.run(run(workflow, begins, turns, tools))
    leave()
