"""Claude Agent SDK: transcripts mirrored to, and resumed from, threads."""

from typing import TYPE_CHECKING, Any

from everthread.adapters.doors import load

if TYPE_CHECKING:
    from everthread.adapters.claude.transcripts import EverthreadSessionStore

__all__ = ["EverthreadSessionStore"]

_HOMES = {"EverthreadSessionStore": "everthread.adapters.claude.transcripts"}


def __getattr__(name: str) -> Any:
    return load(__name__, name, _HOMES, extra="claude")


def __dir__() -> list[str]:
    return sorted(__all__)
