"""The cold tier: threads go to an archive and come back as they were, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import Store, StoreUnavailableError, UsageError
from everthread.errors import StateCorruptedError, UnsupportedError
from everthread.stores.cold import FolderArchive
from everthread.threads.runtime import Runtime
from tests.servers.colours import Url
from tests.unit.stores.cooling import ASYNC, NOW, STORES, is_cold, later, opened, picture, place, write


@pytest.fixture(params=STORES + ASYNC)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    kind, _, colour = request.param.partition(" ")
    url = place(request, kind, tmp_path)
    with opened(Url(url, colour), tmp_path) as store:
        store.core.folder.records_max = 4
        yield store


@pytest.fixture(params=["sqlite", "postgres", "valkey", "cluster"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of a store that outlives whoever opened it."""
    return place(request, request.param, tmp_path)


def test_Z13_a_thread_comes_back_exactly_as_it_was(store: Store, seed: int) -> None:
    rng = random.Random(seed)
    write(store, "a", 40, rng)
    fork = store.thread("a").fork("b", at=store.thread("a").at(20).version)
    fork.state["forked"] = True
    fork.commit()
    write(store, "b", 10, rng)
    before = {name: picture(store, name) for name in "ab"}
    later(3600)
    report = store.cool(1800)
    assert (report.threads, report.problems) == (2, ())
    store.core.head_cache.clear()
    assert is_cold(store, "a")
    assert is_cold(store, "b")
    # Listing and the newest state need nothing from the archive.
    assert [info.name for info in store.threads()] == ["a", "b"]
    assert store.thread("a").state.plain() == before["a"][0][1]
    assert is_cold(store, "a")
    assert {name: picture(store, name) for name in "ab"} == before
    assert not is_cold(store, "a")
    assert store.verify()


def test_what_is_in_use_stays(store: Store, seed: int) -> None:
    write(store, "old", 10, random.Random(seed))
    later(3600)
    write(store, "new", 10, random.Random(seed))
    assert store.cool(1800).threads == 1
    assert (is_cold(store, "old"), is_cold(store, "new")) == (True, False)
    assert store.cool(1800).threads == 0


def test_Z13_a_late_append_goes_on_top(store: Store, seed: int) -> None:
    """A handle that was opened before the move knows nothing of it."""
    write(store, "a", 20, random.Random(seed))
    late = store.thread("a")
    late.messages.append({"content": "late"})
    length = len(late.messages)
    before = picture(store, "a")
    later(3600)
    assert store.cool(1800).threads == 1
    late.commit(label="late")
    assert is_cold(store, "a")
    again = store.thread("a")
    assert (len(again.messages), again.messages[-1]["content"]) == (length, "late")
    assert [entry[0] for entry in picture(store, "a")[1:]] == [entry[0] for entry in before]
    # And once more, with what came on top.
    later(3600)
    assert store.cool(1800).threads == 1
    assert store.thread("a").messages[-1]["content"] == "late"
    assert store.verify()


