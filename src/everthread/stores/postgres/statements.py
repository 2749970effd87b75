"""The statements of daily work, as constant text with bound parameters; ``wire`` says what letters mean."""

from __future__ import annotations

from everthread.stores.postgres.wire import Statement

# Columns of a line, in the order of rows.to_line(); of a row, in that of rows.to_row().

FIND = Statement(
    "nn",
    """
    SELECT l.id, l.root, l.uid, l.space, l.name, l.parent, l.parent_seq, l.parent_segment, l.parent_hash,
           l.start_hash, l.counts, l.deleted, l.sum,
           r.seq, r.first, r.kind, r.hash, r.body, r.net, r.keyframe, r.key, r.sum,
           (SELECT b.hash FROM everthread.record b
                WHERE b.root = l.root AND b.line = l.id AND b.seq < h.seq ORDER BY b.seq DESC LIMIT 1)
    FROM everthread.line l JOIN everthread.head h ON h.root = l.root AND h.line = l.id
        LEFT JOIN everthread.record r ON r.root = l.root AND r.line = l.id AND r.seq = h.seq
    WHERE l.space = $1 AND l.name = $2 AND NOT l.deleted
    """,
)
#: The same with the rows that replaying the newest version needs: who opens a line asks next for these.
FIND_AND_REPLAY = Statement(
    "nn",
    """
    SELECT l.id, l.root, l.uid, l.space, l.name, l.parent, l.parent_seq, l.parent_segment, l.parent_hash,
           l.start_hash, l.counts, l.deleted, l.sum,
           r.seq, r.first, r.kind, r.hash, r.body, r.net, r.keyframe, r.key, r.sum,
           (SELECT b.hash FROM everthread.record b
                WHERE b.root = l.root AND b.line = l.id AND b.seq < h.seq ORDER BY b.seq DESC LIMIT 1)
    FROM everthread.line l JOIN everthread.head h ON h.root = l.root AND h.line = l.id
        LEFT JOIN LATERAL (
            SELECT x.seq, x.first, x.kind, x.hash,
                   CASE WHEN x.kind IN (1, 5) AND x.seq < h.seq THEN ''::bytea ELSE x.body END AS body,
                   x.net, x.keyframe, x.key, x.sum
            FROM everthread.record x
            WHERE x.root = l.root AND x.line = l.id AND x.seq <= h.seq AND x.seq > l.parent_seq
                AND x.seq >= coalesce((SELECT k.seq FROM everthread.record k
                    WHERE k.root = l.root AND k.line = l.id AND k.seq <= h.seq
                        AND (k.keyframe IS NOT NULL OR k.kind = 2)
                    ORDER BY k.seq DESC LIMIT 1), 0)
        ) r ON true
    WHERE l.space = $1 AND l.name = $2 AND NOT l.deleted
    ORDER BY r.seq DESC
    """,
)
LINE = Statement(
    "q",
    """
    SELECT id, root, uid, space, name, parent, parent_seq, parent_segment, parent_hash, start_hash, counts,
           deleted, sum
    FROM everthread.line WHERE id = $1
    """,
)
LINE_BY_UID = Statement(
    "b",
    """
    SELECT id, root, uid, space, name, parent, parent_seq, parent_segment, parent_hash, start_hash, counts,
           deleted, sum
    FROM everthread.line WHERE uid = $1
    """,
)
EVERY_LINE = Statement(
    "q",
    """
    SELECT id, root, uid, space, name, parent, parent_seq, parent_segment, parent_hash, start_hash, counts,
           deleted, sum
    FROM everthread.line WHERE id > $1 ORDER BY id LIMIT 1000
    """,
)
LINES = Statement(
    "nnnq",
    """
    SELECT l.id, l.root, l.uid, l.space, l.name, l.parent, l.parent_seq, l.parent_segment, l.parent_hash,
           l.start_hash, l.counts, l.deleted, l.sum,
           r.seq, r.first, r.kind, r.hash, r.body, r.net, r.keyframe, r.key, r.sum,
           (SELECT b.hash FROM everthread.record b
                WHERE b.root = l.root AND b.line = l.id AND b.seq < h.seq ORDER BY b.seq DESC LIMIT 1)
    FROM everthread.line l JOIN everthread.head h ON h.root = l.root AND h.line = l.id
        LEFT JOIN everthread.record r ON r.root = l.root AND r.line = l.id AND r.seq = h.seq
    WHERE l.space = $1 AND l.name >= $2 AND l.name > $3 AND NOT l.deleted
    ORDER BY l.name LIMIT $4
    """,
)
LINES_BY_TAG = Statement(
    "nkbSB",
    """
    SELECT l.id, l.root, l.uid, l.space, l.name, l.parent, l.parent_seq, l.parent_segment, l.parent_hash,
           l.start_hash, l.counts, l.deleted, l.sum,
           r.seq, r.first, r.kind, r.hash, r.body, r.net, r.keyframe, r.key, r.sum,
           (SELECT b.hash FROM everthread.record b
                WHERE b.root = l.root AND b.line = l.id AND b.seq < h.seq ORDER BY b.seq DESC LIMIT 1)
    FROM everthread.tag t JOIN everthread.line l ON l.id = t.line
        JOIN everthread.head h ON h.root = l.root AND h.line = l.id
        LEFT JOIN everthread.record r ON r.root = l.root AND r.line = l.id AND r.seq = h.seq
    WHERE t.name = $2 AND sha256(t.value) = sha256($3) AND t.value = $3 AND l.space = $1 AND NOT l.deleted
        AND NOT EXISTS (SELECT 1 FROM unnest($4::bytea[], $5::bytea[]) w(name, value)
            WHERE NOT EXISTS (SELECT 1 FROM everthread.tag o
                WHERE o.root = t.root AND o.line = t.line AND o.name = w.name AND o.value = w.value))
    ORDER BY l.name
    """,
)
UNTAGGED = Statement(
    "n",
    """
    SELECT l.id, l.root, l.uid, l.space, l.name, l.parent, l.parent_seq, l.parent_segment, l.parent_hash,
           l.start_hash, l.counts, l.deleted, l.sum, l.tagged
    FROM everthread.line l JOIN everthread.head h ON h.root = l.root AND h.line = l.id
    WHERE l.space = $1 AND NOT l.deleted AND h.seq > l.tagged
    """,
)

