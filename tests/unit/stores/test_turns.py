"""Writers of one SQLite file wait in line, are woken in turn, and never wait for the dead or the slow."""

from __future__ import annotations

import mmap
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread.errors import StoreBusyError
from everthread.stores.sqlite import bells
from everthread.stores.sqlite import turns as taking
from everthread.stores.sqlite.bells import Bell
from everthread.stores.sqlite.turns import _IN_A_ROW, _UNTIL, Turn

PATIENCE_MS = 60_000
_HOUR_NS = 3600 * 10**9


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "store.db")


@pytest.fixture
def turns(path: str) -> Iterator[list[Turn]]:
    """Several processes as far as the lock file knows."""
    made = [Turn(path, PATIENCE_MS) for _ in range(4)]
    yield made
    for turn in made:
        turn.close()


def _crowd(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have writers met just now; that counts for as long as the test takes."""
    monkeypatch.setattr(taking, "_CROWDED_NS", _HOUR_NS)
    turn = Turn(path, 1000)
    turn.wait(0)
    turn.give()
    turn.close()


def test_a_page_is_for_who_asks_again_or_is_not_alone(
    path: str, turns: list[Turn], monkeypatch: pytest.MonkeyPatch
) -> None:
    maker, other, late, _ = turns
    assert not maker.crowded()
    assert maker._page is not None, "who makes the file gives it its length"
    assert not other.crowded()
    assert other._page is None
    assert other.mark[0], "it is asked again"
    assert not other.crowded()
    assert other._page is not None
    assert not other.mark[0]
    _crowd(path, monkeypatch)
    assert late.crowded(), "the first look finds the mark"
    assert other.mark[0]


def test_who_sleeps_is_woken_by_the_bell() -> None:
    page = mmap.mmap(-1, 8)
    bell, other = Bell(page, 0), Bell(page, 0)
    woken = threading.Event()

    def sleep() -> None:
        looked = bell.look()
        ready.set()
        bell.sleep(looked, 60.0)
        woken.set()

    ready = threading.Event()
    sleeper = threading.Thread(target=sleep, daemon=True)
    sleeper.start()
    ready.wait(30)
    while not other.ring() and not woken.is_set():
        time.sleep(0.001)
    assert woken.wait(30), "long before its time-out"
    sleeper.join()
    assert not other.ring(), "nobody sleeps any more"


def test_who_looked_before_the_bell_rang_does_not_sleep() -> None:
    page = mmap.mmap(-1, 8)
    bell, other = Bell(page, 0), Bell(page, 0)
    looked = bell.look()
    other.ring()
    bell.sleep(looked, 60.0)
    assert bell.look() != looked


def test_without_a_futex_sleepers_look_up_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bells, "_FUTEX", {})
    bell = Bell(mmap.mmap(-1, 8), 0)
    for _ in range(6):
        bell.sleep(bell.look(), 60.0)
    assert not bell.ring()


def test_turns_go_round_in_the_order_of_coming(turns: list[Turn]) -> None:
    first, *others = turns
    first.wait(0)
    order: list[int] = []

    def queue(number: int, turn: Turn) -> None:
        turn.take()
        order.append(number)
        turn.give()

    waiting = []
    for number, turn in enumerate(others):
        waiting.append(threading.Thread(target=queue, args=(number, turn)))
        waiting[-1].start()
    while not all(turn._bell is not None for turn in others):
        time.sleep(0.001)
    first.give()
    for one in waiting:
        one.join(30)
    assert sorted(order) == [0, 1, 2], "everybody had a turn"
    assert not any(turn.held for turn in turns)


def test_a_reservation_keeps_others_away_until_it_is_overdue(
    path: str, turns: list[Turn], monkeypatch: pytest.MonkeyPatch
) -> None:
    holder, other, *_ = turns
    _crowd(path, monkeypatch)
    with monkeypatch.context() as slow:
        slow.setattr(taking, "_RESERVED_NS", _HOUR_NS)
        holder.reserve()
        assert holder.held
        impatient = Turn(path, 0)
        with pytest.raises(StoreBusyError):
            impatient.take()
    # It doesn't write: then the others don't wait for it any longer, and have no turn either.
    holder.mark[_UNTIL] = time.monotonic_ns() + taking._RESERVED_NS
    other.take()
    assert not other.held
    holder.give()
    other.take()
    assert other.held
    with pytest.raises(StoreBusyError):
        impatient.take()
    impatient.close()


def test_a_reservation_of_somebody_who_was_killed_counts_for_nothing(
    path: str, turns: list[Turn], monkeypatch: pytest.MonkeyPatch
) -> None:
    _crowd(path, monkeypatch)
    pid = os.fork()
    if pid == 0:
        Turn(path, 1000).reserve()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    first, second, *_ = turns
    first.take()
    assert first.held
    impatient = Turn(path, 0)
    time.sleep(0.012)
    with pytest.raises(StoreBusyError):
        impatient.take()
    impatient.close()
    first.give()
    second.take()
    assert second.held


def test_an_update_that_thinks_long_holds_up_nobody(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others write while the function of a reserved update() runs; it is run again then."""
    with everthread.open(f"sqlite:///{path}") as store, everthread.open(f"sqlite:///{path}") as elsewhere:
        thread, other = store.thread("a"), elsewhere.thread("a")
        thread.state["count"] = 0
        thread.commit()
        _crowd(path, monkeypatch)
        thread._wary = 16
        reserved: list[bool] = []

        def change(draft: Any) -> None:
            reserved.append(store.core.backend._connections._turn.reserved)  # type: ignore[attr-defined]
            if len(reserved) == 1:
                # Would wait for ever, if it had to wait for this function.
                other.update(lambda theirs: theirs.state.__setitem__("count", 10))
            draft.state["count"] += 1

        thread.update(change)
        assert reserved[0], "asked for"
        assert len(reserved) == 2
        assert thread.state["count"] == 11
        assert not store.core.backend._connections._turn.held  # type: ignore[attr-defined]


def test_a_function_that_raises_gives_the_turn_back(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with everthread.open(f"sqlite:///{path}") as store:
        thread = store.thread("a")
        thread.state["count"] = 0
        thread.commit()
        _crowd(path, monkeypatch)
        thread._wary = 16
        with pytest.raises(ZeroDivisionError):
            thread.update(lambda draft: draft.state.__setitem__("count", 1 // 0))
        impatient = Turn(path, 0)
        impatient.take()
        assert impatient.held
        impatient.close()
        # Without a change there is nothing to write either.
        thread.update(lambda draft: None)
        impatient = Turn(path, 0)
        impatient.take()
        assert impatient.held
        impatient.close()


def _count_up(path: str, times: int, writing: int) -> None:
    runs = 0

    def change(draft: Any) -> None:
        nonlocal runs
        runs += 1
        draft.state["count"] += 1

    with everthread.open(f"sqlite:///{path}") as store:
        thread = store.thread("hot")
        for _ in range(times):
            thread.update(change)
    os.write(writing, runs.to_bytes(4, "little"))


def test_processes_that_update_one_thread_lose_nothing(path: str) -> None:
    with everthread.open(f"sqlite:///{path}", durability="process") as store:
        thread = store.thread("hot")
        thread.state["count"] = 0
        thread.commit()
    reading, writing = os.pipe()
    pids = []
    for _ in range(4):
        pids.append(os.fork())
        if pids[-1] == 0:
            status = 1
            try:
                _count_up(path, 50, writing)
                status = 0
            finally:
                os._exit(status)
    for pid in pids:
        assert os.waitpid(pid, 0)[1] == 0
    runs = [int.from_bytes(os.read(reading, 4), "little") for _ in pids]
    os.close(reading)
    os.close(writing)
    print("runs of the function:", runs)
    with everthread.open(f"sqlite:///{path}") as store:
        assert store.thread("hot").state["count"] == 200


def test_who_reserves_again_and_again_lets_others_go_first(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    polite: list[bool] = []
    waits = Turn._wait

    def noted(self: Turn, deadline: float, politely: bool = False) -> bool:
        polite.append(politely)
        return waits(self, deadline, politely)

    monkeypatch.setattr(Turn, "_wait", noted)
    turn = Turn(path, 1000)
    for _ in range(3 * _IN_A_ROW):
        turn.reserve()
        assert turn.reserved
        turn.give()
    turn.close()
    for start in range(2 * _IN_A_ROW):
        assert sum(polite[start : start + _IN_A_ROW]) == 1


def test_the_lock_file_has_its_room_on_the_disk_before_it_is_mapped(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk would otherwise kill the process with SIGBUS at the first mark."""
    blocks = []
    real = mmap.mmap

    def mapped(file: int, *args: Any, **options: Any) -> Any:
        os.fsync(file)
        blocks.append(os.fstat(file).st_blocks)
        return real(file, *args, **options)

    monkeypatch.setattr(mmap, "mmap", mapped)
    turn = Turn(path, PATIENCE_MS)
    turn.take()
    turn.give()
    turn.close()
    assert blocks
    assert all(blocks)


def test_a_symbolic_link_leads_to_the_same_lock(path: str, tmp_path: Path) -> None:
    Path(path).touch()
    link = tmp_path / "link.db"
    link.symlink_to(path)
    turns = [Turn(path, PATIENCE_MS), Turn(str(link), 50)]
    turns[0].take()
    with pytest.raises(StoreBusyError):
        turns[1].take()
    turns[0].give()
    turns[1].take()
    turns[1].give()
    for turn in turns:
        turn.close()
    assert not (tmp_path / "link.db-lock").exists()
