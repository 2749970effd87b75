"""What saves one message and one small change per step: plain SQLite, Everthread lean and full, LangGraph.

Each saver is asked to `prepare` a step outside the measurement and to `save` it inside.
"""

from __future__ import annotations

import operator
import sqlite3
from pathlib import Path
from typing import Annotated, Any, Protocol, TypedDict

import apsw
import msgspec

import everthread

from .messages import Message

THREAD = "growth"
#: One version in this many is remembered by its saver, for forks and rewinds to a random past.
VERSION_STRIDE = 37
_encode = msgspec.msgpack.Encoder().encode


class Saver(Protocol):
    """One contender of the save benchmark."""

    def prepare(self, step: int, message: Message) -> None: ...

    def save(self) -> None: ...

    def close(self) -> None: ...


def url(path: Path) -> str:
    """The store URL of an absolute path."""
    return f"sqlite:///{path}"


def connect(path: Path) -> apsw.Connection:
    """A connection that survives power loss: write-ahead log, fsync at every commit."""
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA journal_mode=WAL").fetchall()
    connection.execute("PRAGMA synchronous=FULL")
    return connection


class RawRows:
    """The floor: one INSERT of the bytes as a durable transaction of its own."""

    def __init__(self, path: Path) -> None:
        self.connection = connect(path)
        self.connection.execute("CREATE TABLE IF NOT EXISTS rows(id INTEGER PRIMARY KEY, body BLOB)")
        self.cursor = self.connection.cursor()
        self.body = b""

    def prepare(self, step: int, message: Message) -> None:
        self.body = _encode([message, {"step": step}])

    def save(self) -> None:
        self.cursor.execute("INSERT INTO rows(body) VALUES (?)", (self.body,))

    def close(self) -> None:
        self.connection.close()


def first_document() -> dict[str, Any]:
    """A document of about 1.5 KB, as an agent keeps beside its messages."""
    todos = [{"id": n, "content": f"reconcile account {n * 7919}", "status": "open"} for n in range(12)]
    context = {f"note-{n}": f"balance of {n * 104729} checked against the ledger" for n in range(8)}
    return {"phase": "reconcile", "step": 0, "todos": todos, "context": context}


class EverthreadSaver:
    """One thread of Everthread: append a message, change one value of the document, commit.

    With `everything` each message has an id and each commit carries metadata and an idempotency key.
    """

    def __init__(self, path: Path, *, everything: bool = False) -> None:
        self.store = everthread.open(url(path))
        self.thread = self.store.thread(THREAD)
        self.everything = everything
        self.versions: list[Any] = []
        self.step = 0
        self.message: Message = {}
        self.options: dict[str, Any] = {}
        if self.thread.head is None:
            for key, value in first_document().items():
                self.thread.state[key] = value

    def prepare(self, step: int, message: Message) -> None:
        self.step = step
        self.message = dict(message)
        if self.everything:
            self.message["id"] = f"message-{step}"
            self.options = {"metadata": {"run": "run-7", "step": step}, "key": f"step-{step}"}

    def save(self) -> None:
        self.thread.messages.append(self.message)
        self.thread.state["step"] = self.step
        version = self.thread.commit(**self.options)
        if self.step % VERSION_STRIDE == 0:
            self.versions.append(version)

    def close(self) -> None:
        self.store.close()


class GraphState(TypedDict):
    """The state of the graph: messages that add up, and a counter."""

    messages: Annotated[list[Any], operator.add]
    step: int


class LangGraphSaver:
    """The same program as a LangGraph graph: a loop of one node, checkpointed by SqliteSaver.

    `durability="sync"` makes the checkpoint durable before the next step starts, as others do.
    """

    def __init__(self, path: Path, steps: int) -> None:
        from langgraph.checkpoint.sqlite import SqliteSaver
        from langgraph.graph import END, START, StateGraph

        self.message: Message = {}
        self.step = 0

        def act(_: GraphState) -> GraphState:
            return {"messages": [self.message], "step": self.step}

        graph: Any = StateGraph(GraphState)
        graph.add_node("act", act)
        graph.add_edge(START, "act")
        graph.add_conditional_edges("act", lambda now: "act" if now["step"] < steps else END)
        self.connection = sqlite3.connect(path, check_same_thread=False)
        self.graph = graph.compile(checkpointer=SqliteSaver(self.connection))
        self.config = {"configurable": {"thread_id": THREAD}, "recursion_limit": steps + 10}
        start = {"messages": [], "step": 0}
        self.stream = self.graph.stream(start, self.config, stream_mode="updates", durability="sync")

    def prepare(self, step: int, message: Message) -> None:
        self.step, self.message = step, message

    def save(self) -> None:
        next(self.stream)

    def read(self) -> int:
        """Load the newest state, as a resume does."""
        return len(self.graph.get_state(self.config).values["messages"])

    def close(self) -> None:
        self.stream.close()
        self.connection.close()
