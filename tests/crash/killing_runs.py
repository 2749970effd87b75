"""A run that three processes share by its name, killed at random: each effect once, each message once.

The processes do the same work at the same time: parallel steps that make effects, turns, forks that make
effects and are merged. A fourth sends messages. What one can't do because another is at it, it does later.
"""

from __future__ import annotations

import os
import random
import signal
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import everthread
from everthread import ConflictError, Done, InDoubtError, Store, Thread

PROCESSES = 3
TURNS = 3
SLOTS = 3
MESSAGES = 4
RUN = "run-1"
#: No process takes longer than this for all of it.
_PATIENCE_S = 120.0


class Tally(NamedTuple):
    """What came of one store."""

    kills: int
    effects: int
    messages: int
    failure: str = ""


class World:
    """What effects change: a file with a line for each."""

    def __init__(self, path: Path, draw: random.Random) -> None:
        self.path = path
        self._draw = draw

    def do(self, key: str) -> str:
        if self._draw.random() < 0.3:
            time.sleep(self._draw.random() * 0.02)
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, f"{key}\n".encode())
        os.close(file)
        if self._draw.random() < 0.3:
            time.sleep(self._draw.random() * 0.02)
        return f"did {key}"

    def has(self, key: str) -> Any:
        return Done(f"did {key}") if self.counts()[key] else False

    def counts(self) -> Counter[str]:
        return Counter(self.path.read_text().split()) if self.path.exists() else Counter()


class Part:
    """One process's part in the run; it ends when all of the work is done, by whomever."""

    def __init__(self, store: Store, name: str, world: World, draw: random.Random) -> None:
        self.store = store
        self.name = name
        self.world = world
        self.draw = draw

    def run(self) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        left = [*self._steps(), *(("merged", turn) for turn in range(TURNS)), ("turn", 0)]
        self.draw.shuffle(left)
        while left:
            assert time.monotonic() < deadline, f"{left} can't be done"
            left = [work for work in left if not self._tried(*work)]
            if left:
                time.sleep(0.005)

    @staticmethod
    def _steps() -> list[tuple[Any, ...]]:
        return [("step", turn, slot) for turn in range(TURNS) for slot in range(SLOTS)]

    def _tried(self, what: str, *which: int) -> bool:
        try:
            if what == "step":
                self._step(*which)
            elif what == "merged":
                self._merged(*which)
            else:
                self._turn()
            return True
        except InDoubtError as doubt:
            # Another process is in the middle of it.
            if "is being called by process" not in doubt.reason:
                raise
            return False
        except ConflictError:
            return False

    def _effect(self, thread: Thread, key: Any, effect: str, slot: int | None = None) -> None:
        with thread.step(key, slot=slot, run=RUN) as step:
            if not step.done:
                step.result = step.call(effect, self.world.do, effect, verify=self.world.has)
                if slot is not None:
                    step.messages.append({"role": "tool", "content": step.result})
                else:
                    # Merges put messages before others: forks keep to the document, which needs no decision.
                    step.state[str(key)] = step.result
        assert step.result == f"did {effect}", step.result

    def _step(self, turn: int, slot: int) -> None:
        self._effect(self.store.thread(self.name), ("tools", turn), f"pay-{turn}-{slot}", slot)

    def _merged(self, turn: int) -> None:
        """An effect on a fork, which is merged; then the same effect once more, where it was merged into."""
        main, effect = self.store.thread(self.name), f"fork-{turn}"
        if main.head is None:
            self._effect(main, "first", "first")
        fork = main.fork(f"{self.name}, fork {turn}", key=effect)
        self._effect(fork, ("forked", turn), effect)
        main.refresh()
        merged = main.merge(fork)
        assert merged, merged.conflicts
        self._effect(main, ("after", turn), effect)

    def _turn(self) -> None:
        with self.store.session(self.name, run=RUN) as session:
            with session.turn():
                session.add_usage(calls=1)
            assert session.run_id == RUN


def send_messages(store: Store, name: str) -> bool:
    """What a process outside sends to the run. Whether this store can."""
    send = getattr(store, "send", None)
    if send is None:
        return False
    with store.session(name, run=RUN):
        pass
    for number in range(MESSAGES):
        send(name, {"role": "user", "content": f"message {number}"}, key=f"message {number}")
    return True


def _start(url: str, name: str, world: Path, seed: int, sends: bool) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        draw = random.Random(seed)
        with everthread.open(url, durability="process", keyring="memory:") as store:
            if sends:
                send_messages(store, name)
            else:
                Part(store, name, World(world, draw), draw).run()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def kill_a_run(url: str, name: str, folder: Path, kills: int, seed: int) -> Tally:
    """Kill the processes of one run at random, and start them again, until it is done; then look."""
    draw, world = random.Random(seed), folder / f"world {seed}"
    killed = 0
    seeds = iter(range(seed * 1_000, seed * 1_000 + 1_000))
    running = [_start(url, name, world, next(seeds), number == PROCESSES) for number in range(PROCESSES + 1)]
    places = {pid: number for number, pid in enumerate(running)}
    try:
        while places:
            pid = draw.choice(list(places))
            if killed < kills:
                time.sleep(draw.random() * 0.05)
                os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            place = places.pop(pid)
            if os.WIFSIGNALED(status):
                killed += 1
                places[_start(url, name, world, next(seeds), place == PROCESSES)] = place
            elif os.waitstatus_to_exitcode(status):
                return Tally(killed, 0, 0, f"{name} (seed {seed}): a process failed")
        return _checked(url, name, World(world, draw), killed, seed)
    finally:
        for pid in places:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _checked(url: str, name: str, world: World, killed: int, seed: int) -> Tally:
    wrong: list[str] = []
    with everthread.open(url, durability="process", keyring="memory:") as store:
        draw = random.Random(0)
        Part(store, name, World(world.path, draw), draw).run()
        sent = send_messages(store, name)
        if sent:
            with store.session(name, run=RUN) as session, session.turn():
                pass
        counts = world.counts()
        wanted = {f"pay-{turn}-{slot}" for turn in range(TURNS) for slot in range(SLOTS)}
        wanted |= {f"fork-{turn}" for turn in range(TURNS)}
        wrong += [f"{key} happened {counts[key]} times" for key in sorted(wanted) if counts[key] != 1]
        said = Counter(str(each.get("content")) for each in store.thread(name).messages)
        for turn in range(TURNS):
            for slot in range(SLOTS):
                if said[f"did pay-{turn}-{slot}"] != 1:
                    wrong.append(f"pay-{turn}-{slot} is told {said[f'did pay-{turn}-{slot}']} times")
        found = [said[f"message {number}"] for number in range(MESSAGES)] if sent else []
        if any(each != 1 for each in found):
            wrong.append(f"messages arrived {found} times")
        runs = [run.id for run in store.session_records(name).runs(None)]
        if runs != [RUN]:
            wrong.append(f"the runs are {runs}")
        if not store.verify():
            wrong.append("the store is damaged")
    failure = f"{name} (seed {seed}): {'; '.join(wrong)}" if wrong else ""
    return Tally(killed, sum(counts.values()), sum(found), failure)
