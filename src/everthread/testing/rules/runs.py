"""Runs that their caller names: several processes are one run, and a newer run takes over."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from everthread.errors import (
    EffectMismatchError,
    EffectsDeniedError,
    FencedError,
    InDoubtError,
    SessionBusyError,
    SessionFencedError,
    UsageError,
)
from everthread.sessions.effects import Done
from everthread.store import Store
from everthread.testing.rules.expectations import OpenStore, contents, message, needs, raises, seqs
from everthread.threads.sync.thread import Thread
from everthread.versions import RunToken


def _two(open_store: OpenStore) -> tuple[Store, Store]:
    """The same place, opened twice where that is possible."""
    store = open_store()
    return store, open_store() if store.capabilities.durable else store


def _do(thread: Thread, key: str, run: Any, **options: Any) -> Any:
    with thread.step(key, run=run, **options) as step:
        if not step.done:
            step.messages.append(message(key))
            step.result = key
    return step.result


class RunRules:
    def test_all_who_present_a_name_are_one_run(self, open_store: OpenStore) -> None:
        store, other = _two(open_store)
        first, second = store.thread("a"), other.thread("a")
        for number in range(4):
            assert _do(first, f"x{number}", "wf") == f"x{number}"
            assert _do(second, f"y{number}", RunToken("wf")) == f"y{number}"
            assert _do(second, f"x{number}", "wf") == f"x{number}"
        assert len(store.thread("a").messages) == 8
        assert store.session_records("a").status == "running"
        runs = store.session_records("a").runs()
        assert [run.id for run in runs] == ["wf"], "one run, however many took part"

    def test_a_newer_run_takes_over_with_one_version(self, open_store: OpenStore) -> None:
        store, other = _two(open_store)
        old, new = store.thread("a"), other.thread("a")
        _do(old, "k", "old")
        before = len(seqs(store.thread("a")))
        with raises(FencedError), old.step("late", run="old") as step:
            step.state["by"] = "old"
            for number in range(5):
                _do(new, f"n{number}", "new")
        made = list(store.thread("a").history(None))[:-before]
        assert len(made) == 6, "five steps, and one fence for all of them"
        assert contents(store.thread("a"))[0] == {}
        for again in range(3):
            with raises(FencedError):
                _do(old, f"again {again}", "old")
        assert len(seqs(store.thread("a"))) == before + 6, "who was fenced off writes nothing"

    def test_order_is_by_when_the_work_was_handed_out(self, open_store: OpenStore) -> None:
        store, other = _two(open_store)
        _do(store.thread("a"), "k", RunToken("b", since=2000.0))
        with raises(FencedError):
            _do(other.thread("a"), "early", RunToken("a", since=1000.0))
        with raises(FencedError):
            _do(other.thread("a"), "same", RunToken("z", since=2000.0))
        _do(store.thread("a"), "k2", RunToken("b", since=1.0))
        _do(other.thread("a"), "k3", RunToken("c", since=2000.5))
        with raises(FencedError):
            _do(store.thread("a"), "k4", RunToken("b", since=9000.0))
        _do(other.thread("a"), "k5", RunToken("c", since=2000.5))

    def test_no_rewind_gives_a_run_back_what_it_lost(self, open_store: OpenStore) -> None:
        store, other = _two(open_store)
        thread = store.thread("a")
        _do(thread, "k", "old")
        start = thread.head
        assert start is not None
        _do(other.thread("a"), "n", "new")
        thread.refresh()
        thread.rewind(start)
        with raises(FencedError):
            _do(thread, "again", "old")
        _do(other.thread("a"), "n", "new")
        assert len(store.thread("a").messages) == 2

    def test_a_run_of_a_process_and_a_named_one_keep_apart(self, open_store: OpenStore) -> None:
        store, other = _two(open_store)
        with store.session("a") as session:
            session.messages.append(message("m"))
            with raises(SessionBusyError):
                _do(other.thread("a"), "k", "wf")
            with raises(SessionBusyError):
                other.session("a", run="wf").close()
        _do(other.thread("a"), "k", "wf")
        with raises(SessionBusyError) as busy:
            store.session("a").close()
        assert "the run 'wf'" in str(busy[0])
        with other.session("a", run="wf") as part:
            part.complete()
        with store.session("a"):
            pass
        with raises(FencedError):
            _do(other.thread("a"), "k2", "wf")

    def test_sessions_of_one_name_are_one_run(self, open_store: OpenStore) -> None:
        store, other = _two(open_store)
        with store.session("a", run="wf", agent="x") as one, other.session("a", run="wf") as two:
            assert one.run_id == two.run_id == "wf"
            assert one.fence == two.fence
            numbers = []
            for _ in range(3):
                with one.turn() as turn:
                    numbers.append(turn.number)
                    with two.turn() as inner:
                        numbers.append(inner.number)
                        one.add_usage(tokens=5)
                        inner.add_usage(tokens=3)
                one.messages.append(message(f"one {turn.number}"))
                two.messages.append(message(f"two {turn.number}"))
                one.record_error("odd", where="one")
                two.record_error("odd", where="two")
            assert numbers == [1, 2, 3, 4, 5, 6]
        records = store.session_records("a")
        assert (records.turns, dict(records.usage)) == (6, {"tokens": 24})
        assert len(records.errors()) == 6
        assert [(run.id, run.status, run.turns) for run in records.runs()] == [("wf", "running", 6)]
        assert len(store.thread("a").messages) == 6

    def test_leaving_leaves_a_run_open_and_an_end_is_for_all(self, open_store: OpenStore) -> None:
        store, other = _two(open_store)
        with raises(LookupError), store.session("a", run="wf"):
            raise LookupError("lost")
        records = store.session_records("a")
        assert records.status == "running"
        assert [error.kind for error in records.errors()] == ["LookupError"]
        left = store.session("a", run="wf")
        left.leave()
        assert store.session_records("a").status == "running"
        part = other.session("a", run="wf")
        with store.session("a", run="wf") as session:
            session.complete()
        assert store.session_records("a").status == "completed"
        with raises(SessionFencedError) as fenced:
            part.add_usage(tokens=1)
        assert "has ended" in str(fenced[0])
        with raises(SessionFencedError):
            part.close()
        with raises(UsageError), store.session("b") as own:
            own.leave()

    def test_looking_at_what_is_done_reopens_no_run(self, open_store: OpenStore) -> None:
        store, other = _two(open_store)
        _do(store.thread("a"), "k", "wf")
        with store.session("a", run="wf") as session:
            session.wait_for_input()
        assert _do(other.thread("a"), "k", "wf") == "k"
        assert store.session_records("a").status == "waiting_for_input"
        assert _do(other.thread("a"), "k2", "wf") == "k2"
        records = store.session_records("a")
        assert [(run.id, run.status) for run in records.runs()] == [("wf", "running")], "it goes on"

    def test_a_dead_process_frees_no_named_run(self, open_store: OpenStore) -> None:
        store = open_store()
        needs(store, "multi_process")

        def child() -> None:
            again = open_store()
            _do(again.thread("a"), "k", "wf")
            session = again.session("a", run="wf")
            with session.turn():
                os.kill(os.getpid(), signal.SIGKILL)

        _killed(child)
        assert store.session_records("a").status == "running"
        with raises(SessionBusyError):
            store.session("a").close()
        with store.session("a", run="wf") as session, session.turn() as turn:
            assert turn.number == 2
        assert _do(store.thread("a"), "k", "wf") == "k"

    # ── effects in steps ─────────────────────────────────────────────────────────────────────

    def test_an_effect_in_a_step_happens_once(self, open_store: OpenStore) -> None:
        store, other = _two(open_store)
        calls: list[Any] = []

        def pay(amount: int) -> int:
            calls.append(amount)
            return amount

        with raises(LookupError), store.thread("a").step("k", run="wf") as step:
            assert step.call("pay", pay, 80) == 80
            raise LookupError
        for key in ("k", "k2"):
            with other.thread("a").step(key, run="wf", attempt=2) as step:
                step.result = step.call("pay", pay, 80)
        with raises(EffectMismatchError), other.thread("a").step("k3", run="wf") as step:
            step.call("pay", pay, 81)
        with store.session("a", run="wf") as session:
            assert session.call("pay", pay, 80) == 80
        with store.thread("a").step("k4", run="newer") as step:
            assert step.call("pay", pay, 80) == 80
        assert calls == [80]
        assert [effect.key for effect in store.session_records("a").effects()] == ["pay"]

    def test_parallel_steps_make_their_effects(self, open_store: OpenStore) -> None:
        stores = [*_two(open_store)] * 2
        entered = [
            store.thread("a").step("tools", slot=slot, run="wf").__enter__()
            for slot, store in enumerate(stores)
        ]
        for slot, step in enumerate(entered):
            step.result = step.call(f"pay-{slot}", lambda slot=slot: slot)
        for step in reversed(entered):
            step.__exit__(None, None, None)
        assert [step.result for step in entered] == [0, 1, 2, 3]
        assert len(stores[0].session_records("a").effects()) == 4

    def test_an_effect_belongs_to_a_run(self, open_store: OpenStore) -> None:
        store = open_store()
        with raises(UsageError) as refused, store.thread("a").step("k") as step:
            step.call("pay", int)
        assert "run=" in str(refused[0])
        with store.session("a") as session, session.thread.step("k") as step:
            step.result = step.call("pay", lambda: 7)
        with store.session("a") as session:
            assert session.call("pay", lambda: 8) == 7
        with raises(UsageError), store.session("a") as session, session.thread.step("k2", run="wf"):
            pass

    def test_what_another_process_calls_isnt_called_nor_asked_about(self, open_store: OpenStore) -> None:
        store = open_store()
        needs(store, "multi_process")
        begun, begins = os.pipe()
        asked: list[int] = []

        def child() -> None:
            def slow() -> None:
                os.write(begins, b"!")
                signal.pause()

            with open_store().thread("a").step("k", run="wf") as step:
                step.call("pay", slow)

        def slow() -> None:
            raise AssertionError("called twice")

        with _Child(child) as other:
            assert os.read(begun, 1) == b"!"
            for slot in (None, 1):
                with raises(InDoubtError) as doubt, store.thread("a").step("k", slot=slot, run="wf") as step:
                    step.call("pay", slow, verify=lambda: asked.append(1))
                assert f"is being called by process {other.pid} on" in str(doubt[0])
            assert store.session_records("a").open_effects()[0].state == "in_flight"
            assert not asked
            # A later attempt of that step: whoever retries knows that the earlier one doesn't count.
            with raises(InDoubtError), store.thread("a").step("k", attempt=2, run="wf") as step:
                step.call("pay", slow, verify=lambda: asked.append(1))
            assert asked == [1]
        os.close(begun)
        os.close(begins)
        # It is dead now, and whether it happened has to be found out.
        assert store.session_records("a").open_effects()[0].state == "in_doubt"
        with store.thread("a").step("k", attempt=2, run="wf") as step:
            step.result = step.call("pay", slow, verify=lambda: Done("paid"))
        assert store.thread("a").step_result("k") == "paid"


class MergedEffectRules:
    """The ledger of effects, where threads are forked and merged."""

    def test_an_effect_done_on_a_fork_is_done_after_the_merge(self, open_store: OpenStore) -> None:
        store, other = _two(open_store)
        with store.session("a") as session:
            session.call("before", lambda: 0)
        fork = store.thread("a").fork("b")
        with other.session("b") as session:
            session.messages.append(message("m"))
            for number in range(3):
                session.call(f"pay-{number}", lambda number=number: number)
        with store.session("a") as session:
            # A run that is under way finds it, too.
            assert session.call("own", lambda: "own") == "own"
            fork.refresh()
            assert store.thread("a").merge(fork)
            for number in range(3):
                assert session.call(f"pay-{number}", _never) == number
        with other.thread("a").step("k", run="wf") as step:
            assert [step.call(key, _never) for key in ("before", "own", "pay-1")] == [0, "own", 1]
        assert store.thread("a").merge(fork), "nothing is brought twice"
        assert len(store.session_records("a").effects(None)) == 5
        # Effects alone make no version, and come along all the same.
        with other.session("b") as session:
            session.call("late", lambda: "late")
        fork.refresh()
        assert store.thread("a").merge(fork)
        with store.session("a", run="wf") as session:
            assert session.call("late", _never) == "late"

    def test_what_is_in_doubt_on_a_fork_is_in_doubt_after_the_merge(self, open_store: OpenStore) -> None:
        store = open_store()
        with store.session("a") as session:
            with raises(OSError):
                session.call("both", _broken)
            fork = store.thread("a").fork("b")
            session.settle("both", False)
        with store.session("b") as session:
            session.messages.append(message("m"))
            with raises(OSError):
                session.call("pay", _broken)
        fork.refresh()
        assert store.thread("a").merge(fork)
        with store.session("a") as session:
            assert [effect.key for effect in session.in_doubt()] == ["pay"], "what was settled here stays so"
            with raises(InDoubtError):
                session.call("pay", _never)
            assert session.call("pay", lambda: 7, verify=lambda: False) == 7
        assert store.thread("b").merge(store.thread("a"))
        with store.session("b") as session:
            assert session.call("pay", _never) == 7, "and back again"

    def test_different_results_of_one_effect_are_a_conflict(self, open_store: OpenStore) -> None:
        store = open_store()
        choices: list[tuple[Any, Any]] = [
            ("ours", "a"),
            ("theirs", "b"),
            (lambda conflict: f"{conflict.ours} and {conflict.theirs}", "a and b"),
        ]
        for number, (choice, result) in enumerate(choices):
            main, name = store.thread(f"main {number}"), f"fork {number}"
            main.state["n"] = 1
            main.commit()
            fork = main.fork(name)
            for thread, value in ((main, "a"), (fork, "b")):
                with store.session(thread.name) as session:
                    session.call("same", lambda: 0)
                    session.call("pay", lambda value=value: value)
                thread.refresh()
            found = main.merge(fork)
            assert not found
            assert found.version is None
            (conflict,) = found.conflicts
            assert (conflict.path, conflict.ours, conflict.theirs) == (("effects", "pay"), "a", "b")
            with store.session(main.name) as session:
                assert session.call("pay", _never) == "a", "nothing was changed"
            main.refresh()
            assert main.merge(fork, resolve=choice)
            with store.session(main.name) as session:
                assert session.call("pay", _never) == result

    def test_no_effect_is_made_in_a_fork_that_denies_them(self, open_store: OpenStore) -> None:
        store = open_store()
        with store.session("a") as session:
            session.call("before", lambda: 1)
        fork = store.thread("a").fork("what if", effects="deny")
        fork.fork("deeper")
        for name in ("what if", "deeper"):
            with store.session(name) as session:
                with raises(EffectsDeniedError) as denied:
                    session.call("pay", _never, verify=_never)
                assert denied[0].thread == name
                assert repr(name) in str(denied[0])
                assert session.call("before", _never) == 1, "what was done before is known"
            with raises(EffectsDeniedError), store.thread(name).step("k", run="wf") as step:
                step.call("pay", _never)
        fork.refresh()
        assert store.thread("a").merge(fork)
        with store.session("a") as session:
            assert session.call("pay", lambda: 2) == 2


def _never(*_: object) -> Any:
    raise AssertionError("called again")


def _broken() -> None:
    raise OSError("half-way")


class _Child:
    """A process that does something until it is killed."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work

    def __enter__(self) -> _Child:
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self._work()
            finally:
                os._exit(1)
        return self

    def __exit__(self, *_: object) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def _killed(work: Callable[[], None]) -> None:
    """Let a process do something and kill itself."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(1)
    assert os.WIFSIGNALED(os.waitpid(pid, 0)[1])
