"""An erasing process killed at every operation of the store and the keyring: the next open finishes it."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import Erased, Personal
from everthread.testing.faults import Call, wrap_every_backend, wrapped
from tests.crash.workload import memory_directory
from tests.properties.erasure import belongings, found_in

#: Calls about files by which a keyring is changed.
_KEYRING_CALLS = ("pwrite", "rename", "fsync", "ftruncate")
#: The moments are dealt out to so many shares.
SHARES = 2
KINDS = ("sqlite", "files")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=memory_directory() or tmp_path) as found:
        yield Path(found)


def _open(kind: str, folder: Path) -> everthread.Store:
    url = f"sqlite:///{folder}/store.db" if kind == "sqlite" else f"file://{folder}/store"
    return everthread.open(url, keyring=str(folder / "keys"), durability="process")


def _fill(kind: str, folder: Path) -> dict[str, bytes]:
    with _open(kind, folder) as store:
        thread = store.thread("a")
        for number in range(3):
            thread.state["ann"] = Personal("ann", f"ann {number} " * 50)
            thread.state["bob"] = Personal("bob", f"bob {number}")
            thread.messages.append({"id": f"{number}", "content": Personal(["bob", "ann"], "both")})
            thread.commit()
        store.users.set("ann", "city", "Paris")
        store.users.set("bob", "city", "Rome")
        store.rotate_keys("ann")
        thread.state["newer"] = Personal("ann", "under a second key")
        thread.commit()
        return belongings(store, "ann")


class _Steps:
    """Counts the moments of an erasure, and kills this process at one of them."""

    def __init__(self, stop_at: int) -> None:
        self.count = 0
        self._stop_at = stop_at
        self.armed = False

    def moment(self) -> None:
        if self.armed:
            if self.count == self._stop_at:
                os.kill(os.getpid(), signal.SIGKILL)
            self.count += 1

    def told(self, call: Call) -> None:
        self.moment()

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **options: Any) -> Any:
            self.moment()
            answer = call(*args, **options)
            self.moment()
            return answer

        return called


def _erase_in_child(kind: str, folder: Path, stop_at: int) -> int | None:
    return erase_in_child(lambda: _open(kind, folder), "ann", stop_at)


def erase_in_child(opened: Callable[[], everthread.Store], subject: str, stop_at: int) -> int | None:
    """How many moments an erasure had, or ``None`` if it was killed."""
    return killed_in_child(opened, lambda store: store.erase(subject, timeout_s=0.0), stop_at)


def killed_in_child(
    opened: Callable[[], everthread.Store], deed: Callable[[everthread.Store], object], stop_at: int
) -> int | None:
    """How many moments a deed had, or ``None`` if the process was killed at one of them."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            steps = _Steps(stop_at)
            with wrap_every_backend(lambda backend: wrapped(backend, steps.told)):
                store = opened()
                for name in _KEYRING_CALLS:
                    setattr(os, name, steps.around(getattr(os, name)))
                steps.armed = True
                deed(store)
                steps.armed = False
            os.write(writing, str(steps.count).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as answer:
        told = answer.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return None
    assert os.WEXITSTATUS(status) == 0, "the child failed"
    return int(told)


@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_every_other_moment(place: Path, kind: str, seed: int) -> None:
    """``python -m tests.torture.moments`` takes every one."""
    kill_at_moments(place, seed % SHARES, kind)


def kill_at_moments(place: Path, share: int, kind: str) -> int:
    """Kill an erasing process at each moment of a share; how many that were."""
    template = place / "template"
    template.mkdir()
    theirs = _fill(kind, template)
    rehearsal = place / "rehearsal"
    shutil.copytree(template, rehearsal)
    moments = _erase_in_child(kind, rehearsal, -1)
    assert moments is not None
    assert moments > 40
    finished = before = 0
    for moment in range(share, moments, SHARES):
        folder = place / str(moment)
        shutil.copytree(template, folder)
        assert _erase_in_child(kind, folder, moment) is None, f"moment {moment} of {moments}"
        try:
            finished, before = _check(kind, folder, theirs, finished, before)
        except BaseException as error:
            error.add_note(f"killed at moment {moment} of {moments}")
            raise
        shutil.rmtree(folder)
    assert before > 0, "some were killed before anything was noted"
    assert finished > before
    return len(range(share, moments, SHARES))


def _check(kind: str, folder: Path, theirs: dict[str, bytes], finished: int, before: int) -> tuple[int, int]:
    with _open(kind, folder) as store:
        thread = store.thread("a")
        unfinished = store.core.backend.erasures(True)
        assert unfinished == [], "the next open finishes it"
        erased = isinstance(thread.state["ann"], Erased)
        noted = bool(store.core.backend.erasures())
        assert erased == noted, "all of it or nothing"
        if not erased:
            assert thread.state["ann"].value.startswith("ann 2")
            assert store.users.get("ann", "city") == "Paris"
            before += 1
            assert store.erase("ann")
        finished += 1
        for version in thread.history(limit=None):
            past = thread.at(version)
            assert isinstance(past.state["ann"], Erased)
            assert past.state["bob"].value.startswith("bob")
            assert not any(item["content"] for item in past.messages)
        assert store.users.get("ann", "city") is None
        assert store.users.get("bob", "city") == "Rome"
        assert store.verify()
        assert store.erase("ann").key_ids == ()
        (report,) = store.erasure_reports()
        assert report, "the one who finished it has kept the report"
        assert report.is_signed()
        assert not found_in(theirs, folder)
        thread.state["ann"] = Personal("ann", "back again")
        thread.commit()
        assert thread.state["ann"].value == "back again"
    return finished, before
