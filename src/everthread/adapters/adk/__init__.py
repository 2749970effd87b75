"""Google ADK: sessions, their events and their scoped state, on threads."""

from typing import TYPE_CHECKING, Any

from everthread.adapters.doors import load

if TYPE_CHECKING:
    from everthread.adapters.adk.service import EverthreadSessionService, register

__all__ = ["EverthreadSessionService", "register"]

_HOMES = {
    "EverthreadSessionService": "everthread.adapters.adk.service",
    "register": "everthread.adapters.adk.service",
}


def __getattr__(name: str) -> Any:
    return load(__name__, name, _HOMES, extra="adk")


def __dir__() -> list[str]:
    return sorted(__all__)
