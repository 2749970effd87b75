"""Which Everthread thread stands behind a LangGraph thread and namespace, and the other way round.

``langgraph/<thread_id>`` for the graph itself, ``langgraph/<thread_id>/<namespace>`` for a subgraph. What
would be ambiguous is escaped as in a URL; a name that would be too long is a digest, and a cell holds what it
stands for.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from everthread.arguments import check_name
from everthread.errors import InvalidValueError

PREFIX: Final = "langgraph/"

#: Room for what streams of pending writes add to a name.
_NAME_BYTES_MAX: Final = 960
#: Marks a digest; no escaped id begins with it.
_HASHED: Final = "%~"
_ESCAPED: Final = {"%": "%25", "/": "%2F", "#": "%23"}
_PLAIN: Final = {escaped: plain for plain, escaped in _ESCAPED.items()}


def thread_name(thread_id: str, namespace: str, prefix: str = PREFIX) -> str:
    """The name of the Everthread thread. Raises :class:`InvalidNameError` for an id that can't be one."""
    name = f"{prefix}{_escape(thread_id)}"
    if namespace:
        name += f"/{_escape(namespace, slash=False)}"
    if len(name.encode("utf-8", "surrogatepass")) > _NAME_BYTES_MAX:
        pair = f"{_escape(thread_id)}/{_escape(namespace)}".encode("utf-8", "surrogatepass")
        return f"{prefix}{_HASHED}{sha256(pair).hexdigest()}"
    return check_name(name, "thread_id and checkpoint_ns")


def family_prefix(thread_id: str, prefix: str = PREFIX) -> str | None:
    """How the names of all subgraphs of a thread begin; ``None`` if all of them are digests."""
    beginning = f"{prefix}{_escape(thread_id)}/"
    return beginning if len(beginning.encode("utf-8", "surrogatepass")) <= _NAME_BYTES_MAX else None


def is_hashed(name: str, prefix: str = PREFIX) -> bool:
    return name.startswith(prefix + _HASHED)


def parse_name(name: str, prefix: str = PREFIX) -> tuple[str, str] | None:
    """(thread_id, namespace) behind a name that isn't a digest; ``None`` if it is none of ours."""
    if not name.startswith(prefix) or is_hashed(name, prefix):
        return None
    thread_id, _, namespace = name.removeprefix(prefix).partition("/")
    return _unescape(thread_id), _unescape(namespace)


def thread_id_of(configurable: dict[str, object]) -> str:
    """The id of the thread that a config names. Raises :class:`InvalidValueError` without one."""
    thread_id = configurable.get("thread_id")
    if thread_id is None:
        raise InvalidValueError(
            'a checkpointer needs a thread: pass {"configurable": {"thread_id": …}}',
            path="configurable.thread_id",
        )
    return str(thread_id)


def _escape(text: str, *, slash: bool = True) -> str:
    for plain, escaped in _ESCAPED.items():
        if slash or plain != "/":
            text = text.replace(plain, escaped)
    return text


def _unescape(text: str) -> str:
    for escaped in ("%2F", "%23", "%25"):
        text = text.replace(escaped, _PLAIN[escaped])
    return text
