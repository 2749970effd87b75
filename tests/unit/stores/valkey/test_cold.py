"""The cold tier on real servers: in pieces, cut, killed, and what a server may still forget."""

from __future__ import annotations

import asyncio
import os
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

import everthread
from everthread import Store
from everthread.errors import StorageWriteError, StoreBusyError, StoreUnavailableError
from everthread.stores.contract import Prune
from everthread.stores.valkey import layout
from everthread.stores.valkey.sync import writes
from tests.crash.cutting import Cutter, port_of
from tests.servers.proxy import proxied
from tests.servers.valkey import LASTING, ValkeyServer
from tests.unit.stores.cooling import is_cold, later, opened, picture, write

EVERY_SECOND = ("--save", "", "--appendonly", "yes", "--appendfsync", "everysec")
SNAPSHOTS = ("--save", "3600 1", "--appendonly", "no")
_UNSURE = (StorageWriteError, StoreUnavailableError, StoreBusyError)


class Died(BaseException):
    """Whoever was at work is gone."""


@pytest.fixture
def store(valkey_url: str, tmp_path: Path) -> Iterator[Store]:
    with opened(valkey_url, tmp_path) as store:
        store.core.folder.records_max = 4
        yield store
        assert store.verify()


def _cooled(store: Store) -> None:
    later(3600)
    assert store.cool(1800).threads == 1
    store.core.head_cache.clear()


def test_a_commit_to_what_is_away_is_one_round_trip(store: Store, seed: int) -> None:
    write(store, "a", 20, random.Random(seed))
    _cooled(store)
    backend: Any = store.core.backend
    thread = store.thread("a")
    assert thread.state.plain()
    thread.state["on"] = True
    before = backend.round_trips
    thread.commit()
    assert backend.round_trips - before == 1
    assert is_cold(store, "a")


