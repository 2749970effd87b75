"""Tools whose arguments are checked, and subagents as tools of ``run_agent``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import InvalidValueError
from everthread.engines import (
    AgentResult,
    AgentState,
    Answer,
    Execution,
    Sandbox,
    SubagentTask,
    SubagentTool,
    Tool,
    ToolCall,
    ToolRequest,
    Turn,
    run_agent,
)
from everthread.engines.local import LocalEngine

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "unit": {"enum": ["C", "F"]},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["city"],
    "additionalProperties": False,
}


class Boxes:
    def __init__(self) -> None:
        self.told: list[str] = []

    async def create(self, restore: Any) -> str:
        self.told.append("create")
        await asyncio.sleep(0)
        return f"box-{len(self.told)}"

    async def destroy(self, name: str) -> None:
        self.told.append(f"destroy {name}")

    async def pause(self, name: str) -> None:
        self.told.append(f"pause {name}")

    def own(self, at_end: Any = "destroy", **options: Any) -> Sandbox:
        return Sandbox(self.create, self.destroy, at_end=at_end, pause=self.pause, **options)


class Agent:
    """An agent that asks for these tools in turn, and then is done."""

    def __init__(self, store: Any, run: str, wanted: Sequence[Sequence[ToolRequest]] = ()) -> None:
        self.engine, self.wanted = LocalEngine(store, run), wanted

    async def model(self, turn: Turn) -> Answer:
        async with self.engine.step(turn.ref, *turn.key) as step:
            if not step.done:
                step.messages.append({"id": turn.message_id, "role": "assistant", "content": "turn"})
        calls = list(self.wanted[turn.number - 1]) if turn.number <= len(self.wanted) else []
        return Answer(step.ref, f"done by {self.engine.where.run}", calls, {"tokens": 5})

    async def run(self, ref: Any, **options: Any) -> AgentResult:
        return await run_agent(ref, engine=self.engine, model=self.model, **options)


def go(tmp_path: Path, scenario: Any) -> None:
    async def inside() -> None:
        async with everthread.open_async(f"sqlite:///{tmp_path}/s.db") as store:
            await scenario(store)

    asyncio.run(inside())


def calls(name: str, *arguments: dict[str, Any]) -> list[ToolRequest]:
    return [ToolRequest(f"call-{at}", name, each) for at, each in enumerate(arguments)]


class Children:
    """Starts children, each as a run of its own."""

    def __init__(self, store: Any, boxes: Boxes, at_end: Any = "destroy") -> None:
        self.store, self.boxes, self.at_end = store, boxes, at_end
        self.tasks: list[SubagentTask] = []

    async def start(self, task: SubagentTask) -> AgentResult:
        self.tasks.append(task)
        where = Execution(task.id, started=2000.0 * len(self.tasks), guest_of="parent")
        child = Agent(self.store, where)  # type: ignore[arg-type]
        opened = child.engine.open_thread(task.thread or task.id, mode=task.mode, source=task.source)
        return await child.run(opened, sandbox=task.sandbox_or(self.boxes.own(self.at_end)))


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ({}, "the arguments must have 'city'"),
        ({"city": 3}, "city must be string, not integer"),
        ({"city": "Oslo", "days": 1.5}, "days must be integer"),
        ({"city": "Oslo", "days": True}, "days must be integer, not boolean"),
        ({"city": "Oslo", "unit": "K"}, "unit must be one of ['C', 'F'], not 'K'"),
        ({"city": "Oslo", "tags": ["a", 1]}, "tags[1] must be string, not integer"),
        ({"city": "Oslo", "when": "now"}, "the arguments must not have 'when'"),
        ({"city": "Oslo", "days": 2, "unit": "C", "tags": []}, None),
    ],
)
def test_arguments_that_do_not_fit_the_schema_are_an_error_result_and_the_tool_is_not_called(
    tmp_path: Path, arguments: dict[str, Any], wrong: str | None
) -> None:
    asked: list[dict[str, Any]] = []

    async def look_up(call: ToolCall) -> str:
        asked.append(call.arguments)
        return "21 °C"

    async def scenario(store: Any) -> None:
        agent = Agent(store, "r", [calls("look_up", arguments)])
        ref = await agent.engine.open_thread("t")
        await agent.run(ref, tools={"look_up": Tool(look_up, schema=SCHEMA)})
        told = (await (await store.thread("t")).messages.read())[1]["content"]
        if wrong is None:
            assert (told, asked) == ("21 °C", [arguments])
        else:
            assert wrong in told
            assert asked == []

    go(tmp_path, scenario)


def test_a_class_that_validates_judges_the_arguments_itself(tmp_path: Path) -> None:
    class Query:
        @staticmethod
        def model_json_schema() -> dict[str, Any]:
            return {"type": "object"}

        @staticmethod
        def model_validate(given: Any) -> None:
            if "city" not in given:
                raise ValueError("1 validation error: city")

    async def scenario(store: Any) -> None:
        agent = Agent(store, "r", [calls("look_up", {}, {"city": "Oslo"})])
        ref = await agent.engine.open_thread("t")
        await agent.run(ref, tools={"look_up": Tool(lambda call: "fine", schema=Query)})
        told = [each["content"] for each in await (await store.thread("t")).messages.read()]
        assert "1 validation error: city" in told[1]
        assert told[2] == "fine"

    go(tmp_path, scenario)


def test_usage_and_turns_of_subagents_add_up_in_the_parent(tmp_path: Path) -> None:
    async def scenario(store: Any) -> None:
        children, state = Children(store, Boxes()), AgentState("boss")
        parent = Agent(store, "parent", [calls("helper", {}, {})])
        tools = {"helper": SubagentTool(children.start)}
        result = await parent.run(parent.engine.open_thread("t"), tools=tools, state=state, max_turns=2)
        assert (result.reason, result.turns, result.subagent_turns) == ("completed", 2, 2)
        assert result.usage == {"tokens": 20}
        assert (await store.session_records("t")).last_run.usage == {"tokens": 20}

    go(tmp_path, scenario)


@pytest.mark.parametrize("policy", ["new", "continue", "fork", "parent"])
def test_a_subagent_works_on_the_thread_that_its_policy_names(tmp_path: Path, policy: Any) -> None:
    async def scenario(store: Any) -> None:
        children = Children(store, Boxes())
        wanted = [calls("helper", {}), calls("helper", {})]
        parent = Agent(store, Execution("parent", started=1000.0), wanted)  # type: ignore[arg-type]
        ref = await parent.engine.open_thread("t", system="be brief")

        async def later(task: SubagentTask) -> AgentResult:
            result = await children.start(task)
            # An engine hands the parent's next step out later than those of the child.
            parent.engine.where = Execution("parent", started=2000.0 * len(children.tasks) + 1000)
            return result

        result = await parent.run(ref, tools={"helper": SubagentTool(later, thread=policy)})
        said = [each["content"] for each in await (await store.thread("t")).messages.read()]
        answers = ["done by t/helper/1.0", "done by t/helper/2.0"]
        own = [each for each in said if each != "turn"]
        assert (result.reason, own) == ("completed", ["be brief", *answers])
        found = [(task.thread, task.mode) for task in children.tasks]
        lengths = [len((await store.thread(task.thread or task.id)).messages) for task in children.tasks]
        assert (found, lengths) == {
            "new": ([(None, "new"), (None, "new")], [1, 1]),
            "continue": ([(None, "new"), ("t/helper/1.0", "continue")], [2, 2]),
            "fork": ([(None, "fork"), (None, "fork")], [2, 4]),
            "parent": ([("t", "continue"), ("t", "continue")], [8, 8]),
        }[policy]

    go(tmp_path, scenario)


@pytest.mark.parametrize("policy", ["none", "inherit", "own"])
def test_a_subagent_has_the_sandbox_that_its_policy_names_and_the_first_one_creates_it(
    tmp_path: Path, policy: Any
) -> None:
    async def scenario(store: Any) -> None:
        boxes, own = Boxes(), Boxes()
        children = Children(store, own)
        parent = Agent(store, "parent", [calls("helper", {}, {})])
        tools = {"helper": SubagentTool(children.start, sandbox=policy)}
        await parent.run(parent.engine.open_thread("t"), tools=tools, sandbox=boxes.own(lazy=True))
        assert boxes.told == (["create", "destroy box-1"] if policy == "inherit" else [])
        assert own.told.count("create") == (2 if policy == "own" else 0)
        assert [task.sandbox_id for task in children.tasks] == ["box-1" if policy == "inherit" else None] * 2

    go(tmp_path, scenario)


@pytest.mark.parametrize(
    ("at_end", "told"),
    [
        ("keep", ["create"]),
        ("pause", ["create", "pause box-1"]),
        ("parent", ["create", "destroy box-1"]),
        ("destroy", ["create", "destroy box-1"]),
    ],
)
def test_a_subagents_sandbox_is_kept_paused_or_left_until_the_parent_closes(
    tmp_path: Path, at_end: Any, told: list[str]
) -> None:
    async def scenario(store: Any) -> None:
        boxes = Boxes()
        children = Children(store, boxes, at_end)
        seen: list[list[str]] = []

        async def start(task: SubagentTask) -> AgentResult:
            result = await children.start(task)
            seen.append(list(boxes.told))
            return result

        parent = Agent(store, "parent", [calls("helper", {})])
        tools = {"helper": SubagentTool(start, sandbox="own", destroy=boxes.destroy)}
        result = await parent.run(parent.engine.open_thread("t"), tools=tools)
        assert (boxes.told, result.warnings) == (told, [])
        assert seen == [["create"] if at_end == "parent" else told]

    go(tmp_path, scenario)


def test_waiting_for_a_change_returns_once_the_run_has_ended() -> None:
    async def scenario() -> None:
        state = AgentState()
        state.status = "completed"
        assert await asyncio.wait_for(state.wait_for_change(state.version), 60) == state.version

    asyncio.run(scenario())


def test_policies_that_do_not_exist_are_refused() -> None:
    for options in ({"thread": "none"}, {"sandbox": "maybe"}):
        with pytest.raises(InvalidValueError, match="must be"):
            SubagentTool(lambda task: None, **options)  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="needs pause="):
        Sandbox(Boxes().create, Boxes().destroy, at_end="pause")
