"""Parents and children killed with SIGKILL: no message twice, no call without a result, no child lost."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread.subagents import Subagent, Task, subagents_of
from tests.crash.session_script import open_store
from tests.crash.subagent_script import CALLS, PARENT, Script, picture, require_linked, run_killed
from tests.crash.workload import memory_directory

#: Of all moments so many shares are made; odd, so that each dies before operations and after them.
SHARES = 13
STORES = ("store.db", "folder")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system without a disk, if there is one: many stores are made here."""
    with tempfile.TemporaryDirectory(dir=memory_directory() or tmp_path) as place:
        yield Path(place)


@pytest.mark.parametrize(("share", "name"), list(enumerate(STORES)))
def test_killed_at_store_operations(place: Path, share: int, name: str) -> None:
    """At a thirteenth of them; ``python -m tests.torture.subagents`` takes every one."""
    assert kill_at_moments(place, share, SHARES, name) > 20


def kill_at_moments(place: Path, share: int, shares: int, name: str) -> int:
    """Kill the script at each moment of a share, and let another one go on; how many that were."""
    killed, moments = run_killed(place / f"unharmed-{name}", None)
    assert not killed
    store, _ = open_store(place / f"unharmed-{name}")
    expected = picture(store)
    require_linked(store)
    assert len(expected[PARENT]["logs"]["messages"]) == 1 + 2 * len(CALLS)
    store.close()
    for moment in moments[share::shares]:
        path = place / f"{moment}-{name}"
        killed, _ = run_killed(path, moment)
        assert killed, f"moment {moment}"
        store, _ = open_store(path)
        try:
            Script(store).run()
            assert picture(store) == expected, f"killed at moment {moment}"
            require_linked(store)
        finally:
            store.close()
            shutil.rmtree(path, ignore_errors=True)
            path.unlink(missing_ok=True)
    return len(moments[share::shares])


CHILD = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import everthread
url, thread, point, trap = sys.argv[2:]

def reach(here):
    if here == point and os.path.exists(trap):
        os.unlink(trap)
        os.kill(os.getpid(), signal.SIGKILL)

with everthread.open(url, keyring="memory:") as store, store.session(thread) as child:
    reach("begin")
    child.messages.append({"id": "prompt", "role": "user", "content": "go"})
    reach("prompted")
    with child.thread.step("model") as step:
        if not step.done:
            step.messages.append({"role": "assistant", "content": "done"})
            reach("asked")
    reach("answered")
"""


@pytest.mark.parametrize("point", ["begin", "prompted", "asked", "answered"])
def test_a_child_in_a_process_of_its_own_is_killed(tmp_path: Path, point: str) -> None:
    url, source = f"sqlite:///{tmp_path}/s.db", str(Path(everthread.__file__).parents[1])
    trap = tmp_path / "trap"
    trap.touch()

    def work(task: Task) -> Any:
        command = [sys.executable, "-I", "-c", CHILD, source, url, task.thread, point, str(trap)]
        subprocess.run(command, check=True)
        return "ok"

    helper = Subagent("helper", work)
    with everthread.open(url, keyring="memory:") as store:
        with store.session(PARENT) as parent:
            # That it was killed is an answer, and the thread stays as it was left.
            died = helper.call(parent, "c1", "go")
            assert "CalledProcessError" in died.text
            again = Subagent("helper", work, thread="continue").call(parent, "c2", "go on")
        assert (again.value, again.thread) == ("ok", died.thread)
        contents = [message["content"] for message in store.thread("boss/helper/c1").messages]
        assert contents == ["go", "done"]
        (child,) = subagents_of(store.thread(PARENT))
        assert (child.status, child.version) == ("completed", store.thread(child.thread).head.id)