def test_killed_between_the_pieces_of_a_return(
    store: Store, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large past comes back in pieces; until the last one is there, all of it is away."""
    write(store, "a", 40, random.Random(seed))
    before = picture(store, "a")
    _cooled(store)
    monkeypatch.setattr(writes, "BATCH_BYTES", 1)
    backend: Any = store.core.backend._backend
    real = backend._prune
    pieces: list[int] = []

    def counting(line: Any, prune: Prune, **options: Any) -> bool:
        pieces.append(len(prune.chunks))
        return bool(real(line, prune, **options))

    with monkeypatch.context() as patched:
        patched.setattr(backend, "_prune", counting)
        list(store.thread("a").history())
    count = len(pieces)
    assert count > 4
    for death in range(count):
        _cooled(store)
        left = iter(range(death))

        def dying(line: Any, prune: Prune, left: Any = left, **options: Any) -> bool:
            if next(left, None) is None:
                raise Died
            return bool(real(line, prune, **options))

        with monkeypatch.context() as patched:
            patched.setattr(backend, "_prune", dying)
            with pytest.raises(Died):
                list(store.thread("a").history())
        store.core.head_cache.clear()
        assert is_cold(store, "a")
        # Another one appends to it, and then reads everything.
        late = store.thread("a")
        late.messages.append({"id": f"late {death}", "content": "late"})
        late.commit()
        after = picture(store, "a")
        assert after[1:] == before
        before = after
        assert store.verify()


def test_no_key_of_a_store_expires_alone(store: Store, tmp_path: Path, seed: int) -> None:
    """All keys of a thread with a lifetime go at one moment, whatever is away, and no key of another ever."""
    thread = store.thread("short", ttl=3)
    for number in range(20):
        thread.messages.append({"n": number})
        thread.commit()
    write(store, "other", 20, random.Random(seed))
    store.cool(0)
    store.cool(0, sweep_after=3600)
    client: Any = store.core.backend._client
    (server,) = client.servers
    keys = [key for page in store.core.backend._pages_of_keys(server) for key in page]
    assert len(keys) > 10
    tag, member = layout.split_id(thread.handle.line.id)
    own = re.compile(rb".*{%b}:([rlzdtkK]:%d|x:%d:.*)" % (tag.encode(), member, member))
    moments = {key: client.command(key, "PEXPIRETIME", key) for key in keys}
    assert {moment for key, moment in moments.items() if not own.fullmatch(key)} == {-1}
    (together,) = {moment for key, moment in moments.items() if own.fullmatch(key)}
    assert together > 0


def test_cut_while_moving_and_while_coming_back(valkey_url: str, tmp_path: Path, seed: int) -> None:
    cutter = Cutter(seed, 0.3, b"LOAD")
    cutter.left = 40
    parts = urlsplit(valkey_url)
    with proxied(port_of(valkey_url), cutter) as proxy:
        url = f"valkey://127.0.0.1:{proxy.port}{parts.path}?{parts.query}&timeout_ms=600&connections=4"
        with opened(url, tmp_path) as store:
            store.core.folder.records_max = 4
            write(store, "a", 30, random.Random(seed))
            before = picture(store, "a")
            cutter.on = True
            rounds = 0
            while cutter.left and rounds < 200:
                rounds += 1
                later(3600)
                for work in (lambda: store.cool(1800), lambda: picture(store, "a")):
                    try:
                        found = work()
                    except _UNSURE:
                        continue
                    finally:
                        store.core.head_cache.clear()
                    if isinstance(found, list):
                        assert found == before
            cutter.on = False
            assert cutter.left == 0
            assert picture(store, "a") == before
            assert store.verify()


@pytest.mark.parametrize("moment", ["moved", "back"])
def test_the_server_is_killed(own_valkey: ValkeyServer, tmp_path: Path, seed: int, moment: str) -> None:
    with opened(own_valkey.url, tmp_path, durability="full") as store:
        write(store, "a", 30, random.Random(seed))
        before = picture(store, "a")
        _cooled(store)
        if moment == "back":
            assert picture(store, "a") == before
            for parcel in (tmp_path / "cold").iterdir():
                os.utime(parcel, (0, 0))
            # Nobody needs it, and the server has it on disk that nobody does.
            assert store.cool(10**6, sweep_after=60).swept == 1
        own_valkey.kill()
        own_valkey.start()
        store.core.head_cache.clear()
        assert is_cold(store, "a") == (moment == "moved")
        assert picture(store, "a") == before
        assert store.verify()


@pytest.mark.parametrize("settings", [EVERY_SECOND, SNAPSHOTS])
def test_swept_is_only_what_the_server_can_not_need_again(
    own_server_folder: Path, tmp_path: Path, seed: int, settings: tuple[str, ...]
) -> None:
    """A server that may forget that a thread came back would look for its parcel again."""
    server = ValkeyServer(own_server_folder / "own", *settings)
    server.start()
    try:
        with opened(server.url, tmp_path) as store:
            write(store, "a", 20, random.Random(seed))
            before = picture(store, "a")
            _cooled(store)
            if settings == SNAPSHOTS:
                server.ask("SAVE")
            assert picture(store, "a") == before
            for parcel in (tmp_path / "cold").iterdir():
                os.utime(parcel, (0, 0))
            report = store.cool(10**6, sweep_after=60)
            if settings == SNAPSHOTS:
                assert report.swept == 0
                assert "nothing was swept" in report.problems[0]
            else:
                assert (report.swept, report.problems) == (1, ())
            server.kill()
            server.start()
            store.core.head_cache.clear()
            assert is_cold(store, "a") == (settings == SNAPSHOTS)
            assert picture(store, "a") == before
    finally:
        server.stop()


def test_replicas_have_it_before_anything_is_swept(
    own_server_folder: Path, tmp_path: Path, seed: int
) -> None:
    primary = ValkeyServer(own_server_folder / "primary", *LASTING, "--repl-diskless-sync-delay", "0")
    replica = ValkeyServer(own_server_folder / "replica", *LASTING)
    primary.start()
    replica.start()
    try:
        with opened(primary.url + "?timeout_ms=3000", tmp_path) as store:
            replica.ask("REPLICAOF", "127.0.0.1", primary.port)
            while b"state=online" not in primary.ask("INFO", "replication"):
                pass
            write(store, "a", 20, random.Random(seed))
            before = picture(store, "a")
            _cooled(store)
            assert picture(store, "a") == before
            for parcel in (tmp_path / "cold").iterdir():
                os.utime(parcel, (0, 0))
            assert store.cool(10**6, sweep_after=60).swept == 1
            # The replica takes over at once, with everything.
            replica.ask("REPLICAOF", "NO", "ONE")
        with opened(replica.url, tmp_path) as store:
            assert not is_cold(store, "a")
            assert picture(store, "a") == before
    finally:
        replica.stop()
        primary.stop()


def test_a_full_server_lets_threads_go_and_takes_none_back(
    own_valkey: ValkeyServer, tmp_path: Path, seed: int
) -> None:
    with opened(own_valkey.url, tmp_path) as store:
        for name in ("a", "b"):
            thread = store.thread(name)
            for number in range(60):
                thread.messages.append({"content": random.Random(seed + number).randbytes(3000).hex()})
                thread.commit()
        before = {name: picture(store, name) for name in "ab"}
        later(3600)
        own_valkey.ask("CONFIG", "SET", "maxmemory", 1 << 20)
        full = store.thread("a")
        full.state["more"] = True
        with pytest.raises(StorageWriteError, match="maxmemory"):
            full.commit()
        assert store.cool(1800).threads == 2
        store.core.head_cache.clear()
        own_valkey.ask("CONFIG", "SET", "maxmemory", 1)
        with pytest.raises(StorageWriteError, match="maxmemory"):
            picture(store, "b")
        assert is_cold(store, "b")
        own_valkey.ask("CONFIG", "SET", "maxmemory", 0)
        assert {name: picture(store, name) for name in "ab"} == before
        assert store.verify()


def test_a_past_that_is_too_large_to_come_back_at_once_stays(store: Store, seed: int) -> None:
    write(store, "a", 30, random.Random(seed))
    before = picture(store, "a")
    later(3600)
    backend: Any = store.core.backend._backend
    real = backend.capabilities
    backend.capabilities = msgspec.structs.replace(real, cold_rows_max=100)
    report = store.cool(1800)
    assert report.threads == 0
    assert "larger than the 100 bytes" in report.problems[0]
    assert not is_cold(store, "a")
    assert picture(store, "a") == before
    backend.capabilities = real


def test_a_retry_recognises_its_own_move(store: Store, seed: int) -> None:
    """The answer was lost: the second try doesn't say that somebody else was quicker."""
    write(store, "a", 30, random.Random(seed))
    before = picture(store, "a")
    later(3600)
    client: Any = store.core.backend._backend._client
    ask = client.request

    def lossy(asked: Any, **options: Any) -> Any:
        answer = ask(asked, **options)
        if asked.script is not None and asked.script.name == "prune":
            # The first try has landed; nobody heard of it.
            (answer,) = client.batch([asked], sent=True)
        return answer

    client.request = lossy
    assert store.cool(1800).threads == 1
    client.request = ask
    assert is_cold(store, "a")
    assert picture(store, "a") == before


def test_async_returns_in_pieces_too(
    valkey_url: str, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from everthread.stores.valkey.aio import writes as async_writes

    with opened(valkey_url, tmp_path) as store:
        store.core.folder.records_max = 4
        write(store, "a", 40, random.Random(seed))
        before = picture(store, "a")
        _cooled(store)
    monkeypatch.setattr(async_writes, "BATCH_BYTES", 1)

    async def read() -> None:
        options: Any = {"cold": tmp_path / "cold", "keyring": "memory:", "durability": "process"}
        async with everthread.open_async(valkey_url, **options) as store:

            async def whole() -> Any:
                thread = await store.thread("a")
                return await thread.messages.read()

            # Three bring it back at once.
            found = await asyncio.gather(whole(), whole(), whole())
            assert [list(each) for each in found] == [before[0][2]["messages"]] * 3

    asyncio.run(read())
    with opened(valkey_url, tmp_path) as store:
        assert not is_cold(store, "a")
        assert picture(store, "a") == before
        assert store.verify()
