"""Synthetic runs of an agent with known facts, really killed, for the resume benchmark.

A script is a list of events drawn from a seed. A child process acts it out through the public API and kills
itself with SIGKILL at one of them; what must be known afterwards is computed from the script alone.

    python -m bench.resume_runs SEED FOLDER KILL_AT
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

THREAD = "agent"
VERBS = (
    "reconcile migrate audit archive translate invoice review deploy index compress merge schedule".split()
)
NOUNS = (
    "ledger contract parcel ticket mailbox catalogue invoice payroll warehouse forecast roster claim".split()
)
WORDS = """the account shows two open positions that were booked before the change of the calendar and
    nobody has confirmed them since so I compared the totals with the export of last week and found a
    difference which is explained by rounding in the second column except for one line that I will look at
    again later""".split()
PRIORITIES = ("low", "medium", "high", "critical")


@dataclass(frozen=True)
class Event:
    """Something the agent does. `todo` is the marker of the todo that it belongs to."""

    kind: str
    text: str = ""
    id: str = ""
    todo: str = ""
    data: tuple[str, ...] = ()


@dataclass
class Gold:
    """What is true after some events: markers, each of which stands in exactly one fact."""

    goal: str = ""
    constraints: list[str] = field(default_factory=list)
    todos: dict[str, str] = field(default_factory=dict)
    decisions: dict[str, str] = field(default_factory=dict)
    undecided: list[str] = field(default_factory=list)
    loops: dict[str, str] = field(default_factory=dict)
    context: dict[str, str] = field(default_factory=dict)
    superseded: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    in_doubt: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    next_action: str = ""


class Script:
    """The events of one run, and what is known after each."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self._used: set[str] = set()
        self.events = list(self._written())

    def _marker(self) -> str:
        """A word that stands nowhere else."""
        while True:
            marker = "".join(self.rng.choices("BCDFGHJKLMNPQRSTVWXZ", k=2)) + str(
                self.rng.randrange(1_000, 9_999)
            )
            if marker not in self._used:
                self._used.add(marker)
                return marker

    def _thing(self) -> str:
        return f"{self.rng.choice(VERBS)} the {self.rng.choice(NOUNS)}"

    def _chatter(self) -> str:
        return " ".join(self.rng.choices(WORDS, k=self.rng.randrange(20, 120)))

    def _written(self) -> Iterator[Event]:
        rng = self.rng
        goal = self._marker()
        yield Event("message", f"user: Please {self._thing()} {goal} until Friday. {self._chatter()}")
        yield Event("goal", f"{self._thing()} {goal}", goal)
        repo = self._marker()
        yield Event("repo", f"{repo}.git", repo)
        yield Event("message", f"assistant: The repository {repo} is where I left it.")
        for _ in range(rng.randrange(2, 5)):
            rule = self._marker()
            text = f"never {self._thing()} {rule} without a second pair of eyes & a written reason"
            yield Event("message", f"user: One more thing, always: {text}.")
            yield Event("constraint", text, rule)
        todos = []
        for _ in range(rng.randrange(6, 16)):
            todo, priority = self._marker(), rng.choice(PRIORITIES)
            todos.append((todo, priority))
            yield Event("todo", f"{self._thing()} {todo}", todo, data=(priority,))
        yield Event(
            "message", f"assistant: My plan has {len(todos)} steps: {', '.join(t for t, _ in todos)}."
        )
        while todos:
            # Mostly the most urgent, the first of those alike; sometimes the agent knows better.
            best = max(range(len(todos)), key=lambda place: (PRIORITIES.index(todos[place][1]), -place))
            todo, _ = todos.pop(rng.randrange(len(todos)) if rng.random() < 0.1 else best)
            yield from self._worked(todo)

    def _worked(self, todo: str) -> Iterator[Event]:
        """All that happens for one todo."""
        rng = self.rng
        yield Event("start", id=todo, todo=todo)
        yield Event("message", f"assistant: I begin with {todo}. {self._chatter()}", todo=todo)
        for _ in range(rng.randrange(1, 4)):
            yield from rng.choice([self._decided, self._noted, self._filed, self._failed, self._looped])(todo)
            yield Event("message", f"tool: {self._chatter()}", todo=todo)
        yield from self._called(todo)
        yield Event("complete", id=todo, todo=todo)
        yield Event("message", f"assistant: {todo} is done. {self._chatter()}")

    def _decided(self, todo: str) -> Iterator[Event]:
        decision, rejected = self._marker(), self._marker()
        why = f"the {self.rng.choice(NOUNS)} needs it"
        yield Event(
            "decide", f"use {decision}", decision, todo, (why, f"apply {decision}", f"use {rejected}")
        )
        yield Event(
            "message", f"assistant: I decided on {decision} because {why}; not {rejected}.", todo=todo
        )
        yield Event("outcome", "worked", decision, todo)

    def _noted(self, todo: str) -> Iterator[Event]:
        key = self.rng.choice(NOUNS)
        value = self._marker()
        yield Event("note", f"{value} in the books", key, todo, (value,))
        yield Event("message", f"assistant: For the record, {key} is {value}. {self._chatter()}", todo=todo)

    def _filed(self, todo: str) -> Iterator[Event]:
        name = self._marker()
        yield Event("file", f"{name}.txt", name, todo)
        yield Event("message", f"assistant: I wrote {name}.txt. {self._chatter()}", todo=todo)

    def _failed(self, todo: str) -> Iterator[Event]:
        failure = self._marker()
        yield Event("fail", f"{failure} refused the connection", failure, todo)
        yield Event("message", f"tool: error: {failure} refused the connection. {self._chatter()}", todo=todo)

    def _looped(self, todo: str) -> Iterator[Event]:
        loop = self._marker()
        yield Event("loop", f"waiting for an answer about {loop}", loop, todo)
        yield Event("message", f"assistant: I asked about {loop}. {self._chatter()}", todo=todo)
        if self.rng.random() < 0.5:
            yield Event("close", id=loop, todo=todo)

    def _called(self, todo: str) -> Iterator[Event]:
        for _ in range(self.rng.randrange(1, 3)):
            key = f"pay-{self._marker()}"
            yield Event("call", f"transfer for {todo}", key, todo)
            yield Event("message", f"tool: {key} was transferred. {self._chatter()}", todo=todo)

    def gold(self, kill_at: int) -> Gold:
        """What must be known if the process dies at this event: within it if it is a call, else before it."""
        gold = Gold()
        for event in self.events[:kill_at]:
            _apply(gold, event)
        fatal = self.events[kill_at]
        if fatal.kind == "call":
            gold.in_doubt.append(fatal.id)
            gold.next_action = fatal.id
        else:
            coming = (event for event in self.events[kill_at:] if event.todo)
            gold.next_action = next((event.todo for event in coming), "")
        return gold


