"""fork(2) and SQLite: both sides keep locks of their own, and nothing acknowledged is lost.

What forks is a process of its own each time: it has no threads but those of the test.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import everthread
from everthread.stores.sqlite.turns import Turn

BEGIN = """
    import asyncio, os, sys, threading, time
    import everthread
    from everthread import Personal, StoreUnavailableError
    from everthread.stores.sqlite import forking

    folder = sys.argv[1]
    url = f"sqlite:///{folder}/store.db"

    def forked(child, parent=lambda: None):
        "Run one in a child, the other here, both told when the other is ready; fails if the child does."
        pid = os.fork()
        if pid == 0:
            try:
                child()
            except BaseException as error:
                print("child:", repr(error), file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        try:
            parent()
        finally:
            assert os.waitpid(pid, 0)[1] == 0

    def put(store, name, number):
        thread = store.thread(name)
        thread.state["n"] = number
        thread.commit()

    class Steps:
        "Who takes turns with whom: each waits for the other's last step."
        def __init__(self):
            self.pipes = [os.pipe(), os.pipe()]
        def done(self, who):
            os.write(self.pipes[who][1], b"x")
        def wait(self, who):
            assert os.read(self.pipes[who][0], 1)
"""


def run(script: str, folder: Path, *args: str) -> str:
    text = textwrap.dedent(BEGIN) + textwrap.dedent(script)
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", text, str(folder), *args],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def stored(folder: Path, *names: str) -> list[int]:
    with everthread.open(f"sqlite:///{folder}/store.db") as store:
        assert store.verify()
        return [store.thread(name).state["n"] for name in names]


@pytest.mark.parametrize("which", ["inherited", "own"])
@pytest.mark.parametrize("closes", ["early", "late"])
def test_a_parent_that_closes_takes_nothing_from_its_child(which: str, closes: str, tmp_path: Path) -> None:
    """It may do so before the child has touched the store, or afterwards."""
    run(
        """
        store, steps = everthread.open(url), Steps()
        put(store, "a", 0)
        def child():
            if sys.argv[3] == "early":
                steps.wait(0)
            ours = store if sys.argv[2] == "inherited" else everthread.open(url)
            put(ours, "a", 1)
            steps.done(1)
            if sys.argv[3] == "late":
                steps.wait(0)
            for number in range(2, 10):
                put(ours, "a", number)
        def parent():
            if sys.argv[3] == "late":
                steps.wait(1)
            store.close()
            steps.done(0)
        forked(child, parent)
        """,
        tmp_path,
        which,
        closes,
    )
    assert stored(tmp_path, "a") == [9]


def test_a_child_that_closes_takes_nothing_from_its_parent(tmp_path: Path) -> None:
    run(
        """
        store = everthread.open(url)
        put(store, "a", 0)
        for number in range(1, 6):
            def child():
                put(store, "b", number)
                store.close()
            forked(child)
            put(store, "a", number)
        os._exit(0)
        """,
        tmp_path,
    )
    assert stored(tmp_path, "a", "b") == [5, 5]


def test_forks_while_other_threads_commit(tmp_path: Path) -> None:
    """Blocking and async: a fork waits for the commit that is under way, and the child can commit."""
    run(
        """
        store = everthread.open(url)
        going, counts = True, {}
        def work(name):
            while going:
                counts[name] = counts.get(name, 0) + 1
                put(store, name, counts[name])
        async def work_async():
            async with everthread.open_async(url) as other:
                thread = await other.thread("c")
                while going:
                    counts["c"] = counts.get("c", 0) + 1
                    thread.state["n"] = counts["c"]
                    await thread.commit()
        threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
        threads.append(threading.Thread(target=lambda: asyncio.run(work_async())))
        for thread in threads:
            thread.start()
        while len(counts) < 3:
            time.sleep(0.001)
        for number in range(25):
            forked(lambda: put(store, "child", number))
        going = False
        for thread in threads:
            thread.join()
        assert min(counts.values()) > 5, counts
        for name, count in counts.items():
            assert store.thread(name).state["n"] == count
        """,
        tmp_path,
    )
    assert stored(tmp_path, "child") == [24]


def test_what_is_in_use_is_refused_in_the_child(tmp_path: Path) -> None:
    """By another thread, for longer than a fork waits; or by the thread that forks. The parent goes on."""
    assert (
        run(
            """
            forking._WAIT_S = 0.05
            store = everthread.open(url, keyring=folder + "/keys")
            put(store, "a", 1)
            connections = store.core.backend._connections
            def child():
                for again in (lambda: put(store, "a", 2), lambda: everthread.open(url)):
                    try:
                        again()
                    except StoreUnavailableError as error:
                        assert "forked" in str(error), error
                    else:
                        raise AssertionError("used, without a lock")
                print("refused", flush=True)
            reader = connections.reader(apart=True)
            forked(child)
            connections.done(reader)
            begun, go = threading.Event(), threading.Event()
            def write():
                with connections:
                    begun.set()
                    go.wait(30)
            thread = threading.Thread(target=write)
            thread.start()
            begun.wait(30)
            forked(child)
            go.set()
            thread.join()
            with connections:
                forked(child)
            forked(lambda: put(store, "a", 3))
            put(store, "b", 4)
            """,
            tmp_path,
        ).split()
        == ["refused"] * 3
    )
    assert stored(tmp_path, "a", "b") == [3, 4]


def test_a_child_keeps_no_turn_of_a_parent_that_was_killed(tmp_path: Path) -> None:
    """It does something else, and has never used the store."""
    script = """
        import signal
        store = everthread.open(url)
        put(store, "a", 1)
        store.core.backend._connections._turn.take()
        store.core.backend._connections._turn.give()
        if os.fork() == 0:
            sys.stdin.read()
            os._exit(0)
        store.core.backend._connections._turn.take()
        print("mine", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    text = textwrap.dedent(BEGIN) + textwrap.dedent(script)
    with subprocess.Popen(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", text, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"mine\n"
        parent.wait(30)
        turn = Turn(str(tmp_path / "store.db"), 200)
        turn.take()
        turn.close()


def test_search_and_watch_live_through_it(tmp_path: Path) -> None:
    run(
        """
        store = everthread.open(url)
        thread = store.thread("a")
        def say(ours, text, person):
            thread = ours.thread("a")
            thread.messages.append({"role": "user", "content": text})
            thread.state[person] = text
            thread.commit()
        say(store, "about the weather", "ann")
        assert list(store.search("weather"))
        seen = []
        def look():
            for version in store.thread("a").watch(after=1, timeout=20):
                seen.append(version.seq)
                if len(seen) == 3:
                    return
        watching = threading.Thread(target=look)
        watching.start()
        def child():
            assert store.thread("a").state["ann"] == "about the weather"
            say(store, "about the weather again", "bob")
            assert len(list(store.search("weather"))) == 2
        forked(child)
        assert store.thread("a").state["bob"] == "about the weather again"
        say(store, "and once more the weather", "cy")
        assert len(list(store.search("weather"))) == 3
        say(store, "the end", "ann")
        watching.join(20)
        assert seen == [2, 3, 4], seen
        assert store.verify()
        """,
        tmp_path,
    )


def test_a_child_keeps_no_lock_of_a_view(tmp_path: Path) -> None:
    """It was forked, by another thread, while the view of a working state was being written."""
    run(
        """
        import fcntl
        from everthread.working import home
        reading, writing = os.pipe()
        with home._locked(folder):
            pid = os.fork()
            if pid == 0:
                os.close(writing)
                os.read(reading, 1)
                os._exit(0)
        handle = os.open(folder, os.O_RDONLY)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(writing)
        os.waitpid(pid, 0)
        """,
        tmp_path,
    )


def test_a_fork_that_nobody_told_of_is_refused_in_the_child(tmp_path: Path) -> None:
    """C code may fork, and tell the interpreter afterwards only. Opened before, a store isn't used there."""
    run(
        """
        import ctypes
        store = everthread.open(url, keyring=f"sqlite:///{folder}/keys.db")
        put(store, "a", 1)
        pid = ctypes.PyDLL(None).fork()
        if pid == 0:
            status = 1
            try:
                ctypes.pythonapi.PyOS_AfterFork_Child()
                try:
                    put(store, "a", 2)
                except StoreUnavailableError as error:
                    assert "forked" in str(error), error
                    with everthread.open(f"sqlite:///{folder}/other.db") as other:
                        put(other, "a", 3)
                        forked(lambda: put(other, "b", 4))
                        assert other.thread("b").state["n"] == 4
                    status = 0
            except BaseException as error:
                print("child:", repr(error), file=sys.stderr, flush=True)
            os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0
        put(store, "a", 5)
        """,
        tmp_path,
    )
    assert stored(tmp_path, "a") == [5]
