"""A cluster of three: what spans slots, and what whoever dies in between leaves behind."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from typing import Any
from urllib.parse import urlsplit

import pytest

import everthread
from everthread import Personal, Store, ThreadExistsError
from everthread.stores.valkey import scripts
from everthread.stores.valkey.layout import name_tag, split_id


class Died(BaseException):
    """Whoever was at work is gone."""


def _open(url: str, **options: Any) -> Store:
    return everthread.open(url, durability="process", **options)


@pytest.fixture
def store(valkey_cluster_url: str) -> Any:
    with _open(valkey_cluster_url) as opened:
        assert len(opened.core.backend._client.servers) == 3
        yield opened
        assert opened.verify()


def _dying_at(store: Store, script: Any, *, after: bool) -> Any:
    """From now on whoever sends this script dies: before it arrives, or after it was carried out."""
    client: Any = store.core.backend._client
    send = client.request

    def die(asked: Any) -> Any:
        if asked.script is script:
            if after:
                send(asked)
            raise Died
        return send(asked)

    client.request = die
    return lambda: setattr(client, "request", send)


def test_a_talk_with_forks_rewinds_and_lists(store: Store) -> None:
    names = [f"thread {number:02}" for number in range(30)]
    for name in names:
        thread = store.thread(name)
        for number in range(3):
            thread.messages.append({"id": f"{name} {number}", "content": number})
            thread.commit(metadata={"parity": len(name) % 2})
    tags = {name_tag("", name) for name in names}
    assert len(tags) == 30
    fork = store.thread(names[0]).fork("a fork in another slot")
    assert split_id(fork.handle.line.id)[0] == name_tag("", names[0])  # type: ignore[union-attr]
    fork.state["x"] = 1
    fork.commit()
    assert [info.name for info in store.threads()] == sorted([*names, "a fork in another slot"])
    assert [info.name for info in store.threads(prefix="thread 1")] == names[10:20]
    assert len(list(store.threads(metadata={"parity": 1}))) == len([n for n in names if len(n) % 2]) + 1
    with pytest.raises(ThreadExistsError):
        store.thread(names[1]).fork(names[2])
    store.thread(names[3]).delete()
    fork.delete()
    assert [info.name for info in store.threads()] == sorted(set(names) - {names[3]})


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("script", [scripts.CREATE, scripts.CLAIM, scripts.SETTLE])
def test_a_fork_whose_maker_dies_is_there_or_was_never(
    store: Store, valkey_cluster_url: str, script: Any, after: bool
) -> None:
    thread = store.thread("source")
    thread.state["n"] = 1
    thread.commit()
    alive = _dying_at(store, script, after=after)
    with pytest.raises(Died):
        thread.fork("fork")
    alive()
    there = script is scripts.SETTLE or (script is scripts.CLAIM and after)
    with _open(valkey_cluster_url) as other:
        assert [info.name for info in other.threads()] == (["fork", "source"] if there else ["source"])
        assert (other.thread("fork").head is not None) == there
        lines = [line.name for line in other.core.backend.every_line()]
        assert sorted(lines) == (["fork", "source"] if there else ["source"])
        if not there:
            # The name is free, for a fork and for a thread of its own.
            other.thread("source").fork("fork")
        assert other.thread("fork").state["n"] == 1
        assert [info.name for info in other.threads()] == ["fork", "source"]


@pytest.mark.parametrize("script", [scripts.DELETE, scripts.FREE, scripts.UNLIST])
@pytest.mark.parametrize("forked", [False, True])
def test_a_thread_whose_deleter_dies_is_gone_and_its_name_free(
    store: Store, valkey_cluster_url: str, script: Any, forked: bool
) -> None:
    thread = store.thread("a")
    thread.state["n"] = 1
    thread.commit()
    doomed = thread.fork("b") if forked else thread
    alive = _dying_at(store, script, after=True)
    with pytest.raises(Died):
        doomed.delete()
    alive()
    with _open(valkey_cluster_url) as other:
        name = "b" if forked else "a"
        assert name not in [info.name for info in other.threads()]
        assert other.thread(name).head is None
        anew = other.thread(name)
        anew.state["anew"] = True
        assert anew.commit().seq == 1  # type: ignore[union-attr]
        assert name in [info.name for info in other.threads()]


def test_a_name_that_is_listed_and_never_made_goes_off_the_list(store: Store) -> None:
    backend: Any = store.core.backend
    alive = _dying_at(store, scripts.CREATE, after=False)
    with pytest.raises(Died):
        store.thread("never").commit(label="x")
    alive()
    names = backend._keys.space("")
    assert backend._client.command(names, "ZRANGE", names, 0, -1) == [b"never"]
    assert list(store.threads()) == []
    assert backend._client.command(names, "ZRANGE", names, 0, -1) == []


def test_a_name_is_never_taken_off_the_list_under_its_maker(store: Store) -> None:
    """Somebody lists while another makes the thread: between listing the name and making the line."""
    backend: Any = store.core.backend
    client: Any = backend._client
    send = client.request
    looked: list[str] = []

    def meddle(asked: Any) -> Any:
        if asked.script is scripts.CREATE and not looked:
            looked.append("once")
            client.request = send
            assert list(store.threads()) == []
            client.request = meddle
        return send(asked)

    client.request = meddle
    store.thread("a").commit(label="x")
    client.request = send
    assert looked
    assert [info.name for info in store.threads()] == ["a"]


def test_many_at_once_make_and_delete_the_same_names(valkey_cluster_url: str) -> None:
    stores = [_open(valkey_cluster_url) for _ in range(4)]

    def work(store: Store, number: int) -> None:
        for step in range(25):
            name = f"n{(step + number) % 3}"
            try:
                thread = store.thread(name)
                thread.state["by"] = number
                thread.commit()
                if step % 2:
                    thread.delete()
                elif step % 3 == 0:
                    thread.fork(f"n{(step + number + 1) % 3}")
            except (everthread.ConflictError, everthread.NotFoundError, ThreadExistsError):
                continue

    threads = [threading.Thread(target=work, args=(store, n)) for n, store in enumerate(stores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with _open(valkey_cluster_url) as store:
        alive = {line.name for line in store.core.backend.every_line() if not line.deleted}
        assert {info.name for info in store.threads()} == alive, "listed is what is there"
        assert {name for name in ("n0", "n1", "n2") if store.thread(name).head is not None} == alive
        assert store.verify()
    for each in stores:
        each.close()


_COMMITTING = """
import sys
import everthread
with everthread.open(sys.argv[1], durability="process") as store:
    thread = store.thread("watched")
    for number in range(40):
        thread.state["n"] = number
        thread.commit()
