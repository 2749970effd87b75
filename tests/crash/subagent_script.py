"""A parent that calls subagents in all four modes, killed at a chosen store operation, in its own work or in
a child's; and what must be true once it has been run again."""

from __future__ import annotations

import json
import os
import signal
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from everthread import AgentSession, Store
from everthread.subagents import Subagent, Task, subagents_of
from tests.crash.session_script import open_store

PARENT = "boss"
#: Each with its mode; of those of one name, later ones go on from earlier ones.
CALLS = (
    ("n1", "new"),
    ("c1", "continue"),
    ("c2", "continue"),
    ("f1", "fork"),
    ("f2", "fork"),
    ("p1", "parent"),
)


class Script:
    """May be run again and again: it finds out what is there and does the rest."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def run(self) -> None:
        with self.store.session(PARENT) as parent:
            parent.messages.append({"id": "hello", "role": "user", "content": "hello"})
            for call, mode in CALLS:
                self._call(parent, call, mode)

    def _call(self, parent: AgentSession, call: str, mode: Any) -> None:
        asking = {"id": f"ask/{call}", "role": "assistant", "content": "", "tool_calls": [{"id": call}]}
        parent.messages.append(asking)

        def work(task: Task) -> Any:
            return self._work_here(parent, task) if task.mode == "parent" else self._work(task)

        outcome = Subagent(mode, work, thread=mode, result=dict[str, int]).call(parent, call, f"do {call}")
        told = {"id": f"told/{call}", "role": "tool", "tool_call_id": call, "content": outcome.text}
        parent.messages.append(told)

    def _work(self, task: Task) -> Any:
        with self.store.session(task.thread, agent=task.name) as child:
            child.messages.append({"id": f"{task.call}/prompt", "role": "user", "content": task.prompt})
            for turn in range(2):
                with child.thread.step(("model", task.call, turn)) as step:
                    if not step.done:
                        step.messages.append({"role": "assistant", "content": f"{task.call} {turn}"})
                        step.result = len(step.thread.messages)
            return {"messages": step.result}

    def _work_here(self, parent: AgentSession, task: Task) -> Any:
        parent.log(task.log).append({"id": task.call, "role": "assistant", "content": task.prompt})
        return {"messages": 1}


def picture(store: Store) -> dict[str, Any]:
    """All that is there, apart from ids and versions, which differ from run to run."""
    found: dict[str, Any] = {}
    for info in store.threads():
        thread = store.thread(info.name)
        logs = {name: [_shown(item) for item in thread.log(name)] for name in thread.logs}
        children = [(c.name, c.call, c.thread, c.mode, c.status, c.reason) for c in subagents_of(thread)]
        found[info.name] = {"logs": logs, "children": children}
    return found


def _shown(item: Mapping[str, Any]) -> Any:
    return [item["role"], item["content"], item.get("tool_call_id")]


def require_linked(store: Store) -> None:
    """Every child is where its parent says, and ended there."""
    for child in subagents_of(store.thread(PARENT)):
        thread = store.thread(child.thread)
        assert child.version is not None
        assert thread.contains(child.version)
        assert child.mode == "parent" or thread.head.id == child.version


def run_killed(path: Path, moment: int | None) -> tuple[bool, list[int]]:
    """Run the script in a process of its own; whether it was killed, and when it could have been."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            store, killing = open_store(path, moment)
            Script(store).run()
            store.close()
            os.write(writing, json.dumps(killing.moments).encode())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        moments = told.read()
    _, status = os.waitpid(pid, 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    return killed, json.loads(moments or "[]")
