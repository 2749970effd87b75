"""One real server: what its errors become, what a commit costs, and connections that are never mixed up."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import threading
import time
from collections.abc import Generator, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

import everthread
from everthread import (
    AccessError,
    InvalidValueError,
    StorageWriteError,
    StoreBusyError,
    StoreClosedError,
    StoreUnavailableError,
    UnsupportedError,
)
from everthread.stores.contract import DELTA, NewEvent, NewRow
from everthread.stores.valkey.errors import Lost
from everthread.stores.valkey.sync import client
from everthread.testing.driver import open_driven
from tests.servers.valkey import LASTING, QUICK, ValkeyServer, free_port
from tests.unit.cli.calling import run

QUICKLY = "&timeout_ms=800"


@pytest.fixture
def server(own_server_folder: Path) -> Iterator[ValkeyServer]:
    made = ValkeyServer(own_server_folder / "own", *QUICK, "--repl-diskless-sync-delay", "0")
    made.start()
    yield made
    made.kill()


def _open(url: str, **options: Any) -> everthread.Store:
    return everthread.open(url, **{"durability": "process", **options})


# ── round trips ──────────────────────────────────────────────────────────────────────────────────


def _trips(store: Any, verb: Any) -> int:
    backend = store.core.backend
    before = backend.round_trips
    verb()
    return int(backend.round_trips - before)


def test_a_commit_is_one_round_trip_and_a_resume_two(valkey_url: str) -> None:
    with _open(valkey_url) as store:
        thread = store.thread("a")
        thread.state["n"] = 0
        assert _trips(store, thread.commit) == 1, "the first one, which makes the thread, too"
        trips = []
        for number in range(300):
            thread.state["n"] = number
            thread.messages.append({"content": "x" * 200})
            trips.append(_trips(store, thread.commit))
        # Now and then what has gathered is folded, after the commit.
        assert trips.count(1) >= 294
        assert max(trips) <= 4
        thread.state["n"] = -1
        assert _trips(store, lambda: thread.commit(metadata={"m": 1}, label="x", key="k")) <= 2
    with _open(valkey_url) as store:
        thread = store.thread("a")
        assert _trips(store, lambda: (thread.state.plain(), thread.head)) <= 2
        assert _trips(store, lambda: thread.messages[-20:]) <= 1
        assert _trips(store, lambda: thread.fork("b")) <= 3


def _commands(server: ValkeyServer, verb: Any) -> int:
    """How many commands a server carried out meanwhile, in scripts too."""

    def count() -> int:
        told = server.ask("INFO", "commandstats").decode().splitlines()
        return sum(int(line.partition("calls=")[2].partition(",")[0]) for line in told if "calls=" in line)

    before = count()
    verb()
    return count() - before


def test_a_question_about_metadata_costs_what_it_returns(server: ValkeyServer) -> None:
    with _open(server.url) as store:

        def ask(number: int) -> list[str]:
            return [info.name for info in store.threads(metadata={"number": number})]

        costs = []
        for size in (20, 200):
            for number in range(size):
                store.thread(f"{size}-{number}").commit(metadata={"number": number + size})
            assert ask(size) == [f"{size}-0"], "the first one tags what was written"
            costs.append([_commands(server, lambda size=size: ask(size + 1)), 0])
            store.thread(f"{size}-1").commit(metadata={"number": -size})
            costs[-1][1] = _commands(server, lambda size=size: ask(-size))
        assert costs[0] == costs[1], "ten times as many threads"
        assert costs[0][0] < 20
        assert costs[0][1] < 40
        store.thread("200-7").delete()
        assert ask(207) == []


# ── errors ───────────────────────────────────────────────────────────────────────────────────────


def test_a_server_that_isnt_there() -> None:
    with pytest.raises(StoreUnavailableError, match="is the server running"):
        _open(f"valkey://127.0.0.1:{free_port()}/0?timeout_ms=300")


@pytest.mark.parametrize("open_", [everthread.open, open_driven])
def test_a_database_that_the_server_doesnt_have(valkey_url: str, open_: Any) -> None:
    url = valkey_url.rpartition("/")[0] + "/99"
    with pytest.raises(InvalidValueError, match=r"no database.*/99.*`databases`.*\?prefix="):
        open_(url, durability="process")


@pytest.mark.parametrize("host", ["127.0.0.1", "unknown.invalid"])
def test_nobody_there_is_told_soon_whatever_time_calls_have(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if host != "127.0.0.1":

        def unknown(*_: Any, **__: Any) -> Any:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

        monkeypatch.setattr(socket, "getaddrinfo", unknown)
    clock = [time.monotonic()]
    begun = clock[0]

    def pause(seconds: float) -> None:
        clock[0] += seconds

    monkeypatch.setattr(client, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(client, "pause", pause)
    with pytest.raises(StoreUnavailableError, match="is the server running"):
        _open(f"valkey://{host}:{free_port()}/0?timeout_ms=600000")
    assert 1 < clock[0] - begun < 2.5, "for a server that is just starting anew"


def test_a_server_that_comes_back_meanwhile_is_found(server: ValkeyServer) -> None:
    server.kill()
    starting = threading.Timer(0.5, server.start)
    starting.start()
    with _open(server.url) as store:
        starting.join()
        store.thread("a").commit(label="first")


def test_full_durability_is_refused_where_the_server_doesnt_give_it(server: ValkeyServer) -> None:
    with pytest.raises(UnsupportedError, match='durability="process"'):
        everthread.open(server.url)
    for setting in (("appendonly", "yes"), ("appendfsync", "always")):
        server.ask("CONFIG", "SET", *setting)
    with everthread.open(server.url) as store:
        assert store.core.backend.keeping.ok


def test_a_server_that_doesnt_say_is_warned_about(own_server_folder: Path) -> None:
    server = ValkeyServer(own_server_folder / "own", *LASTING)
    server.start()
    try:
        server.ask("ACL", "SETUSER", "bob", "on", ">pw", "~*", "&*", "+@all", "-config")
        with pytest.warns(UserWarning, match="can't be told"):
            store = everthread.open(server.url.replace("//", "//bob:pw@"))
        store.thread("a").commit(label="x")
        store.close()
    finally:
        server.stop()


def test_wrong_passwords_and_missing_rights(server: ValkeyServer) -> None:
    server.ask("ACL", "SETUSER", "bob", "on", ">right", "~other*", "&*", "+@all")
    with pytest.raises(AccessError, match="WRONGPASS"):
        _open(server.url.replace("//", "//bob:wrong@"))
    with pytest.raises(AccessError, match="NOPERM"):
        _open(server.url.replace("//", "//bob:right@"))
    server.ask("ACL", "SETUSER", "default", ">secret")
    with pytest.raises(AccessError, match="NOAUTH"):
        _open(server.url)
    with _open(server.url.replace("//", "//:secret@")) as store:
        store.thread("a").commit(label="x")
        assert "secret" not in store.url


def test_a_server_that_throws_threads_away_when_it_is_full(own_valkey: ValkeyServer) -> None:
    own_valkey.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    everthread.open(own_valkey.url).close()
    # Only with a limit is it ever full; and what has no lifetime stays under the other policies.
    own_valkey.ask("CONFIG", "SET", "maxmemory", "100mb")
    with pytest.raises(UnsupportedError, match="maxmemory-policy noeviction"):
        everthread.open(own_valkey.url)
    everthread.open(own_valkey.url, durability="process").close()
    own_valkey.ask("CONFIG", "SET", "maxmemory-policy", "volatile-lru")
    everthread.open(own_valkey.url).close()


def test_no_memory_left_is_a_failed_write_that_changes_nothing(server: ValkeyServer) -> None:
    with _open(server.url) as store:
        thread = store.thread("a")
        thread.commit(label="x")
        server.ask("CONFIG", "SET", "maxmemory", "1")
        thread.state["x"] = 1
        with pytest.raises(StorageWriteError, match="maxmemory"):
            thread.commit()
        assert store.thread("a").head.seq == 1  # type: ignore[union-attr]
        server.ask("CONFIG", "SET", "maxmemory", "0")
        assert thread.commit().seq == 2  # type: ignore[union-attr]


def test_a_replica_says_that_it_only_reads(server: ValkeyServer, own_server_folder: Path) -> None:
    with _open(server.url) as store:
        store.thread("a").commit(label="x")
    replica = ValkeyServer(own_server_folder / "replica", *QUICK)
    replica.start()
    try:
        replica.ask("REPLICAOF", "127.0.0.1", server.port)
        deadline = time.monotonic() + 20
        while b"master_link_status:up" not in replica.ask("INFO", "replication"):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        with pytest.raises(StoreUnavailableError, match="replica"):
            _open(replica.url)
        with _open(server.url) as store:
            assert "replica" in str(store.core.backend.keeping)
    finally:
        replica.kill()


def test_a_server_that_is_too_old(server: ValkeyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    from everthread.stores.valkey.sync import store

    monkeypatch.setattr(store, "read_info", lambda text: {"redis_version": "6.2.1"})
    with pytest.raises(UnsupportedError, match=r"Redis 6\.2\.1"):
        _open(server.url)


def test_a_newer_format_is_left_alone(server: ValkeyServer) -> None:
    with _open(server.url) as store:
        store.thread("a").commit(label="x")
    server.ask("HSET", "everthread:{root}:i", "format", 2)
    with pytest.raises(everthread.SchemaVersionError):
        _open(server.url)


def test_scripts_that_were_flushed_are_told_again(server: ValkeyServer) -> None:
    with _open(server.url) as store:
        thread = store.thread("a")
        for number in range(5):
            thread.state["n"] = number
            thread.commit()
            server.ask("SCRIPT", "FLUSH")
        thread.state["n"] = 9
        line = thread.handle.line
        assert line is not None
        assert thread.commit().seq == 6  # type: ignore[union-attr]
        server.ask("SCRIPT", "FLUSH")
        assert [info.name for info in store.threads()] == ["a"]


def test_a_busy_pool_makes_others_wait_and_then_says_so(valkey_url: str) -> None:
    with _open(valkey_url + "&connections=1" + QUICKLY) as store:
        store.thread("a").commit(label="x")
        server = store.core.backend._client.servers[0]
        assert server._gate.acquire(timeout=1), "somebody is at work and doesn't come back"
        with pytest.raises(StoreBusyError, match="connections"):
            store.thread("a").head  # noqa: B018
        server._gate.release()
        assert store.thread("a").head is not None


def test_no_more_connections_than_allowed(server: ValkeyServer) -> None:
    with _open(server.url + "?connections=3") as store:

        def work(number: int) -> None:
            thread = store.thread(f"t{number}")
            for _ in range(10):
                thread.state.increment("n")
                thread.commit()

        threads = [threading.Thread(target=work, args=(number,)) for number in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        told = server.ask("INFO", "clients").decode()
        assert int(told.partition("connected_clients:")[2].split()[0]) <= 3 + 1, "and the one that asks"
        assert all(store.thread(f"t{number}").state["n"] == 10 for number in range(12))


# ── cancellation and processes ───────────────────────────────────────────────────────────────────


class _CancelledAt:
    """Awaits a coroutine; its task is cancelled when the coroutine waits for the n-th time."""

    def __init__(self, coroutine: Any, n: int) -> None:
        self._coroutine = coroutine
        self._left = n

    def __await__(self) -> Generator[Any, Any, Any]:
        resume: Any = lambda: self._coroutine.send(None)  # noqa: E731
        while True:
            try:
                waiting = resume()
            except StopIteration as ended:
                return ended.value
            self._left -= 1
            if self._left == 0:
                task = asyncio.current_task()
                assert task is not None
                asyncio.get_running_loop().call_soon(task.cancel)
            try:
                yield waiting
            except BaseException as error:
                resume = partial(self._coroutine.throw, error)
            else:
                resume = partial(self._coroutine.send, None)


async def _cancelled_at(n: int, coroutine: Any) -> Any:
    return await _CancelledAt(coroutine, n)


@pytest.mark.parametrize("connected", [True, False])
@pytest.mark.parametrize("verb", ["find", "append", "batch"])
def test_cancelled_at_every_await_no_call_gets_the_answer_of_another(
    valkey_url: str, connected: bool, verb: str
) -> None:
    """CVE-2023-28858 and -28859: cancelled wherever it waits, on a single connection."""

    async def main() -> None:
        url = valkey_url + "&connections=1&timeout_ms=5000"
        async with everthread.open_async(url, durability="process") as store:
            for number in range(3):
                thread = await store.thread(f"t{number}")
                thread.state["who"] = number
                await thread.commit()
            backend: Any = store.core.backend
            server = backend._client.servers[0]

            def cancelled() -> Any:
                if verb == "find":
                    return backend.find("", "t0")
                if verb == "batch":
                    return backend._look_up("", ["t0", "t1"])
                # As it is sent, without the queue in front of it.
                return backend._append_one(line.id, NewRow(2, DELTA, b"x" * 32, newest.hash, b"y", None))

            line, newest, *_ = await _found(backend, "t0")
            for n in range(1, 200):
                if not connected:
                    await (await server.pool()).disconnect()
                task = asyncio.create_task(_cancelled_at(n, cancelled()))
                # One that stands behind it in the queue, and one that comes after it.
                beside = asyncio.create_task(backend.find("", "t1"))
                (outcome,) = await asyncio.gather(task, return_exceptions=True)
                assert (await beside).line.name == "t1"
                assert (await backend.find("", "t2")).line.name == "t2"
                pool = await server.pool()
                assert not pool._in_use_connections, "all came back"
                assert len(pool._available_connections) <= 1
                if not isinstance(outcome, asyncio.CancelledError):
                    assert n > 1, "it was never cancelled"
                    return
            pytest.fail("it waits without end")

    asyncio.run(main())


async def _found(backend: Any, name: str) -> tuple[Any, Any]:
    found = await backend.find("", name)
    return found.line, found.newest


def test_one_async_store_in_several_event_loops(valkey_url: str) -> None:
    opened = asyncio.run(_opened(valkey_url))

    async def work(number: int) -> None:
        thread = await opened.thread(f"t{number}")
        for _ in range(10):
            thread.state.increment("n")
            await thread.commit()

    threads = [threading.Thread(target=lambda n=n: asyncio.run(work(n))) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    asyncio.run(opened.close())
    with _open(valkey_url) as store:
        assert [store.thread(f"t{n}").state["n"] for n in range(4)] == [10] * 4


async def _opened(url: str) -> everthread.AsyncStore:
    return await everthread.open_async(url, durability="process")


def test_a_child_process_is_told_to_open_the_store_again(valkey_url: str) -> None:
    with _open(valkey_url) as store:
        store.thread("a").commit(label="x")
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                store.thread("a").commit(label="y")
            except StoreClosedError as error:
                status = 0 if "open it again" in str(error) else 2
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0
        assert store.thread("a").head.label == "x"  # type: ignore[union-attr]


# ── the rest ─────────────────────────────────────────────────────────────────────────────────────


def test_stores_of_different_prefixes_are_apart(valkey_url: str) -> None:
    other = valkey_url + ".other"
    with _open(valkey_url) as one, _open(other) as two:
        one.thread("a").commit(label="one")
        two.thread("a").commit(label="two")
        two.thread("b").commit(label="two")
        assert [info.name for info in one.threads()] == ["a"]
        assert one.thread("a").head.label == "one"  # type: ignore[union-attr]
        assert one.stats().count == 1
        assert two.stats().count == 2


def test_an_event_lost_on_the_way_back_is_recognised(valkey_url: str) -> None:
    """The answer is lost after the script has run: the driver sends it again, and it counts once."""
    with _open(valkey_url) as store:
        backend = store.core.backend
        server = backend._client.servers[0]
        exchange = type(server)._exchange
        lost: list[int] = []

        def lose(connection: Any, commands: Any, deadline: float) -> list[Any]:
            answers: list[Any] = exchange(server, connection, commands, deadline)
            if commands[0][0] == b"EVALSHA" and not lost:
                lost.append(1)
                raise Lost("cut", True)
            return answers

        for verb in (
            lambda: backend.emit("contract", "s", [NewEvent(0, "t", None, b"x")] * 2),
            lambda: backend.swap("contract", "c", 0, b"v", 0),
            lambda: store.thread("new").commit(label="x"),
            lambda: store.thread("new").fork("fork"),
            lambda: store.thread("fork").delete(),
            lambda: backend.trim_stream("contract", "s", 9),
        ):
            lost.clear()
            server._exchange = lose
            verb()
            del server._exchange
            assert lost, "nothing was lost on the way"
        assert backend.emit("contract", "s", [NewEvent(0, "t", None, b"x")]) == 3, "two events, not four"
        cell = backend.cell("contract", "c", 0)
        assert cell is not None
        assert (cell.value, cell.revision) == (b"v", 1)
        assert [info.name for info in store.threads()] == ["new"]


class _Encrypting:
    """Speaks TLS and passes on in clear: the server for tests can't encrypt."""

    def __init__(self, port: int, certificate: dict[str, str]) -> None:
        self._target = port
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate["cert"], certificate["key"])
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            inner = self._context.wrap_socket(client, server_side=True)
            with inner, socket.create_connection(("127.0.0.1", self._target)) as server:
                while data := inner.recv(1 << 16):
                    server.sendall(data)
                    # What comes back for what went in: enough for a client that waits.
                    server.settimeout(0.05)
                    with contextlib.suppress(TimeoutError):
                        while answer := server.recv(1 << 16):
                            inner.sendall(answer)
                            server.settimeout(0.01)

    def close(self) -> None:
        self._listener.close()


