"""Agents on durable engines: the engine's history holds a pointer, a thread holds the state. Imports no
engine."""

from everthread.engines.agent import run_agent
from everthread.engines.exchange import (
    AgentResult,
    Answer,
    Carry,
    Engine,
    Rewind,
    Sandbox,
    Tool,
    ToolCall,
    ToolRequest,
    Turn,
    WaitForInput,
)
from everthread.engines.inbox import Inbox
from everthread.engines.pointers import Execution, ThreadRef, latest
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
    "ThreadRef",
    "Tool",
    "ToolCall",
    "ToolRequest",
    "Turn",
    "WaitForInput",
    "latest",
    "run_agent",
]
