"""The effect ledger: at most once per key, and never a wrong answer."""

from __future__ import annotations

import asyncio
import functools
import os
import random
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import (
    AgentSession,
    Done,
    EffectMismatchError,
    InDoubtError,
    NotFoundError,
    Personal,
    ResultNotStoredError,
    StorageWriteError,
    Store,
    UsageError,
)
from everthread.sessions.effects import fingerprint
from tests.unit.sessions.faulty import faulty_store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with everthread.open(f"sqlite:///{tmp_path}/e.db", durability="process", keyring="memory:") as store:
        yield store
        assert store.verify().ok


class Counter:
    """An effect that counts itself."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self.calls


# ── results ──────────────────────────────────────────────────────────────────────────────────


def test_results_of_every_kind_come_back(store: Store) -> None:
    values = [None, 0, "", {"a": [1, (2, 3)]}, {1: 2}, b"x", {"s": {1, 2}}]
    with store.session("s") as session:
        for number, value in enumerate(values):
            assert session.call(f"k{number}", lambda value=value: value) == value
    with store.session("s") as session:
        for number, value in enumerate(values):
            assert session.call(f"k{number}", pytest.fail) == value


def test_a_personal_result_stays_sealed(store: Store, tmp_path: Path) -> None:
    with store.session("s") as session:
        session.call("k", lambda: {"who": Personal("u1", "ann@example.org")})
    with store.session("s") as session:
        assert session.call("k", pytest.fail)["who"].value == "ann@example.org"
    assert not any(b"ann@" in file.read_bytes() for file in tmp_path.iterdir())


def test_a_result_that_cant_be_stored_is_done_all_the_same(store: Store) -> None:
    handle = object()
    effect = Counter()

    def run() -> Any:
        effect()
        return handle

    with store.session("s") as session:
        with pytest.raises(ResultNotStoredError, match="recorded as done") as first:
            session.call("k", run)
        assert first.value.result is handle
        assert session.in_doubt() == []
        with pytest.raises(ResultNotStoredError):
            session.call("k", run)
    with store.session("s") as session, pytest.raises(ResultNotStoredError) as later:
        session.call("k", run)
    assert later.value.result is None
    assert later.value.key == "k"
    assert effect.calls == 1


def test_a_result_that_is_too_large_is_done_all_the_same(tmp_path: Path) -> None:
    limits = everthread.Limits(payload_bytes_max=10_000)
    with everthread.open(f"sqlite:///{tmp_path}/e.db", limits=limits) as store, store.session("s") as session:
        with pytest.raises(ResultNotStoredError):
            session.call("k", lambda: "x" * 20_000)
        assert session.effects()[0].state == "done"
        assert session.call("after", lambda: 1) == 1


# ── failures ─────────────────────────────────────────────────────────────────────────────────


def test_what_raised_is_in_doubt(store: Store) -> None:
    effect = Counter()

    def fail() -> Any:
        effect()
        raise OSError("half-way")

    with store.session("s") as session:
        with pytest.raises(OSError, match="half-way"):
            session.call("k", fail)
        with pytest.raises(InDoubtError, match="raised OSError in this run") as doubt:
            session.call("k", fail)
        assert doubt.value.since is not None
        assert [one.error for one in session.in_doubt()] == ["OSError"]
        # False: it has not happened, so it runs again; the attempts are counted.
        with pytest.raises(OSError, match="half-way"):
            session.call("k", fail, verify=lambda: False)
        assert session.in_doubt()[0].attempt == 2
        assert session.call("k", fail, verify=lambda: True) is None
        assert session.call("k", fail) is None
    assert effect.calls == 2


def test_what_is_declared_harmless_may_run_again(store: Store) -> None:
    effect = Counter()

    def refused() -> Any:
        if effect() < 3:
            raise ConnectionRefusedError

        return "done"

    with store.session("s") as session:
        for _ in range(2):
            with pytest.raises(ConnectionRefusedError):
                session.call("k", refused, retry_on=ConnectionRefusedError)
            assert session.in_doubt() == []
        assert session.call("k", refused, retry_on=(ConnectionRefusedError, KeyError)) == "done"
        assert [one.state for one in session.effects()] == ["done", "not_done", "not_done"]


def test_an_interrupt_leaves_it_in_doubt(store: Store) -> None:
    def interrupted() -> Any:
        raise KeyboardInterrupt

    with store.session("s") as session:
        with pytest.raises(KeyboardInterrupt):
            session.call("k", interrupted)
        assert [one.key for one in session.in_doubt()] == ["k"]


def test_answers_of_verify(store: Store) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise OSError

    asked: list[Any] = []

    def verify(*args: Any, **kwargs: Any) -> Any:
        asked.append((args, kwargs))
        return Done({"found": True})

    with store.session("s") as session:
        for key in ("a", "b", "c"):
            with pytest.raises(OSError):  # noqa: PT011
                session.call(key, fail, 1, x=2)
        with pytest.raises(UsageError, match="True, Done"):
            session.call("a", fail, 1, x=2, verify=lambda *_, **__: "yes")
        assert session.call("a", fail, 1, x=2, verify=verify) == {"found": True}
        assert asked == [((1,), {"x": 2})]
        assert session.call("a", fail, 1, x=2) == {"found": True}
        # A person may settle it, too.
        session.settle("b", Done(7))
        assert session.call("b", fail, 1, x=2) == 7
        session.settle("c", False)
        with pytest.raises(OSError):  # noqa: PT011
            session.call("c", fail, 1, x=2)
        with pytest.raises(NotFoundError, match="isn't in doubt"):
            session.settle("a", True)
        with pytest.raises(UsageError):
            session.settle("c", "yes")  # type: ignore[arg-type]
        assert [effect.settled_by for effect in session.effects()] == ["settle", "settle", "verify"]


@pytest.mark.parametrize("landing", [False, True])
def test_a_write_that_fails_never_leads_to_a_second_effect(tmp_path: Path, landing: bool) -> None:
    """Every write of two calls fails once: before it was done, or after."""
    failed = 0
    for number in range(20):
        store, faulty = faulty_store(tmp_path / f"{number}.db")
        world = {"a": Counter(), "b": Counter()}
        with store, suppress(StorageWriteError), store.session("s") as session:
            faulty.fail(number, landing=landing)
            for key in ("a", "b", "a", "b"):
                with suppress(StorageWriteError):
                    assert session.call(key, world[key]) == 1
            failed += faulty.left is None
            assert session.in_doubt() == []
            assert [world[key].calls for key in world] == [1, 1]
        with store_again(tmp_path / f"{number}.db") as again, again.session("s") as session:
            assert [session.call(key, world[key]) for key in world] == [1, 1]
            assert [world[key].calls for key in world] == [1, 1]
    assert failed == 4


def store_again(path: Path) -> Store:
    return everthread.open(f"sqlite:///{path}", keyring="memory:")


def test_a_result_that_could_not_be_recorded_is_recorded_at_the_end(tmp_path: Path) -> None:
    store, faulty = faulty_store(tmp_path / "e.db")
    effect = Counter()
    with store:
        with store.session("s") as session:
            # The intent is written, the result isn't.
            faulty.fail(1, landing=False, only=frozenset({"create", "append"}))
            with pytest.raises(StorageWriteError) as failed:
                session.call("k", effect)
            assert "has happened" in failed.value.__notes__[0]
        with store.session("s") as session:
            assert session.call("k", effect) == 1


# ── which call ───────────────────────────────────────────────────────────────────────────────


def test_a_key_stands_for_one_call(store: Store) -> None:
    def pay(*args: Any, **kwargs: Any) -> str:
        return "paid"

    def refund(*args: Any, **kwargs: Any) -> str:
        return "refunded"

    with store.session("s") as session:
        session.call("k", pay, 1, to="x")
        for args, kwargs in (((2,), {"to": "x"}), ((1,), {"to": "y"}), ((1,), {}), ((), {"to": "x"})):
            with pytest.raises(EffectMismatchError, match="other arguments"):
                session.call("k", pay, *args, **kwargs)
        with pytest.raises(EffectMismatchError, match="of pay"):
            session.call("k", refund, 1, to="x")
    with store.session("s") as session:
        # Between two runs the code may have changed: the arguments say which call it is.
        assert session.call("k", refund, 1, to="x") == "paid"
        with pytest.raises(EffectMismatchError):
            session.call("k", pay, 2, to="x")


def test_fingerprints() -> None:
    class Client:
        pass

    def prints(*args: Any, **kwargs: Any) -> str:
        return fingerprint(print, args, kwargs)

    assert prints({"a": 1, "b": 2}) == prints({"b": 2, "a": 1})
    assert prints({1, 2, "x"}) == prints({"x", 2, 1})
    assert prints(1) != prints("1") != prints(1.0)
    assert prints([1, 2]) != prints([2, 1])
    assert prints(Client()) == prints(Client())
    assert prints(Personal("u", "a")) == prints(Personal("v", "b"))
    assert prints([{"deep": Personal("u", "a")}]) == prints([{"deep": Personal("u", "b")}])
    assert prints(a=1) != prints(b=1)
    assert fingerprint(functools.partial(print, 1), (2,), {}) != fingerprint(
        functools.partial(print, 2), (2,), {}
    )
    cyclic: list[Any] = []
    cyclic += [cyclic, cyclic]
    assert prints(cyclic) == prints(cyclic)
    assert prints(list(range(200_000)))


def test_hostile_calls(store: Store) -> None:
    with store.session("s") as session:
        for key in ("", "x" * 2000, "a\0b", 7):
            with pytest.raises(everthread.InvalidNameError):
                session.call(key, print)  # type: ignore[arg-type]
        for wrong in ({"verify": 1}, {"retry_on": "OSError"}, {"retry_on": (1,)}):
            with pytest.raises(UsageError):
                session.call("k", print, **wrong)
        with pytest.raises(UsageError):
            session.call("k", "print")  # type: ignore[arg-type]
        assert session.call("'; drop table x; --", lambda: 1) == 1
        assert session.call("ключ 🔑", lambda: 2) == 2
        assert session.in_doubt() == []


# ── at once ──────────────────────────────────────────────────────────────────────────────────


def test_parallel_tools(store: Store) -> None:
    effects = {f"k{number}": Counter() for number in range(24)}
    together = threading.Barrier(8)

    def work(session: AgentSession, part: int) -> None:
        together.wait()
        for number, (key, effect) in enumerate(effects.items()):
            if number % 8 == part or number % 5 == 0:
                assert session.call(key, effect) == 1
                session.messages.append({"key": key, "part": part})
                session.tasks.add(f"{part} {key}")

    with store.session("s") as session:
        errors: list[BaseException] = []

        def guarded(part: int) -> None:
            try:
                work(session, part)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=guarded, args=(part,)) for part in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert {effect.calls for effect in effects.values()} == {1}
        assert len(session.effects(100)) == 24
        assert len(session.tasks) == len(session.messages) == len(session.state["tasks"])


def test_the_same_key_at_once_runs_once(store: Store) -> None:
    running, go = threading.Event(), threading.Event()
    effect = Counter()

    def slow() -> Any:
        running.set()
        assert go.wait(30)
        return effect()

    results: list[Any] = []
    with store.session("s") as session:
        first = threading.Thread(target=lambda: results.append(session.call("k", slow)))
        first.start()
        assert running.wait(30)
        # Not in doubt while it runs; a reader elsewhere sees it in flight.
        assert session.in_doubt() == []
        assert [one.state for one in store.session_records("s").open_effects()] == ["in_flight"]
        second = threading.Thread(target=lambda: results.append(session.call("k", slow)))
        second.start()
        go.set()
        first.join()
        second.join()
    assert results == [1, 1]


def test_an_effect_that_calls_itself_is_refused(store: Store) -> None:
    with store.session("s") as session:
        with pytest.raises(UsageError, match="from within itself"):
            session.call("k", lambda: session.call("k", print))
        assert session.call("outer", lambda: session.call("inner", lambda: 5)) == 5


def test_async_calls(store: Store) -> None:
    effect = Counter()

    async def slow(number: int) -> int:
        effect()
        await asyncio.sleep(0.01)
        return number

    async def fail() -> None:
        raise OSError

    async def found() -> Done:
        return Done("found")

    async def main() -> None:
        async with _async(store) as opened, opened.session("s") as session:
            assert await asyncio.gather(*(session.call(f"k{n % 3}", slow, n % 3) for n in range(9))) == [
                n % 3 for n in range(9)
            ]
            assert effect.calls == 3
            assert await session.call("plain", lambda: 7) == 7
            with pytest.raises(OSError):  # noqa: PT011
                await session.call("f", fail)
            with pytest.raises(InDoubtError):
                await session.call("f", fail)
            assert await session.call("f", fail, verify=found) == "found"
            # Cancelled in the middle: nobody knows.
            task = asyncio.create_task(session.call("never", asyncio.sleep, 60))
            await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert [one.key for one in await session.in_doubt()] == ["never"]

    asyncio.run(main())


def _async(store: Store) -> Any:
    return everthread.open_async(store.url, durability="process", keyring="memory:")


def test_a_blocking_call_of_an_async_function_runs_nothing_of_it(store: Store) -> None:
    effect = Counter()

    async def slow(number: int) -> int:
        effect()
        return number

    with store.session("s") as session:
        with pytest.raises(UsageError, match="open_async"):
            session.call("k9", slow, 9)
        assert session.in_doubt() == []
        assert effect.calls == 0
        assert session.call("k9", lambda number: number, 9) == 9


def test_a_waiter_that_is_cancelled_leaves_the_others_alone(store: Store) -> None:
    async def main() -> None:
        release = asyncio.Event()

        async def slow() -> str:
            await release.wait()
            return "done"

        async with _async(store) as opened, opened.session("s") as session:
            tasks = [asyncio.create_task(session.call("k", slow)) for _ in range(3)]
            await asyncio.sleep(0.01)
            tasks[1].cancel()
            await asyncio.sleep(0.01)
            release.set()
            assert await tasks[0] == await tasks[2] == "done"

    asyncio.run(main())


def test_forks_while_effects_run_know_exactly_what_was_done(store: Store) -> None:
    """Done before a fork begins: the fork knows it. Begun after the fork is there: it doesn't."""
    done: list[int] = []
    stop = threading.Event()

    with store.session("s") as session:

        def work() -> None:
            for number in range(10_000):
                if stop.is_set():
                    return
                session.call(f"k{number}", str, number)
                done.append(number)

        worker = threading.Thread(target=work)
        worker.start()
        try:
            seen = []
            for number in range(15):
                while len(done) < 3 * number:
                    stop.wait(0.001)
                before = len(done)
                fork = store.thread("s").fork(f"f{number}", at=1)
                # What is under way when the fork returns may have begun before or after it.
                seen.append((fork.name, before, len(done) + 1))
        finally:
            stop.set()
            worker.join()
    for name, before, after in seen:
        records = store.session_records(name)
        known = {effect.key for effect in records.effects(10_000)}
        known |= {effect.key for effect in records.open_effects()}
        assert {f"k{number}" for number in range(before)} <= known
        assert not known & {f"k{number}" for number in range(after, after + 100)}


