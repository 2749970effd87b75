"""B: state as an engineering discipline (the rows that the core itself answers for)."""

from __future__ import annotations

import datetime
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pydantic
import pytest

import everthread
from everthread import ConflictError, Store, ValidationError, verifiers
from everthread.threads.runtime import Runtime
from tests.servers.colours import Url


def test_B1_memory_and_durable_have_the_same_api(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/b1.db"
    for where, survives in (("memory:", False), (url, True)):
        with everthread.open(where) as store:
            thread = store.thread("bot")
            thread.state["phase"] = "reconcile"
            thread.messages.append({"role": "user", "content": "hello"})
            thread.commit()
        with everthread.open(where) as store:
            again = store.thread("bot")
            assert (again.head is not None) is survives
            assert again.state.plain() == ({"phase": "reconcile"} if survives else {})


def test_B4_event_log(store: Store) -> None:
    events = store.events("tasks")
    created = events.append("task_created", {"id": 1}, agent="planner")
    events.append("task_created", {"id": 2}, agent="planner")
    done = events.append("task_done", {"id": 1}, agent="worker")
    assert (created.seq, created.type, created.agent) == (1, "task_created", "planner")
    assert created.data == {"id": 1}
    assert [event.data["id"] for event in events.replay(type="task_created")] == [1, 2]
    assert [event.seq for event in events.replay(since=created.at, until=done.at)] == [1, 2, 3]
    assert list(events.replay(until=created.at - datetime.timedelta(days=1))) == []
    assert [event.seq for event in events.replay(agent="worker")] == [3]

    def open_tasks(state: dict[int, bool], event: everthread.Event) -> dict[int, bool]:
        return {**state, event.data["id"]: event.type != "task_done"}

    assert events.project(open_tasks) == {1: False, 2: True}
    read: list[int] = []

    def noted(state: dict[int, bool], event: everthread.Event) -> dict[int, bool]:
        read.append(event.seq)
        return open_tasks(state, event)

    assert events.projection("open", noted, version=1).state == {1: False, 2: True}
    events.append("task_done", {"id": 2})
    assert events.projection("open", noted, version=1).state == {1: False, 2: False}
    assert read == [1, 2, 3, 4], "the saved position"
    assert events.projection("open", noted, version=2).state == {1: False, 2: False}
    assert read == [1, 2, 3, 4, 1, 2, 3, 4]

    consumer = events.consumer("mailer")
    consumer.commit(consumer.poll(limit=2)[-1])
    assert [event.seq for event in store.events("tasks").consumer("mailer").poll()] == [3, 4]


def test_B4_many_writers_no_conflicts(store: Store) -> None:
    problems: list[BaseException] = []

    def write(agent: str) -> None:
        try:
            for number in range(20):
                store.events("shared").append("said", {"n": number}, agent=agent)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=write, args=(f"agent {number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert [event.seq for event in store.events("shared")] == list(range(1, 161))
    for number in range(8):
        mine = store.events("shared").replay(agent=f"agent {number}")
        assert [event.data["n"] for event in mine] == list(range(20))


def test_B6_readers_go_on_while_another_process_writes(tmp_path: Path) -> None:
    path = tmp_path / "b6.db"
    url = f"sqlite:///{path}"
    with everthread.open(url) as store:
        thread = store.thread("t")
        thread.state["n"] = 0
        thread.commit()
        program = (
            "import everthread, sys\n"
            f"t = everthread.open({url!r}).thread('t')\n"
            "for i in range(300):\n"
            "    t.state['n'] = i\n"
            "    t.messages.append({'i': i})\n"
            "    t.commit()\n"
        )
        child = subprocess.Popen([sys.executable, "-c", program])
        seen = set()
        while child.poll() is None:
            handle = store.thread("t")
            # A reader sees whole versions only: the counter and the log always agree.
            n, length = handle.state["n"], len(handle.messages)
            assert length in (0, n + 1)
            seen.add(n)
        assert child.returncode == 0
        assert store.thread("t").state["n"] == 299
        assert len(seen) > 1


def test_B6_wal_foreign_keys_and_queries_by_several_criteria(tmp_path: Path) -> None:
    import apsw

    with everthread.open(f"sqlite:///{tmp_path}/b6.db") as store:
        for name, run, kind in (("a-1", "r1", "bot"), ("a-2", "r1", "tool"), ("b-1", "r1", "bot")):
            thread = store.thread(name)
            thread.state["x"] = 1
            thread.commit(metadata={"run": run, "kind": kind})
        found = store.threads(prefix="a-", metadata={"run": "r1", "kind": "bot"})
        assert [info.name for info in found] == ["a-1"]
        # The newest value counts, also before anything was folded.
        thread = store.thread("a-1")
        thread.commit(metadata={"run": "r2"})
        assert [t.name for t in store.threads(metadata={"run": "r1", "kind": "bot"})] == ["b-1"]
        assert [t.name for t in store.threads(metadata={"run": "r2", "kind": "bot"})] == ["a-1"]
        # Filters are values: what looks like SQL matches nothing and breaks nothing.
        assert list(store.threads(metadata={"run' OR 1=1 --": "x"})) == []
        connection = apsw.Connection(f"{tmp_path}/b6.db")
        assert connection.pragma("journal_mode") == "wal"
        connection.close()
        with store.core.backend._reading() as db:  # type: ignore[attr-defined]
            assert db.pragma("foreign_keys") == 1


class Invoice(pydantic.BaseModel):
    total: int
    lines: list[str] = []


def test_B10_a_violation_names_the_path_and_commits_nothing(store: Store) -> None:
    schema = {
        "type": "object",
        "properties": {"todos": {"type": "array", "items": {"properties": {"n": {"type": "integer"}}}}},
    }
    for name, rule, good, bad, path in (
        ("json", schema, {"todos": [{"n": 1}]}, {"todos": [{"n": 1}, {"n": "two"}]}, "state.todos[1].n"),
        ("model", Invoice, {"total": 3}, {"total": "many"}, "state.total"),
    ):
        thread = store.thread(name, schema=rule)
        thread.state.update(good)
        first = thread.commit()
        thread.state.update(bad)
        with pytest.raises(ValidationError) as caught:
            thread.commit()
        assert caught.value.path == path
        assert path in str(caught.value)
        assert store.thread(name).head == first
        thread.discard()
        assert thread.state.plain() == good


def test_B10_unknown_fields_survive_a_round_trip(store: Store) -> None:
    thread = store.thread("tolerant", schema=Invoice)
    thread.state.update({"total": 1, "added_by_a_newer_version": {"deep": [1, 2]}})
    thread.commit()
    other = store.thread("tolerant")
    other.state["total"] = 2
    other.commit()
    assert store.thread("tolerant").state["added_by_a_newer_version"].plain() == {"deep": [1, 2]}


def test_B10_new_event_types(store: Store) -> None:
    """Old code reads what newer code wrote, and newer code what older wrote."""
    events = store.events("tasks")
    events.append("created", {"id": 1})
    events.append("sentiment_measured", {"id": 1, "score": 0.5})
    events.append("created", {"id": 2, "priority": "high", "added later": {"x": [1]}})

    def old(state: dict[int, str], event: everthread.Event) -> dict[int, str]:
        return {**state, event.data["id"]: "open"} if event.type == "created" else state

    assert events.project(old) == {1: "open", 2: "open"}
    assert [event.data for event in events][2] == {"id": 2, "priority": "high", "added later": {"x": [1]}}
    copied = store.events("copy")
    copied.extend(list(events))
    assert [(e.type, e.data) for e in copied] == [(e.type, e.data) for e in events]

    def with_priority(data: dict[str, object]) -> dict[str, object]:
        return {"priority": "medium", **data}

    new = store.events("tasks", upcast={"created": with_priority})
    assert [event.data["priority"] for event in new.replay(type="created")] == ["medium", "high"]


def test_B11_resume_says_what_still_holds(store: Store, tmp_path: Path) -> None:
    """Every built-in verifier, before and after the world has changed behind the agent's back."""
    git = ["git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    commit = [*git, "commit", "--quiet", "--allow-empty", "--no-gpg-sign", "-m", "x"]
    subprocess.run([*git, "init", "--quiet", "--initial-branch=main"], check=True)
    subprocess.run(commit, check=True)
    file = tmp_path / "rates.csv"
    file.write_text("EUR,1.00")
    server = socket.create_server(("127.0.0.1", 0))
    answering = threading.Thread(target=_answer, args=(server, 2))
    answering.start()
    sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    url = f"http://127.0.0.1:{server.getsockname()[1]}/"
    with store.session("bot") as session:
        known = {
            "file": verifiers.file_hash(file),
            "branch": verifiers.git_branch(tmp_path),
            "commit": verifiers.git_commit(tmp_path),
            "process": verifiers.process_alive(sleeper.pid),
            "command": verifiers.command(["test", "-s", str(file)]),
            "server": verifiers.http_status(url),
        }
        for key, verify in known.items():
            item = session.work.set_context(key, "a value", verify=verify)
            assert item.updated_at is not None
        session.work.set_context("nothing verifies it", 7)
    # Stored by name and arguments: plain data, no code.
    stored = store.thread("bot").state["context"].plain()
    assert {stored[key]["verify"]["name"] for key in known} == {
        *("file_hash", "git_branch", "git_commit", "process_alive", "command", "http_status")
    }
    before = store.resume("bot", allow_commands=True)
    assert {fact.key for fact in before.fresh} == set(known)
    assert [fact.key for fact in before.unverifiable] == ["nothing verifies it"]

    answering.join()
    server.close()
    subprocess.run(commit, check=True)
    subprocess.run([*git, "switch", "--quiet", "-c", "other"], check=True)
    sleeper.communicate()
    file.write_text("")
    after = store.resume("bot", allow_commands=True, max_age_s=0)
    assert {fact.key for fact in after.contradicted} == set(known)
    assert [fact.key for fact in after.stale] == ["nothing verifies it"]
    assert all(fact.reason for fact in after.facts)
    # Whoever reads decides whether stored commands may run.
    assert [f.key for f in store.resume("bot", max_age_s=0).unverifiable] == ["command"]


def _answer(server: socket.socket, times: int) -> None:
    for _ in range(times):
        connection, _ = server.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")


def test_B11_callbacks_are_stored_by_name_and_may_fail(store: Store) -> None:
    verifiers.register("b11 at most", lambda value, limit: value <= limit)

    def broken(value: object) -> bool:
        raise RuntimeError("the database is down")

    with store.session("bot") as session:
        session.work.set_context("n", 3, verify=verifiers.by_name("b11 at most", limit=5))
        session.work.set_context("m", 7, verify=verifiers.by_name("b11 at most", limit=5))
        session.work.set_context("k", 1, verify=broken)
    found = {fact.key: (fact.status.value, fact.reason) for fact in store.resume("bot").facts}
    assert [found[key][0] for key in "nmk"] == ["fresh", "contradicted", "unverifiable"]
    assert found["k"][1] == "RuntimeError: the database is down"


BOOT = """
import os, signal, sys, everthread
store = everthread.open(sys.argv[1])
with store.session("bot", agent="weaver") as s:
    s.work.set_intention("close March")
    s.work.add_constraint("Never pay more than 500 EUR without asking")
    for n in range(200):
        s.work.add_todo(f"check account {n}", priority="low")
    todo = s.work.add_todo("reconcile March", priority="critical")
    s.work.start_todo(todo.id)
    s.work.add_open_loop("the auditor has not answered")
    s.decide("use FIFO", rationale="auditor asked", planned_action="recompute", rejected=["LIFO"])
    s.messages.append({"role": "user", "content": "go on until Friday"})
    s.call("pay-7", lambda: os.kill(os.getpid(), signal.SIGKILL))
"""


def test_B13_one_call_yields_what_a_new_run_needs(url: Url) -> None:
    killed = subprocess.run([sys.executable, "-c", BOOT, url], capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    with url.open() as store, store.session("bot") as session:
        for budget in (400, 1_500, 4_000):
            text = session.briefing(max_tokens=budget)
            assert text.tokens <= budget
            # The essentials come first, whatever the budget.
            for essential in (
                "run 1 crashed",
                "close March",
                "pay-7",
                "Continue: reconcile March",
                "Never pay more than 500 EUR without asking",
            ):
                assert essential in text[:2_000], (budget, essential)
        assert "why: auditor asked; rejected: LIFO" in text
        assert "the auditor has not answered" in text
        assert "user: go on until Friday" in text
        assert str(store.briefing("bot", max_tokens=4_000))


def test_B4_a_projection_as_it_was_at_a_time_or_an_event(store: Store) -> None:
    tasks = store.events("tasks")
    made = [tasks.append("added", {"n": n}) for n in range(5)]

    def total(state: dict[str, int], event: everthread.Event) -> dict[str, int]:
        return {"n": state.get("n", 0) + event.data["n"]}

    assert tasks.project(total) == {"n": 10}
    assert tasks.project(total, until=made[2]) == {"n": 3}
    assert tasks.project(total, until=4) == {"n": 6}
    assert tasks.project(total, until=0) == {}
    assert tasks.project(total, until=made[-1].at) == {"n": 10}
    assert tasks.project(total, until=made[0].at - datetime.timedelta(seconds=1)) == {}
    with pytest.raises(everthread.InvalidValueError):
        tasks.project(total, until="yesterday")  # type: ignore[arg-type]


def test_B4_a_watch_gives_each_event_once_in_order_as_it_comes(store: Store) -> None:
    tasks = store.events("tasks")
    tasks.append("made", {"n": 0})
    assert [event.seq for event in tasks.watch(timeout=0)] == []
    assert [event.seq for event in tasks.watch(after=0, timeout=0)] == [1]
    watching, errors = threading.Event(), []

    def write() -> None:
        try:
            watching.wait(60)
            for n in range(1, 21):
                store.events("tasks").append("made" if n % 2 else "other", {"n": n})
        except BaseException as error:
            errors.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    found = []
    for event in tasks.watch(after=0, type="made", timeout=60):
        watching.set()
        found.append(event.data["n"])
        if len(found) == 11:
            break
    writer.join()
    assert errors == []
    assert found == [0, *range(1, 21, 2)]
    # What was passed over isn't given to whoever goes on from there.
    assert [event.seq for event in tasks.watch(after=20, timeout=0)] == [21]


def test_B12_read_modify_write_loses_nothing(store: Store) -> None:
    errors: list[BaseException] = []

    def work(worker: int) -> None:
        try:
            thread = store.thread("counter")
            for i in range(25):

                def add(draft: everthread.threads.sync.update.Draft, i: int = i) -> None:
                    draft["n"] = draft.get("n", 0) + 1
                    draft.messages.append({"id": f"{worker}-{i}"})

                thread.update(add)
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=work, args=(w,)) for w in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert errors == []
    thread = store.thread("counter")
    assert thread.state["n"] == 100
    assert len({m["id"] for m in thread.messages}) == len(thread.messages) == 100


def test_B12_the_loser_keeps_its_changes_and_may_rebase(store: Store) -> None:
    first, second = store.thread("t"), store.thread("t")
    first.state["a"] = 1
    first.commit()
    second.refresh()
    first.state["b"] = 2
    theirs = first.commit()
    second.state["c"] = 3
    second.messages.append({"id": "m", "content": "mine"})
    with pytest.raises(ConflictError) as caught:
        second.commit()
    assert caught.value.actual == theirs
    assert second.state["c"] == 3
    second.rebase()
    second.commit()
    assert store.thread("t").state.plain() == {"a": 1, "b": 2, "c": 3}
    assert [m["id"] for m in store.thread("t").messages] == ["m"]


DECIDING = """
import os, signal, sys, everthread
store = everthread.open(sys.argv[1])
session = store.session("b2")
why = {"rationale": "auditor asked", "planned_action": "recompute"}
session.decide("use FIFO", **why, rejected=["LIFO", "average"])
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_B2_a_decision_is_durable_before_it_is_acted_upon(url: Url) -> None:
    killed = subprocess.run([sys.executable, "-c", DECIDING, url])
    assert killed.returncode == -signal.SIGKILL
    with url.open() as store, store.session("b2") as session:
        (open_,) = session.incomplete_decisions()
        assert (open_.decision, open_.rationale, open_.planned_action) == (
            "use FIFO",
            "auditor asked",
            "recompute",
        )
        assert open_.rejected == ("LIFO", "average")
        assert open_.run == session.found.last_run.id  # type: ignore[union-attr]
        settled = session.record_outcome(open_.id, "recomputed 12 invoices")
        assert settled.outcome == "recomputed 12 invoices"
        assert session.incomplete_decisions() == []


def test_B2_outcomes(store: Store) -> None:
    with store.session("b2") as session:
        pending = session.decide("a", planned_action="x")
        assert not pending.complete
        session.record_outcome(pending.id, "done")
        session.record_outcome(pending.id, "done")
        with pytest.raises(everthread.InvalidStateError, match="recorded already: 'done'"):
            session.record_outcome(pending.id, "something else")
        with pytest.raises(everthread.InvalidStateError, match="no decision"):
            session.record_outcome("unknown", "done")
        with session.decide("b") as decision:
            assert [one.id for one in session.incomplete_decisions()] == [decision.id]
        assert decision.outcome == "done"
        with session.decide("c") as decision:
            decision.record({"rows": 3})
        assert decision.outcome == {"rows": 3}
        with pytest.raises(ZeroDivisionError), session.decide("d") as decision:
            _ = 1 / 0
        assert decision.outcome == "failed: ZeroDivisionError"
        assert session.incomplete_decisions() == []
        newest = store.session_records("b2").decisions()
        assert [(one.decision, one.failed) for one in newest] == [
            ("d", True),
            ("c", False),
            ("b", False),
            ("a", False),
        ]
        # A decision is part of the line of thought: a rewind takes it back.
        before = session.thread.head
        assert before is not None
        session.decide("e")
        session.rewind(before)
        assert session.incomplete_decisions() == []


FAILING = """
import os, signal, sys, everthread
store = everthread.open(sys.argv[1])
session = store.session("b3", agent="bot")
with session.turn() as turn:
    session.messages.append({"role": "user", "content": "go"})
    session.messages.append({"role": "assistant", "tool_calls": [{"id": "c1"}]})
    try:
        with turn.tool("fetch", 1):
            raise ConnectionError("no route")
    except ConnectionError:
        session.record_handling(session.errors[-1].id, "asked the cache")
    turn.messages.append({"role": "tool", "tool_call_id": "c1", "content": "cached"})
    session.decide("go on with the cache")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_B3_the_history_of_a_session_survives_a_kill(url: Url) -> None:
    assert subprocess.run([sys.executable, "-c", FAILING, url]).returncode == -signal.SIGKILL
    with url.open() as store:
        assert store.session_records("b3").status == "crashed"
        with store.session("b3") as session:
            assert [message["role"] for message in session.messages] == ["user", "assistant", "tool"]
            (error,) = session.errors
            assert (error.kind, error.message, error.where) == ("ConnectionError", "no route", "tool fetch")
            assert (error.handled, error.turn) == ("asked the cache", 1)
            assert [one.decision for one in session.incomplete_decisions()] == ["go on with the cache"]
            session.record_error("a second one", where="check", handled="ignored")
            assert [one.handled for one in session.errors] == ["asked the cache", "ignored"]
        runs = store.session_records("b3").runs()
        assert [(run.number, run.status, run.reason) for run in runs] == [
            (2, "completed", "completed"),
            (1, "crashed", None),
        ]


def test_B3_an_error_that_leaves_is_noted_once(store: Store) -> None:
    def fail() -> None:
        raise ValueError("no")

    session = store.session("b3", user_id="u1")
    with pytest.raises(ValueError, match="no"), session, session.turn():
        session.call("k", fail)
    assert (session.status, session.exit_reason) == ("failed", "failed")
    records = store.session_records("b3")
    (error,) = records.errors()
    assert (error.kind, error.where, error.personal) == ("ValueError", "effect k", True)
    last = records.last_run
    assert last is not None
    assert (last.status, last.error) == ("failed", "ValueError")


def test_B1_stateless_session_bound_and_persistent_use(tmp_path: Path) -> None:
    """One program, three lifetimes: that of the process, of a session, and for ever."""
    now = [1_800_000_000 * 1_000_000]

    def program(url: str, ttl: float | None) -> tuple[list[str], list[str], list[str]]:
        seen = []
        for pause_s in (0, 60, 7200):
            now[0] += pause_s * 1_000_000
            with everthread.open(url, runtime=Runtime(now_us=lambda: now[0])) as store:
                thread = store.thread("customer-17", ttl=ttl)
                thread.messages.append({"content": f"after {pause_s} s"})
                thread.commit()
                seen.append([message["content"] for message in thread.messages])
        return seen[0], seen[1], seen[2]

    first, second, third = "after 0 s", "after 60 s", "after 7200 s"
    assert program("memory:", None) == ([first], [second], [third])
    assert program(f"sqlite:///{tmp_path}/session.db", 3600) == ([first], [first, second], [third])
    assert program(f"file://{tmp_path}/session", 3600) == ([first], [first, second], [third])
    everything = ([first], [first, second], [first, second, third])
    assert program(f"sqlite:///{tmp_path}/ever.db", None) == everything


def _example(name: str, *arguments: str, folder: Path) -> str:
    """Run an example as a program of its own; what it printed."""
    script = Path(__file__).parents[2] / "examples" / name
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(everthread.__file__).parents[1]),
        "TMPDIR": str(folder),
    }
    command = [sys.executable, str(script), *arguments]
    found = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


@pytest.mark.parametrize(
    ("scheme", "steps", "kills"),
    [("sqlite", 5, 5), ("file", 5, 5), ("sqlite", 500, 20), ("file", 500, 20), ("sqlite", 50_000, 2)],
)
def test_B14_a_pipeline_killed_after_any_step_goes_on_with_the_next(
    scheme: str, steps: int, kills: int, tmp_path: Path
) -> None:
    url = f"file://{tmp_path}/pipeline" if scheme == "file" else f"sqlite:///{tmp_path}/pipeline.db"
    durability = "full" if steps == 5 else "process"
    options = ["--steps", str(steps), "--kills", str(kills), "--store", url, "--durability", durability]
    told = _example("pipeline.py", *options, folder=tmp_path)
    assert told == f"{steps} steps, killed {kills} times, every step done once\n"


def test_B15_customer_service(tmp_path: Path) -> None:
    told = _example("customer_service.py", folder=tmp_path)
    for line in (
        "in clear on disk: False",
        "not yet: dispute 4711 about t-2",
        "still there: ann@example.org",
        "forgotten: True signed: True left behind: 0",
        "profile: None conversation: {'Erased()'}",
        "the desk goes on: 22 tickets",
        "welcome: Ann, who came back",
    ):
        assert line in told.splitlines(), told


@pytest.mark.parametrize("colour", ["", "async"])
@pytest.mark.parametrize("server", ["postgres_url", "valkey_lasting_url"])
def test_B1_the_same_program_on_a_server(server: str, colour: str, request: pytest.FixtureRequest) -> None:
    """As above: a session's lifetime, renewed by every write, and for ever; a new store object each time."""
    url = Url(request.getfixturevalue(server), colour)
    now = [1_800_000_000 * 1_000_000]

    def program(name: str, ttl: float | None) -> list[list[str]]:
        seen = []
        for pause_s in (0, 3000, 3000, 7200):
            now[0] += pause_s * 1_000_000
            with url.open(runtime=Runtime(now_us=lambda: now[0])) as store:
                thread = store.thread(name, ttl=ttl)
                thread.messages.append({"content": pause_s})
                thread.commit()
                seen.append([message["content"] for message in thread.messages])
        return seen

    assert program("session", 3600) == [[0], [0, 3000], [0, 3000, 3000], [7200]]
    assert program("ever", None) == [[0], [0, 3000], [0, 3000, 3000], [0, 3000, 3000, 7200]]


_WORKER = """
import sys, time
import everthread
url, worker = sys.argv[1:]
with everthread.open(url) as store:
    group = store.events("tasks").group("workers", redeliver_after=0.3)
    done = store.events("done")
    until = time.monotonic() + 60
    while len(done) < 60 and time.monotonic() < until:
        for event in group.poll(worker, limit=3):
            if worker == "dies" and event.seq > 5:
                # What it has taken is left undone.
                sys.exit(0)
            done.append("done", {"seq": event.seq}, agent=worker)
            group.ack(event)
"""


@pytest.mark.parametrize("colour", ["", "async"])
def test_B7_shared_state_lifetimes_groups_and_waking(valkey_lasting_url: str, colour: str) -> None:
    """Several processes on one Valkey server: a stream shared by a group of workers, one of which dies; a
    thread that all of them change; lifetimes that every write renews; a watcher that is woken."""
    url = Url(valkey_lasting_url, colour)
    with url.open() as store:
        store.events("tasks").extend([("task", {"n": number}) for number in range(60)])
        names = ["a", "b", "dies", "c"]
        workers = [subprocess.Popen([sys.executable, "-c", _WORKER, url, name]) for name in names]
        assert [worker.wait(90) for worker in workers] == [0, 0, 0, 0]
        done = list(store.events("done").replay())
        assert {event.data["seq"] for event in done} == set(range(1, 61)), "each at least once"
        group = store.events("tasks").group("workers")
        assert group.pending() == []
        assert group.position() == 60
        # A process that counts on the same thread, and one that watches it.
        thread = store.thread("shared")
        thread.state["n"] = 0
        thread.commit()
        watching = store.thread("shared").watch(timeout=60)
        counters = [subprocess.Popen([sys.executable, "-c", _COUNTING, url]) for _ in range(3)]
        assert [next(watching).seq for _ in range(60)] == list(range(2, 62))
        assert [counter.wait(60) for counter in counters] == [0, 0, 0]
        assert store.thread("shared").state["n"] == 60
    clock = [1_800_000_000 * 1_000_000]
    with url.open(runtime=Runtime(now_us=lambda: clock[0])) as store:
        for _ in range(3):
            thread = store.thread("session", ttl=60)
            thread.state.increment("writes")
            thread.commit()
            clock[0] += 50 * 1_000_000
        assert store.thread("session").state["writes"] == 3, "renewed by every write"
        fork = store.thread("session").fork("kept")
        clock[0] += 11 * 1_000_000
        assert store.thread("session").head is None
        assert fork.state["writes"] == 3
        assert store.gc().expired == ("session",)
        assert store.thread("kept").state["writes"] == 3, "shared history lives until no fork reaches it"


_COUNTING = """
import sys
import everthread
with everthread.open(sys.argv[1]) as store:
    for _ in range(20):
        store.thread("shared").update(lambda draft: draft.state.increment("n"))
"""
