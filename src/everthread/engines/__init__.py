"""Agents on durable engines: the engine's history holds a pointer, a thread holds the state. Imports no
engine; what needs an event loop is loaded when it is asked for."""

from typing import TYPE_CHECKING, Any

from everthread.engines.exchange import (
    AgentResult,
    Answer,
    Carry,
    Engine,
    Rewind,
    Sandbox,
    SubagentTask,
    SubagentTool,
    Tool,
    ToolCall,
    ToolRequest,
    Turn,
    WaitForInput,
)
from everthread.engines.pointers import Execution, ThreadRef, latest

if TYPE_CHECKING:
    from everthread.engines.agent import run_agent
    from everthread.engines.inbox import Inbox
    from everthread.engines.state import AgentState

__all__ = [
    "AgentResult",
    "AgentState",
    "Answer",
    "Carry",
    "Engine",
    "Execution",
    "Inbox",
    "Rewind",
    "Sandbox",
    "SubagentTask",
    "SubagentTool",
    "ThreadRef",
    "Tool",
    "ToolCall",
    "ToolRequest",
    "Turn",
    "WaitForInput",
    "latest",
    "run_agent",
]

_DOOR = {
    "AgentState": "everthread.engines.state",
    "Inbox": "everthread.engines.inbox",
    "run_agent": "everthread.engines.agent",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _DOOR:
        raise AttributeError(f"module 'everthread.engines' has no attribute {name!r}")
    value = getattr(import_module(_DOOR[name]), name)
    globals()[name] = value
    return value
