"""What a backup reads and writes, table by table."""

from __future__ import annotations

from typing import NamedTuple

from everthread.stores.postgres.wire import Statement


class Table(NamedTuple):
    """How all rows of a table are read, and how some are put in: a list for each column."""

    name: str
    read: str
    put: Statement


FETCH = Statement("", "FETCH FORWARD 500 FROM everthread_copy")

TABLES = (
    Table(
        "line",
        """
        DECLARE everthread_copy NO SCROLL CURSOR FOR
        SELECT id, root, uid, space, name, parent, parent_seq, parent_segment, parent_hash, start_hash,
               counts, sum, deleted::int::smallint, tagged FROM everthread.line ORDER BY id
        """,
        Statement(
            "QQBBBQQQBBBQHQ",
            """
            INSERT INTO everthread.line (id, root, uid, space, name, parent, parent_seq, parent_segment,
                parent_hash, start_hash, counts, sum, deleted, tagged)
            SELECT a, b, c, d, e, f, g, h, i, j, k, l, m = 1, n FROM unnest($1::bigint[], $2::bigint[],
                $3::bytea[], $4::bytea[], $5::bytea[], $6::bigint[], $7::bigint[], $8::bigint[], $9::bytea[],
                $10::bytea[], $11::bytea[], $12::bigint[], $13::smallint[], $14::bigint[])
                u(a, b, c, d, e, f, g, h, i, j, k, l, m, n)
            """,
        ),
    ),
    Table(
        "family_floor",
        "DECLARE everthread_copy NO SCROLL CURSOR FOR SELECT root, last FROM everthread.family_floor",
        Statement(
            "QQ",
            """
            INSERT INTO everthread.family_floor (root, last)
            SELECT * FROM unnest($1::bigint[], $2::bigint[])
            """,
        ),
    ),
    Table(
        "head",
        "DECLARE everthread_copy NO SCROLL CURSOR FOR SELECT root, line, seq, hash FROM everthread.head",
        Statement(
            "QQQB",
            """
            INSERT INTO everthread.head (root, line, seq, hash)
            SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bytea[])
            """,
        ),
    ),
    Table(
        "record",
        """
        DECLARE everthread_copy NO SCROLL CURSOR FOR
        SELECT root, line, seq, kind, first, sum, hash, key, net, keyframe, body FROM everthread.record
        """,
        Statement(
            "QQQHQQBBBBB",
            """
            INSERT INTO everthread.record (root, line, seq, kind, first, sum, hash, key, net, keyframe, body)
            SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::smallint[], $5::bigint[],
                $6::bigint[], $7::bytea[], $8::bytea[], $9::bytea[], $10::bytea[], $11::bytea[])
            """,
        ),
    ),
    Table(
        "chunk",
        """
        DECLARE everthread_copy NO SCROLL CURSOR FOR
        SELECT root, line, log, position, count, sum, fingerprints, data FROM everthread.chunk
        """,
        Statement(
            "QQBQQQBB",
            """
            INSERT INTO everthread.chunk (root, line, log, position, count, sum, fingerprints, data)
            SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bytea[], $4::bigint[], $5::bigint[],
                $6::bigint[], $7::bytea[], $8::bytea[])
            """,
        ),
    ),
    Table(
        "keyed",
        "DECLARE everthread_copy NO SCROLL CURSOR FOR SELECT root, key, line, seq FROM everthread.keyed",
        Statement(
            "QBQQ",
            """
            INSERT INTO everthread.keyed (root, key, line, seq)
            SELECT * FROM unnest($1::bigint[], $2::bytea[], $3::bigint[], $4::bigint[])
            """,
        ),
    ),
    Table(
        "tag",
        "DECLARE everthread_copy NO SCROLL CURSOR FOR SELECT root, line, name, value FROM everthread.tag",
        Statement(
            "QQBB",
            """
            INSERT INTO everthread.tag (root, line, name, value)
            SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bytea[], $4::bytea[])
            """,
        ),
    ),
    Table(
        "erased",
        """
        DECLARE everthread_copy NO SCROLL CURSOR FOR
        SELECT key, erasure, phase, noted_us, note FROM everthread.erased
        """,
        Statement(
            "BBHQB",
            """
            INSERT INTO everthread.erased (key, erasure, phase, noted_us, note)
            SELECT * FROM unnest($1::bytea[], $2::bytea[], $3::smallint[], $4::bigint[], $5::bytea[])
            """,
        ),
    ),
    Table(
        "sealed",
        "DECLARE everthread_copy NO SCROLL CURSOR FOR SELECT space, value, keys, data FROM everthread.sealed",
        Statement(
            "BBBB",
            """
            WITH added AS (
                INSERT INTO everthread.sealed (space, value, keys, data)
                SELECT * FROM unnest($1::bytea[], $2::bytea[], $3::bytea[], $4::bytea[]) RETURNING value, keys
            )
            INSERT INTO everthread.sealed_key (key, value)
            SELECT DISTINCT substring(a.keys FROM n FOR 16), a.value
            FROM added a, generate_series(1, length(a.keys), 16) n
            """,
        ),
    ),
    Table(
        "cell",
        """
        DECLARE everthread_copy NO SCROLL CURSOR FOR
        SELECT space, name, revision, written_us, value FROM everthread.cell
        """,
        Statement(
            "BBQQB",
            """
            INSERT INTO everthread.cell (space, name, revision, written_us, value)
            SELECT * FROM unnest($1::bytea[], $2::bytea[], $3::bigint[], $4::bigint[], $5::bytea[])
            """,
        ),
    ),
    Table(
        "stream",
        """
        DECLARE everthread_copy NO SCROLL CURSOR FOR
        SELECT id, space, name, first, last, peak_us, late_us FROM everthread.stream
        """,
        Statement(
            "QBBQQQQ",
            """
            INSERT INTO everthread.stream (id, space, name, first, last, peak_us, late_us)
            OVERRIDING SYSTEM VALUE
            SELECT * FROM unnest($1::bigint[], $2::bytea[], $3::bytea[], $4::bigint[], $5::bigint[],
                $6::bigint[], $7::bigint[])
            """,
        ),
    ),
    Table(
        "event",
        """
        DECLARE everthread_copy NO SCROLL CURSOR FOR
        SELECT stream, seq, type, agent, at_us, peak_us, body FROM everthread.event
        """,
        Statement(
            "QQBBQQB",
            """
            INSERT INTO everthread.event (stream, seq, type, agent, at_us, peak_us, body)
            SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bytea[], $4::bytea[], $5::bigint[],
                $6::bigint[], $7::bytea[])
            """,
        ),
    ),
    Table(
        "knowledge",
        """
        DECLARE everthread_copy NO SCROLL CURSOR FOR
        SELECT space, key, text, metadata::text, embedding::text FROM everthread.knowledge
        """,
        Statement(
            "BBTTT",
            """
            INSERT INTO everthread.knowledge (space, key, text, metadata, embedding)
            SELECT a, b, c, d::jsonb, e::real[]
            FROM unnest($1::bytea[], $2::bytea[], $3::text[], $4::text[], $5::text[]) u(a, b, c, d, e)
            """,
        ),
    ),
)