def _apply(gold: Gold, event: Event) -> None:
    match event.kind:
        case "goal":
            gold.goal = event.id
        case "constraint":
            gold.constraints.append(event.text)
        case "todo":
            gold.todos[event.id] = "pending"
        case "start":
            gold.todos[event.id] = "in_progress"
        case "complete":
            gold.todos[event.id] = "completed"
        case "decide":
            gold.decisions[event.id] = event.text
            gold.undecided.append(event.id)
        case "outcome":
            gold.undecided.remove(event.id)
        case "note":
            if event.id in gold.context:
                gold.superseded.append(gold.context[event.id])
            gold.context[event.id] = event.data[0]
        case "file" | "repo":
            gold.files[event.id] = event.text
        case "fail":
            gold.failures.append(event.id)
        case "loop":
            gold.loops[event.id] = event.text
        case "close":
            del gold.loops[event.id]
        case "call":
            gold.done.append(event.id)
        case "message":
            gold.messages.append(event.text)


class Actor:
    """Acts a script out on a session."""

    def __init__(self, session: Any, folder: Path) -> None:
        self.session = session
        self.folder = folder
        self.ids: dict[str, str] = {}
        self.dies_paying = False

    def act(self, event: Event) -> None:
        session, work = self.session, self.session.work
        match event.kind:
            case "message":
                role, _, content = event.text.partition(": ")
                session.messages.append({"role": role, "content": content})
            case "goal":
                work.set_intention(event.text)
            case "constraint":
                work.add_constraint(event.text)
            case "todo":
                self.ids[event.id] = work.add_todo(event.text, priority=event.data[0]).id
            case "start":
                work.start_todo(self.ids[event.id])
            case "complete":
                work.complete_todo(self.ids[event.id])
            case "decide":
                why, planned, rejected = event.data
                made = session.decide(event.text, rationale=why, planned_action=planned, rejected=[rejected])
                self.ids[event.id] = made.id
            case "outcome":
                session.record_outcome(self.ids[event.id], event.text)
            case "note":
                work.set_context(event.id, event.text)
            case "file":
                self.file(event)
            case "repo":
                self.repo(event)
            case "fail":
                session.record_error(event.text, where="tool")
            case "loop":
                self.ids[event.id] = work.add_open_loop(event.text).id
            case "close":
                work.resolve_open_loop(self.ids[event.id])
            case "call":
                session.call(event.id, self.pay, event.id, verify=self.paid)

    def file(self, event: Event) -> None:
        from everthread import verifiers

        path = self.folder / event.text
        path.write_text(f"content of {event.id}\n", encoding="utf-8")
        self.session.work.set_context(event.id, str(path), verify=verifiers.file_hash())

    def repo(self, event: Event) -> None:
        from everthread import verifiers

        path = self.folder / event.text
        path.mkdir()
        git(path, "init", "--quiet", "--initial-branch=main")
        git(path, "commit", "--quiet", "--allow-empty", "--message", "first")
        self.session.work.set_context(event.id, str(path), verify=verifiers.git_commit(path))

    def pay(self, key: str) -> str:
        with (self.folder / "ledger").open("a", encoding="utf-8") as ledger:
            ledger.write(key + "\n")
            ledger.flush()
        if self.dies_paying:
            die()
        return f"receipt of {key}"

    def paid(self, key: str) -> bool:
        ledger = self.folder / "ledger"
        return ledger.exists() and key in ledger.read_text(encoding="utf-8").split()


def git(folder: Path, *words: str) -> None:
    settings = ["-c", "user.name=bench", "-c", "user.email=bench@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *settings, *words], check=True)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(seed: int, folder: Path, kill_at: int) -> None:
    """Act until the kill. Never returns."""
    import everthread

    script = Script(seed)
    store = everthread.open(f"sqlite:///{folder}/agent.db", durability="process")
    with store.session(THREAD, agent="bench") as session:
        actor = Actor(session, folder)
        for event in script.events[:kill_at]:
            actor.act(event)
        if script.events[kill_at].kind == "call":
            actor.dies_paying = True
            actor.act(script.events[kill_at])
        die()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
