"""A model for Strands that says what it was told to, and keeps what it was shown."""

from __future__ import annotations

from collections.abc import AsyncIterable
from typing import Any

from strands.models.model import Model


class Scripted(Model):
    """Answers with one list of content blocks after another, and keeps what it was shown."""

    def __init__(self, *steps: Any) -> None:
        self._steps = list(steps)
        self.asked: list[Any] = []

    def update_config(self, **model_config: Any) -> None:
        """It has none."""

    def get_config(self) -> Any:
        return {}

    def structured_output(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> AsyncIterable[Any]:
        self.asked.append([{"role": each["role"], "content": list(each["content"])} for each in messages])
        step = self._steps.pop(0)
        yield {"messageStart": {"role": "assistant"}}
        if isinstance(step, str):
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": step}}}
        else:
            name, call_id, arguments = step
            yield {"contentBlockStart": {"start": {"toolUse": {"name": name, "toolUseId": call_id}}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": arguments}}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn" if isinstance(step, str) else "tool_use"}}