def test_an_append_during_the_move_wins(store: Store, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    write(store, "a", 20, random.Random(seed))
    later(3600)
    put = FolderArchive.put

    def slow(self: FolderArchive, key: str, data: bytes) -> None:
        put(self, key, data)
        write(store, "a", 12, random.Random(seed + 1))

    with monkeypatch.context() as patched:
        patched.setattr(FolderArchive, "put", slow)
        store.cool(1800)
    assert len(picture(store, "a")) >= 32
    assert store.verify()


def test_keys_hold_while_it_is_away(store: Store) -> None:
    thread = store.thread("a")
    for number in range(10):
        thread.state["n"] = number
        thread.commit(key=f"k{number}")
    first = thread.at(3).version
    later(3600)
    store.cool(1800)
    again = store.thread("a")
    again.state["n"] = "again"
    assert again.commit(key="k2") == first
    assert store.thread("a").state["n"] == 9


def test_ids_hold_while_it_is_away(store: Store) -> None:
    thread = store.thread("a")
    for number in range(10):
        thread.messages.append({"id": f"m{number}", "content": "x"})
        thread.commit()
    later(3600)
    store.cool(1800)
    store.core.head_cache.clear()
    new = store.thread("a")
    new.messages.append({"id": "new", "content": "x"})
    new.commit()
    assert is_cold(store, "a"), "whether an id is known needs nothing from the archive"
    store.core.head_cache.clear()
    again = store.thread("a")
    again.messages.append({"id": "m2", "content": "x"})
    assert len(again.messages) == 11
    with pytest.raises(everthread.InvalidValueError):
        again.messages.append({"id": "m3", "content": "other"})


def test_ids_hold_without_the_archive(url: str, tmp_path: Path) -> None:
    with opened(url, tmp_path) as store:
        thread = store.thread("a")
        for number in range(10):
            thread.messages.append({"id": f"m{number}", "content": "x"})
            thread.commit()
        later(3600)
        assert store.cool(1800).threads == 1
    with opened(url, tmp_path, cold=None) as store:
        thread = store.thread("a")
        with pytest.raises(StoreUnavailableError, match="cold="):
            thread.messages.append({"id": "m2", "content": "x"})
        thread.messages.append({"id": "new", "content": "x"})
        thread.commit()
    with opened(url, tmp_path) as store:
        assert [m["id"] for m in store.thread("a").messages] == [f"m{n}" for n in range(10)] + ["new"]


def test_sealed_values_stay_in_the_store(store: Store, tmp_path: Path) -> None:
    thread = store.thread("a")
    for number in range(10):
        thread.messages.append({"content": everthread.Personal("u1", f"canary {number}")})
        thread.commit()
    later(3600)
    store.cool(1800)
    assert not any(b"canary" in path.read_bytes() for path in (tmp_path / "cold").iterdir())
    assert store.thread("a").messages[3]["content"].value == "canary 3"


def test_async_is_the_same(tmp_path: Path, seed: int) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    with opened(url, tmp_path) as store:
        write(store, "a", 20, random.Random(seed))
        before = picture(store, "a")

    async def run() -> None:
        options: Any = {"cold": tmp_path / "cold", "runtime": Runtime(now_us=lambda: NOW[0])}
        async with everthread.open_async(url, **options) as store:
            later(3600)
            assert (await store.cool(1800)).threads == 1
            thread = await store.thread("a")
            assert len(await thread.messages.read()) == len(before[0][2]["messages"])

    asyncio.run(run())


def test_without_the_archive_it_says_what_to_do(url: str, tmp_path: Path, seed: int) -> None:
    with opened(url, tmp_path) as store:
        write(store, "a", 20, random.Random(seed))
        later(3600)
        store.cool(1800)
    with opened(url, tmp_path, cold=None) as store:
        with pytest.raises(UsageError, match="cold="):
            store.cool(10)
        thread = store.thread("a")
        assert thread.state.plain()
        with pytest.raises(StoreUnavailableError, match="cold="):
            list(thread.history())
    elsewhere = opened(url, tmp_path, cold=tmp_path / "elsewhere")
    with elsewhere as store, pytest.raises(StateCorruptedError, match="archive"):
        list(store.thread("a").history())
    with opened(url, tmp_path) as store:
        assert len(picture(store, "a")) >= 20


def test_a_damaged_parcel_is_noticed_and_nothing_changes(store: Store, tmp_path: Path, seed: int) -> None:
    write(store, "a", 20, random.Random(seed))
    later(3600)
    store.cool(1800)
    (parcel,) = (tmp_path / "cold").iterdir()
    whole = parcel.read_bytes()
    for at in (0, len(whole) // 2, len(whole) - 1):
        parcel.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(StateCorruptedError, match="damaged"):
            list(store.thread("a").history())
        assert is_cold(store, "a")
    parcel.write_bytes(whole)
    assert len(picture(store, "a")) >= 20


def test_an_archive_that_fails_changes_nothing(
    store: Store, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(store, "a", 20, random.Random(seed))
    before = picture(store, "a")
    later(3600)

    def failing(*arguments: Any) -> Any:
        raise OSError("no such bucket")

    with monkeypatch.context() as patched:
        patched.setattr(FolderArchive, "put", failing)
        report = store.cool(1800)
        assert report.threads == 0
        assert "no such bucket" in report.problems[0]
        assert not is_cold(store, "a")
    store.cool(1800)
    with monkeypatch.context() as patched:
        patched.setattr(FolderArchive, "get", failing)
        with pytest.raises(StoreUnavailableError, match="no such bucket"):
            list(store.thread("a").history())
    assert picture(store, "a") == before


def test_a_store_that_cannot(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/files"
    with pytest.raises(UnsupportedError, match="without cold="):
        everthread.open(url, cold=tmp_path / "cold")

    async def run() -> None:
        await everthread.open_async(url, cold=tmp_path / "cold")

    with pytest.raises(UnsupportedError, match="without cold="):
        asyncio.run(run())
    with everthread.open(url) as store, pytest.raises(UnsupportedError):
        store.cool(10)


@pytest.mark.parametrize("cold", ["", "s3://bucket", 7, "a\0b"])
def test_bad_places_are_refused(cold: Any) -> None:
    with pytest.raises(everthread.InvalidValueError):
        everthread.open("memory:", cold=cold)


def test_parcels_that_nobody_needs_are_swept(store: Store, tmp_path: Path, seed: int) -> None:
    write(store, "a", 20, random.Random(seed))
    write(store, "b", 20, random.Random(seed))
    later(3600)
    store.cool(1800)
    store.thread("a").delete()
    assert len(list((tmp_path / "cold").iterdir())) == 2
    for parcel in (tmp_path / "cold").iterdir():
        os.utime(parcel, (0, 0))
    assert store.cool(1800, sweep_after=60).swept == 1
    assert len(picture(store, "b")) >= 20


def test_sweeping_leaves_young_parcels_and_those_of_others(tmp_path: Path, seed: int) -> None:
    with (
        opened(f"sqlite:///{tmp_path}/a.db", tmp_path) as a,
        opened(f"sqlite:///{tmp_path}/b.db", tmp_path) as b,
    ):
        for store, name in ((a, "mine"), (b, "theirs")):
            write(store, name, 20, random.Random(seed))
        later(3600)
        assert (a.cool(1800).threads, b.cool(1800).threads) == (1, 1)
        FolderArchive(str(tmp_path / "cold")).put("00-abc-de", b"x")
        for parcel in (tmp_path / "cold").iterdir():
            os.utime(parcel, (0, 0))
        assert len(picture(a, "mine")) >= 20
        assert a.cool(10**6, sweep_after=60).swept == 1
        assert len(picture(b, "theirs")) >= 20
        # Whoever put it may not have come to let go of the rows yet.
        NOW[0] = int(time.time() * 1_000_000)
        FolderArchive(str(tmp_path / "cold")).put(
            f"{a.thread('mine').handle.require()[0].uid.hex()}-1-00-00", b"x"
        )
        later(3000)
        assert a.cool(10**6, sweep_after=60).swept == 0
        later(1000)
        assert a.cool(10**6, sweep_after=60).swept == 1


def test_two_who_move_the_same_thread_are_not_in_each_others_way(
    store: Store, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is killed while it writes its parcel, just when the other has written the same."""
    write(store, "a", 20, random.Random(seed))
    before = picture(store, "a")
    later(3600)
    put = FolderArchive.put
    calls = []

    def both(self: FolderArchive, key: str, data: bytes) -> None:
        calls.append(key)
        if len(calls) == 1:
            # The other one comes in between and moves the thread; then this one dies half-way.
            assert store.cool(1800).threads == 1
            place = self._place(key)
            Path(os.path.join(os.path.dirname(place), ".new-" + os.path.basename(place))).write_bytes(b"half")
            Path(place).write_bytes(data[: len(data) // 2])
            raise OSError("killed")
        put(self, key, data)

    with monkeypatch.context() as patched:
        patched.setattr(FolderArchive, "put", both)
        store.cool(1800)
    assert len(set(calls)) == 2
    store.core.head_cache.clear()
    assert is_cold(store, "a")
    assert picture(store, "a") == before
    assert store.verify()


def test_what_took_long_is_put_once_more(
    store: Store, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(store, "a", 20, random.Random(seed))
    before = picture(store, "a")
    later(3600)
    put = FolderArchive.put
    calls = []

    def slow(self: FolderArchive, key: str, data: bytes) -> None:
        calls.append(key)
        put(self, key, data)
        if len(calls) == 1:
            # The machine sleeps for a week, and somebody sweeps.
            later(7 * 86400)
            self.delete(key)

    with monkeypatch.context() as patched:
        patched.setattr(FolderArchive, "put", slow)
        assert store.cool(1800).threads == 1
    assert (len(calls), len(set(calls))) == (2, 1)
    assert picture(store, "a") == before


@pytest.mark.parametrize(
    "moment", ["before put", "after put", "after prune", "before return", "after return"]
)
def test_killed_while_cooling_and_while_thawing(url: str, tmp_path: Path, moment: str, seed: int) -> None:
    with opened(url, tmp_path) as store:
        write(store, "a", 30, random.Random(seed))
        before = picture(store, "a")
        later(3600)
        if moment.endswith("return"):
            assert store.cool(1800).threads == 1

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    pid = os.fork()
    if pid == 0:
        store = opened(url, tmp_path)
        backend: Any = store.core.backend
        put, prune = backend.archive.put, backend._backend.prune
        if moment == "before put":
            backend.archive.put = lambda key, data: die()
        elif moment == "after put":
            backend.archive.put = lambda key, data: (put(key, data), die())
        elif moment == "before return":
            backend._backend.prune = lambda line, change: die()
        else:
            backend._backend.prune = lambda line, change: (prune(line, change), die())
        if moment.endswith("return"):
            list(store.thread("a").history())
        store.cool(1800)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    with opened(url, tmp_path) as store:
        assert is_cold(store, "a") == (moment in ("after prune", "before return"))
        assert picture(store, "a") == before
        assert store.verify()
        store.cool(1800)
        assert picture(store, "a") == before


def test_without_the_archive_nothing_is_called_damaged(url: str, tmp_path: Path, seed: int) -> None:
    """What is away is sound: no check says otherwise, and nothing is made anew that might repeat effects."""
    with opened(url, tmp_path) as store:
        store.core.folder.records_max = 4
        with store.session("bot") as session:
            for number in range(12):
                session.messages.append({"content": f"needle {number}"})
                session.call(f"pay-{number}", lambda: "paid")
                session.checkpoint("c")
                session.record_error("e")
        write(store, "here", 5, random.Random(seed))
        later(3600)
        write(store, "here", 5, random.Random(seed + 1))
        assert store.cool(1800).threads == 2
    with opened(url, tmp_path, cold=None) as store:
        assert len(store.thread("bot").messages) == 12
        reads: dict[str, Any] = {
            "messages": lambda: store.thread("bot").messages[0],
            "verify": store.verify,
            "export": lambda: store.export(tmp_path / "archive"),
            "history": lambda: list(store.thread("bot").history()),
            "briefing": lambda: store.briefing("bot"),
            "effects": lambda: store.session_records("bot").effects(),
            "an effect": lambda: store.session_records("bot").effect("pay-3"),
            "errors": lambda: store.session_records("bot").errors(),
            "checkpoints": lambda: store.session_records("bot").checkpoints(),
        }
        for name, read in reads.items():
            with pytest.raises(StoreUnavailableError, match="open it with the cold=") as told:
                read()
            beside = name in ("effects", "an effect", "errors")
            # Which line is met first when all are read is the store's own affair.
            if name not in ("verify", "export") or not url.startswith("valkey"):
                assert f"the past of {'the journal of' if beside else repr('bot')}" in str(told.value)
        # What these need is in the store itself: it is right, and nothing is called damaged.
        report = store.resume("bot")
        assert (report.status, report.problems, report.in_doubt) == ("completed", (), ())
        assert store.session_records("bot").runs()[0].status == "completed"
        for dry_run in (True, False):
            found = store.gc(everthread.Retention(keep_last=1), dry_run=dry_run).problems
            why = "'bot' was left as it is: the past of 'bot' is in a cold archive"
            assert any(why in problem for problem in found)
            assert not any("decoded" in problem for problem in found)
        assert store.search("needle").skipped == ("bot",)
        assert not store.gc(everthread.Retention(keep_last=1)).expired
    if url.startswith("sqlite"):
        with pytest.raises(StoreUnavailableError, match="cold"):
            everthread.salvage(url, f"sqlite:///{tmp_path}/saved.db")
    with opened(url, tmp_path) as store:
        assert store.verify()
        assert store.thread("bot").messages[0]["content"] == "needle 0"


def test_for_ever_idle_is_no_time(store: Store, seed: int) -> None:
    write(store, "a", 5, random.Random(seed))
    with pytest.raises(everthread.InvalidValueError, match="idle_for"):
        store.cool(None)
    assert not is_cold(store, "a")
