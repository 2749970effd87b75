"""The file store when things go wrong: altered bytes, failing disks, somebody else who holds the lock."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import random
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread.errors import (
    EverthreadError,
    StateCorruptedError,
    StorageWriteError,
    StoreBusyError,
    StoreUnavailableError,
)
from everthread.history.chain import genesis
from everthread.stores.contract import Line
from everthread.stores.files import disk, journal
from tests.unit.stores.test_files import derived, folder_of, ids, say

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


def opened(path: Path, **options: Any) -> everthread.Store:
    return everthread.open(f"file://{path}", **options)


def filled(path: Path, versions: int = 5, **options: Any) -> None:
    with opened(path, **options) as store:
        thread = store.thread("a")
        for number in range(versions):
            say(thread, number, 20)


def segment(path: Path) -> Path:
    return folder_of(path) / journal.segment_name(1)


# ── altered bytes ────────────────────────────────────────────────────────────────────────────────


def test_a_bad_line_in_the_middle_is_damage_with_file_and_line(path: Path) -> None:
    for durability in ("full", "process"):
        shutil.rmtree(path, ignore_errors=True)
        filled(path, durability=durability)
        good = segment(path).read_bytes()
        lines = good.splitlines(keepends=True)
        for bad in (
            lines[3].replace(b'"count"],2', b'"count"],7'),
            lines[3][:40] + b"\n",
            b"\n",
            b"{}\n",
            lines[3].replace(b" ", b"\0"),
            lines[3][:-2] + b"\r\n",
        ):
            segment(path).write_bytes(b"".join([*lines[:3], bad, *lines[4:]]))
            where = f"{segment(path)}:4"
            with opened(path) as store:
                problems = [str(damage) for damage in store.verify().damage]
                assert any(where in problem for problem in problems), problems
                with pytest.raises(StateCorruptedError) as caught:
                    store.core.backend.replay(1, 5, 0)
                assert caught.value.where == where
                assert where in str(caught.value)
                assert [row.seq for row in store.core.backend.replay(1, 2, 0)] == [2, 1]
                assert store.thread("a").at(2).state["count"] == 1
            assert segment(path).read_bytes() == b"".join([*lines[:3], bad, *lines[4:]]), "left as it is"
        segment(path).write_bytes(good)
        with opened(path) as store:
            assert store.verify()


def test_one_flipped_bit_anywhere_never_shows_a_wrong_value(path: Path, seed: int) -> None:
    """Of a small store every few bytes: it is noticed, harmless, or the tail is gone as a whole."""
    rng = random.Random(seed)
    filled(path, 4, durability="process")
    with opened(path, durability="process") as store:
        store.core.backend.swap("", "cell", 0, b"value", 1)
    right = [{"count": n, **{f"key {m}": m for m in range(n + 1)}} for n in range(4)]
    files = [
        each for each in sorted(path.rglob("*")) if each.suffix in (".jsonl", ".json") and each.is_file()
    ]
    assert len(files) == 5
    seen = dict.fromkeys(("same", "older", "typed"), 0)
    for file in files:
        good = file.read_bytes()
        for at in range(rng.randrange(5), len(good), 5):
            bad = bytearray(good)
            bad[at] ^= 1 << rng.randrange(8)
            file.write_bytes(bad)
            seen[_outcome(path, right)] += 1
            for extra in path.rglob("*.edited-*"):
                extra.unlink()
        file.write_bytes(good)
    assert seen["typed"] > 20, seen
    assert seen["same"] > 20, seen
    with opened(path) as store:
        assert store.verify()


def _outcome(path: Path, right: list[dict[str, Any]]) -> str:
    try:
        with opened(path, durability="process") as store:
            store.verify()
            thread = store.thread("a")
            state = thread.state.plain()
            assert thread.head is not None, "gone without a word"
            assert state in right, state
            assert ids(thread.messages) == [f"m{n}" for n in range(state["count"] + 1)]
            cell = store.core.backend.cell("", "cell", 1)
            assert cell is not None
            assert cell.value == b"value"
            return "same" if state == right[-1] else "older"
    except EverthreadError:
        return "typed"


def test_damage_of_what_is_derived_is_harmless(path: Path, seed: int) -> None:
    rng = random.Random(seed)
    filled(path, 300, durability="process")
    with opened(path) as store:
        history = [version.id for version in store.thread("a").history(limit=None)]
    files = derived(path)
    assert {file.suffix for file in files} == {".index", ".packs"}
    kept = {file: file.read_bytes() for file in files}
    for _ in range(60):
        for file, good in kept.items():
            bad = bytearray(good)
            how = rng.randrange(4)
            if how == 0:
                bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
            elif how == 1:
                del bad[rng.randrange(len(bad)) :]
            elif how == 2:
                start = rng.randrange(len(bad))
                bad[start : start + 512] = bytes(min(512, len(bad) - start))
            file.write_bytes(bad)
        with opened(path, durability="process") as store:
            thread = store.thread("a")
            assert thread.state["count"] == 299
            assert ids(thread.messages) == [f"m{n}" for n in range(300)]
            assert [version.id for version in thread.history(limit=None)] == history
            assert thread.messages.find("m17") == 17
            assert thread.at(100).state["count"] == 99
            assert store.verify()


def test_a_damaged_list_of_lines_is_not_guessed_at(path: Path) -> None:
    with opened(path) as store:
        for name in "abc":
            say(store.thread(name), 1)
    catalog = path / "data" / "lines.jsonl"
    lines = catalog.read_bytes().splitlines(keepends=True)
    catalog.write_bytes(lines[0] + lines[1].replace(b'"name":"b"', b'"name":"x"') + lines[2])
    with opened(path) as store:
        assert store.thread("a").state["count"] == 1
        assert store.thread("c").state["count"] == 1
        with pytest.raises(StateCorruptedError) as caught:
            store.core.backend.find("", "b")
        assert caught.value.where == f"{catalog}:2"
        with pytest.raises(StateCorruptedError):
            store.core.backend.create(everthread_line("b"), None)
        say(store.thread("new"), 1)
        assert {line.id for line in store.core.backend.every_line()} == {1, 3, 4}
        assert f"{catalog}:2" in str(store.verify().damage[0])


@pytest.mark.parametrize("lost", ["an entry", "the list"])
def test_a_list_that_misses_threads_says_so(path: Path, tmp_path: Path, lost: str) -> None:
    """Listing tells what there is, then that this isn't all; nothing is taken out as if it were all."""
    with opened(path) as store:
        for name in "abc":
            say(store.thread(name), 1)
            say(store.thread(name), 2)
    catalog = path / "data" / "lines.jsonl"
    if lost == "the list":
        catalog.unlink()
    else:
        catalog.write_bytes(catalog.read_bytes().replace(b'"name":"b"', b'"name":"x"'))
    with opened(path) as store:
        listed: list[str] = []
        with pytest.raises(StateCorruptedError):
            listed.extend(info.name for info in store.threads())
        assert listed == ([] if lost == "the list" else ["a", "c"])
        assert not list(store.threads("other"))
        with pytest.raises(StateCorruptedError, match="nothing was taken out"):
            store.export(tmp_path / "all.archive")
        with opened(tmp_path / "copy") as target, pytest.raises(StateCorruptedError):
            store.copy_to(target)
        with pytest.raises(StateCorruptedError):
            store.thread("b").head  # noqa: B018
        assert not store.verify()
        say(store.thread("new"), 1)
    with opened(path) as store, pytest.raises(StateCorruptedError):
        store.thread("b").head  # noqa: B018
    with opened(tmp_path / "copy") as target:
        assert not list(target.threads())


