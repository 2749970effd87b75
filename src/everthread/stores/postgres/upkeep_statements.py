"""The statements that no commit waits for: pruning, sizes, checking, erasing."""

from __future__ import annotations

from everthread.stores.postgres.wire import Statement

LOCK_FAMILY = Statement("q", "SELECT id FROM everthread.line WHERE id = $1 FOR UPDATE")
LOCK_ANY = Statement("", "SELECT id FROM everthread.line ORDER BY id LIMIT 1 FOR UPDATE")
#: A fork, a REWIND, or a PRUNED or COLD row, which may have been one.
REWOUND = Statement(
    "QQQ",
    """
    SELECT 1::bigint FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) s(root, line, seq)
    WHERE EXISTS (SELECT 1 FROM everthread.record r
            WHERE r.root = s.root AND r.line = s.line AND r.seq > s.seq AND r.kind IN (2, 5, 6))
        OR EXISTS (SELECT 1 FROM everthread.line c
            WHERE c.parent = s.line AND c.parent > 0 AND c.id <> ALL ($2::bigint[]))
    LIMIT 1
    """,
)
STANDING = Statement(
    "qqqq",
    """
    SELECT seq, first, kind, hash, sha256(body), sha256(net), sha256(keyframe)
    FROM everthread.record WHERE root = $1 AND line = $2 AND seq BETWEEN $3 AND $4 ORDER BY seq
    """,
)
#: What SQL is shown of a family: other content took the place of what these documents were made of.
REMOVE_DOCUMENTS = Statement(
    "q",
    """
    DELETE FROM everthread.document d USING everthread.line l WHERE l.root = $1 AND d.line = l.id
    """,
)
REMOVE_ROWS = Statement(
    "qqqq", "DELETE FROM everthread.record WHERE root = $1 AND line = $2 AND seq BETWEEN $3 AND $4"
)
ADD_ROWS = Statement(
    "qqQHQQBBBB",
    """
    INSERT INTO everthread.record (root, line, seq, kind, first, sum, hash, net, keyframe, body)
    SELECT $1, $2, u.* FROM unnest($3::bigint[], $4::smallint[], $5::bigint[], $6::bigint[], $7::bytea[],
        $8::bytea[], $9::bytea[], $10::bytea[]) u
    """,
)
CHUNKS_WITHIN = Statement(
    "qqnqq",
    """
    SELECT position, count, length(data)::bigint FROM everthread.chunk
    WHERE root = $1 AND line = $2 AND log = $3 AND position >= $4 AND position + count <= $5 ORDER BY position
    """,
)
CHUNKS_AT = Statement(
    "qqnQ",
    """
    SELECT position, count, sha256(fingerprints), sha256(data) FROM everthread.chunk
    WHERE root = $1 AND line = $2 AND log = $3 AND position = ANY ($4) ORDER BY position
    """,
)
REMOVE_CHUNKS = Statement(
    "qqnQ", "DELETE FROM everthread.chunk WHERE root = $1 AND line = $2 AND log = $3 AND position = ANY ($4)"
)
ADD_CHUNKS = Statement("qqBQQQBB", "SELECT everthread.add_chunks($1, $2, $3, $4, $5, $6, $7, $8)")

# ── sizes ────────────────────────────────────────────────────────────────────────────────────────

ROWS_TAKE = Statement(
    "qq",
    """
    SELECT kind, sum(seq - first + 1)::bigint, sum(length(body) + coalesce(length(net), 0))::bigint,
           sum(coalesce(length(keyframe), 0))::bigint
    FROM everthread.record WHERE root = $1 AND line = $2 GROUP BY kind
    """,
)
CHUNKS_TAKE = Statement(
    "qq",
    """
    SELECT coalesce(sum(length(data) + length(fingerprints)), 0)::bigint FROM everthread.chunk
    WHERE root = $1 AND line = $2
    """,
)
TOTALS = Statement(
    "",
    """
    SELECT (SELECT count(*) FROM everthread.sealed), (SELECT coalesce(sum(length(data)), 0)::bigint
               FROM everthread.sealed),
           (SELECT count(*) FROM everthread.cell WHERE value IS NOT NULL),
           (SELECT coalesce(sum(length(value)), 0)::bigint FROM everthread.cell),
           (SELECT count(*) FROM everthread.event), (SELECT coalesce(sum(length(body)), 0)::bigint
               FROM everthread.event)
    """,
)
#: Every table of the schema with its indexes and what is stored out of line.
TABLES_TAKE = Statement(
    "t",
    """
    SELECT c.relname::text, pg_total_relation_size(c.oid) FROM pg_class c JOIN pg_namespace n
        ON n.oid = c.relnamespace
    WHERE n.nspname = $1 AND c.relkind = 'r' ORDER BY c.relname
    """,
)

