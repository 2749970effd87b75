"""One turn of an agent server, beside rows written by hand and beside other libraries.

    python -m bench.turn [--turns 10000] [--seed 1] [--out bench/results] [--quick]

All contenders take their turns in random order, turn by turn. The medians of turns 1 to 50, of the last 50 of
the first 1,000 and of the last 50 of the run are set against those of the rows written by hand.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec

from . import measure
from .measure import Report, Samples, say, take_turns
from .messages import Transcript
from .turn_peers import EventSourcingTurns, EverthreadTurns, HandWrittenTurns, OpenAITurns, Peer

WINDOW = 50
#: A contender that has used this much time, or come so far, takes no further turns.
SECONDS_MAX = 60.0
TURNS_MAX = {"eventsourcing": 1_000}
TITLES = {
    "hand": "rows written by hand (reference)",
    "everthread": "Everthread",
    "openai": "OpenAI SQLiteSession, object reused (no document)",
    "eventsourcing": "eventsourcing, snapshot each 50",
    "hand anew": "rows written by hand, opened anew (reference)",
    "everthread anew": "Everthread, opened anew",
    "openai anew": "OpenAI SQLiteSession, opened anew (no document)",
}


def windows(turns: int) -> list[tuple[int, int]]:
    """The turns that are reported: the first 50, and the last 50 of 1,000 and of the whole run."""
    ends = sorted({WINDOW, min(1_000, turns), turns})
    return [(end - WINDOW, end) for end in ends]


def run_turns(peers: dict[str, Peer], turns: int, seed: int) -> tuple[Samples, dict[str, str], int]:
    """Let all peers take `turns` turns in shuffled order; returns times, who was cut where, JSON bytes."""
    rng = random.Random(seed)
    transcript = Transcript(seed)
    samples: Samples = {}
    spent = dict.fromkeys(peers, 0)
    cuts: dict[str, str] = {}
    payload = 0
    for number in range(1, turns + 1):
        question, answer = transcript.short(), next(transcript)
        payload += len(msgspec.json.encode(question)) + len(msgspec.json.encode(answer))
        actions = {
            name: partial(peer.turn, number, dict(question), dict(answer))
            for name, peer in peers.items()
            if name not in cuts
        }
        take_turns(rng, actions, samples)
        for name in actions:
            spent[name] += samples[name][-1]
            if spent[name] > SECONDS_MAX * 1e9:
                cuts[name] = f"{SECONDS_MAX:.0f} s used up at turn {number:,}"
            elif number >= TURNS_MAX.get(name, turns + 1):
                cuts[name] = f"no more than {number:,} turns, each slower than the last"
            if name in cuts:
                say(f"{name}: cut, {cuts[name]}")
        if number % max(1, turns // 20) == 0:
            latest = ", ".join(f"{name} {median_us(samples[name][-WINDOW:]):.0f}" for name in actions)
            say(f"turn {number:,} of {turns:,}, µs: {latest}")
    return samples, cuts, payload


def median_us(values: Sequence[float]) -> float:
    """The median of nanosecond samples, in microseconds."""
    return statistics.median(values) / 1e3


def write_tables(
    report: Report, samples: Samples, cuts: dict[str, str], sizes: dict[str, int], payload: int, turns: int
) -> None:
    """Medians and ratios per window, and the goals of the turn."""
    spans = windows(turns)
    rows = []
    for name, title in TITLES.items():
        reference = "hand anew" if name.endswith("anew") else "hand"
        cells: list[object] = [title]
        own: dict[str, float] = {}
        for start, end in spans:
            if len(samples[name]) < end:
                cells.append("–")
                continue
            median = median_us(samples[name][start:end])
            ratio = median / median_us(samples[reference][start:end])
            own[f"{start + 1}-{end}"] = median
            cells.append(f"{median:,.0f} ({ratio:.2f})")
            if name.startswith("everthread"):
                report.goal(
                    f"{title}: turns {start + 1:,}–{end:,} ÷ hand-written",
                    ratio,
                    1.2,
                    note=f"{median:.0f} µs",
                )
        last = median_us(samples[name][-WINDOW:])
        share = f"{sizes[name] / payload:.2f}" if name not in cuts else "–"
        rows.append([*cells, last, share, cuts.get(name, "")])
        p99 = measure.percentile(samples[name], 0.99) / 1e3
        report.data[name] = {"windows_us": own, "last_us": last, "p99_us": p99, "bytes": sizes[name]}
    flat = report.data["everthread"]["last_us"] / median_us(samples["everthread"][:WINDOW])
    hand = report.data["hand"]["last_us"] / median_us(samples["hand"][:WINDOW])
    report.goal("Everthread: last ÷ first 50 turns, ÷ the hand-written rows' own", flat / hand, 1.15, 1.05)
    header = [
        "",
        *(f"turns {start + 1:,}–{end:,} µs" for start, end in spans),
        "own last 50 µs",
        "bytes ÷ JSON",
        "cut",
    ]
    note = "Medians; in brackets against the rows written by hand that are opened the same way."
    report.table("One turn", note, header, rows)


def run(work: Path, turns: int, seed: int) -> Report:
    """Build the contenders, run them, and report."""
    report = Report("One turn of an agent server", {"turns": f"{turns:,}", **measure.environment(work, seed)})
    paths = {name: work / f"{name.replace(' ', '-')}.db" for name in TITLES}
    peers: dict[str, Peer] = {
        "hand": HandWrittenTurns(paths["hand"]),
        "everthread": EverthreadTurns(paths["everthread"]),
        "openai": OpenAITurns(paths["openai"]),
        "eventsourcing": EventSourcingTurns(paths["eventsourcing"]),
        "hand anew": HandWrittenTurns(paths["hand anew"], anew=True),
        "everthread anew": EverthreadTurns(paths["everthread anew"], anew=True),
        "openai anew": OpenAITurns(paths["openai anew"], anew=True),
    }
    with report.watched("turns"):
        samples, cuts, payload = run_turns(peers, turns, seed)
    for peer in peers.values():
        peer.close()
    sizes = {name: measure.disk_bytes(path) for name, path in paths.items()}
    write_tables(report, samples, cuts, sizes, payload, turns)
    return report


def main() -> None:
    """Parse the command line, run, write the report."""
    parser = argparse.ArgumentParser(prog="python -m bench.turn", description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=10_000)
    parser.add_argument("--quick", action="store_true", help="1,000 turns")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=measure.RESULTS)
    parser.add_argument(
        "--work", help="directory for scratch files, on the disk to be measured (default /var/tmp)"
    )
    options = parser.parse_args()
    turns = 1_000 if options.quick else max(2 * WINDOW, options.turns)
    with measure.workplace(options.work) as work:
        report = run(work, turns, options.seed)
    report.write(options.out, "turn")
    print(report.markdown())


if __name__ == "__main__":
    main()
