"""Processes of the scripted agent on DBOS, and whether a thread is what the history of its workflow says."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import time
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from dbos import DBOS

import everthread
from tests.engines import dbos_agent
from tests.engines.dbos_agent import PROMPT, Said

#: Where other processes come from, with everything imported.
PROCESSES = get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.engines.dbos_agent"])
#: For what is waited for: generous, a busy machine must not decide.
WAIT_S = 120.0


@dataclass
class Bench:
    """Where DBOS keeps its histories, and Everthread its threads."""

    folder: Path
    database: str
    store: str
    schema: str = "dbos"
    tools: int = 3

    def options(self) -> dict[str, Any]:
        return {"url": self.store, "durability": "process"}

    def contents(self, name: str) -> list[str]:
        with everthread.open(**self.options()) as opened:
            messages = list(opened.thread(name).messages)
        assert len({message["id"] for message in messages}) == len(messages)
        return [message["content"] for message in messages]

    def state(self, name: str) -> dict[str, Any]:
        with everthread.open(**self.options()) as opened:
            return opened.thread(name).state.plain()

    def verify(self) -> None:
        with everthread.open(**self.options()) as opened:
            assert opened.verify().ok

    def check(self, workflow: str) -> list[Any]:
        """The thread is what the history of this workflow says; its steps."""
        steps = DBOS.list_workflow_steps(workflow)
        ref = steps[-1]["output"]
        said = texts(steps)
        assert self.contents(ref.thread) == ["be brief", PROMPT["content"], *said.values()]
        tools = sum(text.startswith("tool") for text in said.values())
        expected = {"turns": len(said) - tools} | ({"tools": tools} if tools else {})
        assert self.state(ref.thread) == expected
        return steps

    def process(self, workflow: str, begins: bool = False) -> ForkServerProcess:
        """Another process of the application: one that begins a workflow, or recovers it."""
        target = (self.folder, self.database, self.schema, self.store, workflow, begins, 1, self.tools)
        made = PROCESSES.Process(target=dbos_agent.play, args=target)
        made.start()
        return made


def ended(*processes: ForkServerProcess) -> list[int | None]:
    """How they ended."""
    for each in processes:
        each.join(WAIT_S)
    return [each.exitcode for each in processes]


def texts(steps: list[Any]) -> dict[int, str]:
    """What was said in each step of a history."""
    outputs = {step["function_id"]: step["output"] for step in steps}
    return {number: each.text for number, each in outputs.items() if isinstance(each, Said)}


def wake(process: ForkServerProcess, bench: Bench) -> None:
    """Let a process that was stopped in a trap go on."""
    (bench.folder / "woken").touch()
    os.kill(process.pid or 0, signal.SIGCONT)


def stop(process: ForkServerProcess, bench: Bench) -> None:
    """Stop a process at a moment when it doesn't keep others from its databases."""
    while True:
        os.kill(process.pid or 0, signal.SIGSTOP)
        try:
            for path in bench.folder.glob("*.db"):
                with contextlib.closing(sqlite3.connect(path, timeout=0)) as connection:
                    connection.execute("BEGIN IMMEDIATE")
            return
        except sqlite3.OperationalError:
            os.kill(process.pid or 0, signal.SIGCONT)
            time.sleep(0.01)
