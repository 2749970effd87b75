"""PostgreSQL: what a commit costs beside a raw insert of the same bytes, while a thread grows.

A server of its own with its default care (fsync, synchronous_commit). All take turns in random order, save by
save: an INSERT through psycopg, prepared; the same through the pool that Everthread uses; a commit
that appends the same message and changes the document, without and with metadata, a key and an id. Then
resuming the long thread beside a short one. ``fleet_langgraph`` is about the peer, ``fleet_many`` about many
sessions at once.
"""

from __future__ import annotations

import random
import statistics
from pathlib import Path
from typing import Any

import msgspec
import psycopg

import everthread
from everthread.stores.postgres.settings import read_settings
from everthread.stores.postgres.sync.pool import Pool
from tests.servers.postgres import PostgresServer

from . import measure
from .measure import Report, Samples, say, take_turns
from .messages import Transcript
from .savers import first_document

RAW, POOLED, COMMIT, FULL = "raw INSERT", "raw INSERT, from the pool", "commit", "commit + metadata, key, id"
#: Schemas of their own, so that their sizes can be told apart.
SCHEMAS = {COMMIT: "core", FULL: "full"}
INSERT = "INSERT INTO raw (body) VALUES (%s)"
POOLED_INSERT = b"INSERT INTO raw (body) VALUES ($1)"
RAW_TABLE = """
CREATE TABLE IF NOT EXISTS raw (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body bytea STORAGE EXTERNAL
)
"""
#: What the tables of a schema take, with their indexes and what is stored out of line.
SIZE = """
SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c JOIN pg_namespace n
    ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relkind = 'r' AND c.relname LIKE %s
"""
RESUMES = 30


def size(connection: Any, schema: str, tables: str = "%") -> int:
    """Bytes of the tables of a schema whose names are like this."""
    (found,) = connection.execute(SIZE, (schema, tables)).fetchone()
    return int(found)


class Growing:
    """The contenders, each with what it writes."""

    def __init__(self, uri: str) -> None:
        self.raw = psycopg.connect(uri, autocommit=True, prepare_threshold=0)
        self.raw.execute(RAW_TABLE)
        self.pool = Pool(read_settings(uri, "full"))
        self.pool.statements = {**self.pool.statements, "insert": POOLED_INSERT}
        self.stores = {name: everthread.open(f"{uri}?schema={schema}") for name, schema in SCHEMAS.items()}
        self.threads = {name: store.thread("growing") for name, store in self.stores.items()}
        for thread in self.threads.values():
            thread.state.update(first_document())
            thread.commit(label="first")
        self.payload = 0

    def actions(self, step: int, message: dict[str, Any]) -> dict[str, Any]:
        body = msgspec.msgpack.encode([message, {"step": step}])
        self.payload += len(msgspec.json.encode(message))
        for name, thread in self.threads.items():
            own = {**message, "id": f"message-{step}"} if name == FULL else dict(message)
            thread.messages.append(own)
            thread.state["step"] = step
        metadata = {"run": "run-7", "step": step}
        return {
            RAW: lambda: self.raw.execute(INSERT, (body,)),
            POOLED: lambda: self.pool.run("insert", (body,)),
            COMMIT: self.threads[COMMIT].commit,
            FULL: lambda: self.threads[FULL].commit(metadata=metadata, key=f"step-{step}"),
        }

    def close(self) -> None:
        self.raw.close()
        self.pool.close()
        for store in self.stores.values():
            store.close()


def grow(report: Report, uri: str, messages: int, seed: int) -> Samples:
    """One thread, save by save beside raw writes."""
    rng, samples = random.Random(seed), Samples()
    with report.watched("PostgreSQL, growth"):
        growing = Growing(uri)
        for step, message in zip(range(1, messages + 1), Transcript(seed), strict=False):
            plain = {name: value for name, value in message.items() if name != "id"}
            take_turns(rng, growing.actions(step, plain), samples)
            if step % max(1, messages // 10) == 0:
                medians = (f"{n} {statistics.median(v[-1000:]) / 1e3:.0f} µs" for n, v in samples.items())
                say(f"PostgreSQL, {step:,}: " + ", ".join(medians))
        sizes = {name: size(growing.raw, schema) for name, schema in SCHEMAS.items()}
        sizes[RAW] = size(growing.raw, "public", "raw") // 2
        growing.close()
        judge(report, "PostgreSQL", samples, {COMMIT: (RAW, 1.5, 1.3), FULL: (RAW, 1.6, 1.4)})
    rows = table_rows(samples, RAW)
    for row in rows:
        name = str(row[0])
        row.append(f"{sizes[name] / growing.payload:.2f}" if name in sizes else "")
    note = f"In random order, save by save. JSON payload {growing.payload / 1e6:.1f} MB; in brackets: × raw."
    report.table(f"PostgreSQL, {messages:,} saves of about 1 KB", note, [*HEADER, "bytes ÷ JSON"], rows)
    report.data["postgres"] = {name: data(values) for name, values in samples.items()}
    return samples


HEADER = ["", "saves", "median µs", "mean µs", "p99 µs", "worst ms", "first → last decile µs"]


def table_rows(samples: Samples, raw: str) -> list[list[object]]:
    """A row for each contender, beside raw."""
    base = measure.summary(samples[raw])
    rows: list[list[object]] = []
    for name, values in samples.items():
        own = measure.summary(values)
        first, last = measure.deciles(values)
        rows.append(
            [
                *(name, len(values)),
                f"{own['median_us']:.0f} ({own['median_us'] / base['median_us']:.2f})",
                f"{own['mean_us']:.0f} ({own['mean_us'] / base['mean_us']:.2f})",
                *(own["p99_us"], own["worst_us"] / 1e3, f"{first / 1e3:.0f} → {last / 1e3:.0f}"),
            ]
        )
    return rows


def data(values: Any) -> dict[str, float]:
    first, last = measure.deciles(values)
    return {**measure.summary(values), "first_decile_us": first / 1e3, "last_decile_us": last / 1e3}


def judge(report: Report, server: str, samples: Samples, goals: dict[str, tuple[str, float, float]]) -> None:
    """Medians against raw's, and whether they stay as they were."""
    for name, (raw, must, best) in goals.items():
        own, base = statistics.median(samples[name]), statistics.median(samples[raw])
        micro = f"{own / 1e3:.0f} µs, raw {base / 1e3:.0f}"
        report.goal(f"{server}: median {name} ÷ {raw}", own / base, must, best, note=micro)
        grown = [measure.deciles(samples[each]) for each in (name, raw)]
        flat = (grown[0][1] / grown[0][0]) / (grown[1][1] / grown[1][0])
        report.goal(f"{server}: {name}, last ÷ first decile, ÷ raw's own", flat, 1.15, 1.05)


def resume(report: Report, uri: str) -> None:
    """Open, document and last 20 messages, of a long thread and of a short one."""
    url = f"{uri}?schema={SCHEMAS[COMMIT]}"
    with everthread.open(url) as store:
        short = store.thread("short")
        short.state.update(first_document())
        for number in range(100):
            short.messages.append({"role": "user", "content": "x" * 1000})
            short.state["step"] = number
            short.commit()
    samples = Samples()
    with report.watched("PostgreSQL, resume"), everthread.open(url) as store:

        def read(name: str) -> None:
            backend: Any = store.core.backend
            backend._known.clear()
            store.core.head_cache.clear()
            thread = store.thread(name)
            assert thread.state["step"] >= 0
            assert len(thread.messages[-20:]) == 20

        rng = random.Random(0)
        for _ in range(RESUMES):
            take_turns(rng, {"short": lambda: read("short"), "long": lambda: read("growing")}, samples)
        ratio = statistics.median(samples["long"]) / statistics.median(samples["short"])
        report.goal("PostgreSQL: resume of the long thread ÷ of one with 100 messages", ratio, 1.2, 1.1)
    rows = [[name, *list(measure.summary(values).values())[:4]] for name, values in samples.items()]
    header = ["", "median µs", "mean µs", "p99 µs", "worst µs"]
    report.table("PostgreSQL, resume: open, document, last 20 messages", "", header, rows)


def start(work: Path) -> PostgresServer:
    """A server with its default care, on the disk that is measured."""
    folder = work / "postgres"
    work.chmod(0o711)
    folder.mkdir()
    server = PostgresServer(folder, settings=("max_connections=200",))
    server.create()
    server.start()
    return server
