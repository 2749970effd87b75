"""PostgreSQL: LangGraph's PostgresSaver beside a raw insert and a commit, until one of its limits.

The same program as a LangGraph graph: a loop of one node that appends a message, checkpointed before the next
step. It stops at so many steps, bytes in its tables or seconds of its own, which the report names.
"""

from __future__ import annotations

import random
import time
from typing import Any

import msgspec
import psycopg

import everthread

from . import measure
from .fleet_postgres import INSERT, RAW_TABLE, size
from .measure import Report, Samples, say, take_turns
from .messages import Transcript
from .savers import GraphState, first_document

STEPS, BYTES, SECONDS = 3_000, 2_000_000_000, 60.0
RAW, COMMIT, LANGGRAPH = "raw INSERT", "Everthread", "LangGraph PostgresSaver"
SCHEMA = "peer"

Curve = list[tuple[int, float]]


class Graph:
    """A graph whose next step is taken by :meth:`save`."""

    def __init__(self, uri: str, steps: int) -> None:
        from langgraph.checkpoint.postgres import PostgresSaver
        from langgraph.graph import END, START, StateGraph

        self.message: dict[str, Any] = {}
        self.step = 0

        def act(_: GraphState) -> GraphState:
            return {"messages": [self.message], "step": self.step}

        graph: Any = StateGraph(GraphState)
        graph.add_node("act", act)
        graph.add_edge(START, "act")
        graph.add_conditional_edges("act", lambda now: "act" if now["step"] <= steps else END)
        rows = psycopg.rows.dict_row
        self.connection = psycopg.connect(uri, autocommit=True, prepare_threshold=0, row_factory=rows)
        saver = PostgresSaver(self.connection)
        saver.setup()
        self.config: Any = {"configurable": {"thread_id": "growing"}, "recursion_limit": steps + 10}
        self.graph = graph.compile(checkpointer=saver)
        start = {"messages": [], "step": 0}
        self.stream = self.graph.stream(start, self.config, stream_mode="updates", durability="sync")

    def save(self) -> None:
        next(self.stream)

    def read(self) -> int:
        """Load the newest state, as a resume does."""
        return len(self.graph.get_state(self.config).values["messages"])

    def close(self) -> None:
        self.stream.close()
        self.connection.close()


def run(report: Report, uri: str, steps: int, seed: int) -> tuple[Samples, dict[str, Curve]]:
    """Times of saves, and sizes along the way."""
    rng, samples = random.Random(seed), Samples()
    sizes: dict[str, Curve] = {COMMIT: [], LANGGRAPH: [], "JSON payload": []}
    payload, next_size, own_ns, cut = 0, 10, 0, f"{steps:,} steps"
    with (
        psycopg.connect(uri, autocommit=True, prepare_threshold=0) as raw,
        everthread.open(f"{uri}?schema={SCHEMA}") as store,
    ):
        raw.execute(RAW_TABLE)
        graph, thread = Graph(uri, steps), store.thread("growing")
        thread.state.update(first_document())
        for step, message in zip(range(1, steps + 1), Transcript(seed), strict=False):
            plain = {name: value for name, value in message.items() if name != "id"}
            body = msgspec.msgpack.encode([plain, {"step": step}])
            payload += len(msgspec.json.encode(plain))
            graph.message, graph.step = plain, step
            thread.messages.append(dict(plain))
            thread.state["step"] = step
            actions: dict[str, Any] = {
                RAW: lambda body=body: raw.execute(INSERT, (body,)),
                COMMIT: thread.commit,
                LANGGRAPH: graph.save,
            }
            take_turns(rng, actions, samples)
            own_ns += samples[LANGGRAPH][-1]
            if step >= next_size or step == steps or step % 50 == 0:
                taken = size(raw, "public", "checkpoint%")
                sizes[COMMIT].append((step, size(raw, SCHEMA) / 1e6))
                sizes[LANGGRAPH].append((step, taken / 1e6))
                sizes["JSON payload"].append((step, payload / 1e6))
                next_size = int(step * 1.25) + 1
                if taken > BYTES:
                    cut = f"{BYTES / 1e9:.0f} GB at step {step:,}"
                    break
            if own_ns > SECONDS * 1e9:
                cut = f"{SECONDS:.0f} s of its own time at step {step:,}"
                break
        started = time.perf_counter()
        graph.read()
        read_ms = (time.perf_counter() - started) * 1e3
        graph.close()
    tell(report, samples, sizes, cut, read_ms)
    return samples, sizes


def tell(report: Report, samples: Samples, sizes: dict[str, Curve], cut: str, read_ms: float) -> None:
    rows: list[list[object]] = []
    payload = sizes["JSON payload"][-1][1]
    for name, values in samples.items():
        first, last = measure.deciles(values)
        row: list[object] = [name, first / 1e3, last / 1e3, measure.summary(values)["p99_us"]]
        taken = sizes[name][-1][1] if name in sizes else None
        rows.append([*row, *(("", "") if taken is None else (taken, taken / payload))])
    done = len(samples[RAW])
    note = f"Stopped at {cut}. PostgresSaver's get_state then took {read_ms:.0f} ms."
    header = ["", "first decile µs", "last decile µs", "p99 µs", "MB in its tables", "÷ JSON payload"]
    report.table(f"PostgreSQL, beside LangGraph, {done:,} messages", note, header, rows)
    report.data["langgraph"] = {"cut": cut, "steps": done, "rows": rows, "get_state_ms": read_ms}
    say(f"{LANGGRAPH} stopped at {cut}")
