"""What one more todo costs in a large working state, beside the same in an empty one.

    python -m bench.working [--rounds 600] [--todos 10000] [--messages 50000] [--seed 1] [--quick]

Both take their turns in random order, save by save. The empty state is begun anew every 25 saves. Resuming is
timed among many states, and reading at both sizes.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path

import everthread
from everthread import Store, WorkingState

from . import measure
from .measure import Report, Samples, say, take_turns
from .messages import Transcript

ANEW = 25
READS = 15
TODO = "reconcile the invoices of March with the ledger and tell Ann what is missing"


def build(store: Store, todos: int, messages: int, seed: int) -> WorkingState:
    """A state with so many todos, on a thread with so many messages."""
    state = WorkingState(store=store, thread="large")
    for number in range(todos):
        state.add_todo(f"{TODO}, {number}")
        if number % 100 == 99:
            state.save()
    transcript = Transcript(seed)
    for number in range(messages):
        state.thread.messages.append(next(transcript))
        if number % 500 == 499:
            state.save()
    state.save()
    return state


def one_more(state: WorkingState) -> None:
    state.add_todo(TODO, priority="high")
    state.save()


def completed(state: WorkingState, id: str) -> None:
    state.complete_todo(id)
    state.save()


def measure_saves(store: Store, large: WorkingState, rounds: int, seed: int) -> Samples:
    """Add a todo and save, complete one and save, in the large state and in one that is nearly empty."""
    rng = random.Random(seed)
    samples: Samples = {}
    ids = [todo.id for todo in large.todos]
    empty = WorkingState(store=store)
    for number in range(rounds):
        if number % ANEW == 0:
            empty = WorkingState(store=store)
            empty.add_todo(TODO)
            empty.save()
        latest = empty.todos[-1].id
        actions: dict[str, Callable[[], object]] = {
            "add empty": partial(one_more, empty),
            "add large": partial(one_more, large),
            "complete empty": partial(completed, empty, latest),
            "complete large": partial(completed, large, rng.choice(ids)),
        }
        take_turns(rng, actions, samples)
    return samples


def measure_reads(store: Store, large: WorkingState, states: int, seed: int) -> Samples:
    """Resume the newest of many states; load the large one and read all of it."""
    rng = random.Random(seed)
    samples: Samples = {}
    for number in range(states):
        state = WorkingState(store=store)
        state.set_intention(f"intention {number}")
        state.save()
    # The first listing brings the index of names up to date.
    WorkingState.resume(store=store)
    ids = [todo.id for todo in large.todos]
    for _ in range(READS):
        actions: dict[str, Callable[[], object]] = {
            "resume": lambda: WorkingState.resume(store=store).get_intention(),
            "load large": lambda: WorkingState.load(large.id, store=store).get_intention(),
            "all todos": lambda: len(large.todos),
            "one todo": lambda: large.get_todo(rng.choice(ids)),
        }
        take_turns(rng, actions, samples)
    return samples


def run(work: Path, rounds: int, todos: int, messages: int, seed: int) -> Report:
    settings = {"todos": f"{todos:,}", "messages": f"{messages:,}", "rounds": f"{rounds:,}"}
    report = Report("Working state", {**settings, **measure.environment(work, seed)})
    with everthread.open(f"sqlite:///{work}/working.db") as store:
        say("building the large state")
        large = build(store, todos, messages, seed)
        with report.watched("saves"):
            samples = measure_saves(store, large, rounds, seed)
            medians = {name: statistics.median(values) / 1e3 for name, values in samples.items()}
            for verb in ("add", "complete"):
                ratio = medians[f"{verb} large"] / medians[f"{verb} empty"]
                title = f"{verb} a todo and save: {todos:,} todos, {messages:,} messages ÷ empty"
                report.goal(title, ratio, 1.3, 1.1, note=f"{medians[f'{verb} large']:.0f} µs")
        states = max(10, rounds)
        with report.watched("reads"):
            reads = measure_reads(store, large, states, seed)
    rows = [
        [name, *(measure.summary(values)[key] for key in ("median_us", "mean_us", "p99_us", "worst_us"))]
        for name, values in {**samples, **reads}.items()
    ]
    note = f"Resuming is among {states:,} states."
    report.table("Times", note, ["", "median µs", "mean µs", "p99 µs", "worst µs"], rows)
    report.data.update({row[0]: row[1] for row in rows})
    return report


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.working", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=600)
    parser.add_argument("--todos", type=int, default=10_000)
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--quick", action="store_true", help="150 rounds, 2,000 todos, 5,000 messages")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=measure.RESULTS)
    parser.add_argument(
        "--work", help="directory for scratch files, on the disk to be measured (default /var/tmp)"
    )
    options = parser.parse_args()
    rounds, todos, messages = options.rounds, options.todos, options.messages
    if options.quick:
        rounds, todos, messages = 150, 2_000, 5_000
    with measure.workplace(options.work) as work:
        report = run(work, rounds, todos, messages, options.seed)
    report.write(options.out, "working")
    print(report.markdown())


if __name__ == "__main__":
    main()
