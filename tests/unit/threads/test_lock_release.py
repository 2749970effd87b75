"""A lock that is released while its caller is cancelled or interrupted is
free for other processes at once."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import everthread
from tests.unit.threads.tripwire import cancelled_when_suspended, run

PACKAGE = str(Path(everthread.__file__).parent)
#: More suspensions or lines than any of these has.
MANY = 10_000

LOCK_ALL = """
import sys, everthread
with everthread.open(sys.argv[1]) as store:
    for name in [info.name for info in store.threads()]:
        try:
            with store.thread(name).lock(timeout_s=0) as draft:
                draft["second"] = True
        except everthread.StoreBusyError as error:
            print(error)
"""


def busy_elsewhere(url: str) -> list[str]:
    """Return what another process is told that takes the lock of each thread, without waiting."""
    done = subprocess.run([sys.executable, "-c", LOCK_ALL, url], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


async def _change(thread: everthread.AsyncThread) -> None:
    async with thread.lock(timeout_s=60) as draft:
        draft["first"] = True


def test_a_task_that_is_cancelled_whenever_it_waits_leaves_the_lock_free(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"

    async def main() -> None:
        async with everthread.open_async(url, durability="process") as store:
            # The last one is not cut: it has fewer suspensions.
            for nth in range(1, MANY):
                thread = await store.thread(f"cut at {nth}")
                await thread.commit(label="first")
                if not await cancelled_when_suspended(nth, lambda thread=thread: _change(thread)):  # type: ignore[misc]
                    break
            assert nth > 5
            assert await asyncio.to_thread(busy_elsewhere, url) == []

    run(main())


def test_ctrl_c_at_any_line_of_the_release_leaves_the_lock_free(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    with everthread.open(url, durability="process") as store:
        for nth in range(1, MANY):
            thread = store.thread(f"cut at {nth}")
            thread.commit(label="first")
            if not _interrupted(nth, thread):
                break
        assert nth > 20
        assert busy_elsewhere(url) == []


def _interrupted(nth: int, thread: everthread.Thread) -> bool:
    """Change the thread under its lock, with Ctrl-C at the nth line that runs once the block is left; return
    False if that has fewer lines. Python may always interrupt before the first line of ``__exit__``."""
    left: int | None = None

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line" and left is None and frame.f_code.co_name == "__exit__":
            left = nth
        elif event == "line" and left is not None:
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    try:
        with thread.lock(timeout_s=60) as draft:
            draft["first"] = True
            sys.settrace(trace)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False