"""


def test_watching_and_personal_values(store: Store, valkey_cluster_url: str, tmp_path: Any) -> None:
    watching = store.thread("watched").watch(0, timeout=60)
    other = subprocess.Popen([sys.executable, "-c", _COMMITTING, valkey_cluster_url])
    assert [next(watching).seq for _ in range(40)] == list(range(1, 41))
    assert other.wait(60) == 0
    thread = store.thread("personal")
    thread.state["mail"] = Personal("ann", "ann@example.org")
    thread.commit()
    store.events("tasks").append("made", {"n": 1})
    assert store.thread("personal").state["mail"].value == "ann@example.org"
    assert len(store.events("tasks")) == 1
    for verb in (store.backup, store.restore):
        with pytest.raises(everthread.UnsupportedError, match=r"store\.export\(\)"):
            verb(tmp_path / "backup")


def test_async_sessions_on_the_cluster(valkey_cluster_url: str) -> None:
    async def main() -> None:
        async with everthread.open_async(valkey_cluster_url, durability="process") as store:

            async def one(number: int) -> None:
                thread = await store.thread(f"t{number}")
                for _ in range(5):
                    thread.state.increment("n")
                    await thread.commit()

            await asyncio.gather(*(one(number) for number in range(24)))
            assert [(await store.thread(f"t{number}")).state["n"] for number in range(24)] == [5] * 24

    asyncio.run(main())


def test_a_slot_that_moves_is_followed(store: Store, valkey_cluster_url: str) -> None:
    """What was learnt about the cluster is wrong: the servers say so, and are believed."""
    client: Any = store.core.backend._client
    store.thread("a").commit(label="x")
    wrong = list(client._slots)
    client._slots = wrong[5461:] + wrong[:5461]
    thread = store.thread("a")
    thread.state["n"] = 1
    assert thread.commit().seq == 2  # type: ignore[union-attr]
    assert [info.name for info in store.threads()] == ["a"]
    host = urlsplit(valkey_cluster_url.partition(",")[0]).netloc
    one = f"valkey://{host}/0?" + valkey_cluster_url.partition("?")[2]
    with _open(one) as single:
        assert single.thread("a").state["n"] == 1, "one node in the URL is enough"
    with pytest.raises(everthread.UnsupportedError, match="cluster=true"):
        _open(one + "&cluster=false").thread("a").commit(label="y")


@pytest.mark.parametrize("told", [True, False])
def test_the_blocking_driver_of_an_async_store_finds_every_slot(valkey_cluster_url: str, told: bool) -> None:
    async def play() -> None:
        async with everthread.open_async(valkey_cluster_url, durability="process") as store:
            for number in range(12):
                thread = await store.thread(f"t{number}")
                thread.state["n"] = number
                await thread.commit()
            backend: Any = store.core.backend
            blocking = backend.blocking
            if not told:
                # As one that knows no more than that there is a cluster.
                blocking._client._slots = []
            for number in range(12):
                assert blocking.find(store.core.space, f"t{number}") is not None

    asyncio.run(play())
