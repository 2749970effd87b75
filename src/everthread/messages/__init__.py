"""Messages of every provider: kept as given, understood alike, handed out as each of them wants."""

from everthread.messages.model import (
    Block,
    Change,
    Media,
    Message,
    Origin,
    Reasoning,
    Report,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
)
from everthread.messages.request import (
    Request,
    canonical,
    convert,
    for_anthropic,
    for_google,
    for_langchain,
    for_openai_chat,
    for_openai_responses,
)
from everthread.messages.shapes import SHAPES, enclose

__all__ = [
    "SHAPES",
    "Block",
    "Change",
    "Media",
    "Message",
    "Origin",
    "Reasoning",
    "Report",
    "Request",
    "Text",
    "ToolCall",
    "ToolResult",
    "Unknown",
    "canonical",
    "convert",
    "enclose",
    "for_anthropic",
    "for_google",
    "for_langchain",
    "for_openai_chat",
    "for_openai_responses",
]
