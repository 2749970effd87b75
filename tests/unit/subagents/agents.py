"""A parent with a scripted model, and a child that it calls, in both colours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from everthread import AsyncStore, Store
from everthread.subagents import Outcome, Subagent, Task

PARENT = "boss"


def asking(call_id: str) -> dict[str, Any]:
    return {"id": f"ask/{call_id}", "role": "assistant", "content": "", "tool_calls": [{"id": call_id}]}


def answered(call_id: str, outcome: Outcome) -> dict[str, Any]:
    return {
        "id": f"answer/{call_id}",
        "role": "tool",
        "tool_call_id": call_id,
        "content": outcome.text,
    }


class Worker:
    """Answers with how many messages it finds; what it does stands in its thread once."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.tasks: list[Task] = []

    def __call__(self, task: Task) -> Any:
        self.tasks.append(task)
        with self.store.session(task.thread, agent=task.name) as child:
            if child.messages.find(f"{task.key}/prompt") is None:
                child.messages.append({"id": f"{task.key}/prompt", "role": "user", "content": task.prompt})
            with child.thread.step(("model", task.key)) as step:
                if not step.done:
                    step.messages.append({"role": "assistant", "content": f"done: {task.prompt}"})
                    step.result = len(step.thread.messages)
            child.add_usage(tokens=3)
            return {"messages": step.result}


class AsyncWorker:
    def __init__(self, store: AsyncStore) -> None:
        self.store = store
        self.tasks: list[Task] = []

    async def __call__(self, task: Task) -> Any:
        self.tasks.append(task)
        async with self.store.session(task.thread, agent=task.name) as child:
            if await child.messages.find(f"{task.key}/prompt") is None:
                prompt = {"id": f"{task.key}/prompt", "role": "user", "content": task.prompt}
                await child.messages.append(prompt)
            async with child.thread.step(("model", task.key)) as step:
                if not step.done:
                    step.messages.append({"role": "assistant", "content": f"done: {task.prompt}"})
                    step.result = len(step.thread.messages)
            await child.add_usage(tokens=3)
            return {"messages": step.result}


def ask(store: Store, subagent: Subagent, call_id: str, prompt: Any = "go", **options: Any) -> Outcome:
    """One turn of the parent: the model asks for a call, the child does it, the answer is appended."""
    with store.session(PARENT) as parent:
        if len(parent.messages) == 0:
            parent.messages.append({"id": "hello", "role": "user", "content": "hello"})
        parent.messages.append(asking(call_id))
        outcome = subagent.call(parent, call_id, prompt, **options)
        parent.messages.append(answered(call_id, outcome))
    return outcome


def contents(messages: Sequence[Mapping[str, Any]]) -> list[Any]:
    return [message["content"] for message in messages]


def require_sound(messages: Sequence[Mapping[str, Any]]) -> None:
    """No message twice, no call without a result, no result without a call."""
    ids = [message["id"] for message in messages]
    assert len(ids) == len(set(ids))
    asked = [call["id"] for message in messages for call in message.get("tool_calls", ())]
    told = [message["tool_call_id"] for message in messages if message["role"] == "tool"]
    assert asked == told
