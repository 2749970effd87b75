"""Run random programs on the public API against an earlier commit and compare every answer.

    make torture WHAT=oracle ARGS='--programs 10000 --store sqlite --seed 1'
    make torture WHAT=oracle ARGS='--seed 1 --only 4711 --show'      one program, operation by operation

The earlier code is taken from git (`--base`) into a temporary folder and runs in a process of its own with
the same dependencies. A program is a list of operations made from one seed, so a difference is replayed by
its number. Answers are compared without what differs by design: random ids and times.

Intended differences are listed in `EXPECTED`, each with its decision; everything else fails the run.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BASE = "85fa5d27"
NAMES = ("a", "b", "a/b", "'; drop table head", "../../x", "ä" * 20)
LOGS = ("messages", "other")
OPERATIONS = 60

#: ``operation: reason`` of answers that differ by decision. Compared as equal.
EXPECTED: dict[str, str] = {}


# ── programs ──


def program(seed: int, number: int) -> list[list[Any]]:
    """Return the operations of one program. The same arguments give the same program on any machine."""
    rng = random.Random(f"{seed}/{number}")
    made = [_operation(rng, index) for index in range(rng.randint(5, OPERATIONS))]
    begin = [["set", 0, "n", 1], ["commit", 0, None, None, None], ["commit", 1, "begin", {"run": "x"}, None]]
    return [*begin, *made, ["everything"]]


def _operation(rng: random.Random, index: int) -> list[Any]:
    handle, version = rng.randrange(4), rng.randint(0, 12)
    name = rng.choice(NAMES)
    word = rng.choice(["x", "y", "long " * 40, "invoice"])
    value = rng.choice([0, 1, None, True, 1.5, word, [1, word], {"n": 1}])
    key = rng.choice(["p", "q", "n", "deep"])
    pick: Callable[[str], list[Any]] = {
        "open": lambda: [handle, name],
        "set": lambda: [handle, key, value],
        "unset": lambda: [handle, key],
        "push": lambda: [handle, value],
        "append": lambda: [handle, rng.choice(LOGS), f"m{rng.randrange(30)}", word],
        "truncate": lambda: [handle, rng.choice(LOGS), f"m{rng.randrange(30)}"],
        "commit": lambda: [
            handle,
            rng.choice([None, "label", f"label {index}"]),
            rng.choice([None, {"run": rng.choice("xyz")}, {"run": "x", "n": rng.randrange(3)}]),
            rng.choice([None, None, None, "k1", "k2"]),
        ],
        "fork": lambda: [
            handle,
            rng.choice(NAMES),
            rng.choice([None, version]),
            rng.choice([None, None, "fk"]),
        ],
        "rewind": lambda: [handle, version],
        "merge": lambda: [handle, rng.randrange(4), rng.choice([None, "ours", "theirs"])],
        "diff": lambda: [handle, version, rng.randint(0, 12)],
        "past": lambda: [handle, version],
        "history": lambda: [handle, rng.choice([None, 3])],
        "step": lambda: [handle, f"s{rng.randrange(4)}", rng.randint(1, 3), value],
        "update": lambda: [handle, key],
        "rebase": lambda: [handle],
        "discard": lambda: [handle],
        "refresh": lambda: [handle],
        "delete": lambda: [handle],
        "threads": lambda: [rng.choice(["", "a"]), rng.choice([None, {"run": "x"}, {"run": "x", "n": 1}])],
        "search": lambda: [rng.choice(["invoice", "long", "nothing"])],
        "emit": lambda: [
            rng.choice("st"),
            rng.choice(["made", "done"]),
            {"n": index},
            rng.choice([None, "w"]),
        ],
        "replay": lambda: [rng.choice("st"), rng.choice([None, "made"])],
        "gc": lambda: [rng.choice([None, 1, 3])],
        "redact": lambda: ["invoice"],
        "user": lambda: [rng.choice(["u1", "u2"]), "mail", word],
        "users": lambda: [rng.choice(["u1", "u2"]), "mail"],
        "erase": lambda: [rng.choice(["u1", "u2"])],
        "session": lambda: [rng.choice(["bot", "a"]), index, rng.choice(["end", "fail"])],
        "resume": lambda: [rng.choice(["bot", "a"])],
        "send": lambda: [rng.choice(["bot", "a"]), word, rng.choice([None, "mk"])],
        "reopen": list,
        "backup": list,
        "transfer": list,
    }
    weights = {
        "set": 8,
        "append": 8,
        "commit": 14,
        "open": 5,
        "fork": 4,
        "rewind": 3,
        "history": 3,
        "past": 4,
    }
    rare = {"gc", "redact", "erase", "reopen", "backup", "transfer", "delete"}
    operation = rng.choices(
        list(pick), [weights.get(kind, 1 if kind in rare else 2) for kind in pick]
    )[0]  # fmt: skip
    return [operation, *pick[operation]()]


# ── the worker: runs in either version ──


class Machine:
    """One store and four handles, driven by the operations of a program."""

    def __init__(self, folder: Path, store: str) -> None:
        self.folder = folder
        self.url = {
            "memory": "memory:",
            "sqlite": f"sqlite:///{folder}/store.db",
            "files": f"file://{folder}/store",
        }[store]
        self.open_store()

    def open_store(self) -> None:
        import everthread

        self.store: Any = everthread.open(
            self.url, durability="process", keyring=str(self.folder / "keyring")
        )
        self.handles = [self.store.thread(name) for name in NAMES[:4]]

    def run(self, operation: list[Any]) -> Any:
        """Return the answer of an operation, or the name of the error that it raised."""
        import everthread

        kind, *arguments = operation
        try:
            return plain(getattr(self, f"do_{kind}")(*arguments))
        except everthread.EverthreadError as error:
            return f"! {type(error).__name__}"
        except (KeyError, ValueError, TypeError, IndexError) as error:
            return f"! {type(error).__name__}"

    # Threads.

    def do_open(self, handle: int, name: str) -> Any:
        self.handles[handle] = self.store.thread(name)
        return self._look(self.handles[handle])

    def do_set(self, handle: int, key: str, value: Any) -> None:
        self.handles[handle].state[key] = value

    def do_unset(self, handle: int, key: str) -> Any:
        return self.handles[handle].state.pop(key, None)

    def do_push(self, handle: int, value: Any) -> None:
        self.handles[handle].state.setdefault("list", []).append(value)

    def do_append(self, handle: int, log: str, item: str, text: str) -> None:
        self.handles[handle].log(log).append({"role": "user", "content": text, "id": item})

    def do_truncate(self, handle: int, log: str, item: str) -> None:
        self.handles[handle].log(log).truncate_from(item)

    def do_commit(self, handle: int, label: str | None, metadata: Any, key: str | None) -> Any:
        return self.handles[handle].commit(label=label, metadata=metadata, key=key)

    def do_fork(self, handle: int, name: str, at: int | None, key: str | None) -> Any:
        thread = self.handles[handle]
        self.handles[(handle + 1) % 4] = fork = thread.fork(name, at=self._version(thread, at), key=key)
        return self._look(fork)

    def do_rewind(self, handle: int, at: int) -> Any:
        thread = self.handles[handle]
        return thread.rewind(self._version(thread, at)), self._look(thread)

    def do_merge(self, handle: int, other: int, resolve: str | None) -> Any:
        thread = self.handles[handle]
        merge = thread.merge(self.handles[other], resolve=resolve)
        return sorted(str(conflict.path) for conflict in merge.conflicts), self._look(thread)

    def do_diff(self, handle: int, a: int, b: int) -> Any:
        thread = self.handles[handle]
        return thread.diff(self._version(thread, a), self._version(thread, b)).summary()

    def do_past(self, handle: int, at: int) -> Any:
        thread = self.handles[handle]
        past = thread.at(self._version(thread, at))
        return past.state.plain(), {log: list(past.log(log)) for log in LOGS}

    def do_history(self, handle: int, limit: int | None) -> Any:
        return list(self.handles[handle].history(limit=limit))

    def do_step(self, handle: int, key: str, attempt: int, value: Any) -> Any:
        with self.handles[handle].step(key, attempt=attempt) as step:
            if step.done:
                return "done", step.result
            step.state[key] = value
            step.messages.append({"role": "assistant", "content": key, "id": step.message_id(0)})
            step.result = value
        return self._look(self.handles[handle])

    def do_update(self, handle: int, key: str) -> Any:
        def change(draft: Any) -> None:
            draft.state["count"] = draft.state.get("count", 0) + 1
            draft.state[key] = "updated"

        return self.handles[handle].update(change)

    def do_rebase(self, handle: int) -> Any:
        return self.handles[handle].rebase(), self._look(self.handles[handle])

    def do_discard(self, handle: int) -> Any:
        self.handles[handle].discard()
        return self._look(self.handles[handle])

    def do_refresh(self, handle: int) -> Any:
        self.handles[handle].refresh()
        return self._look(self.handles[handle])

    def do_delete(self, handle: int) -> Any:
        self.handles[handle].delete()

    # The store.

    def do_threads(self, prefix: str, metadata: Any) -> Any:
        return [info.name for info in self.store.threads(prefix=prefix, metadata=metadata)]

    def do_search(self, text: str) -> Any:
        return sorted({hit.thread for hit in self.store.search(text)})

    def do_emit(self, stream: str, kind: str, data: Any, agent: str | None) -> Any:
        return self.store.events(stream).append(kind, data, agent=agent).seq

    def do_replay(self, stream: str, kind: str | None) -> Any:
        events = self.store.events(stream).replay(type=kind)
        return [(event.seq, event.type, event.data, event.agent) for event in events]

    def do_gc(self, keep_last: int | None) -> Any:
        from everthread import Retention

        self.store.gc(Retention(keep_last=keep_last) if keep_last else None)

    def do_redact(self, text: str) -> Any:
        self.store.redact(text)
        return self.do_everything()

    def do_user(self, user: str, key: str, value: str) -> None:
        self.store.users.set(user, key, value)

    def do_users(self, user: str, key: str) -> Any:
        return self.store.users.get(user, key)

    def do_erase(self, user: str) -> Any:
        return self.store.erase(user).complete

    def do_reopen(self) -> None:
        if self.url != "memory:":
            self.store.close()
            self.open_store()

    def do_backup(self) -> Any:
        if self.url == "memory:":
            return None
        path = self.folder / f"backup-{time.monotonic_ns()}"
        before = self.do_everything()
        self.store.backup(path)
        self.handles[0].state["after"] = 1
        self.handles[0].commit()
        self.store.restore(path)
        self.handles = [self.store.thread(name) for name in NAMES[:4]]
        return before == self.do_everything()

    def do_transfer(self) -> Any:
        import everthread

        path = self.folder / f"export-{time.monotonic_ns()}"
        self.store.export(path)
        with everthread.open("memory:", keyring=str(self.folder / "keyring")) as copy:
            copy.import_from(path)
            return [(info.name, copy.thread(info.name).state.plain()) for info in copy.threads()]

    # Sessions.

    def do_session(self, name: str, index: int, end: str) -> Any:
        with self.store.session(name, agent="w") as session:
            todo = session.work.add_todo(f"todo {index}", priority="high")
            if index % 2:
                session.work.complete_todo(todo.id)
            session.work.set_context("fact", index)
            decision = session.decide("use FIFO", rationale="asked", planned_action="recompute")
            if index % 3:
                session.record_outcome(decision.id, "done")
            paid = session.call(f"pay-{index % 5}", lambda: f"receipt {index}")
            session.messages.append({"role": "user", "content": "hi", "id": f"s{index}"})
            session.checkpoint("point")
            if end == "fail":
                session.fail("broken")
            return paid, [todo.content for todo in session.work.todos], len(session.messages)

    def do_resume(self, name: str) -> Any:
        report = self.store.resume(name)
        return report.status, {
            kind: sorted(todo.content for todo in found) for kind, found in report.todos.items()
        }

    def do_send(self, name: str, text: str, key: str | None) -> None:
        self.store.send(name, {"role": "user", "content": text}, key=key)

    # Looking.

    def do_everything(self) -> Any:
        """Return all threads, at their head and their last versions, and whether verify is clean."""
        found = []
        for info in self.store.threads():
            thread = self.store.thread(info.name)
            versions = list(thread.history(limit=None))
            pasts = [self._readable(thread, version) for version in versions[:6]]
            found.append([info.name, self._look(thread), versions, pasts])
        return plain([found, bool(self.store.verify().ok)])

    def _readable(self, thread: Any, version: Any) -> Any:
        import everthread

        try:
            past = thread.at(version)
            return past.state.plain(), [list(past.log(log)) for log in LOGS]
        except everthread.EverthreadError as error:
            return type(error).__name__

    def _look(self, thread: Any) -> Any:
        return [thread.head, thread.state.plain(), [list(thread.log(log)) for log in LOGS]]

    def _version(self, thread: Any, seq: int | None) -> Any:
        """Return the newest version with at most this number, or None for an empty thread."""
        if seq is None:
            return None
        found = [version for version in thread.history(limit=None) if version.seq <= seq]
        return found[0] if found else f"no version {seq}"


def plain(value: Any) -> Any:
    """Return JSON-compatible data without times and random ids."""
    if type(value).__name__ == "Version":
        return ["version", value.seq, value.label, plain(dict(value.metadata or {})), value.kind]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items() if key not in VOLATILE}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return f"<{type(value).__name__}>"


#: Fields of records that differ from run to run.
VOLATILE = frozenset(
    "id at at_us created created_at updated_at completed_at started_at verified_at run run_id pid host "
    "decision decisions session todos loops checkpoints noted_at".split()
)


def work(store: str) -> None:
    """Answer programs from standard input, one JSON line each, until it ends."""
    sys.setrecursionlimit(5000)
    for line in sys.stdin:
        task = json.loads(line)
        folder = Path(tempfile.mkdtemp(prefix="everthread-oracle-", dir=task["folder"]))
        try:
            machine = Machine(folder, store)
            answers = [machine.run(operation) for operation in task["program"]]
            machine.store.close()
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        print(json.dumps(answers), flush=True)


# ── the comparison ──


class Worker:
    """A process that answers programs with the code of one source tree."""

    def __init__(self, source: Path, store: str, home: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": f"{source}:{ROOT}", "HOME": str(home)}
        environment.pop("EVERTHREAD_URL", None)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.torture.oracle", "--worker", store],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=home,
        )

    def give(self, operations: list[list[Any]], folder: Path) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"program": operations, "folder": str(folder)}) + "\n")
        self.process.stdin.flush()

    def take(self) -> list[Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the worker ended with status {self.process.wait()}")
        answers: list[Any] = json.loads(line)
        return answers

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=30)


def checkout(commit: str, folder: Path) -> Path:
    """Extract the package as of a commit and return the folder to import it from."""
    command = ["git", "archive", commit, "src"]
    data = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"


def differences(
    operations: list[list[Any]], old: list[Any], new: list[Any]
) -> Iterator[tuple[int, Any, Any]]:
    """Yield the place and both answers where they differ without a decision."""
    for place, (operation, before, after) in enumerate(zip(operations, old, new, strict=True)):
        if before != after and operation[0] not in EXPECTED:
            yield place, before, after


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare answers with those of an earlier commit.")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--store", default="sqlite", choices=("memory", "sqlite", "files"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="run this program alone")
    parser.add_argument("--show", action="store_true", help="print every operation with both answers")
    parser.add_argument("--base", default=BASE)
    options = parser.parse_args()
    if options.worker:
        work(options.worker)
        return 0

    numbers = [options.only] if options.only is not None else range(options.programs)
    seen: Counter[str] = Counter()
    wrong = 0
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="oracle-", dir=memory if memory.is_dir() else None) as name:
        home = Path(name)
        pair = [
            Worker(source, options.store, home) for source in (checkout(options.base, home), ROOT / "src")
        ]
        for number in numbers:
            operations = program(options.seed, number)
            for worker in pair:
                worker.give(operations, home)
            old, new = (worker.take() for worker in pair)
            seen.update(operation[0] for operation in operations)
            if options.show:
                for operation, before, after in zip(operations, old, new, strict=True):
                    print(operation, "\n   old", before, "\n   new", after if after != before else "the same")
            found = list(differences(operations, old, new))
            wrong += bool(found)
            for place, before, after in found[:1]:
                print(
                    f"program {number}, operation {place} {operations[place]}\n  old {before}\n  new {after}"
                )
            if number % 100 == 99:
                print(f"{number + 1} programs, {wrong} differ", flush=True)
        for worker in pair:
            worker.close()
    print(
        f"seed {options.seed}, store {options.store}: {len(numbers)} programs, {wrong} differ; {dict(seen)}"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
