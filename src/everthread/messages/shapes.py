"""The shapes that messages come in, and how a log remembers which.

A log holds what the provider wrote, as it was: ``{"id": …, "shape": "anthropic", "message": {…}}``. An item
without a shape is recognised if it can be only one thing, and refused if not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import deepcopy
from types import ModuleType
from typing import Any, Final

from everthread.errors import InvalidValueError
from everthread.messages import (
    agent_framework,
    anthropic,
    google,
    langchain,
    llama_index,
    openai_chat,
    openai_responses,
    pydantic_ai,
    strands,
)
from everthread.messages.model import Message, Notes, Text, meaningful

ANTHROPIC: Final = anthropic.ID
OPENAI_CHAT: Final = openai_chat.ID
OPENAI_RESPONSES: Final = openai_responses.ID
GOOGLE: Final = google.ID
LANGCHAIN: Final = langchain.ID
#: A line of a transcript of Claude Code, most of which hold a message of Anthropic's. It is only read.
CLAUDE: Final = "claude"
#: An event of the Google ADK, most of which hold a Content. It is only read.
ADK: Final = "adk"
#: A request or response of Pydantic AI. It is read, and written for its adapter.
PYDANTIC_AI: Final = pydantic_ai.ID
#: Messages of three more frameworks, read, and written for their adapters.
STRANDS: Final = strands.ID
LLAMA_INDEX: Final = llama_index.ID
AGENT_FRAMEWORK: Final = agent_framework.ID
#: A role and text, which everybody understands alike.
PLAIN: Final = "plain"

_MODULES: Final[Mapping[str, ModuleType]] = {
    ANTHROPIC: anthropic,
    OPENAI_CHAT: openai_chat,
    OPENAI_RESPONSES: openai_responses,
    GOOGLE: google,
    LANGCHAIN: langchain,
}
SHAPES: Final = tuple(_MODULES)
_FRAMEWORKS: Final[Mapping[str, ModuleType]] = {
    STRANDS: strands,
    LLAMA_INDEX: llama_index,
    AGENT_FRAMEWORK: agent_framework,
}
_ONLY_READ: Final = (CLAUDE, ADK, PYDANTIC_AI, *_FRAMEWORKS)
#: What messages can be written in: the shapes of requests, and those of frameworks.
_BUILDERS: Final[Mapping[str, ModuleType]] = {**_MODULES, **_FRAMEWORKS, PYDANTIC_AI: pydantic_ai}

_BLOCKS_OF: Final = {
    "tool_use": ANTHROPIC,
    "tool_result": ANTHROPIC,
    "thinking": ANTHROPIC,
    "redacted_thinking": ANTHROPIC,
    "server_tool_use": ANTHROPIC,
    "document": ANTHROPIC,
    "image": ANTHROPIC,
    "image_url": OPENAI_CHAT,
    "input_audio": OPENAI_CHAT,
    "file": OPENAI_CHAT,
    "input_text": OPENAI_RESPONSES,
    "output_text": OPENAI_RESPONSES,
    "input_image": OPENAI_RESPONSES,
    "input_file": OPENAI_RESPONSES,
}
_ITEMS: Final = re.compile(r"(reasoning|item_reference|compaction|.+_call|.+_call_output)")
_CHAT_FIELDS: Final = ("tool_calls", "tool_call_id", "refusal", "function_call")
#: The ids that OpenAI gives begin with a kind; those of a log don't.
_OPENAI_ID: Final = re.compile(r"[a-z]+_.+")


def check_shape(shape: str) -> str:
    """The shape itself; raises :class:`InvalidValueError` if there is none of this name."""
    if shape not in _MODULES:
        raise InvalidValueError(f"there is no shape {shape!r}; there are {', '.join(SHAPES)}", path="shape")
    return shape


def enclose(message: Mapping[str, Any], shape: str, item_id: Any = None) -> dict[str, Any]:
    """The item that keeps a provider's message as it is, to be appended to a log.

    Its id is ``item_id``, else the message's own, else the log gives one.
    """
    check_shape(shape)
    if not isinstance(message, Mapping):
        raise InvalidValueError(f"a message of {shape} is a dictionary, not {type(message).__name__}")
    if item_id is None:
        held = message.get("data") if shape == LANGCHAIN else message
        item_id = held.get("id") if isinstance(held, Mapping) else None
    item = {"shape": shape, "message": message}
    return item if item_id is None else {"id": item_id, **item}


def is_enclosed(item: Any) -> bool:
    return isinstance(item, Mapping) and set(item) <= {"id", "shape", "message"} and "message" in item


def disclose(item: Any, index: int | None = None, shape: str | None = None) -> tuple[str, Any]:
    """The shape of an item of a log, and the provider's message in it.

    ``shape`` is what items are that don't say it themselves. Raises :class:`InvalidValueError` for a shape
    that this release doesn't know, and for what could be of several shapes or of none.
    """
    if is_enclosed(item) and isinstance(item.get("shape"), str):
        if item["shape"] not in (PLAIN, *_ONLY_READ, *_MODULES):
            raise InvalidValueError(
                f"{_where(index)} has the shape {item['shape']!r}, which this release doesn't know: it can "
                f"be read as it is, not converted",
                path=_path(index),
            )
        return item["shape"], item["message"]
    found = shape or recognise(item)
    if found is None:
        raise InvalidValueError(
            f"{_where(index)} has no shape and doesn't show whose it is: pass shape=…, or append it with one",
            path=_path(index),
        )
    return found, _without_log_id(item, found)


def recognise(item: Any) -> str | None:
    """The shape of an item that doesn't say it; ``None`` if it could be several or none."""
    if not isinstance(item, Mapping):
        return None
    kind = item.get("type")
    if isinstance(item.get("data"), Mapping) and isinstance(kind, str):
        return LANGCHAIN
    if "parts" in item:
        return GOOGLE
    if isinstance(kind, str) and _ITEMS.fullmatch(kind):
        return OPENAI_RESPONSES
    if not isinstance(item.get("role"), str):
        return None
    if any(item.get(name) is not None for name in _CHAT_FIELDS) or item["role"] in ("tool", "developer"):
        return OPENAI_CHAT
    content = item.get("content")
    if not isinstance(content, list):
        return PLAIN if isinstance(content, str) else None
    kinds = [each.get("type") if isinstance(each, Mapping) else None for each in content]
    found = {_BLOCKS_OF.get(each) for each in kinds if isinstance(each, str) and each != "text"}
    if not found and all(each == "text" for each in kinds):
        return PLAIN
    return found.pop() if len(found) == 1 else None


