"""A model for the OpenAI Agents SDK that says what it was told to, whatever the release of the SDK."""

from __future__ import annotations

import json
from typing import Any

from agents import Model, ModelResponse, Usage
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText


def say(text: str, item_id: str = "msg_1") -> ResponseOutputMessage:
    content = ResponseOutputText(annotations=[], text=text, type="output_text")
    return ResponseOutputMessage(
        id=item_id, content=[content], role="assistant", status="completed", type="message"
    )


def call(name: str, call_id: str, **arguments: Any) -> ResponseFunctionToolCall:
    return ResponseFunctionToolCall(
        id=f"fc_{call_id}",
        call_id=call_id,
        name=name,
        arguments=json.dumps(arguments),
        type="function_call",
        status="completed",
    )


class Scripted(Model):
    """Answers with one step after another, and keeps what it was asked."""

    def __init__(self, *steps: Any, response_id: str | None = None) -> None:
        self._steps = list(steps)
        self._response_id = response_id
        self.asked: list[Any] = []

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        asked = kwargs["input"] if "input" in kwargs else args[1]
        self.asked.append(asked if isinstance(asked, str) else list(asked))
        step = self._steps.pop(0)
        if isinstance(step, Exception):
            raise step
        return ModelResponse(output=[step], usage=Usage(), response_id=self._response_id)

    def stream_response(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError
