"""Kills a server under load, again and again; the clients have to come back by themselves."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import NamedTuple, Protocol

import everthread
from everthread import ConflictError, Store
from everthread.stores.contract import NewEvent
from tests.servers.postgres import PostgresServer
from tests.servers.valkey import LASTING, ValkeyServer

WRITERS = 4
SPACE = "contract"


class Tally(NamedTuple):
    """What came of it. ``lost`` are acknowledged writes that aren't there, ``twice`` those that are twice."""

    kills: int
    acknowledged: int
    lost: list[str]
    twice: list[str]
    damage: str
    #: What ``everthread doctor`` says that the server keeps.
    level: str


class Writer:
    """Commits to a thread of its own, and notes what was acknowledged."""

    def __init__(self, url: str, number: int) -> None:
        self.name = f"thread {number}"
        self.store: Store = everthread.open(url)
        self.acknowledged: list[str] = []
        self.events: list[bytes] = []
        self.failure = ""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._write()
        except Exception as error:
            self.failure = f"{self.name}: {type(error).__name__}: {error}"

    def _write(self) -> None:
        thread = self.store.thread(self.name)
        number = 0
        while not self._stopped.is_set():
            number += 1
            self._insist_on(thread, f"{self.name} {number}")
            if number % 10 == 0:
                self._emit(b"%d" % number)

    def _insist_on(self, thread: everthread.Thread, item: str) -> None:
        appended = False
        while True:
            try:
                if not appended:
                    thread.messages.append({"id": item, "content": item * 20})
                    appended = True
                thread.commit()
                self.acknowledged.append(item)
                return
            except (everthread.StoreUnavailableError, everthread.StorageWriteError):
                if self._stopped.is_set():
                    return
            except ConflictError as error:
                self.failure = f"{self.name}: a conflict that nobody caused: {error}"
                return

    def _emit(self, body: bytes) -> None:
        try:
            self.store.core.backend.emit(SPACE, self.name, [NewEvent(0, "t", None, body)])
            self.events.append(body)
        except (everthread.StoreUnavailableError, everthread.StorageWriteError):
            return

    def finish(self) -> None:
        self._stopped.set()
        self._thread.join(timeout=60)
        self.store.close()


class Server(Protocol):
    """Kept alive, killed, and started again on what it left."""

    def start(self) -> None: ...

    def kill(self) -> None: ...

    def stop(self) -> None: ...


def kill_valkey(folder: Path, cycles: int, seed: int) -> Tally:
    server = ValkeyServer(folder, *LASTING)
    server.start()
    return _kill_cycles(server, server.url, "timeout_ms=20000", cycles, seed)


def kill_postgres(folder: Path, cycles: int, seed: int) -> Tally:
    """With all of the server's own care for what it acknowledges: fsync, synchronous_commit."""
    folder.mkdir()
    folder.chmod(0o711)
    server = PostgresServer(folder)
    server.create()
    server.start()
    return _kill_cycles(server, server.uri(), "retry_ms=20000", cycles, seed)


def _kill_cycles(server: Server, url: str, patience: str, cycles: int, seed: int) -> Tally:
    draw = random.Random(seed)
    try:
        writers = [Writer(f"{url}?{patience}", number) for number in range(WRITERS)]
        for _ in range(cycles):
            before = sum(len(writer.acknowledged) for writer in writers)
            wait_for(writers, before + draw.randint(20, 150))
            server.kill()
            time.sleep(draw.uniform(0, 0.1))
            server.start()
        wait_for(writers, sum(len(writer.acknowledged) for writer in writers) + 20)
        for writer in writers:
            writer.finish()
        return judge(url, writers, cycles)
    finally:
        server.stop()


def wait_for(writers: list[Writer], acknowledged: int) -> None:
    """Until so many writes were acknowledged, by whomever."""
    deadline = time.monotonic() + 60
    while sum(len(writer.acknowledged) for writer in writers) < acknowledged:
        if time.monotonic() > deadline or any(writer.failure for writer in writers):
            return
        time.sleep(0.005)


def judge(url: str, writers: list[Writer], cycles: int) -> Tally:
    lost: list[str] = []
    twice: list[str] = []
    with everthread.open(url) as store:
        for writer in writers:
            if writer.failure:
                lost.append(writer.failure)
            found = [item["id"] for item in store.thread(writer.name).messages]
            lost += sorted(set(writer.acknowledged) - set(found))
            twice += [item for item in set(found) if found.count(item) > 1]
            events = [e.body for e in store.core.backend.events(SPACE, writer.name, 0, 1_000_000)]
            lost += [repr(body) for body in writer.events if body not in events]
            twice += [repr(body) for body in set(events) if events.count(body) > 1]
        report = store.verify()
    return Tally(
        cycles,
        sum(len(writer.acknowledged) for writer in writers),
        lost,
        twice,
        "" if report else "\n".join(map(str, report.damage)),
        store.core.backend.keeping.level,  # type: ignore[attr-defined]
    )