def _without_log_id(item: Any, shape: str) -> Any:
    """The message without the id that the log gave it."""
    if not isinstance(item, Mapping):
        return item
    item_id = item.get("id")
    if shape == OPENAI_RESPONSES and isinstance(item_id, str) and _OPENAI_ID.fullmatch(item_id):
        return item
    return {name: value for name, value in item.items() if name != "id"}


def parse_all(shape: str, raw: Any, index: int | None = None) -> list[Message]:
    """The canonical form of what an item of a log holds: of a framework's record none, one or several."""
    if shape == PYDANTIC_AI and isinstance(raw, Mapping):
        return pydantic_ai.parse(raw, index)
    if shape in _FRAMEWORKS and isinstance(raw, Mapping):
        return [_FRAMEWORKS[shape].parse(raw, index)]
    if shape == CLAUDE and isinstance(raw, Mapping):
        shape, raw = ANTHROPIC, raw.get("message")
        if not (isinstance(raw, Mapping) and raw.get("role") in ("user", "assistant")):
            return []
    if shape == ADK and isinstance(raw, Mapping):
        author = raw.get("author")
        shape, raw = GOOGLE, raw.get("content")
        if not (isinstance(raw, Mapping) and raw.get("parts")):
            return []
        if raw.get("role") is None:
            raw = {**raw, "role": "user" if author == "user" else "model"}
    return [parse(shape, raw, index)]


def parse(shape: str, raw: Any, index: int | None = None) -> Message:
    """The canonical form of a provider's message."""
    if not isinstance(raw, Mapping):
        # Sealed or erased as a whole: what stands in its place is text.
        return Message(role="user", blocks=(Text(text=str(raw)),), index=index)
    module = _MODULES[OPENAI_CHAT if shape == PLAIN else check_shape(shape)]
    message: Message = module.parse(raw, index)
    return message


def render(message: Message, shape: str, notes: Notes) -> list[dict[str, Any]]:
    """What a provider takes for this message: its own value if it came from there and wasn't changed."""
    notes.index = message.index
    origin = message.origin
    if origin is not None and origin.shape == shape and _BUILDERS[shape].parse(origin.raw) == message:
        return [deepcopy(dict(origin.raw))]
    _note_message(message, shape, notes)
    return build(message, shape, notes)


def build(message: Message, shape: str, notes: Notes) -> list[dict[str, Any]]:
    """What a provider or framework takes for this message, put together anew."""
    built: list[dict[str, Any]] = _BUILDERS[shape].build(message, notes)
    return built


def _note_message(message: Message, shape: str, notes: Notes) -> None:
    if message.provider in ("", shape):
        return
    if message.name is not None and shape not in (OPENAI_CHAT, LANGCHAIN):
        notes.dropped("name", f"{shape} has none for a message")
    if lost := meaningful(message.extra):
        notes.dropped(", ".join(lost), f"only {message.provider} has this in a message")


def _where(index: int | None) -> str:
    return "the message" if index is None else f"message {index}"


def _path(index: int | None) -> str:
    return "messages" if index is None else f"messages[{index}]"
