"""Live, killed and stopped sessions in real processes: who may write, and who may not any more."""

from __future__ import annotations

import mmap
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

import everthread
from everthread import SessionBusyError, SessionFencedError, Store
from everthread.threads.runtime import Runtime

#: Obeys its orders, one per line, and answers each with what came of it.
AGENT = """
import sys, everthread
store = everthread.open(sys.argv[1], durability="process", runtime=runtime)
try:
    session = store.session("bot", agent=sys.argv[2], lease_ttl=float(sys.argv[3]))
    print("began", flush=True)
except everthread.SessionBusyError as busy:
    print("busy", busy.holder.agent, flush=True)
    sys.exit()
step = None
def effect():
    print("in effect", flush=True)
    sys.stdin.readline()
    return "result"
for order in sys.stdin:
    try:
        match order.split():
            case ["message"]: session.messages.append({"by": sys.argv[2]})
            case ["state"]: session.state["by"] = sys.argv[2]; session.save()
            case ["todo"]: session.work.add_todo("by " + sys.argv[2])
            case ["task"]: session.tasks.add("by " + sys.argv[2])
            case ["decide"]: session.decide("by " + sys.argv[2])
            case ["usage"]: session.add_usage(tokens=1)
            case ["turn"]: session.turn().__enter__()
            case ["effect"]: session.call("effect", effect)
            case ["beat"]: session.heartbeat()
            case ["rewind"]: session.rewind(1)
            case ["update"]: session.thread.update(lambda draft: draft.update(by=sys.argv[2]))
            case ["step"]:
                with session.thread.step("s") as step: step.state["by"] = sys.argv[2]
            case ["enter"]:
                step = session.thread.step("t"); step.__enter__(); step.state["by"] = sys.argv[2]
            case ["leave"]: step.__exit__(None, None, None)
            case ["refresh"]: session.thread.refresh()
            case ["close"]: session.close(); print("closed", flush=True); sys.exit()
        print("ok", flush=True)
    except everthread.EverthreadError as error:
        print(type(error).__name__, flush=True)
"""


#: How far all clocks are ahead, in microseconds; shared with the processes that are forked off.
_AHEAD_US = memoryview(mmap.mmap(-1, 8)).cast("q")
_TTL_S = 300.0


def _now_us() -> int:
    return time.time_ns() // 1000 + _AHEAD_US[0]


class Agent:
    """A process of its own, forked off so that it needn't load anything first."""

    def __init__(self, url: str, name: str) -> None:
        orders, self._orders = os.pipe()
        reading, answers = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._orders)
            os.close(reading)
            _obey(orders, answers, [url, name, str(_TTL_S)])
        os.close(orders)
        os.close(answers)
        self._answers = os.fdopen(reading)
        self.first = self.answer()

    def answer(self) -> str:
        return self._answers.readline().strip()

    def send(self, text: str) -> None:
        os.write(self._orders, f"{text}\n".encode())

    def order(self, text: str) -> str:
        self.send(text)
        return self.answer()

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)
        if number == signal.SIGSTOP:
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def end(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._orders)
        self._answers.close()


def _obey(orders: int, answers: int, arguments: list[str]) -> NoReturn:
    try:
        sys.argv[1:] = arguments
        sys.stdin, sys.stdout = os.fdopen(orders), os.fdopen(answers, "w")
        exec(AGENT, {"__name__": "agent", "runtime": Runtime(now_us=_now_us)})
    except SystemExit:
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


class Stage:
    def __init__(self, path: Path) -> None:
        self.url = f"sqlite:///{path}/bot.db"
        self.agents: list[Agent] = []
        self.store: Store = everthread.open(self.url, durability="process", runtime=Runtime(now_us=_now_us))

    def agent(self, name: str) -> Agent:
        agent = Agent(self.url, name)
        self.agents.append(agent)
        return agent

    def let_expire(self) -> None:
        assert self.store.session_records("bot").holder_alive
        _AHEAD_US[0] += int((_TTL_S + 1) * 1_000_000)
        assert not self.store.session_records("bot").holder_alive


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    _AHEAD_US[0] = 0
    stage = Stage(tmp_path)
    yield stage
    for agent in stage.agents:
        agent.end()
    assert stage.store.verify().ok
    stage.store.close()


def test_the_second_of_two_live_sessions_is_refused(stage: Stage) -> None:
    first = stage.agent("first")
    assert first.first == "began"
    assert stage.agent("second").first == "busy first"
    assert first.order("message") == "ok"
    first.send("close")
    assert first.answer() == "closed"
    assert stage.agent("third").first == "began"


