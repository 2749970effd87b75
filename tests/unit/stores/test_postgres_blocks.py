"""What a statement reads doesn't grow with what it doesn't return: blocks are counted at two sizes.

The database isn't empty: other threads, streams and cells share its tables, and the planner knows them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import everthread
from everthread.stores.postgres.schema import statements
from everthread.stores.postgres.settings import DEFAULT_SCHEMA

OTHERS = 3_000
SIZES = (1_000, 10_000)
#: A few more levels of an index are no growth.
SLACK = 12

#: Lines number $1 to $2 of the space $3, with $4 rows each; every 60th row is a pack with a keyframe.
FILL_LINES = """
WITH made AS (
    INSERT INTO everthread.line (id, root, uid, space, name, parent, parent_seq, parent_segment, parent_hash,
        start_hash, counts, sum, tagged)
    SELECT n << 24, n << 24, decode(md5(n::text), 'hex'), %(space)s,
        convert_to('thread ' || lpad(n::text, 9, '0'), 'UTF8'), 0, 0, 0, '', '', '', 0, %(rows)s
    FROM generate_series(%(first)s::bigint, %(last)s) n RETURNING id
), headed AS (
    INSERT INTO everthread.head (root, line, seq, hash, space, tags_due)
    SELECT id, id, %(rows)s, decode(md5(id::text), 'hex'), %(space)s, false FROM made
)
INSERT INTO everthread.record (root, line, seq, kind, first, sum, hash, keyframe, body)
SELECT id, id, s, CASE WHEN s %% 60 = 0 THEN 1 ELSE 0 END, s, 0, decode(md5(s::text), 'hex'),
    CASE WHEN s %% 60 = 0 THEN 'keyframe'::bytea END, convert_to(repeat('x', 200), 'UTF8')
FROM made, generate_series(1, %(rows)s::bigint) s
"""
FILL_EVENTS = """
WITH made AS (
    INSERT INTO everthread.stream (space, name, last, peak_us)
    VALUES (%(space)s, %(name)s, %(count)s, %(count)s) RETURNING id
)
INSERT INTO everthread.event (stream, seq, type, agent, at_us, peak_us, body)
SELECT id, n, convert_to(CASE WHEN n %% 997 = 0 THEN 'rare' ELSE 'type ' || n %% 3 END, 'UTF8'),
    convert_to('agent ' || n %% 5, 'UTF8'), n, n, convert_to(repeat('x', 200), 'UTF8')
FROM made, generate_series(1, %(count)s::bigint) n
"""


class Blocks:
    """A database, and how many of its blocks a statement looks at."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.texts = statements(f'"{DEFAULT_SCHEMA}"')
        self.lines = 0

    def fill_lines(self, space: bytes, count: int, rows: int) -> str:
        """So many more lines; the name of the last one."""
        values = {"space": space, "rows": rows, "first": self.lines + 1, "last": self.lines + count}
        self.connection.execute(FILL_LINES, values)
        self.lines += count
        return f"thread {self.lines:09}"

    def fill_events(self, name: bytes, count: int) -> None:
        self.connection.execute(FILL_EVENTS, {"space": b"s", "name": name, "count": count})

    def analyze(self) -> None:
        self.connection.execute("VACUUM ANALYZE")

    def read(self, name: str, *values: object) -> int:
        """By whichever plan is the worse: one for these values, or one for any."""
        self.connection.execute(b"PREPARE counted AS " + self.texts[name])
        places = ", ".join(["%s"] * len(values))
        found = []
        for mode in ("force_custom_plan", "force_generic_plan"):
            self.connection.execute(f"SET plan_cache_mode = {mode}")
            explained = f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) EXECUTE counted({places})"
            ((((plan,),),),) = (self.connection.execute(explained, values).fetchall(),)
            top = plan["Plan"]
            found.append(top["Shared Hit Blocks"] + top["Shared Read Blocks"])
        self.connection.execute("DEALLOCATE counted")
        return max(found)


@pytest.fixture
def blocks(postgres_url: str) -> Iterator[Blocks]:
    everthread.open(postgres_url).close()
    with psycopg.connect(postgres_url, autocommit=True, cursor_factory=psycopg.ClientCursor) as connection:
        found = Blocks(connection)
        for number in range(30):
            found.fill_lines(b"other %d" % number, OTHERS // 30, 3)
            found.fill_events(b"other %d" % number, 50)
        yield found


def same(counts: list[int], at_most: int) -> None:
    """They don't grow with the size, and stay below a bound."""
    assert max(counts) <= at_most, counts
    assert counts[-1] - counts[0] <= SLACK, counts


@pytest.mark.parametrize("name", ["find", "find_and_replay"])
def test_opening_a_thread_reads_its_newest_rows_only(blocks: Blocks, name: str) -> None:
    counts = []
    for size in SIZES:
        thread = blocks.fill_lines(b"s", 1, size)
        blocks.analyze()
        counts.append(blocks.read(name, b"s", thread.encode()))
    same(counts, 200)


def test_a_page_of_threads_reads_that_page_only(blocks: Blocks) -> None:
    counts: dict[str, list[int]] = {"first": [], "later": [], "prefix": []}
    for size in SIZES:
        blocks.fill_lines(b"s", size - blocks.lines + OTHERS, 3)
        blocks.analyze()
        middle = f"thread {OTHERS + size // 2:09}".encode()
        counts["first"].append(blocks.read("lines", b"s", b"", b"", 20))
        counts["later"].append(blocks.read("lines", b"s", b"", middle, 20))
        counts["prefix"].append(blocks.read("lines", b"s", b"thread 00000", middle, 20))
    for found in counts.values():
        same(found, 400)


def test_a_metadata_query_reads_what_was_committed_since(blocks: Blocks) -> None:
    counts = []
    for size in SIZES:
        blocks.fill_lines(b"s", size - blocks.lines + OTHERS, 3)
        # Others, and ten of this space.
        blocks.connection.execute("UPDATE everthread.head SET tags_due = true WHERE space <> %s", (b"s",))
        blocks.connection.execute(
            "UPDATE everthread.head SET tags_due = true, seq = 4 WHERE line IN "
            "(SELECT id FROM everthread.line WHERE space = %s ORDER BY id LIMIT 10)",
            (b"s",),
        )
        blocks.analyze()
        counts.append(blocks.read("untagged", b"s"))
    same(counts, 80)


@pytest.mark.parametrize("where", ["start", "middle", "end"])
@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("events", ()),
        ("events_of_type", (b"type 1",)),
        ("events_of_type", (b"rare",)),
        ("events_of_agent", (b"agent 1",)),
        ("events_of_type_and_agent", (b"type 1", b"agent 1")),
    ],
)
def test_a_page_of_events_reads_that_page_only(
    blocks: Blocks, kind: str, wanted: tuple[bytes, ...], where: str
) -> None:
    counts = []
    for size in SIZES:
        name = b"stream %d" % size
        blocks.fill_events(name, size)
        blocks.analyze()
        after = {"start": 0, "middle": size // 2, "end": size - 20}[where]
        values = (b"s", name, after, -(1 << 63), (1 << 63) - 1, 20)
        counts.append(blocks.read(kind, *values, *wanted))
    same(counts, 400)


def test_events_since_a_time_are_found_without_reading_those_before(blocks: Blocks) -> None:
    counts = []
    for size in SIZES:
        name = b"stream %d" % size
        blocks.fill_events(name, size)
        blocks.analyze()
        counts.append(blocks.read("events", b"s", name, 0, size - 40, size - 10, 20))
    same(counts, 100)
