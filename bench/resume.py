"""What a new run learns after a crash: the briefing beside what is usually done instead.

    python -m bench.resume [--runs 40] [--seed 1] [--out bench/results] [--quick]

Each run acts out a script of an agent through the public API and kills itself with SIGKILL at a random event.
Then some of its files are changed behind its back. For every budget three texts are looked at: the briefing,
the last messages that fit, and the tail of the transcript. A fact counts as known if its marker, a word that
stands nowhere else, is in the text. All texts are held to the budget by the same estimate of tokens. The two
baselines get every fact in the transcript, where the agent told it when it came up. Afterwards the run is
continued, and the ledger of its payments must hold none twice.
"""

from __future__ import annotations

import argparse
import html
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import everthread
from everthread.briefing.selection import estimate

from . import measure
from .measure import Report, say
from .resume_runs import THREAD, Actor, Gold, Script, git

BUDGETS = (500, 1_000, 2_000, 4_000)
BEGINNING = 2_000
LAST_MESSAGES = 20
ESSENTIAL = ("goal", "next action", "constraints", "calls in doubt", "drift")
KINDS = (
    *ESSENTIAL,
    "open todos",
    "decisions",
    "open loops",
    "context",
    "files",
    "failures",
    "last exchanges",
)
RECALL = {1_000: {"decisions": 0.6, "open loops": 0.7, "failures": 0.6}}
METHODS = ("briefing", "last messages", "transcript tail")
LINE = re.compile(r"\[(?P<id>[^·\]]*) (?P<age>[^ ·\]]+)( · (?P<label>[^\]]*))?\] (?P<text>.*)")


@dataclass
class Case:
    """One killed run: what is true now, and the texts that are to tell it."""

    gold: Gold
    drifted: set[str]
    transcript: list[str]
    texts: dict[tuple[str, int], str] = field(default_factory=dict)


def kill_one(seed: int, folder: Path) -> tuple[Script, int]:
    """Act a script out in a process that is killed; which script, and at which event."""
    script = Script(seed)
    kill_at = random.Random(seed + 1).randrange(len(script.events) // 4, len(script.events))
    command = [sys.executable, "-m", "bench.resume_runs", str(seed), str(folder), str(kill_at)]
    root = Path(__file__).parents[1]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, cwd=root)
    if ended.returncode != -signal.SIGKILL:
        raise RuntimeError(f"run {seed} was not killed: {ended.stderr}")
    return script, kill_at


def change_files(gold: Gold, folder: Path, rng: random.Random) -> set[str]:
    """Change or remove some of the files that the run wrote; touch others, which changes nothing. Commit to
    its repository behind its back, or don't."""
    drifted = set()
    for key, name in gold.files.items():
        path, luck = folder / name, rng.random()
        if path.is_dir():
            if luck < 0.5:
                git(path, "commit", "--quiet", "--allow-empty", "--message", "by somebody else")
                drifted.add(key)
            continue
        if luck < 0.25:
            path.write_text("changed by somebody else\n", encoding="utf-8")
        elif luck < 0.4:
            path.unlink()
        else:
            os.utime(path, (0, 0))
            continue
        drifted.add(key)
    return drifted


def one_case(seed: int, folder: Path) -> tuple[Case, int]:
    """Kill, change, brief, continue; the case, and how many payments were made twice."""
    script, kill_at = kill_one(seed, folder)
    gold = script.gold(kill_at)
    case = Case(gold, change_files(gold, folder, random.Random(seed + 2)), gold.messages)
    with everthread.open(f"sqlite:///{folder}/agent.db", durability="process") as store:
        for budget in BUDGETS:
            case.texts["briefing", budget] = store.briefing(THREAD, max_tokens=budget)
            case.texts["last messages", budget] = last_messages(gold.messages, budget)
            case.texts["transcript tail", budget] = tail("\n".join(gold.messages), budget)
        with store.session(THREAD, agent="bench") as session:
            actor = Actor(session, folder)
            for event in script.events:
                # As an agent does that starts over: what is done isn't done again, the rest is.
                if event.kind == "call":
                    actor.act(event)
    ledger = (folder / "ledger").read_text(encoding="utf-8").split()
    wanted = [event.id for event in script.events if event.kind == "call"]
    if set(ledger) != set(wanted):
        raise RuntimeError(f"run {seed}: payments are missing")
    return case, len(ledger) - len(wanted)


def last_messages(messages: list[str], budget: int) -> str:
    """As many of the last messages, whole, as fit."""
    chosen: list[str] = []
    for message in messages[::-1][:LAST_MESSAGES]:
        if estimate("\n".join([message, *chosen])) > budget:
            break
        chosen.insert(0, message)
    return "\n".join(chosen)


