"""What a save costs the file store: system calls are counted, not seconds. And who is told of it."""

from __future__ import annotations

import fcntl
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread.stores.files import views

#: Whatever of the system a file store may ever call.
CALLS = (
    "open close fstat stat lstat lseek pread pwrite read write fdatasync fsync replace rename link unlink "
    "listdir scandir mkdir rmdir ftruncate"
).split()


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    found: Counter[str] = Counter()

    def watch(module: Any, name: str) -> None:
        real = getattr(module, name)

        def counting(*args: Any, **options: Any) -> Any:
            found[name] += 1
            return real(*args, **options)

        monkeypatch.setattr(module, name, counting)

    for name in CALLS:
        watch(os, name)
    watch(fcntl, "flock")
    # A view is written after a save now and then, by the clock: here never, so that counts are exact.
    monkeypatch.setattr(views, "PAUSE_S", 3600.0)
    return found


def test_a_save_is_one_write_and_one_sync(tmp_path: Path, counted: Counter[str]) -> None:
    with everthread.open(f"file://{tmp_path}/store") as store:
        thread = store.thread("t")
        for number in range(3):
            thread.state["n"] = number
            thread.messages.append({"id": f"m{number}", "content": "Grüße", "score": 0.5})
            thread.commit()
        counted.clear()
        thread.state["n"] = 17
        thread.messages.append({"id": "new", "content": "…"})
        thread.commit(label="a label", metadata={"run": "r1"})
        # One write and one sync; the rest makes sure that the files are those that were read.
        assert counted == {"flock": 2, "fstat": 2, "stat": 2, "pread": 1, "pwrite": 1, "fdatasync": 1}


def test_whoever_waits_in_this_process_is_told_at_once(tmp_path: Path) -> None:
    with everthread.open(f"file://{tmp_path}/store", durability="process") as store:
        thread = store.thread("t")
        backend = store.core.backend
        # Nobody looks: who is woken is woken by the commit.
        backend.signals._probe = None
        woken: list[int] = []
        thread.state["n"] = 0
        thread.commit()
        line = backend.find("", "t").line.id
        with backend.signals.listening(line, lambda: woken.append(thread.head.seq)):
            for number in range(1, 5):
                thread.state["n"] = number
                thread.commit()
        assert len(woken) == 4