def everthread_line(name: str) -> Line:
    return Line(id=0, uid=b"u" * 16, space="", name=name, root=0, start_hash=genesis(b"u" * 16))


def test_a_missing_file_is_reported(path: Path) -> None:
    filled(path)
    segment(path).unlink()
    with opened(path) as store:
        with pytest.raises(StateCorruptedError):
            store.core.backend.find("", "a")
        assert not store.verify()


def test_hostile_files_lead_nowhere(path: Path, tmp_path: Path) -> None:
    filled(path)
    catalog = path / "data" / "lines.jsonl"
    entry = json.loads(catalog.read_text())
    entry.pop("sum")
    outside = tmp_path / "outside"
    shutil.copytree(folder_of(path), outside)
    for change in (
        {"folder": "../../../outside"},
        {"folder": str(outside)},
        {"folder": ""},
        {"uid": "zz"},
        {"counts": {"messages": "many"}},
        {"parent": {"line": 1, "seq": 1, "segment": 0, "hash": "00"}},
        {"name": ["a"]},
    ):
        catalog.write_bytes(disk.record_of({**entry, **change}))
        with contextlib.suppress(EverthreadError), opened(path) as store:
            for info in store.threads():
                store.thread(info.name).state.plain()
            store.verify()
    line = {"seq": 6, "at": 0, "kind": "commit", "hash": "00" * 32}
    catalog.write_bytes(disk.record_of(entry))
    good = segment(path).read_bytes()
    for change in (
        {"continues": "../../../../outside/journal-0000000001.jsonl", "seq": None},
        {"continues": "journal-0000000001.jsonl", "seq": None},
        {"continues": "journal-0000000099.jsonl", "seq": None},
        {
            "apart": [["messages", 5, 10**12, 0, 10**12]],
            "logs": [{"log": "messages", "at": 5, "insert": 10**12}],
        },
        {"document": [["set", ["a"], {"$object": ["os.system", "true"]}]]},
        {"document": [["splice", ["nowhere"], 0, 10**15, []]]},
        {"seq": -5},
        {"seq": 10**18},
        {"merged": {"zz": [1]}},
    ):
        segment(path).write_bytes(good + disk.record_of({**line, **change}))
        with contextlib.suppress(EverthreadError), opened(path) as store:
            thread = store.thread("a")
            thread.state.plain()
            thread.messages[:]
            store.verify()