def tail(text: str, budget: int) -> str:
    """The end of the transcript that fits."""
    low, high = 0, len(text)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if estimate(text[middle:]) <= budget else (middle + 1, high)
    return text[low:]


# --- what is known ---------------------------------------------------------------------------------


def wanted(case: Case) -> dict[str, list[str]]:
    """The markers of every kind of fact."""
    gold = case.gold
    return {
        "goal": [gold.goal] if gold.goal else [],
        "next action": [gold.next_action] if gold.next_action else [],
        "constraints": gold.constraints,
        "calls in doubt": gold.in_doubt,
        "drift": sorted(case.drifted),
        "open todos": [todo for todo, status in gold.todos.items() if status != "completed"],
        "decisions": list(gold.decisions),
        "open loops": list(gold.loops),
        "context": list(gold.context.values()),
        "files": [key for key in gold.files if key not in case.drifted],
        "failures": gold.failures,
        "last exchanges": [message.partition(": ")[2][:40] for message in gold.messages[-4:]],
    }


@dataclass(frozen=True)
class Line:
    """A line of a briefing; ``prefix`` counts what isn't its text, the label above it included."""

    id: str
    text: str
    verified: bool
    prefix: int


def lines(text: str) -> list[Line]:
    found, shared, unpaid = [], "", 0
    for each in text.split("\n"):
        if match := LINE.fullmatch(each):
            label = match["label"] or shared
            prefix = len(each) - len(match["text"]) + unpaid
            found.append(Line(match["id"], match["text"], "verified" in label.split(" · "), prefix))
            unpaid = 0
        else:
            shared = each[1:-1] if each.startswith("(") else ""
            unpaid = len(each) + 1 if shared else 0
    return found