#: Rows downwards from the one that holds $3, as far as replaying needs; $4 is the floor. A pack that ends
#: above $3 is read inside: its body comes along, and its keyframe doesn't count.
REPLAY = Statement(
    "qqqq",
    """
    WITH top AS (
        SELECT x.seq FROM everthread.record x
        WHERE x.root = $1 AND x.line = $2 AND x.seq >= $3 ORDER BY x.seq LIMIT 1
    )
    SELECT x.seq, x.first, x.kind, x.hash,
           CASE WHEN x.kind IN (1, 5) AND x.seq <= $3 THEN ''::bytea ELSE x.body END,
           x.net, x.keyframe, x.key, x.sum
    FROM everthread.record x
    WHERE x.root = $1 AND x.line = $2 AND x.seq <= (SELECT seq FROM top) AND x.seq > $4
        AND x.seq >= coalesce((SELECT k.seq FROM everthread.record k
            WHERE k.root = $1 AND k.line = $2 AND k.seq <= (SELECT seq FROM top)
                AND ((k.keyframe IS NOT NULL AND k.seq <= $3) OR k.kind = 2)
            ORDER BY k.seq DESC LIMIT 1), 0)
    ORDER BY x.seq DESC
    """,
)
SCAN = Statement(
    "qqqq",
    """
    SELECT x.seq, x.first, x.kind, x.hash, x.body, x.net, x.keyframe, x.key, x.sum
    FROM everthread.record x
    WHERE x.root = $1 AND x.line = $2 AND x.seq <= coalesce((SELECT t.seq FROM everthread.record t
        WHERE t.root = $1 AND t.line = $2 AND t.seq >= $3 ORDER BY t.seq LIMIT 1), $3)
    ORDER BY x.seq DESC LIMIT $4
    """,
)
TAIL = Statement(
    "qq",
    """
    SELECT x.seq, x.first, x.kind, x.hash, x.body, x.net, x.keyframe, x.key, x.sum
    FROM everthread.record x
    WHERE x.root = $1 AND x.line = $2 AND x.seq > coalesce((SELECT p.seq FROM everthread.record p
        WHERE p.root = $1 AND p.line = $2 AND p.kind IN (1, 5) ORDER BY p.seq DESC LIMIT 1), 0)
    ORDER BY x.seq
    """,
)
CHUNKS = Statement(
    "qqnqq",
    """
    SELECT c.position, c.count, c.fingerprints, c.data, c.sum FROM everthread.chunk c
    WHERE c.root = $1 AND c.line = $2 AND c.log = $3 AND c.position < $5 AND c.position >= coalesce(
        (SELECT b.position FROM everthread.chunk b
            WHERE b.root = $1 AND b.line = $2 AND b.log = $3 AND b.position <= $4
            ORDER BY b.position DESC LIMIT 1), $4)
    ORDER BY c.position
    """,
)
FINGERPRINTS = Statement(
    "qqnq",
    """
    SELECT c.position, c.count, c.fingerprints, c.sum FROM everthread.chunk c
    WHERE c.root = $1 AND c.line = $2 AND c.log = $3 AND c.position >= coalesce(
        (SELECT b.position FROM everthread.chunk b
            WHERE b.root = $1 AND b.line = $2 AND b.log = $3 AND b.position <= $4
            ORDER BY b.position DESC LIMIT 1), $4)
    ORDER BY c.position
    """,
)
KEYED = Statement("qb", "SELECT line, seq FROM everthread.keyed WHERE root = $1 AND key = $2")
SEALED = Statement("B", "SELECT value, data FROM everthread.sealed WHERE value = ANY ($1)")