def test_workers_that_die_all_the_time(tmp_path: Path, seed: int) -> None:
    """One after the other goes on and is killed at random: no effect twice, none lost."""
    url, world = f"sqlite:///{tmp_path}/e.db", tmp_path / "world"
    world.touch()
    rng = random.Random(seed)
    keys = [f"k{number}" for number in range(6)]
    for _ in range(60):
        moment = rng.randint(10, 2_500)
        pid = os.fork()
        if pid == 0:
            _work_and_die(url, world, keys, moment)
        _, status = os.waitpid(pid, 0)
        if os.waitstatus_to_exitcode(status) == 0:
            break
    else:
        pytest.fail("never came to an end")
    assert sorted(world.read_text().split()) == sorted(keys)
    with everthread.open(url) as store:
        assert store.session_records("s").open_effects() == []
        assert store.verify().ok


def _work_and_die(url: str, world: Path, keys: list[str], moment: int) -> None:
    """Never returns. Dies at a line of Python that nobody has chosen."""
    left = moment

    def count(*_: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return count

    def effect(key: str) -> str:
        fd = os.open(world, os.O_WRONLY | os.O_APPEND)
        os.write(fd, f"{key}\n".encode())
        os.close(fd)
        return key

    try:
        with everthread.open(url, durability="process") as store, store.session("s") as session:
            if session.run.number < 30:
                sys.settrace(count)
            for key in keys:
                assert session.call(
                    key, effect, key, verify=lambda key: key in world.read_text().split()
                ) in (
                    key,
                    None,
                )
            sys.settrace(None)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


# ── forks for trying things out ──────────────────────────────────────────────────────────────


def test_the_briefing_of_a_fork_that_denies_effects_says_so(store: Store) -> None:
    with store.session("s") as session:
        session.work.add_constraint("keep it short")
    store.thread("s").fork("what if", effects="deny")
    told = "calls that have effects are refused"
    assert told in store.briefing("what if", 400)
    assert told not in store.briefing("s", 400)