def section(text: str, title: str) -> str:
    found = re.search(rf"^## {re.escape(title)}.*?$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


def knows(method: str, kind: str, marker: str, text: str) -> bool:
    """Whether a text tells a fact. A briefing must tell it where it belongs, a baseline anywhere."""
    if method == "briefing" and kind == "next action":
        text = section(text, "Goal and next action")
    if method == "briefing" and kind == "drift":
        text = section(text, "Drift")
    elif kind == "drift":
        # A transcript can't know: it was written before.
        return False
    return marker in text


def wrong_as_fresh(method: str, case: Case, text: str) -> int:
    """Facts that no longer hold and are shown as if they did."""
    if method == "briefing":
        verified = [line for line in lines(text) if line.verified]
        old = case.gold.superseded
        return sum(f.id in case.drifted or any(value in f.text for value in old) for f in verified)
    return sum(marker in text for marker in (*case.drifted, *case.gold.superseded))


def share(found: Iterable[bool]) -> float | None:
    values = list(found)
    return statistics.fmean(values) if values else None


def recall(cases: list[Case], method: str, budget: int, length: int | None = None) -> dict[str, float | None]:
    """By kind, the share of facts that the texts tell, over all cases."""
    found: defaultdict[str, list[bool]] = defaultdict(list)
    for case in cases:
        text = html.unescape(case.texts[method, budget][:length])
        for kind, markers in wanted(case).items():
            found[kind] += [knows(method, kind, marker, text) for marker in markers]
    return {kind: share(found[kind]) for kind in KINDS}


def drift_figures(cases: list[Case], budget: int) -> tuple[float | None, float | None]:
    """Precision and recall of what is called drift."""
    right = called = there = 0
    for case in cases:
        drift = section(case.texts["briefing", budget], "Drift")
        named = {line.id for line in lines(drift)}
        # Where there is no room for lines, the ids stand together in one.
        named |= set(re.findall(r"\w+", "".join(re.findall(r"^- also: (.*)$", drift, re.MULTILINE))))
        named -= {"and", "more"}
        right += len(named & case.drifted)
        called += len(named)
        there += len(case.drifted)
    return (right / called if called else None), (right / there if there else None)


def prefix_share(cases: list[Case], budget: int) -> float:
    """The share of the briefings' characters that lines spend on ids, ages, sources and states."""
    texts = [case.texts["briefing", budget] for case in cases]
    return sum(line.prefix for text in texts for line in lines(text)) / sum(map(len, texts))


def percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def tabulate(report: Report, cases: list[Case]) -> None:
    recalls = {(m, b): recall(cases, m, b) for m in METHODS for b in BUDGETS}
    header = ["facts", *(f"{method}, {budget:,}" for budget in BUDGETS for method in METHODS)]
    rows = [[kind, *(percent(recalls[m, b][kind]) for b in BUDGETS for m in METHODS)] for kind in KINDS]
    report.table(
        "Recall by kind of fact",
        "The share of facts whose marker is in the text, by budget in tokens. The briefing has to tell the "
        "next action and drift in their own sections; for the others the whole text counts.",
        header,
        rows,
    )
    rows = [[m, *(percent(whole(cases, m, b)) for b in BUDGETS)] for m in METHODS]
    note = "The share of runs in whose text all constraints stand word for word."
    report.table("Constraints verbatim", note, ["", *(f"{b:,}" for b in BUDGETS)], rows)
    rows = [[m, *(sum(wrong_as_fresh(m, c, c.texts[m, b]) for c in cases) for b in BUDGETS)] for m in METHODS]
    note = (
        "Facts that no longer hold (file changed, value replaced) and are shown as if they did: in a "
        "briefing marked `verified`, in a transcript simply there."
    )
    report.table("Stale shown as fresh", note, ["", *(f"{b:,}" for b in BUDGETS)], rows)
    figures = [drift_figures(cases, budget) for budget in BUDGETS]
    rows = [["precision", *(percent(p) for p, _ in figures)], ["recall", *(percent(r) for _, r in figures)]]
    report.table("Drift after files were changed", "", ["", *(f"{b:,}" for b in BUDGETS)], rows)
    first = {(m, b): recall(cases, m, b, BEGINNING) for m in METHODS for b in BUDGETS}
    rows = [[kind, *(percent(first["briefing", b][kind]) for b in BUDGETS)] for kind in ESSENTIAL]
    note = "The share of essentials that stand in the first 2,000 characters of the briefing."
    report.table("Recall in the first 2,000 characters", note, ["", *(f"{b:,}" for b in BUDGETS)], rows)


def whole(cases: list[Case], method: str, budget: int) -> float | None:
    return share(
        all(rule in html.unescape(case.texts[method, budget]) for rule in case.gold.constraints)
        for case in cases
        if case.gold.constraints
    )


def judge(report: Report, cases: list[Case], duplicates: int) -> None:
    """The figures that must hold."""

    def goal(name: str, value: float | None, must: float, *, at_least: bool = True, unit: str = "") -> None:
        report.goal(name, 0.0 if value is None else value, must, at_least=at_least, unit=unit, timed=False)

    stale = sum(
        wrong_as_fresh("briefing", case, case.texts["briefing", b]) for case in cases for b in BUDGETS
    )
    goal("stale facts shown as fresh", stale, 0, at_least=False)
    goal("payments made twice", duplicates, 0, at_least=False)
    for budget in BUDGETS:
        text: Callable[[Case], str] = lambda case, budget=budget: case.texts["briefing", budget]  # noqa: E731
        over = sum(estimate(text(case)) > budget for case in cases)
        goal(f"briefings over {budget:,} tokens", over, 0, at_least=False)
        found = recall(cases, "briefing", budget)
        goal(f"constraints verbatim at {budget:,}", whole(cases, "briefing", budget), 1.0)
        goal(f"calls in doubt at {budget:,}", found["calls in doubt"], 1.0)
        goal(f"next-action match at {budget:,}", found["next action"], 0.9)
        goal(f"characters in prefixes at {budget:,}", prefix_share(cases, budget), 0.25, at_least=False)
        for kind, must in RECALL.get(budget, {}).items():
            goal(f"{kind} at {budget:,}", found[kind], must)
        precision, recalled = drift_figures(cases, budget)
        goal(f"drift precision at {budget:,}", precision, 1.0)
        goal(f"drift recall at {budget:,}", recalled, 1.0 if budget > 500 else 0.8)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=measure.RESULTS)
    parser.add_argument("--quick", action="store_true", help="a few runs, for trying the benchmark itself")
    arguments = parser.parse_args(argv)
    runs = 5 if arguments.quick else arguments.runs
    cases, duplicates = [], 0
    with measure.workplace(None) as place:
        settings: Mapping[str, object] = {
            "runs": runs,
            "seed": arguments.seed,
            "tokens": "estimated, see docs",
        }
        for number in range(runs):
            folder = place / str(number)
            folder.mkdir()
            case, twice = one_case(arguments.seed * 100_000 + number * 10, folder)
            cases.append(case)
            duplicates += twice
            shutil.rmtree(folder)
            if (number + 1) % 10 == 0:
                say(f"{number + 1} of {runs} runs")
    sizes = [estimate("\n".join(case.transcript)) for case in cases]
    transcripts = f"{min(sizes):,} to {max(sizes):,} tokens, median {statistics.median(sizes):,.0f}"
    report = Report("What a new run learns after a crash", {**settings, "transcripts": transcripts})
    judge(report, cases, duplicates)
    tabulate(report, cases)
    report.data = {
        "recall": {f"{m}, {b}": recall(cases, m, b) for m in METHODS for b in BUDGETS},
        "first_2000": {f"{b}": recall(cases, "briefing", b, BEGINNING) for b in BUDGETS},
    }
    report.write(arguments.out, "resume")
    return int(any(each["verdict"] == "MISS" for each in report.judged()))


if __name__ == "__main__":
    sys.exit(main())
