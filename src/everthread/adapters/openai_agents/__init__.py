"""OpenAI Agents SDK: sessions whose items, run state and branches live in a thread."""

from typing import TYPE_CHECKING, Any

from everthread.adapters.doors import load

if TYPE_CHECKING:
    from everthread.adapters.openai_agents.session import EverthreadSession

__all__ = ["EverthreadSession"]

_HOMES = {"EverthreadSession": "everthread.adapters.openai_agents.session"}


def __getattr__(name: str) -> Any:
    return load(__name__, name, _HOMES, extra="openai-agents")


def __dir__() -> list[str]:
    return sorted(__all__)