# ── writing ──────────────────────────────────────────────────────────────────────────────────────

APPEND = Statement("qqqhqbbbbq?", "SELECT everthread.append($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)")
APPEND_WHOLE = Statement(
    "qqqhqbbbbq??qqqBBBBQQQBB",
    """
    SELECT everthread.append_whole($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17,
        $18, $19, $20, $21, $22, $23, $24)
    """,
)
APPEND_MANY = Statement(
    "QQQHQBBBBQ?",
    """
    SELECT t.n, t.taken FROM unnest(everthread.append_many($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11))
        WITH ORDINALITY t(taken, n) ORDER BY t.n
    """,
)
CREATE = Statement(
    "bnnqqqqbbbqq?SBqhqbbbBBBBQQQBB",
    """
    SELECT answer, made FROM everthread.create_line($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13,
        $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28, $29, $30)
    """,
)
FOLD = Statement(
    "qqqqbqbbbBQQQBBBQSBq",
    """
    SELECT CASE WHEN $20 = 0 AND EXISTS (SELECT 1 FROM everthread.record x
            WHERE x.root = $1 AND x.line = $2 AND x.seq = $3 - 1 AND x.kind = 0)
        THEN false
        ELSE everthread.fold($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18,
            $19)
        END
    """,
)
KEYFRAME = Statement(
    "qqqbb",
    """
    UPDATE everthread.record SET keyframe = $5 WHERE root = $1 AND line = $2 AND seq = $3 AND hash = $4
    """,
)
DELETE = Statement("qqbb?", "SELECT everthread.delete_line($1, $2, $3, $4, $5)")
TAG = Statement("qqqSB", "SELECT everthread.set_tags($1, $2, $3, $4, $5)")
NEWER = Statement("qqq", "SELECT seq > $3 FROM everthread.head WHERE root = $1 AND line = $2")

# ── cells and streams ────────────────────────────────────────────────────────────────────────────

