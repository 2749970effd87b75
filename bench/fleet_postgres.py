"""PostgreSQL: what a commit costs beside a raw insert of the same bytes, while a thread grows.

    python -m bench.fleet_postgres [--messages 100000] [--seed 1] [--out bench/results] [--quick]

A server of its own with its default care (fsync, synchronous_commit). All take turns in random order, save by
save: an INSERT through psycopg, prepared; the same through the connections that Everthread uses; a commit
that appends the same message and changes the document, without and with metadata and a key; LangGraph's
PostgresSaver, which drops out when its saves have become too slow. Then 64 async sessions, and 8 processes
with 8 sessions each, against as many raw writers.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import psycopg

import everthread
from everthread.stores.postgres.aio.connections import AsyncConnections
from everthread.stores.postgres.settings import read_settings
from everthread.stores.postgres.sync.connections import Connections
from everthread.stores.postgres.wire import Statement
from tests.servers.postgres import PostgresServer

from . import measure
from .measure import Report, Samples, say, take_turns
from .messages import Transcript
from .savers import GraphState, first_document

RAW, WIRE, COMMIT, FULL = "raw INSERT", "raw INSERT, own wire", "commit", "commit with metadata and key"
LANGGRAPH = "LangGraph PostgresSaver"
#: A contender whose saves take so many times as long as raw's drops out.
CUT = 60
INSERT = "INSERT INTO raw (body) VALUES (%s)"
OWN_INSERT = Statement("b", "INSERT INTO raw (body) VALUES ($1)")
RESUMES = 30


class Graph:
    """The same program as a LangGraph graph: a loop of one node, checkpointed before the next step."""

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
        graph.add_conditional_edges("act", lambda now: "act" if now["step"] < steps else END)
        rows = psycopg.rows.dict_row
        self.connection = psycopg.connect(uri, autocommit=True, prepare_threshold=0, row_factory=rows)
        saver = PostgresSaver(self.connection)  # type: ignore[arg-type]
        saver.setup()
        config: Any = {"configurable": {"thread_id": "growing"}, "recursion_limit": steps + 10}
        start = {"messages": [], "step": 0}
        compiled = graph.compile(checkpointer=saver)
        self.stream = compiled.stream(start, config, stream_mode="updates", durability="sync")

    def save(self) -> None:
        next(self.stream)


class Growing:
    """The contenders, each with what it writes."""

    def __init__(self, uri: str, messages: int) -> None:
        self.raw = psycopg.connect(uri, autocommit=True, prepare_threshold=0)
        self.raw.execute("CREATE TABLE raw (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body bytea)")
        self.raw.execute("ALTER TABLE raw ALTER body SET STORAGE EXTERNAL")
        self.wire = Connections(read_settings(uri, "full"))
        self.store = everthread.open(uri)
        self.threads = {name: self.store.thread(name) for name in (COMMIT, FULL)}
        for thread in self.threads.values():
            thread.state.update(first_document())
            thread.commit(label="first")
        self.graph: Graph | None = Graph(uri, messages)
        self.body = b""
        self.step = 0

    def actions(self, step: int, message: dict[str, Any]) -> dict[str, Any]:
        self.step, self.body = step, msgspec.msgpack.encode([message, {"step": step}])
        for name, thread in self.threads.items():
            own = {**message, "id": f"message-{step}"} if name == FULL else dict(message)
            thread.messages.append(own)
            thread.state["step"] = step
        metadata = {"run": "run-7", "step": step}
        found: dict[str, Any] = {
            RAW: lambda: self.raw.execute(INSERT, (self.body,)),
            WIRE: lambda: self.wire.run(OWN_INSERT, (self.body,)),
            COMMIT: self.threads[COMMIT].commit,
            FULL: lambda: self.threads[FULL].commit(metadata=metadata, key=f"step-{step}"),
        }
        if self.graph is not None:
            self.graph.message, self.graph.step = message, step
            found[LANGGRAPH] = self.graph.save
        return found

    def close(self) -> None:
        self.raw.close()
        self.wire.close()
        self.store.close()


def grow(report: Report, uri: str, messages: int, seed: int) -> dict[str, Any]:
    """One thread, save by save beside raw writes. What is to be drawn comes back."""
    rng, samples = random.Random(seed), Samples()
    cut_at = 0
    with report.watched("growth"):
        growing = Growing(uri, messages)
        for step, message in zip(range(1, messages + 1), Transcript(seed), strict=False):
            plain = {name: value for name, value in message.items() if name != "id"}
            take_turns(rng, growing.actions(step, plain), samples)
            if growing.graph is not None and step % 50 == 0:
                slow = statistics.median(samples[LANGGRAPH][-20:]) / statistics.median(samples[RAW][-200:])
                if slow > CUT:
                    cut_at, growing.graph = step, None
                    say(f"{LANGGRAPH} drops out after {step:,} saves: {slow:.0f} × raw")
            if step % max(1, messages // 5) == 0:
                medians = (f"{n} {statistics.median(v[-1000:]) / 1e3:.0f} µs" for n, v in samples.items())
                say(f"{step:,}: " + ", ".join(medians))
        growing.close()
        medians = {name: statistics.median(values) for name, values in samples.items()}
        report.goal("PostgreSQL: median commit ÷ raw INSERT", medians[COMMIT] / medians[RAW], 1.3, 1.15)
        report.goal(
            "PostgreSQL: median commit with metadata and key ÷ raw INSERT",
            medians[FULL] / medians[RAW],
            1.4,
            1.25,
        )
        report.goal(
            "PostgreSQL: median commit ÷ raw INSERT through the same connections",
            medians[COMMIT] / medians[WIRE],
            1.5,
            1.3,
        )
        grown = [measure.deciles(samples[name]) for name in (COMMIT, RAW)]
        flat = (grown[0][1] / grown[0][0]) / (grown[1][1] / grown[1][0])
        report.goal("PostgreSQL: commit at the end ÷ at the start, ÷ raw's own", flat, 1.15, 1.05)
    note = "In random order, save by save."
    if cut_at:
        note += f" {LANGGRAPH} dropped out after {cut_at:,} saves, at more than {CUT} × raw."
    rows = [[name, len(v), *list(measure.summary(v).values())[:4]] for name, v in samples.items()]
    header = ["", "saves", "median µs", "mean µs", "p99 µs", "worst µs"]
    report.table(f"PostgreSQL, {messages:,} saves of about 1 KB", note, header, rows)
    report.data["postgres growth"] = {name: measure.summary(values) for name, values in samples.items()}
    report.data["postgres langgraph cut"] = cut_at
    return {"samples": samples, "cut": cut_at}


def resume(report: Report, uri: str) -> None:
    """Open, document and last 20 messages, of a long thread and of a short one."""
    with everthread.open(uri) as store:
        short = store.thread("short")
        short.state.update(first_document())
        for number in range(100):
            short.messages.append({"role": "user", "content": "x" * 1000})
            short.state["step"] = number
            short.commit()
    samples = Samples()
    with report.watched("resume"), everthread.open(uri) as store:

        def read(name: str) -> None:
            backend: Any = store._core.backend
            backend._known.clear()
            store._core.memos.clear()
            thread = store.thread(name)
            assert thread.state["step"] >= 0
            assert len(thread.messages[-20:]) == 20

        rng = random.Random(0)
        for _ in range(RESUMES):
            take_turns(rng, {"short": lambda: read("short"), "long": lambda: read(COMMIT)}, samples)
        ratio = statistics.median(samples["long"]) / statistics.median(samples["short"])
        report.goal("PostgreSQL: resume of the long thread ÷ of one with 100 messages", ratio, 1.2, 1.1)
    rows = [[name, *list(measure.summary(values).values())[:4]] for name, values in samples.items()]
    header = ["", "median µs", "mean µs", "p99 µs", "worst µs"]
    report.table("PostgreSQL, resume: open, document, last 20 messages", "", header, rows)


# ── many at once ─────────────────────────────────────────────────────────────────────────────────


async def sessions(uri: str, label: str, tasks: int, seconds: float) -> int:
    """Commits by so many tasks, each on a thread of its own."""
    async with everthread.open_async(uri + "?pool_max=16") as store:
        deadline = time.perf_counter() + seconds

        async def one(number: int) -> int:
            thread = await store.thread(f"{label} {number}")
            done = 0
            while time.perf_counter() < deadline:
                thread.messages.append({"content": "x" * 1000})
                await thread.commit()
                done += 1
            return done

        return sum(await asyncio.gather(*(one(number) for number in range(tasks))))


async def raw_writers(uri: str, label: str, tasks: int, seconds: float) -> int:
    """Raw inserts by so many tasks, through as many connections."""
    connections = AsyncConnections(read_settings(uri + "?pool_max=16", "full"))
    deadline = time.perf_counter() + seconds

    async def one() -> int:
        done = 0
        while time.perf_counter() < deadline:
            await connections.run(OWN_INSERT, (b"x" * 1000,))
            done += 1
        return done

    found = sum(await asyncio.gather(*(one() for _ in range(tasks))))
    await connections.close()
    return found


_PROCESS = """
import asyncio, sys
from bench import fleet_postgres
kind, uri, label, seconds = sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4])
work = fleet_postgres.sessions if kind == "commit" else fleet_postgres.raw_writers
print(asyncio.run(work(uri, label, 8, seconds)))
"""


def _processes(uri: str, kind: str, seconds: float) -> float:
    command = [sys.executable, "-c", _PROCESS, kind, uri]
    running = [
        subprocess.Popen([*command, f"{kind} {number}", str(seconds)], stdout=subprocess.PIPE, text=True)
        for number in range(8)
    ]
    return sum(int(each.communicate()[0]) for each in running) / seconds


def many(report: Report, uri: str, seconds: float) -> None:
    """Throughput of many sessions at once."""
    with report.watched("many"):
        found = {
            "1 async session": asyncio.run(sessions(uri, "one", 1, seconds)) / seconds,
            "64 async sessions in one process": asyncio.run(sessions(uri, "many", 64, seconds)) / seconds,
            "64 raw writers in one process": asyncio.run(raw_writers(uri, "raw", 64, seconds)) / seconds,
            "8 processes × 8 sessions": _processes(uri, "commit", seconds),
            "8 processes × 8 raw writers": _processes(uri, "raw", seconds),
        }
        names = list(found)
        report.goal(
            "PostgreSQL: 64 sessions ÷ 64 raw writers", found[names[1]] / found[names[2]], 0.5, at_least=True
        )
        report.goal(
            "PostgreSQL: 8 × 8 sessions ÷ 8 × 8 raw", found[names[3]] / found[names[4]], 0.5, at_least=True
        )
    report.data["postgres many"] = found
    report.table("PostgreSQL, many at once", "Of about 1 KB each.", ["", "commits/s"], found.items())


def run(report: Report, work: Path, messages: int, seconds: float, seed: int) -> dict[str, Any]:
    """PostgreSQL's half of the fleet benchmark."""
    folder = work / "postgres"
    work.chmod(0o711)
    folder.mkdir()
    server = PostgresServer(folder)
    server.create()
    server.start()
    try:
        drawn = grow(report, server.uri(), messages, seed)
        resume(report, server.uri())
        many(report, server.uri(), seconds)
        return drawn
    finally:
        server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.fleet_postgres", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--quick", action="store_true", help="3,000 messages, 2 seconds each")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=measure.RESULTS)
    parser.add_argument("--work", help="directory for the server's files (default /var/tmp)")
    options = parser.parse_args()
    messages, seconds = (3_000, 2.0) if options.quick else (options.messages, options.seconds)
    with measure.workplace(options.work) as work:
        settings = {"messages": messages, **measure.environment(work, options.seed)}
        report = Report("PostgreSQL beside raw writes", settings)
        run(report, work, messages, seconds, options.seed)
    report.write(options.out, "fleet_postgres")
    print(report.markdown())


if __name__ == "__main__":
    main()