def test_encrypted_connections(valkey_url: str, tmp_path: Path) -> None:
    made = _certificates(tmp_path)
    parts = urlsplit(valkey_url)
    assert parts.port is not None
    front = _Encrypting(parts.port, made)
    url = f"valkeys://localhost:{front.port}/0?{parts.query}"
    try:
        with _open(f"{url}&ssl_ca_certs={made['cert']}") as store:
            thread = store.thread("a")
            thread.messages.append({"content": "x" * 500_000})
            thread.commit()
            assert len(store.thread("a").messages[0]["content"]) == 500_000

        async def main() -> None:
            opening = everthread.open_async(f"{url}&ssl_ca_certs={made['cert']}", durability="process")
            async with opening as opened:
                assert len((await opened.thread("a")).messages) == 1

        asyncio.run(main())
        with pytest.raises(StoreUnavailableError, match="certificate"):
            _open(f"{url}&timeout_ms=4000")
        with pytest.raises(everthread.InvalidValueError, match="certificate"):
            _open(f"{url}&ssl_ca_certs={tmp_path}/missing.pem")
    finally:
        front.close()


def _certificates(folder: Path) -> dict[str, str]:
    """A certificate for localhost that signs itself."""
    import datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return {"cert": str(folder / "cert.pem"), "key": str(folder / "key.pem")}


def test_doctor_says_what_the_server_keeps(valkey_url: str, valkey_lasting_url: str) -> None:
    for url in (valkey_url, valkey_lasting_url):
        # Doctor itself makes none.
        run(["init", "--store", url], code=0)
    weak = run(["--store", valkey_url, "doctor"], code=1)
    assert "everything is lost when the server ends" in weak.out
    assert "appendfsync always" in weak.out
    sound = run(["--store", valkey_lasting_url, "doctor"], code=0)
    assert "survive a power cut" in sound.out