CELL = Statement(
    "sn",
    """
    SELECT value, revision, written_us, everthread.now_us() FROM everthread.cell
    WHERE space = $1 AND name = $2 AND value IS NOT NULL
    """,
)
CELLS = Statement(
    "snnq",
    """
    SELECT name, value, revision, written_us, everthread.now_us() FROM everthread.cell
    WHERE space = $1 AND name >= $2 AND name > $3 AND value IS NOT NULL ORDER BY name LIMIT $4
    """,
)
SWAP = Statement(
    "snqb?", "SELECT swapped, now_at, held, held_us, read_us FROM everthread.swap($1, $2, $3, $4, $5)"
)
EMIT = Statement("snNNQBBBB?", "SELECT everthread.emit($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)")
REWRITE_EVENTS = Statement(
    "snQB",
    """
    UPDATE everthread.event SET body = found.body
    FROM unnest($3::bigint[], $4::bytea[]) found(seq, body)
    WHERE event.seq = found.seq
        AND event.stream = (SELECT id FROM everthread.stream WHERE space = $1 AND name = $2)
    RETURNING event.seq
    """,
)
DROP_STREAM = Statement("sn?", "SELECT everthread.drop_stream($1, $2, $3)")
STREAMS = Statement(
    "snnq",
    """
    SELECT name, last FROM everthread.stream
    WHERE space = $1 AND name >= $2 AND name > $3 AND last >= first ORDER BY name LIMIT $4
    """,
)
# Times needn't follow the order of events; peaks do: they say between which seqs an event of a time can be.
EVENTS = Statement(
    "snqqqq",
    """
    SELECT e.seq, e.at_us, e.type, e.agent, e.body
    FROM everthread.stream s JOIN everthread.event e ON e.stream = s.id
    WHERE s.space = $1 AND s.name = $2 AND e.seq > $3 AND e.at_us BETWEEN $4 AND $5
        AND e.seq >= coalesce((SELECT p.seq FROM everthread.event p WHERE p.stream = s.id AND p.peak_us >= $4
            ORDER BY p.peak_us, p.seq LIMIT 1), s.last + 1)
        AND e.seq <= coalesce((SELECT p.seq FROM everthread.event p WHERE p.stream = s.id
            AND p.peak_us <= least($5, 9223372036854775807 - s.late_us) + s.late_us
            ORDER BY p.peak_us DESC, p.seq DESC LIMIT 1), 0)
    ORDER BY e.seq LIMIT $6
    """,
)
EVENTS_OF_TYPE = Statement(
    "snqqqqn",
    """
    SELECT e.seq, e.at_us, e.type, e.agent, e.body
    FROM everthread.stream s JOIN everthread.event e ON e.stream = s.id
    WHERE s.space = $1 AND s.name = $2 AND e.type = $7 AND e.seq > $3 AND e.at_us BETWEEN $4 AND $5
        AND e.seq >= coalesce((SELECT p.seq FROM everthread.event p WHERE p.stream = s.id AND p.peak_us >= $4
            ORDER BY p.peak_us, p.seq LIMIT 1), s.last + 1)
        AND e.seq <= coalesce((SELECT p.seq FROM everthread.event p WHERE p.stream = s.id
            AND p.peak_us <= least($5, 9223372036854775807 - s.late_us) + s.late_us
            ORDER BY p.peak_us DESC, p.seq DESC LIMIT 1), 0)
    ORDER BY e.seq LIMIT $6
    """,
)
EVENTS_OF_AGENT = Statement(
    "snqqqqn",
    """
    SELECT e.seq, e.at_us, e.type, e.agent, e.body
    FROM everthread.stream s JOIN everthread.event e ON e.stream = s.id
    WHERE s.space = $1 AND s.name = $2 AND e.agent = $7 AND e.seq > $3 AND e.at_us BETWEEN $4 AND $5
        AND e.seq >= coalesce((SELECT p.seq FROM everthread.event p WHERE p.stream = s.id AND p.peak_us >= $4
            ORDER BY p.peak_us, p.seq LIMIT 1), s.last + 1)
        AND e.seq <= coalesce((SELECT p.seq FROM everthread.event p WHERE p.stream = s.id
            AND p.peak_us <= least($5, 9223372036854775807 - s.late_us) + s.late_us
            ORDER BY p.peak_us DESC, p.seq DESC LIMIT 1), 0)
    ORDER BY e.seq LIMIT $6
    """,
)
EVENTS_OF_TYPE_AND_AGENT = Statement(
    "snqqqqnn",
    """
    SELECT e.seq, e.at_us, e.type, e.agent, e.body
    FROM everthread.stream s JOIN everthread.event e ON e.stream = s.id
    WHERE s.space = $1 AND s.name = $2 AND e.type = $7 AND e.agent = $8 AND e.seq > $3
        AND e.at_us BETWEEN $4 AND $5
        AND e.seq >= coalesce((SELECT p.seq FROM everthread.event p WHERE p.stream = s.id AND p.peak_us >= $4
            ORDER BY p.peak_us, p.seq LIMIT 1), s.last + 1)
        AND e.seq <= coalesce((SELECT p.seq FROM everthread.event p WHERE p.stream = s.id
            AND p.peak_us <= least($5, 9223372036854775807 - s.late_us) + s.late_us
            ORDER BY p.peak_us DESC, p.seq DESC LIMIT 1), 0)
    ORDER BY e.seq LIMIT $6
    """,
)

# ── sealed values and the erasure ledger ─────────────────────────────────────────────────────────

NOTE_ERASURES = Statement("BBHQB", "SELECT everthread.note_erasures($1, $2, $3, $4, $5)")
LEDGER = Statement("", "SELECT key, erasure, phase, noted_us, note FROM everthread.erased ORDER BY key")
UNFINISHED = Statement(
    "", "SELECT key, erasure, phase, noted_us, note FROM everthread.erased WHERE phase < 5 ORDER BY key"
)
ERASED = Statement("B", "SELECT key FROM everthread.erased WHERE key = ANY ($1)")
SEALED_UNDER = Statement(
    "Bbq",
    """
    SELECT s.value, s.keys, s.data FROM everthread.sealed s
    WHERE s.value IN (SELECT k.value FROM everthread.sealed_key k WHERE k.key = ANY ($1) AND k.value > $2
        ORDER BY k.value LIMIT $3 * cardinality($1))
    ORDER BY s.value LIMIT $3
    """,
)
DROP_SEALED = Statement("B?", "SELECT everthread.drop_sealed($1, $2)")
