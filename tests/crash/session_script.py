"""A scripted run of an agent that is killed at a chosen store operation, and what must be true afterwards.

The script may be run again and again: it finds out what is there and does the rest. Its effects are lines in
a file outside the store, as real as effects get.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import everthread
from everthread import AgentSession, Done, Store
from everthread.records.opening import open_backend

NAME = "bot"
FORK = "bot, forked"
KEYS = ("pay-1", "pay-2", "mail-3", "ship-4", "mail-5", "mail-6")
#: Not operations on what is stored.
_QUIET = frozenset({"capabilities", "url", "close"})
_WRITING = frozenset(
    {"append", "append_all", "create", "delete", "fold", "keyframe", "swap", "tag", "_write"}
)


class Killing:
    """A backend that kills its own process before (even) or after (odd) its n-th operation."""

    def __init__(self, backend: Any, moment: int | None) -> None:
        self._backend = backend
        self._moment = moment
        self.operations = 0
        #: Dying after one that only looked is dying before the next one.
        self.moments: list[int] = []

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._backend, name)
        if name in _QUIET or not callable(method):
            return method

        return lambda *args, **kwargs: self.operation(method, *args, **kwargs)

    def operation(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        number = self.operations
        self.operations += 1
        self.moments.append(2 * number)
        if method.__name__ in _WRITING:
            self.moments.append(2 * number + 1)
        if self._moment == 2 * number:
            die()
        answer = method(*args, **kwargs)
        if self._moment == 2 * number + 1:
            die()
        return answer


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def open_store(path: Path, moment: int | None = None) -> tuple[Store, Killing]:
    url = f"sqlite:///{path}" if path.suffix == ".db" else f"file://{path}"
    backend = Killing(open_backend(url, "process"), moment)
    return Store(backend, keyring="memory:"), backend


class World:
    """What the effects change: a file with a line per effect."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.path.touch()
        #: Set in a process that is to be killed: changing the world is an operation, too.
        self.killing: Killing | None = None

    def do(self, key: str, amount: int) -> dict[str, Any]:
        if self.killing is None:
            self._write(key)
        else:
            self.killing.operation(self._write, key)
        return {"key": key, "amount": amount}

    def _write(self, key: str) -> None:
        with self.path.open("a") as file:
            file.write(f"{key}\n")

    def has(self, key: str, amount: int) -> Any:
        return Done({"key": key, "amount": amount}) if key in self.counts() else False

    def counts(self) -> Counter[str]:
        return Counter(self.path.read_text().split())


class Script:
    """The run. ``tell`` is called with a name after each call that has returned: it is acknowledged then."""

    def __init__(self, store: Store, world: World, tell: Any) -> None:
        self.store = store
        self.world = world
        self.tell = tell

    def run(self) -> None:
        self.run_main()
        self.run_fork()

    def run_main(self) -> None:
        with self.store.session(NAME, agent="scripted") as session:
            self.tell("began")
            start = session.thread.head
            assert start is not None
            for decision in session.incomplete_decisions():
                session.record_outcome(decision.id, "found again")
            if "a" not in [task.subject for task in session.tasks]:
                session.tasks.add("a")
                self.tell("task")
            with session.turn() as turn:
                self.tell("turn")
                session.messages.append({"id": "m1", "content": "hello"})
                self.tell("message m1")
                turn.add_usage(tokens=5)
                self.call(session, "pay-1", 1)
            self.tell("usage")
            with session.decide("pay the second", planned_action="pay-2"):
                self.tell("decision")
                self.call(session, "pay-2", 2)
            self.tell("outcome")
            session.scratch["at"] = "middle"
            session.checkpoint("middle")
            self.tell("checkpoint")
            session.work.add_todo("one more")
            self.tell("todo")
            # Past both effects and everything else, then the same again.
            session.rewind(start)
            self.tell("rewound")
            session.messages.append({"id": "m1", "content": "hello"})
            self.call(session, "pay-1", 1)
            self.call(session, "mail-3", 3)
            try:
                with session.turn():
                    session.tasks.add("b", blocked_by=[session.tasks.add("c").id])
                    raise ConnectionError("lost")
            except ConnectionError:
                session.record_handling(session.errors[-1].id, "went on")
            self.tell("handled")
            session.merge_update(phase="end", tasks={})
            self.tell("phase")
        self.tell("ended")

    def run_fork(self) -> None:
        """A fork from before all effects, made while the source holds three of them."""
        mode = "fork" if self.store.thread(FORK).head is None else "continue"
        source = {"source": NAME, "at": 1} if mode == "fork" else {}
        with self.store.session(FORK, mode=mode, **source) as session:
            self.tell("forked")
            for number, key in enumerate(KEYS[:5], 1):
                self.call(session, key, number)
                session.messages.append({"id": key, "content": "done"})
            session.receive({"id": "last", "content": "thanks"})
            self.tell("received")
            self.call(session, "mail-6", 6)
        self.tell("fork ended")

    def call(self, session: AgentSession, key: str, amount: int) -> None:
        result = session.call(key, self.world.do, key, amount, verify=self.world.has)
        assert result == {"key": key, "amount": amount}
        self.tell(f"effect {key}")


