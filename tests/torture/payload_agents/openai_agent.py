"""The OpenAI Agents plugin with a session that lives in the workflow: turn after turn of one conversation."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from agents import Agent, Runner
    from temporalio.openai_agents import ModelActivityParameters, OpenAIAgentsPlugin
    from temporalio.openai_agents.testing import ResponseBuilders, TestModel, TestModelProvider

    from tests.torture.payload_agents.measured import WORD, said


class WorkflowSession:
    """A conversation in the memory of its workflow, as the SDK asks for one."""

    session_id = "workflow"
    session_settings = None

    def __init__(self) -> None:
        self._items: list[Any] = []

    async def get_items(self, limit: int | None = None) -> list[Any]:
        return self._items[-limit:] if limit else list(self._items)

    async def add_items(self, items: list[Any]) -> None:
        self._items += items

    async def pop_item(self) -> Any:
        return self._items.pop() if self._items else None

    async def clear_session(self) -> None:
        self._items.clear()


@workflow.defn
class Conversation:
    @workflow.run
    async def run(self, seed: int, first: str, calls: int, size: int) -> str:
        agent = Agent(name="talker", instructions="Talk.")
        session: Any = WorkflowSession()
        answer = ""
        for number in range(calls):
            text = first if number == 0 else said(seed, number, size)
            result = await Runner.run(agent, text, session=session)
            answer = str(result.final_output)
        return answer


_answers = iter(range(1 << 60))


def _respond() -> Any:
    return ResponseBuilders.output_message(f"{WORD}, that was {next(_answers)}")


def plugins() -> list[Any]:
    return [
        OpenAIAgentsPlugin(
            model_params=ModelActivityParameters(start_to_close_timeout=timedelta(seconds=60)),
            model_provider=TestModelProvider(TestModel(_respond)),
        )
    ]
