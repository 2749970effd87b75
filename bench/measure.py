"""How the benchmarks measure and report: shuffled interleaving, percentiles, goals, Markdown and JSON.

Contenders take turns in a fresh random order in every round, so that whatever disturbs the machine disturbs
all of them alike; ratios of figures taken in one run are therefore worth more than the figures themselves.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import random
import shutil
import statistics
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Samples = dict[str, "array[int]"]
RESULTS = Path(__file__).parent / "results"
#: Above this share of time in which some process waited for a CPU, verdicts are withheld. Waiting for a CPU
#: after an fsync lengthens every contender by the same milliseconds and pulls all ratios towards one: a busy
#: machine flatters.
BUSY_SHARE_MAX = 0.15


def take_turns(rng: random.Random, actions: Mapping[str, Callable[[], object]], samples: Samples) -> None:
    """Run every action once, in random order, and add its nanoseconds to `samples` under its name."""
    names = list(actions)
    rng.shuffle(names)
    for name in names:
        action = actions[name]
        started = time.perf_counter_ns()
        action()
        elapsed = time.perf_counter_ns() - started
        samples.setdefault(name, array("q")).append(elapsed)


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0..1) of the values lie, by nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def summary(values: Sequence[float]) -> dict[str, float]:
    """Median, mean, p99 and worst of nanosecond samples, in microseconds."""
    return {
        "median_us": statistics.median(values) / 1e3,
        "mean_us": statistics.fmean(values) / 1e3,
        "p99_us": percentile(values, 0.99) / 1e3,
        "worst_us": max(values) / 1e3,
        "count": len(values),
    }


def deciles(values: Sequence[float]) -> tuple[float, float]:
    """Medians of the first and of the last tenth of the samples."""
    tenth = max(1, len(values) // 10)
    return statistics.median(values[:tenth]), statistics.median(values[-tenth:])


def disk_bytes(path: Path) -> int:
    """The size of a database and of everything beside it that starts with its name (journal, lock)."""
    return sum(entry.stat().st_size for entry in path.parent.glob(path.name + "*") if entry.is_file())


@dataclass
class Report:
    """Figures with their goals, and free tables, written as Markdown for people and JSON for programs."""

    title: str
    settings: dict[str, Any]
    goals: list[dict[str, Any]] = field(default_factory=list)
    sections: list[tuple[str, str, list[str], list[list[str]]]] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)
    stalls: list[float] = field(default_factory=list)

    @contextlib.contextmanager
    def watched(self, phase: str) -> Iterator[None]:
        """Note for how much of a phase processes waited for a CPU; see `BUSY_SHARE_MAX`.

        Figures judged within the phase depend on this phase alone, all others on every phase.
        """
        stalled, started, before = cpu_stall_seconds(), time.perf_counter(), len(self.goals)
        yield
        elapsed = time.perf_counter() - started
        if stalled is None or (now := cpu_stall_seconds()) is None:
            self.settings[f"waiting for a CPU, {phase}"] = "unknown on this system"
            return
        share = (now - stalled) / elapsed
        self.stalls.append(share)
        for goal in self.goals[before:]:
            goal["busy"] = share > BUSY_SHARE_MAX
        self.settings[f"waiting for a CPU, {phase}"] = f"{share:.0%} of the time"

    @property
    def busy(self) -> bool:
        """Whether any watched phase ran on a machine with other work to do."""
        return any(share > BUSY_SHARE_MAX for share in self.stalls)

    def goal(
        self,
        name: str,
        value: float,
        must: float,
        best: float | None = None,
        *,
        at_least: bool = False,
        note: str = "",
        unit: str = "×",
        timed: bool = True,
    ) -> None:
        """Judge a figure: at most `must` (at least, if so said), better still within `best`.

        One that is not `timed`, such as a size, is judged on a busy machine too.
        """

        def within(bound: float) -> bool:
            return value >= bound if at_least else value <= bound

        verdict = (
            "MISS" if not within(must) else "ok, best class" if best is not None and within(best) else "ok"
        )
        entry = {"name": name, "value": value, "must": must, "best": best, "at_least": at_least, "unit": unit}
        self.goals.append({**entry, "verdict": verdict, "note": note, "timed": timed})
        sign = "≥" if at_least else "≤"
        say(f"{name}: {number(value)} {unit} (goal {sign} {number(must)}) {verdict} {note}")

    def table(self, title: str, note: str, header: list[str], rows: Iterable[Iterable[object]]) -> None:
        """Add a table; numbers are formatted, everything else is shown as it is."""
        cells = [
            [number(cell) if isinstance(cell, int | float) else str(cell) for cell in row] for row in rows
        ]
        self.sections.append((title, note, header, cells))

    def markdown(self) -> str:
        """The whole report as Markdown."""
        lines = [f"# {self.title}", ""]
        lines += [f"- {key}: {value}" for key, value in self.settings.items()]
        if self.busy:
            lines += ["", "**The machine was busy for a time, which distorts ratios and mostly flatters.**"]
            lines += ["Verdicts on times taken then are withheld."]
        if self.goals:
            rows = [self._goal_row(goal) for goal in self.judged()]
            header = ["figure", "measured", "goal", "best class", "", ""]
            lines += ["", "## Figures and goals", "", *grid(header, rows)]
        for title, note, header, rows in self.sections:
            lines += ["", f"## {title}", "", *([note, ""] if note else []), *grid(header, rows)]
        return "\n".join(lines) + "\n"

    def judged(self) -> list[dict[str, Any]]:
        """The figures with their verdicts; withheld are those taken while the machine was busy."""
        return [
            {**goal, "verdict": "withheld"} if goal["timed"] and goal.get("busy", self.busy) else goal
            for goal in self.goals
        ]

    def _goal_row(self, goal: dict[str, Any]) -> list[str]:
        sign = "≥" if goal["at_least"] else "≤"
        best = "" if goal["best"] is None else f"{sign} {number(goal['best'])}"
        shown = f"{number(goal['value'])} {goal['unit']}"
        return [goal["name"], shown, f"{sign} {number(goal['must'])}", best, goal["verdict"], goal["note"]]

    def write(self, folder: Path, name: str) -> None:
        """Write `name`.md and `name`.json under `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.md").write_text(self.markdown(), encoding="utf-8")
        content = {
            "title": self.title,
            "settings": self.settings,
            "busy": self.busy,
            "goals": self.judged(),
            "data": self.data,
        }
        text = json.dumps(content, indent=1, default=str) + "\n"
        (folder / f"{name}.json").write_text(text, encoding="utf-8")
        say(f"written: {folder / name}.md and .json")


def grid(header: list[str], rows: list[list[str]]) -> list[str]:
    """A Markdown table."""
    return [f"| {' | '.join(row)} |" for row in [header, ["---"] * len(header), *rows]]


def number(value: float) -> str:
    """A figure with three significant digits, thousands separated."""
    if isinstance(value, int):
        return f"{value:,}"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def say(text: str) -> None:
    """Progress, at once and on standard error, so that standard output stays the report."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def workplace(folder: str | None) -> Iterator[Path]:
    """A scratch directory on a real disk that is also HOME while it lasts; removed afterwards.

    `/var/tmp` is the default because `/tmp` is often memory, where an fsync costs nothing.
    """
    path = Path(tempfile.mkdtemp(prefix="everthread-bench-", dir=folder or "/var/tmp"))
    home = os.environ.get("HOME")
    os.environ["HOME"] = str(path)
    try:
        yield path
    finally:
        if home is None:
            del os.environ["HOME"]
        else:
            os.environ["HOME"] = home
        shutil.rmtree(path, ignore_errors=True)


def environment(path: Path, seed: int) -> dict[str, Any]:
    """What the figures depend on: machine, versions, the price of one durable append on this disk."""
    import apsw

    return {
        "seed": seed,
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "versions": f"Python {platform.python_version()}, SQLite {apsw.sqlite_lib_version()} through apsw",
        "disk": f"append of 1 KB + fdatasync, median {durable_append(path):.0f} µs",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def cpu_stall_seconds() -> float | None:
    """Seconds since boot in which some process waited for a CPU, or None where the kernel doesn't tell."""
    try:
        text = Path("/proc/pressure/cpu").read_text(encoding="ascii")
    except OSError:
        return None
    return int(text.split("total=")[1].split()[0]) / 1e6


def durable_append(folder: Path, count: int = 300) -> float:
    """Median microseconds of appending 1 KB to a file and making it durable."""
    samples: Samples = {}
    handle = os.open(folder / "append.probe", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    body = os.urandom(1024)

    def append() -> None:
        os.write(handle, body)
        os.fdatasync(handle)

    try:
        for _ in range(count):
            take_turns(random.Random(0), {"append": append}, samples)
    finally:
        os.close(handle)
    return statistics.median(samples["append"]) / 1e3


def curve(values: Sequence[float], points: int = 40) -> list[tuple[int, float]]:
    """Medians in microseconds over windows that widen geometrically, for a plot over many sizes."""
    edges = sorted({round(len(values) ** (step / points)) for step in range(points + 1)})
    windows = zip([0, *edges], edges, strict=False)
    return [(end, statistics.median(values[start:end]) / 1e3) for start, end in windows if end > start]


def plot(path: Path, panels: Sequence[tuple[str, str, Mapping[str, Sequence[tuple[int, float]]]]]) -> None:
    """Draw panels of (title, unit, {name: points}) side by side on logarithmic axes; needs matplotlib."""
    try:
        import matplotlib
    except ImportError:
        say("matplotlib is not installed: no plot")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(panels), figsize=(6.5 * len(panels), 4.6), squeeze=False)
    for axis, (title, unit, lines) in zip(axes[0], panels, strict=True):
        for name, points in lines.items():
            if points:
                axis.plot(*zip(*points, strict=True), label=name, linewidth=1.6)
        axis.set(title=title, xlabel="messages in the thread", ylabel=unit, xscale="log", yscale="log")
        axis.grid(True, which="major", alpha=0.3)
        axis.legend(fontsize=8)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    say(f"written: {path}")