def run_and_die(path: Path, world: World, moment: int | None, acks: int) -> None:
    """The whole life of a child: never returns."""
    code = 1
    try:
        store, backend = open_store(path, moment)
        world.killing = backend
        Script(store, world, lambda text: os.write(acks, f"{text}\n".encode())).run()
        if moment is None:
            os.write(acks, " ".join(map(str, backend.moments)).encode())
        code = 0
    except BaseException:
        traceback.print_exc(file=sys.stderr)
    finally:
        os._exit(code)


def run_child(path: Path, world: World, moment: int | None) -> tuple[bool, list[str]]:
    """Run the script in a process of its own; whether it was killed, and what it had acknowledged."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        run_and_die(path, world, moment, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read().decode().splitlines()
    _, status = os.waitpid(pid, 0)
    killed = os.WIFSIGNALED(status)
    assert killed or os.waitstatus_to_exitcode(status) == 0, "the script failed by itself"
    return killed, told


def check(store: Store, world: World, told: list[str]) -> list[str]:
    """Whatever the moment of its death: what was acknowledged is there, and the ledger tells the truth.

    How each effect stands.
    """
    acknowledged = set(told)
    done_in_world = world.counts()
    assert all(count == 1 for count in done_in_world.values()), done_in_world
    if "began" not in acknowledged and store.thread(NAME).head is None:
        assert not done_in_world
        return []
    records = store.session_records(NAME)
    forked = store.session_records(FORK) if store.thread(FORK).head is not None else records
    states = []
    for key in KEYS:
        effect = forked.effect(key)
        state = "not done" if effect is None else effect.state
        states.append(state)
        if f"effect {key}" in acknowledged:
            assert state == "done", (key, state)
        # Done and not done are certain; whatever is not is in doubt, and reported as such.
        if state == "done":
            assert key in done_in_world
        elif state == "not done":
            assert key not in done_in_world
        else:
            assert state == "in_doubt"
            assert key in [effect.key for effect in forked.open_effects()]
    if "received" in acknowledged:
        assert [message["id"] for message in forked.thread.messages][-1] == "last"
    last = records.last_run
    if "began" in acknowledged:
        assert last is not None
        assert last.status == ("completed" if last.ended_us else "crashed")
        assert records.turns >= ("turn" in acknowledged)
        assert records.usage.tokens % 5 == 0
        assert records.usage.tokens >= 5 * ("usage" in acknowledged)
    thread = records.thread
    if "phase" in acknowledged:
        assert thread.state["phase"] == "end"
        assert [message["id"] for message in thread.messages] == ["m1"]
    elif "todo" not in acknowledged:
        _check_before_rewind(records, acknowledged)
    if "handled" in acknowledged:
        assert [error.handled for error in records.errors(1)] == ["went on"]
    return states


def _check_before_rewind(records: everthread.SessionRecords, acknowledged: set[str]) -> None:
    thread = records.thread
    if "task" in acknowledged:
        assert [task.subject for task in records.tasks.all()] == ["a"]
    if "message m1" in acknowledged:
        assert [message["id"] for message in thread.messages] == ["m1"]
    if "outcome" in acknowledged:
        assert records.open_decisions() == []
        assert records.decisions()[0].outcome == "done"
    elif "decision" in acknowledged and records.open_decisions():
        assert records.open_decisions()[0].planned_action == "pay-2"
    if "checkpoint" in acknowledged:
        assert [point.label for point in records.checkpoints()] == ["middle"]
