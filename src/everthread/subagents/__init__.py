"""Subagents: a tool whose work is done by another agent, on a thread that its parent finds again."""

from everthread.sessions.children import Child
from everthread.subagents.subagent import Subagent, delete_with_children, subagents_of
from everthread.subagents.task import Outcome, Task

__all__ = ["Child", "Outcome", "Subagent", "Task", "delete_with_children", "subagents_of"]
