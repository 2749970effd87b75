"""The same LangGraph programs on EverthreadSaver, on SqliteSaver, and on SqliteSaver with DeltaChannel.

    python -m bench.langgraph [--steps 3000] [--turns 1000] [--items 100000] [--seed 1] [--quick]

First a graph that loops over one node, each step appending a message of about 1 KB. The three take turns,
step by step, in random order; SqliteSaver stops at 2 GB or after 60 s, which the report shows. Then one turn
of a conversation (one invoke: a question, an answer) on threads that hold so many turns already. At last
storing an item in EverthreadStore, among few others and among many.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sqlite3
import statistics
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import apsw
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages

import everthread
from everthread.adapters.langgraph import EverthreadSaver, EverthreadStore

from . import measure
from .measure import Report, Samples, say, take_turns
from .messages import Transcript

PEER_BYTES, PEER_SECONDS = 2_000_000_000, 60.0
OURS, STOCK, DELTA = "EverthreadSaver", "SqliteSaver", "SqliteSaver + DeltaChannel"
#: How many turns of each length are measured.
TURNS_MEASURED = 12
#: How many items are put to measure one.
PUTS_MEASURED = 500


def _extend(state: list[Any] | None, writes: list[Any]) -> list[Any]:
    return [
        *(state or []),
        *(item for write in writes for item in (write if isinstance(write, list) else [write])),
    ]


class Plain(TypedDict):
    """What everybody writes."""

    messages: Annotated[list[AnyMessage], add_messages]


class Delta(TypedDict):
    """The same with LangGraph's beta channel."""

    messages: Annotated[list[AnyMessage], DeltaChannel(_extend)]


class Contender:
    """A saver with a graph of its own; notes how long each `put` takes."""

    def __init__(self, name: str, path: Path, texts: Iterator[str]) -> None:
        self.name = name
        self.path = path
        self.texts = texts
        self.puts: array[int] = array("q")
        self.store: everthread.Store | None = None
        if name == OURS:
            self.store = everthread.open(f"sqlite:///{path}")
            self.saver: Any = EverthreadSaver(self.store)
        else:
            connection = sqlite3.connect(path, check_same_thread=False)
            # As durable as Everthread is: SqliteSaver itself leaves this to the connection.
            connection.execute("PRAGMA synchronous=FULL")
            self.saver = SqliteSaver(connection)
            self.saver.setup()
        self._put = self.saver.put
        self.saver.put = self._timed
        self.state: Any = Delta if name == DELTA else Plain

    def _timed(self, *args: Any) -> Any:
        started = time.perf_counter_ns()
        try:
            return self._put(*args)
        finally:
            self.puts.append(time.perf_counter_ns() - started)

    def loop(self, steps: int) -> Any:
        """A graph that appends a message at every step."""
        builder = StateGraph(self.state)
        builder.add_node("work", lambda state: {"messages": [AIMessage(next(self.texts))]})
        builder.add_edge(START, "work")
        builder.add_conditional_edges("work", lambda state: END if len(state["messages"]) > steps else "work")
        return builder.compile(checkpointer=self.saver)

    def conversation(self) -> Any:
        """A graph that answers once."""
        builder = StateGraph(self.state)
        builder.add_node("answer", lambda state: {"messages": [AIMessage(next(self.texts))]})
        builder.add_edge(START, "answer")
        return builder.compile(checkpointer=self.saver)

    def bytes(self) -> int:
        return measure.disk_bytes(self.path)

    def close(self) -> None:
        if self.store is not None:
            self.store.close()
        else:
            self.saver.conn.close()


def texts(seed: int) -> Iterator[str]:
    for message in Transcript(seed):
        yield str(message)


def at(thread: str) -> Any:
    return {"configurable": {"thread_id": thread}, "recursion_limit": 1_000_000}


# ── many steps ───────────────────────────────────────────────────────────────────────────────────