# ── failing disks ────────────────────────────────────────────────────────────────────────────────

CALLS = ("pwrite", "write", "fdatasync", "fsync", "ftruncate", "replace", "rename", "mkdir", "unlink", "open")


class Faults:
    """Lets the n-th of these calls fail; ``persistent`` lets all from the n-th on fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = self.calls = 0
        self.error = errno.EIO
        self.persistent = False
        self.active = False
        for name in CALLS:
            monkeypatch.setattr(os, name, self._wrapped(name, getattr(os, name)))

    def _wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            writing = name != "open" or (arguments[1] & (os.O_CREAT | os.O_RDWR | os.O_WRONLY))
            if self.active and writing:
                self.calls += 1
                if self.calls == self.left or (self.persistent and self.calls > self.left):
                    if name == "pwrite":
                        # Half of it gets through.
                        real(arguments[0], arguments[1][: len(arguments[1]) // 2], *arguments[2:])
                    raise OSError(self.error, os.strerror(self.error), "somewhere")
            return real(*arguments, **options)

        return call

    @contextlib.contextmanager
    def at(self, number: int, error: int, *, persistent: bool) -> Iterator[None]:
        self.left, self.calls, self.error, self.persistent = number, 0, error, persistent
        self.active = True
        try:
            yield
        finally:
            self.active = False


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    return Faults(monkeypatch)


def _commit(store: everthread.Store, thread: everthread.Thread) -> None:
    thread.state["new"] = True
    thread.messages.append({"id": "new"})
    thread.commit()


def _commit_large(store: everthread.Store, thread: everthread.Thread) -> None:
    thread.state["new"] = True
    thread.messages.append({"id": "new"})
    thread.log("other").append("x" * 300_000)
    thread.commit()


def _fold(store: everthread.Store, thread: everthread.Thread) -> None:
    store.core.folder.records_max = 2
    _commit(store, thread)


def _create(store: everthread.Store, thread: everthread.Thread) -> None:
    other = store.thread("other")
    other.state["new"] = True
    other.messages.append({"id": "new"})
    other.commit()


def _fork(store: everthread.Store, thread: everthread.Thread) -> None:
    thread.fork("other", at=3)


def _rewind(store: everthread.Store, thread: everthread.Thread) -> None:
    thread.rewind(3)


def _delete(store: everthread.Store, thread: everthread.Thread) -> None:
    thread.delete()


def _backup(store: everthread.Store, thread: everthread.Thread) -> None:
    store.backup(f"{store.url.removeprefix('file://')}-backup")


def _restore(store: everthread.Store, thread: everthread.Thread) -> None:
    store.restore(f"{os.path.dirname(store.url.removeprefix('file://'))}/the-backup")


def _cell(store: everthread.Store, thread: everthread.Thread) -> None:
    store.core.backend.swap("", "c", 0, b"1", 1)


def _contents(path: Path) -> dict[str, Any]:
    with opened(path) as store:
        found: dict[str, Any] = {
            info.name: (
                store.thread(info.name).state.plain(),
                ids(store.thread(info.name).messages),
                info.seq,
            )
            for info in store.threads()
        }
        found["cell"] = store.core.backend.cell("", "c", 0)
        report = store.verify()
        assert report, "\n".join(map(str, report.damage))
    return found


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize(
    "work", [_commit, _commit_large, _fold, _create, _fork, _rewind, _delete, _backup, _restore, _cell]
)
def test_a_failing_call_leaves_the_old_or_the_new_state(
    path: Path, tmp_path: Path, faults: Faults, work: Callable[..., None], error: int
) -> None:
    filled(path, 2, durability="process")
    with opened(path) as store:
        store.backup(tmp_path / "the-backup")
        for number in (2, 3):
            say(store.thread("a"), number, 20)
    old = _contents(path)
    after = tmp_path / "after"
    shutil.copytree(path, after)
    with opened(after) as store:
        work(store, store.thread("a"))
    new = {name: value[:2] if isinstance(value, tuple) else value for name, value in _contents(after).items()}
    outcomes = set()
    for number in range(1, 200):
        for persistent in (False, True):
            copy = tmp_path / f"copy-{number}-{persistent}"
            shutil.copytree(path, copy)
            raised = None
            store = opened(copy)
            thread = store.thread("a")
            assert thread.head is not None
            with faults.at(number, error, persistent=persistent):
                try:
                    work(store, thread)
                except EverthreadError as caught:
                    raised = caught
                finally:
                    reached = faults.calls >= number
            store.close()
            if raised is not None:
                assert isinstance(raised, StorageWriteError | StoreUnavailableError), raised
            found = _contents(copy)
            plain = {name: v[:2] if isinstance(v, tuple) else v for name, v in found.items()}
            assert found == old or plain == new, (number, raised)
            if raised is None:
                assert plain == new, "what was acknowledged is there"
            outcomes.add((raised is None, plain == new))
            shutil.rmtree(copy)
        if not reached:
            break
    else:
        raise AssertionError("never done")
    assert (True, True) in outcomes
    if work is not _backup:
        assert (False, False) in outcomes


def test_commit_again_after_a_failed_sync(path: Path, faults: Faults) -> None:
    with opened(path) as store:
        thread = store.thread("a")
        say(thread, 0)
        for number in range(1, 6):
            thread.state["count"] = number
            thread.messages.append({"id": f"m{number}"})
            with (
                faults.at(2, errno.EIO, persistent=number % 2 == 0),
                pytest.raises(StorageWriteError, match="Commit again"),
            ):
                thread.commit()
            # Where even cutting it off failed, it is there as a whole.
            assert store.thread("a").state["count"] in (number - 1, number - number % 2)
            thread.commit()
        assert ids(thread.messages) == [f"m{n}" for n in range(6)]
    with opened(path) as store:
        assert ids(store.thread("a").messages) == [f"m{n}" for n in range(6)]
        assert store.verify()


def test_a_full_disk_is_told(path: Path) -> None:
    """A real limit on the size of files, in a process of its own."""
    filled(path, 3)
    size = segment(path).stat().st_size
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + 50, size + 50))
            store = opened(path)
            thread = store.thread("a")
            thread.state["count"] = 3
            try:
                thread.commit()
            except StorageWriteError as error:
                status = 0 if "no space left" in str(error) and store.thread("a").state["count"] == 2 else 2
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert segment(path).stat().st_size == size
    with opened(path) as store:
        say(store.thread("a"), 3)
        assert store.verify()


# ── turns ────────────────────────────────────────────────────────────────────────────────────────


def test_a_writer_that_keeps_the_lock_makes_others_wait_and_give_up(path: Path) -> None:
    filled(path, 1)
    with opened(path) as store, everthread.open(f"file://{path}?busy_timeout_ms=40") as other:
        held = os.open(path / "lock", os.O_RDWR)
        fcntl.flock(held, fcntl.LOCK_EX)
        thread = other.thread("a")
        assert thread.state["count"] == 0, "readers go on"
        thread.state["count"] = 1
        with pytest.raises(StoreBusyError):
            thread.commit()
        os.close(held)
        thread.commit()
        assert store.thread("a").state["count"] == 1


def test_a_write_within_a_write_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a signal handler would do it."""
    with opened(path) as store:
        say(store.thread("a"), 0)
        inner: list[BaseException] = []
        real = os.fdatasync

        def interrupted(file: int) -> None:
            monkeypatch.setattr(os, "fdatasync", real)
            try:
                say(store.thread("b"), 0)
            except EverthreadError as error:
                inner.append(error)
            real(file)

        monkeypatch.setattr(os, "fdatasync", interrupted)
        say(store.thread("a"), 1)
        assert isinstance(inner[0], StoreBusyError)
        say(store.thread("b"), 1)
        assert store.thread("a").state["count"] == 1


def test_an_interrupt_in_the_middle_leaves_the_store_usable(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(path) as store, opened(path) as other:
        thread = store.thread("a")
        say(thread, 0)
        for name in ("pwrite", "fdatasync"):
            real = getattr(os, name)

            def interrupted(*arguments: Any, name: str = name, real: Any = real) -> None:
                monkeypatch.setattr(os, name, real)
                raise KeyboardInterrupt

            monkeypatch.setattr(os, name, interrupted)
            before = thread.head.seq
            thread.state["count"] = before
            with pytest.raises(KeyboardInterrupt):
                thread.commit()
            assert other.thread("a").head.seq in (before, before + 1)
            with contextlib.suppress(everthread.ConflictError):
                thread.commit()
            thread.discard()
            thread.refresh()
            assert other.thread("a").state["count"] == before
            say(other.thread("b"), 1)
        assert store.verify()