def test_a_killed_session_is_taken_over_at_once(stage: Stage) -> None:
    first = stage.agent("first")
    assert first.order("message") == "ok"
    first.signal(signal.SIGKILL)
    os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)
    second = stage.agent("second")
    assert second.first == "began"
    assert second.order("message") == "ok"
    assert [message["by"] for message in stage.store.thread("bot").messages] == ["first", "second"]
    assert [run.status for run in stage.store.session_records("bot").runs()] == ["running", "crashed"]


ORDERS = "message state todo task decide usage turn beat rewind update step refresh effect".split()


@pytest.mark.parametrize("order", ORDERS)
def test_a_stopped_session_is_fenced_off_at_its_first_write(stage: Stage, order: str) -> None:
    first = stage.agent("first")
    assert first.order("message") == "ok"
    first.signal(signal.SIGSTOP)
    stage.let_expire()
    with stage.store.session("bot", agent="second") as second:
        found = second.found.last_run
        assert found is not None
        assert (found.status, found.agent) == ("crashed", "first")
        head, ledger = second.thread.head, second._journal.head
        first.signal(signal.SIGCONT)
        assert first.order(order) == "SessionFencedError"
        # It stays fenced off, whatever it tries next, and nothing of it has arrived.
        assert first.order("message") == "SessionFencedError"
        assert first.order("usage") == "SessionFencedError"
        second.thread.refresh()
        second._journal.refresh()
        assert (second.thread.head, second._journal.head) == (head, ledger)
        assert [message["by"] for message in second.messages] == ["first"]
        second.messages.append({"by": "second"})
        first.send("close")
        assert first.answer() == "SessionFencedError"
    assert stage.store.session_records("bot").status == "completed"


def test_a_step_that_was_entered_before_the_takeover_is_fenced_off(stage: Stage) -> None:
    first = stage.agent("first")
    assert first.order("enter") == "ok"
    first.signal(signal.SIGSTOP)
    stage.let_expire()
    with stage.store.session("bot") as second:
        first.signal(signal.SIGCONT)
        assert first.order("leave") == "SessionFencedError"
        assert "by" not in stage.store.thread("bot").state
        assert second.status == "running"


def test_an_effect_under_way_during_the_takeover_stays_in_doubt(stage: Stage) -> None:
    first = stage.agent("first")
    assert first.order("effect") == "in effect"
    first.signal(signal.SIGSTOP)
    assert [one.state for one in stage.store.session_records("bot").open_effects()] == ["in_flight"]
    stage.let_expire()
    with stage.store.session("bot") as second:
        assert [one.key for one in second.in_doubt()] == ["effect"]
        first.signal(signal.SIGCONT)
        # Its function goes on, in the other process: only what it writes can be refused.
        assert first.order("go on") == "SessionFencedError"
        assert [one.key for one in second.in_doubt()] == ["effect"]
        with pytest.raises(everthread.InDoubtError):
            second.call("effect", print)
        second.settle("effect", everthread.Done("seen in the world"))
        assert second.call("effect", print) == "seen in the world"


def test_an_expired_lease_that_nobody_took_is_still_its_holders(stage: Stage) -> None:
    first = stage.agent("first")
    stage.let_expire()
    assert first.order("message") == "ok"
    # Writing renewed it.
    assert stage.store.session_records("bot").status == "running"
    stage.let_expire()
    assert stage.store.session_records("bot").status == "crashed"
    assert first.order("beat") == "ok"
    assert stage.store.session_records("bot").status == "running"


def test_a_heartbeat_is_not_a_version(stage: Stage) -> None:
    first = stage.agent("first")
    before = stage.store.session_records("bot")
    for _ in range(3):
        assert first.order("beat") == "ok"
    after = stage.store.session_records("bot")
    assert after.version == before.version
    assert after.head == before.head
    assert (after.heartbeat_us or 0) > (before.heartbeat_us or 0)
    with pytest.raises(SessionBusyError):
        stage.store.session("bot")


def test_the_fenced_one_is_told_by_whom(tmp_path: Path) -> None:
    """Two sessions of one process, the first with a lease that has run out."""
    with everthread.open(f"sqlite:///{tmp_path}/bot.db") as store:
        first = store.session("bot", agent="first", lease_ttl=0.001)
        time.sleep(0.01)
        with store.session("bot", agent="second") as second:
            assert second.fence > first.fence
            with pytest.raises(SessionFencedError) as fenced:
                first.messages.append({})
            assert fenced.value.holder.agent == "second"
            assert fenced.value.attempt < fenced.value.newest
            with pytest.raises(SessionFencedError):
                first.close()
            assert (first.status, first.exit_reason) == ("failed", "failed")
            second.messages.append({})