def run_steps(contenders: dict[str, Contender], steps: int, seed: int, report: Report) -> list[Any]:
    """The loop, step by step in turns; the panels to plot."""
    rng = random.Random(seed)
    streams = {
        name: one.loop(steps).stream(
            {"messages": [HumanMessage("go")]}, at("steps"), stream_mode="updates", durability="sync"
        )
        for name, one in contenders.items()
    }
    samples: Samples = {}
    sizes: dict[str, list[tuple[int, float]]] = {name: [] for name in contenders}
    spent = dict.fromkeys(contenders, 0)
    cut: dict[str, str] = {}
    next_size = 10
    for step in range(1, steps + 1):
        actions: dict[str, Callable[[], object]] = {
            name: (lambda stream=stream: next(stream)) for name, stream in streams.items() if name not in cut
        }
        take_turns(rng, actions, samples)
        for name in actions:
            spent[name] += samples[name][-1]
        if step >= next_size or step == steps:
            for name in actions:
                sizes[name].append((step, contenders[name].bytes() / 1e6))
            next_size = int(step * 1.15) + 1
            if STOCK not in cut and (
                contenders[STOCK].bytes() > PEER_BYTES or spent[STOCK] > PEER_SECONDS * 1e9
            ):
                cut[STOCK] = f"cut at step {step:,}"
                streams[STOCK].close()
                say(f"{STOCK} {cut[STOCK]}: {contenders[STOCK].bytes() / 1e6:,.0f} MB")
        if step % max(1, steps // 10) == 0:
            say(f"{step:,} of {steps:,}: " + ", ".join(f"{n} {samples[n][-1] / 1e6:.1f} ms" for n in actions))
    for name, stream in streams.items():
        if name not in cut:
            for _ in stream:
                pass
    judge_steps(contenders, sizes, cut, report)
    return [
        ("on disk", "MB", sizes),
        ("put", "µs", {name: measure.curve(one.puts) for name, one in contenders.items()}),
        ("one step of the graph", "µs", {name: measure.curve(samples[name]) for name in contenders}),
    ]


def judge_steps(
    contenders: dict[str, Contender],
    sizes: dict[str, list[tuple[int, float]]],
    cut: dict[str, str],
    report: Report,
) -> None:
    by_step = {name: dict(points) for name, points in sizes.items()}
    same = max(step for step in by_step[STOCK] if step in by_step[OURS])
    last = max(by_step[OURS])
    report.goal(
        f"disk at step {same:,} ÷ SqliteSaver's",
        by_step[OURS][same] / by_step[STOCK][same],
        1 / 100,
        note=cut.get(STOCK, ""),
        timed=False,
    )
    report.goal(
        f"disk at step {last:,} ÷ DeltaChannel's",
        by_step[OURS][last] / by_step[DELTA][last],
        1 / 3,
        timed=False,
    )
    early, late = _growth(contenders[OURS].puts)
    report.goal("put, last tenth ÷ steps 100 to 400", late / early, 1.5)
    rows = []
    for name, one in contenders.items():
        step = max(by_step[name])
        early, late = _growth(one.puts)
        started = time.perf_counter()
        one.saver.get_tuple(at("steps"))
        got = time.perf_counter() - started
        started = time.perf_counter()
        list(one.saver.list(at("steps"), limit=20))
        listed = time.perf_counter() - started
        rows.append([name, step, by_step[name][step], early / 1e6, late / 1e6, got * 1e3, listed * 1e3])
    report.table(
        "Many steps",
        "; ".join(f"{name} {how}" for name, how in cut.items()),
        ["saver", "steps", "MB on disk", "put early, ms", "put late, ms", "get latest, ms", "list 20, ms"],
        rows,
    )


def _growth(puts: array[int]) -> tuple[float, float]:
    """Medians of the puts after the first hundred, and of the last tenth."""
    tenth = max(1, len(puts) // 10)
    return statistics.median(puts[100:400] or puts), statistics.median(puts[-tenth:])


# ── many turns ───────────────────────────────────────────────────────────────────────────────────


def run_turns(contenders: dict[str, Contender], lengths: list[int], seed: int, report: Report) -> Any:
    """One turn at several lengths of a conversation; the panel to plot."""
    rng = random.Random(seed)
    points: dict[str, list[tuple[int, float]]] = {name: [] for name in contenders}
    rows = []
    for length in lengths:
        thread = f"turns {length}"
        actions: dict[str, Callable[[], object]] = {}
        for name, one in contenders.items():
            graph = one.conversation()
            pairs = [(HumanMessage(f"question {n}"), AIMessage(next(one.texts))) for n in range(length - 1)]
            graph.invoke({"messages": [message for pair in pairs for message in pair]}, at(thread))

            def turn(graph: Any = graph, thread: str = thread) -> None:
                graph.invoke({"messages": [HumanMessage("what next?")]}, at(thread))

            actions[name] = turn
        samples: Samples = {}
        for _ in range(TURNS_MEASURED):
            take_turns(rng, actions, samples)
        medians = {name: statistics.median(values) for name, values in samples.items()}
        for name, value in medians.items():
            points[name].append((2 * length, value / 1e3))
        rows.append([length, *(medians[name] / 1e6 for name in contenders)])
        say(
            f"{length:,} turns: "
            + ", ".join(f"{name} {value / 1e6:.1f} ms" for name, value in medians.items())
        )
        if length == lengths[-1]:
            report.goal(f"a turn at {length:,} turns ÷ SqliteSaver's", medians[OURS] / medians[STOCK], 1 / 4)
    report.table("One turn (one invoke), ms", "", ["turns so far", *contenders], rows)
    return ("one turn", "µs", points)


# ── many items ───────────────────────────────────────────────────────────────────────────────────


def run_items(work: Path, most: int, seed: int, report: Report) -> Any:
    """One put in turns on stores of several sizes; the panel to plot."""
    rng = random.Random(seed)
    sizes = sorted({max(10, most // 100), max(10, most // 10), most})
    statements = [0]
    apsw.connection_hooks.append(counting := _counting(statements))
    stores = [everthread.open(f"sqlite:///{work}/items {size}.db", durability="process") for size in sizes]
    apsw.connection_hooks.remove(counting)
    try:
        actions: dict[str, Callable[[], object]] = {}
        rows = []
        for size, store in zip(sizes, stores, strict=True):
            items = EverthreadStore(store)
            for number in range(size):
                items.put(("users", f"u{number % 97}"), f"k{number}", {"text": "x" * 200})
            statements[0] = 0
            items.put(("users", "u0"), "counted", {"text": "x" * 200})
            rows.append([size, statements[0]])
            fresh = itertools.count()
            actions[str(size)] = lambda items=items, fresh=fresh: items.put(
                ("users", f"u{next(fresh) % 97}"), f"new {next(fresh)}", {"text": "x" * 200}
            )
            say(f"{size:,} items stored")
        samples: Samples = {}
        for _ in range(PUTS_MEASURED):
            take_turns(rng, actions, samples)
    finally:
        for store in stores:
            store.close()
    medians = {size: statistics.median(samples[str(size)]) / 1e3 for size in sizes}
    report.goal(
        f"an item put among {most:,} ÷ among {sizes[0]:,}", medians[sizes[-1]] / medians[sizes[0]], 1.5
    )
    report.goal(
        f"statements of a put among {most:,} ÷ among {sizes[0]:,}", rows[-1][1] / rows[0][1], 1.0, timed=False
    )
    report.table(
        "One item put into EverthreadStore",
        'With `durability="process"`, so that no sync hides what it costs.',
        ["items so far", "statements", "µs"],
        [[*row, medians[row[0]]] for row in rows],
    )
    return ("one item put", "µs", {"EverthreadStore": list(medians.items())})


def _counting(statements: list[int]) -> Callable[[apsw.Connection], None]:
    def count(event: Any) -> None:
        statements[0] += 1

    return lambda connection: connection.trace_v2(apsw.SQLITE_TRACE_STMT, count)


def run(work: Path, steps: int, turns: int, most: int, seed: int) -> tuple[Report, list[Any]]:
    report = Report("LangGraph: the same programs on three savers", measure.environment(work, seed))
    panels: list[Any] = []
    for phase in ("steps", "turns"):
        contenders = {
            name: Contender(name, work / f"{phase} {number}.db", texts(seed))
            for number, name in enumerate((OURS, STOCK, DELTA))
        }
        try:
            with report.watched(phase):
                if phase == "steps":
                    panels += run_steps(contenders, steps, seed, report)
                else:
                    lengths = sorted({2, max(2, turns // 10), max(2, turns // 3), turns})
                    panels.append(run_turns(contenders, lengths, seed, report))
        finally:
            for one in contenders.values():
                one.close()
                for path in work.glob(f"{one.path.name}*"):
                    path.unlink()
    with report.watched("items"):
        panels.append(run_items(work, most, seed, report))
    return report, panels


def main() -> None:
    """Parse the command line, run, write the report."""
    parser = argparse.ArgumentParser(prog="python -m bench.langgraph", description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=3_000)
    parser.add_argument("--turns", type=int, default=1_000)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--quick", action="store_true", help="300 steps, 100 turns, 3,000 items")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=measure.RESULTS)
    parser.add_argument(
        "--work", help="directory for scratch files, on the disk to be measured (default /var/tmp)"
    )
    options = parser.parse_args()
    steps, turns, most = (300, 100, 3_000) if options.quick else (options.steps, options.turns, options.items)
    with measure.workplace(options.work) as work:
        report, panels = run(work, steps, turns, most, options.seed)
    report.write(options.out, "langgraph")
    measure.plot(options.out / "langgraph.png", panels)
    print(report.markdown())


if __name__ == "__main__":
    main()