#: Writers wait until the new content is there; what must outlive the old one is put aside.
LOCK_ALL = """
LOCK TABLE everthread.line, everthread.head, everthread.cell, everthread.stream, everthread.erased,
    everthread.sealed IN EXCLUSIVE MODE
"""
BEGIN_RESTORE = """
CREATE TEMPORARY TABLE everthread_families ON COMMIT DROP AS
    SELECT root, max(last) AS last FROM (SELECT root, id AS last FROM everthread.line
        UNION ALL SELECT root, last FROM everthread.family_floor) x GROUP BY root;
CREATE TEMPORARY TABLE everthread_cells ON COMMIT DROP AS SELECT space, name, revision FROM everthread.cell;
DELETE FROM everthread.knowledge; DELETE FROM everthread.document;
DELETE FROM everthread.event; DELETE FROM everthread.stream; DELETE FROM everthread.cell;
DELETE FROM everthread.sealed_key; DELETE FROM everthread.sealed; DELETE FROM everthread.erased;
DELETE FROM everthread.tag; DELETE FROM everthread.keyed; DELETE FROM everthread.chunk;
DELETE FROM everthread.record; DELETE FROM everthread.head; DELETE FROM everthread.family_floor;
DELETE FROM everthread.line;
"""
#: Handles made before must never find another thread under their line's id, nor another value under a cell's
#: revision.
END_RESTORE = """
INSERT INTO everthread.family_floor AS f (root, last) SELECT root, last FROM everthread_families
    ON CONFLICT (root) DO UPDATE SET last = greatest(f.last, excluded.last);
UPDATE everthread.cell c SET revision = greatest(c.revision, o.revision) + 1
    FROM everthread_cells o WHERE o.space = c.space AND o.name = c.name;
INSERT INTO everthread.cell (space, name, revision, written_us, value)
    SELECT space, name, revision, 0, NULL FROM everthread_cells ON CONFLICT DO NOTHING;
SELECT setval('everthread.root', greatest((SELECT last_value FROM everthread.root),
    (SELECT coalesce(max(root), 0) >> 24 FROM everthread.line), 1));
SELECT setval(pg_get_serial_sequence('everthread.stream', 'id'),
    greatest((SELECT coalesce(max(id), 0) FROM everthread.stream), 1)
        + nextval(pg_get_serial_sequence('everthread.stream', 'id')));
"""
PUT_ERASED = Statement(
    "BBHQB",
    """
    INSERT INTO everthread.erased AS x (key, erasure, phase, noted_us, note)
    SELECT * FROM unnest($1::bytea[], $2::bytea[], $3::smallint[], $4::bigint[], $5::bytea[])
    ON CONFLICT (key) DO UPDATE SET erasure = excluded.erasure, phase = excluded.phase,
        noted_us = excluded.noted_us, note = excluded.note
    """,
)
#: Before the revisions are raised.
PUT_CELLS = Statement(
    "BBQB",
    """
    INSERT INTO everthread.cell (space, name, revision, written_us, value)
    SELECT a, b, 1, c, d FROM unnest($1::bytea[], $2::bytea[], $3::bigint[], $4::bytea[]) u(a, b, c, d)
    ON CONFLICT (space, name) DO UPDATE SET value = excluded.value, written_us = excluded.written_us
    """,
)
