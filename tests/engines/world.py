"""Activities of the scripted agent: a model, tools, and traps in which a worker dies.

A prompt is a script: ``work 2 3 10`` asks for two turns of three tool calls with results of ten bytes, then
an answer. ``retry`` makes a plan that one of its tools refuses. Every text ends with a number that is drawn
when it is made: whatever is made twice, or by somebody else, shows.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from temporalio import activity

import everthread
from everthread.engines import ThreadRef
from everthread.engines.temporal import blocking_store, step

T = TypeVar("T")


@dataclass
class Call:
    id: str
    name: str
    size: int = 10


@dataclass
class Answer:
    ref: ThreadRef
    text: str
    calls: list[Call] = field(default_factory=list)


@dataclass
class Found:
    """What a tool gives: the number of its text, which the history needn't hold. ``refused``: it wants the
    turn taken back."""

    ref: ThreadRef
    number: str
    refused: bool = False


class Held:
    """Somebody who waits at a point, in this process, with a text that isn't recorded yet."""

    def __init__(self, point: str) -> None:
        self.point = point
        self.text = ""
        self.reached, self.free, self.over = asyncio.Event(), asyncio.Event(), asyncio.Event()


class World:
    """Outside of the agent: notes of what was done there, and traps, each for one visitor."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True, parents=True)
        self._held: list[Held] = []

    def note(self, what: str, **more: Any) -> None:
        row = json.dumps({"what": what, "pid": os.getpid(), "at": time.time(), **more}) + "\n"
        handle = os.open(self.folder / "notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(handle, row.encode())
        os.close(handle)

    def notes(self, what: str | None = None) -> list[dict[str, Any]]:
        path = self.folder / "notes"
        rows = [json.loads(row) for row in path.read_text().splitlines()] if path.exists() else []
        return [row for row in rows if what in (None, row["what"])]

    def set_trap(self, point: str, kind: str = "kill") -> None:
        (self.folder / f"{kind}.{point}").touch()

    def hold(self, point: str) -> Held:
        """Let the next visitor wait at a point until it is freed."""
        self._held.append(Held(point))
        return self._held[-1]

    async def visit(self, point: str, text: str = "") -> None:
        for kind, how in (("kill", signal.SIGKILL), ("stop", signal.SIGSTOP)):
            trap = self.folder / f"{kind}.{point}"
            with contextlib.suppress(FileNotFoundError):
                trap.unlink()
                self.note("trapped", point=point, kind=kind, text=text)
                os.kill(os.getpid(), how)
                return
        gate = self.folder / f"hold.{point}"
        if gate.exists():
            self.note("waits", point=point, text=text)
            while gate.exists():  # noqa: ASYNC110 - another process opens it
                await asyncio.sleep(0.02)
        for held in self._held:
            if held.point == point and not held.reached.is_set():
                held.text = text
                held.reached.set()
                await held.free.wait()
                return

    def leave(self, text: str) -> None:
        """Whoever had this text is done with it."""
        self.note("left", text=text)
        for held in self._held:
            if held.reached.is_set() and held.text == text:
                held.over.set()


def drawn(text: str) -> str:
    return f"{text} #{os.urandom(6).hex()}"


def number_of(text: str) -> str:
    return text.rpartition(" ")[2]


def script(messages: list[Any], was_refused: bool) -> tuple[str, list[Call]]:
    """What the model says next."""
    last = max(at for at, message in enumerate(messages) if message["role"] == "user")
    words = messages[last]["content"].split()
    done = sum(message["role"] == "assistant" for message in messages[last:])
    if words[0] == "work" and done < int(words[1]):
        size = int(words[3]) if len(words) > 3 else 10
        return f"turn {done}", [Call(f"c{done}.{k}", "look", size) for k in range(int(words[2]))]
    if words[0] == "retry" and done == 0:
        return "plan", [Call("r0", "look" if was_refused else "refuse"), Call("r1", "look")]
    return f"done after {done}, {len(messages)} messages seen", []


class Agency:
    """The activities, for the workers of one world."""

    def __init__(self, world: World, *, is_deaf: bool = False) -> None:
        self.world = world
        #: Like a blocking activity, it isn't told that it was cancelled.
        self._is_deaf = is_deaf

    async def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return await (asyncio.shield(asyncio.create_task(work)) if self._is_deaf else work)

    @activity.defn
    async def ask_model(self, ref: ThreadRef, turn: int) -> Answer:
        return await self._do(self._ask(ref, turn))

    async def _ask(self, ref: ThreadRef, turn: int) -> Answer:
        text = drawn("")
        try:
            async with step(ref, "turn", turn, "model") as s:
                if not s.done:
                    await self.world.visit("before-model")
                    messages = await s.thread.messages.read()
                    self.world.note("model", turn=turn, attempt=activity.info().attempt)
                    said, calls = script(messages, (self.world.folder / "refused").exists())
                    text = said + text
                    await self.world.visit(f"in-model-{turn}", text)
                    s.messages.append({"role": "assistant", "content": text})
                    s.state["turns"] = s.state.get("turns", 0) + 1
                    s.state["last"] = text
                    s.result = {"text": text, "calls": [[call.id, call.name, call.size] for call in calls]}
        finally:
            self.world.leave(text)
        await self.world.visit("after-model")
        return Answer(s.ref, s.result["text"], [Call(*call) for call in s.result["calls"]])

    @activity.defn
    async def use_tool(self, ref: ThreadRef, turn: int, slot: int, call: Call) -> Found:
        if call.name == "refuse":
            waiting = asyncio.create_task(self.world.visit("refusing"))
            while not waiting.done():
                activity.heartbeat()
                await asyncio.wait({waiting}, timeout=0.2)
            (self.world.folder / "refused").touch()
            return Found(ref, "", refused=True)
        return await self._do(self._use(ref, turn, slot, call))

    async def _use(self, ref: ThreadRef, turn: int, slot: int, call: Call) -> Found:
        text = drawn(f"result of {call.id} " + "x" * call.size)
        try:
            async with step(ref, "turn", turn, "tools", slot=slot) as s:
                if not s.done:
                    await self.world.visit(f"before-tool-{slot}")
                    self.world.note("tool", turn=turn, slot=slot, attempt=activity.info().attempt)
                    # They end in another order than they begin.
                    await asyncio.sleep(0.01 * (3 - slot % 3))
                    await self.world.visit(f"in-tool-{slot}", text)
                    s.messages.append({"role": "tool", "content": text})
                    s.state.increment("tools")
                    s.result = text
        finally:
            self.world.leave(text)
        await self.world.visit(f"after-tool-{slot}")
        return Found(s.ref, number_of(s.result))

    @activity.defn
    def use_blocking_tool(self, ref: ThreadRef, turn: int, slot: int, call: Call) -> Found:
        with step(ref, "turn", turn, "tools", slot=slot) as s:
            if not s.done:
                text = drawn(f"result of {call.id} " + "x" * call.size)
                assert len(blocking_store().thread(ref.thread).messages) == len(s.messages)
                s.messages.append({"role": "tool", "content": text})
                s.state.increment("tools")
                s.result = text
        return Found(s.ref, number_of(s.result))

    @activity.defn
    async def pay(self, ref: ThreadRef, turn: int, slot: int, call: Call) -> Found:
        """A tool with an effect on the world: each payment has a row in the world's book, where one can
        look."""
        return await self._pay(ref, turn, slot, self._is_paid)

    @activity.defn
    async def pay_unseen(self, ref: ThreadRef, turn: int, slot: int, call: Call) -> Found:
        """The same where nobody can look: what was cut off stays in doubt."""
        return await self._pay(ref, turn, slot, None)

    async def _pay(self, ref: ThreadRef, turn: int, slot: int, verify: Any) -> Found:
        name = f"{ref.thread}/{turn}.{slot}"
        async with step(ref, "turn", turn, "tools", slot=slot) as s:
            if not s.done:
                try:
                    await s.call(f"pay {turn}.{slot}", self._transfer, name, verify=verify)
                    text = f"paid {name}"
                except everthread.InDoubtError:
                    if verify is not None:
                        raise
                    text = f"in doubt {name}"
                await self.world.visit("in-pay")
                text = drawn(text)
                s.messages.append({"role": "tool", "content": text})
                s.state.increment("tools")
                s.result = text
        return Found(s.ref, number_of(s.result))

    async def _transfer(self, name: str) -> str:
        await self.world.visit("before-effect")
        with (self.world.folder / "book").open("a") as book:
            book.write(f"{name}\n")
        await self.world.visit("after-effect")
        return "paid"

    async def _is_paid(self, name: str) -> bool:
        book = self.world.folder / "book"
        return book.exists() and name in book.read_text().splitlines()

    @property
    def activities(self) -> list[Any]:
        return [self.ask_model, self.use_tool, self.use_blocking_tool, self.pay, self.pay_unseen]