# ── checking ─────────────────────────────────────────────────────────────────────────────────────

#: Lines whose head isn't their newest row; that are deleted and not sealed, or the other way round.
WRONG_HEADS = Statement(
    "",
    """
    SELECT l.id FROM everthread.line l LEFT JOIN everthread.head h ON h.root = l.root AND h.line = l.id
        LEFT JOIN LATERAL (SELECT r.seq, r.hash FROM everthread.record r
            WHERE r.root = l.root AND r.line = l.id ORDER BY r.seq DESC LIMIT 1) n ON true
    WHERE h.line IS NULL OR l.deleted <> (h.seq = 4294967295)
        OR (NOT l.deleted AND (h.seq <> coalesce(n.seq, 0) OR h.hash <> coalesce(n.hash, l.start_hash)))
    LIMIT 101
    """,
)
HOMELESS = Statement(
    "",
    """
    SELECT r.line, r.seq FROM everthread.record r
    WHERE NOT EXISTS (SELECT 1 FROM everthread.line l WHERE l.id = r.line AND l.root = r.root) LIMIT 101
    """,
)
CHUNK_PLACES = Statement(
    "qqbq",
    """
    SELECT root, line, log, position, count, fingerprints, sum FROM everthread.chunk
    WHERE (root, line, log, position) > ($1, $2, $3, $4) ORDER BY root, line, log, position LIMIT 1000
    """,
)
WRONG_STREAMS = Statement(
    "",
    """
    SELECT s.name FROM everthread.stream s LEFT JOIN (
        SELECT stream, count(*) AS count, min(seq) AS first, max(seq) AS last, max(at_us) AS peak_us,
               max(peak_us::numeric - at_us) AS late_us
        FROM everthread.event GROUP BY stream
    ) e ON e.stream = s.id
    WHERE coalesce(e.count, 0) <> s.last - s.first + 1 OR e.peak_us IS DISTINCT FROM s.peak_us
        OR coalesce(e.late_us, 0) > s.late_us OR e.first <> s.first OR e.last <> s.last
    LIMIT 101
    """,
)
WRONG_PEAKS = Statement(
    "",
    """
    SELECT s.name, e.seq FROM (
        SELECT stream, seq, peak_us, max(at_us) OVER (PARTITION BY stream ORDER BY seq) AS true_us
        FROM everthread.event
    ) e JOIN everthread.stream s ON s.id = e.stream WHERE e.peak_us <> e.true_us LIMIT 101
    """,
)
UNLISTED = Statement(
    "",
    """
    SELECT s.value FROM everthread.sealed s, generate_series(1, length(s.keys), 16) n
    WHERE NOT EXISTS (SELECT 1 FROM everthread.sealed_key k
        WHERE k.key = substring(s.keys FROM n FOR 16) AND k.value = s.value)
    LIMIT 101
    """,
)

# ── watching ─────────────────────────────────────────────────────────────────────────────────────

HEADS = Statement(
    "QQ", "SELECT line, seq, hash FROM everthread.head WHERE root = ANY ($1) AND line = ANY ($2)"
)
NEWEST_ROOT = Statement("", "SELECT max(id), count(*) FROM everthread.line")
WATCH_LINES = Statement(
    "QQq",
    """
    UPDATE everthread.head SET watched = now() + $3 * interval '1 second'
    WHERE root = ANY ($1) AND line = ANY ($2)
    """,
)
WATCH_BIRTHS = Statement(
    "q", "UPDATE everthread.births SET watched = now() + $1 * interval '1 second' WHERE id = 1"
)
