"""Pydantic AI with ``TemporalDurability``: a model that calls a tool, again and again."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.workflow import ActivityConfig

with workflow.unsafe.imports_passed_through():
    from pydantic_ai import Agent, UsageLimits
    from pydantic_ai.durable_exec.temporal import PydanticAIPlugin, PydanticAIWorkflow, TemporalDurability
    from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
    from pydantic_ai.models.function import AgentInfo, FunctionModel

    from tests.torture.payload_agents.measured import WORD, said


def _script(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Call the tool as often as the prompt says, then answer."""
    seed, calls, size, _ = str(messages[0].parts[-1].content).split(" ", 3)  # type: ignore[union-attr]
    returned = sum(isinstance(part, ToolReturnPart) for message in messages for part in message.parts)
    if returned == int(calls):
        return ModelResponse(parts=[TextPart(content=f"{WORD}, that is all")])
    arguments = {"seed": int(seed), "number": returned + 1, "size": int(size)}
    return ModelResponse(parts=[ToolCallPart("look", arguments, tool_call_id=f"call-{returned}")])


agent = Agent(
    FunctionModel(_script, model_name="script"),
    name="looker",
    capabilities=[
        TemporalDurability(
            activity_config=ActivityConfig(
                start_to_close_timeout=timedelta(seconds=60), retry_policy=RetryPolicy(maximum_attempts=3)
            )
        )
    ],
)


@agent.tool_plain
async def look(seed: int, number: int, size: int) -> str:
    """Look at something."""
    return said(seed, number, size)


@workflow.defn
class Conversation(PydanticAIWorkflow):
    __pydantic_ai_agents__: ClassVar[Any] = [agent]

    @workflow.run
    async def run(self, seed: int, first: str, calls: int, size: int) -> str:
        limits = UsageLimits(request_limit=None)
        result = await agent.run(f"{seed} {calls} {size} {first}", usage_limits=limits)
        return result.output


def plugins() -> list[Any]:
    return [PydanticAIPlugin()]
