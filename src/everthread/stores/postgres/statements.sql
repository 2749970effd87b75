-- The statements of daily work. A line's columns come in the order of rows.to_line(), a row's in that of
-- rows.to_row().

-- ── reading lines ────────────────────────────────────────────────────────────────────────────────

-- name: find
-- The live line of this name in this space, its newest row, and the hash of the row before that.
SELECT l.id, l.root, l.uid, l.space, l.name, l.parent, l.parent_seq, l.parent_segment, l.parent_hash,
       l.start_hash, l.counts, l.deleted, l.sum,
       r.seq, r.first, r.kind, r.hash, r.body, r.net, r.keyframe, r.key, r.sum, b.hash
FROM everthread.line l
    CROSS JOIN LATERAL (
        SELECT h.seq FROM everthread.head h WHERE h.root = l.root AND h.line = l.id OFFSET 0
    ) h
    LEFT JOIN LATERAL (
        SELECT * FROM everthread.record x WHERE x.root = l.root AND x.line = l.id AND x.seq = h.seq OFFSET 0
    ) r ON true
    LEFT JOIN LATERAL (
        SELECT x.hash FROM everthread.record x WHERE x.root = l.root AND x.line = l.id AND x.seq < h.seq
        ORDER BY x.seq DESC LIMIT 1
    ) b ON true
WHERE l.space = $1 AND l.name = $2 AND NOT l.deleted

-- name: find_and_replay
-- The same with every row that replaying the newest version needs: whoever opens a line asks for these next.
SELECT l.id, l.root, l.uid, l.space, l.name, l.parent, l.parent_seq, l.parent_segment, l.parent_hash,
       l.start_hash, l.counts, l.deleted, l.sum,
       r.seq, r.first, r.kind, r.hash, r.body, r.net, r.keyframe, r.key, r.sum, b.hash
FROM everthread.line l
    CROSS JOIN LATERAL (
        SELECT h.seq FROM everthread.head h WHERE h.root = l.root AND h.line = l.id OFFSET 0
    ) h
    CROSS JOIN LATERAL (
        SELECT coalesce((SELECT k.seq FROM everthread.record k
            WHERE k.root = l.root AND k.line = l.id AND k.seq <= h.seq
                AND (k.keyframe IS NOT NULL OR k.kind = 2)
            ORDER BY k.seq DESC LIMIT 1), 0) AS seq OFFSET 0
    ) bottom
    LEFT JOIN LATERAL (
        SELECT x.seq, x.first, x.kind, x.hash,
               CASE WHEN x.kind IN (1, 5) AND x.seq < h.seq THEN ''::bytea ELSE x.body END AS body,
               x.net, x.keyframe, x.key, x.sum
        FROM everthread.record x
        WHERE x.root = l.root AND x.line = l.id AND x.seq <= h.seq
            AND x.seq >= greatest(bottom.seq, l.parent_seq + 1)
        OFFSET 0
    ) r ON true
    LEFT JOIN LATERAL (
        SELECT x.hash FROM everthread.record x WHERE x.root = l.root AND x.line = l.id AND x.seq < h.seq
        ORDER BY x.seq DESC LIMIT 1
    ) b ON true
WHERE l.space = $1 AND l.name = $2 AND NOT l.deleted
ORDER BY r.seq DESC

-- name: line
-- One line by its id.
SELECT id, root, uid, space, name, parent, parent_seq, parent_segment, parent_hash, start_hash, counts,
       deleted, sum
FROM everthread.line WHERE id = $1

-- name: line_by_uid
-- One line by its uid.
SELECT id, root, uid, space, name, parent, parent_seq, parent_segment, parent_hash, start_hash, counts,
       deleted, sum
FROM everthread.line WHERE uid = $1

-- name: every_line
-- The next thousand lines of the whole store, by id.
SELECT id, root, uid, space, name, parent, parent_seq, parent_segment, parent_hash, start_hash, counts,
       deleted, sum
FROM everthread.line WHERE id > $1 ORDER BY id LIMIT 1000

-- name: lines
-- A page of live lines whose names begin with a prefix and follow a name; the caller drops what comes after
-- the prefix.
SELECT l.id, l.root, l.uid, l.space, l.name, l.parent, l.parent_seq, l.parent_segment, l.parent_hash,
       l.start_hash, l.counts, l.deleted, l.sum,
       r.seq, r.first, r.kind, r.hash, r.body, r.net, r.keyframe, r.key, r.sum, b.hash
FROM (
        SELECT * FROM everthread.line p
        WHERE p.space = $1 AND p.name >= $2 AND p.name > $3 AND NOT p.deleted
        ORDER BY p.name LIMIT $4
    ) l
    CROSS JOIN LATERAL (
        SELECT h.seq FROM everthread.head h WHERE h.root = l.root AND h.line = l.id OFFSET 0
    ) h
    LEFT JOIN LATERAL (
        SELECT * FROM everthread.record x WHERE x.root = l.root AND x.line = l.id AND x.seq = h.seq OFFSET 0
    ) r ON true
    LEFT JOIN LATERAL (
        SELECT x.hash FROM everthread.record x WHERE x.root = l.root AND x.line = l.id AND x.seq < h.seq
        ORDER BY x.seq DESC LIMIT 1
    ) b ON true
ORDER BY l.name

-- name: lines_by_tag
-- Live lines that have this tag, and all of the others ($4 names, $5 values).
SELECT l.id, l.root, l.uid, l.space, l.name, l.parent, l.parent_seq, l.parent_segment, l.parent_hash,
       l.start_hash, l.counts, l.deleted, l.sum,
       r.seq, r.first, r.kind, r.hash, r.body, r.net, r.keyframe, r.key, r.sum, b.hash
FROM (
        SELECT p.* FROM everthread.tag t JOIN everthread.line p ON p.id = t.line
        WHERE t.name = $2 AND sha256(t.value) = sha256($3) AND t.value = $3 AND p.space = $1 AND NOT p.deleted
            AND NOT EXISTS (SELECT 1 FROM unnest($4::bytea[], $5::bytea[]) w(name, value)
                WHERE NOT EXISTS (SELECT 1 FROM everthread.tag o
                    WHERE o.root = t.root AND o.line = t.line AND o.name = w.name AND o.value = w.value))
        OFFSET 0
    ) l
    CROSS JOIN LATERAL (
        SELECT h.seq FROM everthread.head h WHERE h.root = l.root AND h.line = l.id OFFSET 0
    ) h
    LEFT JOIN LATERAL (
        SELECT * FROM everthread.record x WHERE x.root = l.root AND x.line = l.id AND x.seq = h.seq OFFSET 0
    ) r ON true
    LEFT JOIN LATERAL (
        SELECT x.hash FROM everthread.record x WHERE x.root = l.root AND x.line = l.id AND x.seq < h.seq
        ORDER BY x.seq DESC LIMIT 1
    ) b ON true
ORDER BY l.name

-- name: untagged
-- Live lines with versions that their tags don't cover yet: only those are read.
SELECT l.id, l.root, l.uid, l.space, l.name, l.parent, l.parent_seq, l.parent_segment, l.parent_hash,
       l.start_hash, l.counts, l.deleted, l.sum, l.tagged
FROM (SELECT d.line, d.seq FROM everthread.head d WHERE d.space = $1 AND d.tags_due OFFSET 0) h
    CROSS JOIN LATERAL (
        SELECT * FROM everthread.line p WHERE p.id = h.line AND NOT p.deleted AND h.seq > p.tagged OFFSET 0
    ) l

-- name: replay
-- Rows downwards from the one that holds version $3, as far as replaying needs; $4 is the floor. A pack that
-- ends above $3 is read inside: its body comes along, and its keyframe doesn't count.
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

-- name: scan
-- Rows downwards from the one that holds version $3, $4 of them.
SELECT x.seq, x.first, x.kind, x.hash, x.body, x.net, x.keyframe, x.key, x.sum
FROM everthread.record x
WHERE x.root = $1 AND x.line = $2 AND x.seq <= coalesce((SELECT t.seq FROM everthread.record t
    WHERE t.root = $1 AND t.line = $2 AND t.seq >= $3 ORDER BY t.seq LIMIT 1), $3)
ORDER BY x.seq DESC LIMIT $4

-- name: tail
-- The rows above the newest pack.
SELECT x.seq, x.first, x.kind, x.hash, x.body, x.net, x.keyframe, x.key, x.sum
FROM everthread.record x
WHERE x.root = $1 AND x.line = $2 AND x.seq > coalesce((SELECT p.seq FROM everthread.record p
    WHERE p.root = $1 AND p.line = $2 AND p.kind IN (1, 5) ORDER BY p.seq DESC LIMIT 1), 0)
ORDER BY x.seq

-- name: chunks
-- Chunks of a log between two positions.
SELECT c.position, c.count, c.fingerprints, c.data, c.sum FROM everthread.chunk c
WHERE c.root = $1 AND c.line = $2 AND c.log = $3 AND c.position < $5 AND c.position >= coalesce(
    (SELECT b.position FROM everthread.chunk b
        WHERE b.root = $1 AND b.line = $2 AND b.log = $3 AND b.position <= $4
        ORDER BY b.position DESC LIMIT 1), $4)
ORDER BY c.position

-- name: fingerprints
-- The same to the end of the log, without the items.
SELECT c.position, c.count, c.fingerprints, c.sum FROM everthread.chunk c
WHERE c.root = $1 AND c.line = $2 AND c.log = $3 AND c.position >= coalesce(
    (SELECT b.position FROM everthread.chunk b
        WHERE b.root = $1 AND b.line = $2 AND b.log = $3 AND b.position <= $4
        ORDER BY b.position DESC LIMIT 1), $4)
ORDER BY c.position

-- name: versions_of_key
-- Folded versions of a family that carry a commit key.
SELECT line, seq FROM everthread.keyed WHERE root = $1 AND key = $2

-- name: sealed
-- Personal values by their ids.
SELECT value, data FROM everthread.sealed WHERE value = ANY ($1)

-- name: newer
-- Whether a line has a version above this one.
SELECT seq > $3 FROM everthread.head WHERE root = $1 AND line = $2

-- ── writing lines ────────────────────────────────────────────────────────────────────────────────

-- name: append
-- One row and nothing else: the hot path.
SELECT everthread.append($1, $2, $3, $4::smallint, $5, $6, $7, $8, $9, $10, $11)

-- name: append_whole
-- One row with everything that may come along: sealed values, chunks, the source of a rewind.
SELECT everthread.append_whole($1, $2, $3, $4::smallint, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17,
    $18, $19, $20, $21, $22, $23, $24)

-- name: append_many
-- Several rows of several lines, each on its own terms; an answer for each, in their order.
SELECT t.n, t.taken FROM unnest(everthread.append_many($1, $2, $3, $4::smallint[], $5, $6, $7, $8, $9, $10, $11))
    WITH ORDINALITY t(taken, n) ORDER BY t.n

-- name: create_line
-- A new line, perhaps with its first row; its id.
SELECT answer, made FROM everthread.create_line($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13,
    $14, $15, $16, $17::smallint, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28, $29, $30)

-- name: fold
-- Folds rows into a pack. With $20 = 0 not if the row below it is a single one: that one has to go first.
SELECT CASE WHEN $20 = 0 AND EXISTS (SELECT 1 FROM everthread.record x
        WHERE x.root = $1 AND x.line = $2 AND x.seq = $3 - 1 AND x.kind = 0)
    THEN false
    ELSE everthread.fold($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18,
        $19)
    END

-- name: keyframe
-- Adds a keyframe to a row.
UPDATE everthread.record SET keyframe = $5 WHERE root = $1 AND line = $2 AND seq = $3 AND hash = $4

-- name: delete_line
-- Deletes a line if it is still the one that was seen.
SELECT everthread.delete_line($1, $2, $3, $4, $5)

-- name: set_tags
-- Replaces the tags of a line as of a version.
SELECT everthread.set_tags($1, $2, $3, $4, $5)

-- ── cells and events ─────────────────────────────────────────────────────────────────────────────

-- name: cell
-- One cell, with the server's clock.
SELECT value, revision, written_us, everthread.now_us() FROM everthread.cell
WHERE space = $1 AND name = $2 AND value IS NOT NULL

-- name: cells
-- A page of cells whose names begin with a prefix and follow a name.
SELECT name, value, revision, written_us, everthread.now_us() FROM everthread.cell
WHERE space = $1 AND name >= $2 AND name > $3 AND value IS NOT NULL ORDER BY name LIMIT $4

-- name: swap
-- Compare-and-set of a cell.
SELECT swapped, now_at, held, held_us, read_us FROM everthread.swap($1, $2, $3, $4, $5)

-- name: emit
-- Appends events to a stream; the seq of the first.
SELECT everthread.emit($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)

-- name: rewrite_events
-- Replaces the bodies of events.
UPDATE everthread.event SET body = found.body
FROM unnest($3::bigint[], $4::bytea[]) found(seq, body)
WHERE event.seq = found.seq
    AND event.stream = (SELECT id FROM everthread.stream WHERE space = $1 AND name = $2)
RETURNING event.seq

-- name: trim_stream
-- Removes the events of a stream up to a seq; how many there were.
SELECT everthread.trim_stream($1, $2, $3, $4)

-- name: streams
-- A page of streams that have events.
SELECT name, last FROM everthread.stream
WHERE space = $1 AND name >= $2 AND name > $3 AND last >= first ORDER BY name LIMIT $4

-- name: events
-- A page of events above a seq and within a time. Rows are compared as a whole, so that the index is read in its
-- order up to the limit, however few events the planner expects.
SELECT e.seq, e.at_us, e.type, e.agent, e.body
FROM everthread.stream s
    CROSS JOIN LATERAL everthread.events_between(s.id, s.last, s.late_us, $3, $4, $5) span
    CROSS JOIN LATERAL (
        SELECT * FROM everthread.event x
        WHERE (x.stream, x.seq) > (s.id, span.after) AND (x.stream, x.seq) <= (s.id, span.last)
            AND x.at_us BETWEEN $4 AND $5
        ORDER BY x.stream, x.seq LIMIT $6
    ) e
WHERE s.space = $1 AND s.name = $2
ORDER BY e.seq

-- name: events_of_type
-- The same for events of one type.
SELECT e.seq, e.at_us, e.type, e.agent, e.body
FROM everthread.stream s
    CROSS JOIN LATERAL everthread.events_between(s.id, s.last, s.late_us, $3, $4, $5) span
    CROSS JOIN LATERAL (
        SELECT * FROM everthread.event x
        WHERE x.stream = s.id AND x.type = $7 AND x.seq > span.after AND x.seq <= span.last
            AND x.at_us BETWEEN $4 AND $5
        ORDER BY x.seq LIMIT $6
    ) e
WHERE s.space = $1 AND s.name = $2
ORDER BY e.seq

-- name: events_of_agent
-- The same for events of one agent.
SELECT e.seq, e.at_us, e.type, e.agent, e.body
FROM everthread.stream s
    CROSS JOIN LATERAL everthread.events_between(s.id, s.last, s.late_us, $3, $4, $5) span
    CROSS JOIN LATERAL (
        SELECT * FROM everthread.event x
        WHERE x.stream = s.id AND x.agent = $7 AND x.seq > span.after AND x.seq <= span.last
            AND x.at_us BETWEEN $4 AND $5
        ORDER BY x.seq LIMIT $6
    ) e
WHERE s.space = $1 AND s.name = $2
ORDER BY e.seq

-- name: events_of_type_and_agent
-- The same for events of one type and agent.
SELECT e.seq, e.at_us, e.type, e.agent, e.body
FROM everthread.stream s
    CROSS JOIN LATERAL everthread.events_between(s.id, s.last, s.late_us, $3, $4, $5) span
    CROSS JOIN LATERAL (
        SELECT * FROM everthread.event x
        WHERE x.stream = s.id AND x.type = $7 AND x.agent = $8 AND x.seq > span.after AND x.seq <= span.last
            AND x.at_us BETWEEN $4 AND $5
        ORDER BY x.seq LIMIT $6
    ) e
WHERE s.space = $1 AND s.name = $2
ORDER BY e.seq

-- ── sealed values and the erasure ledger ─────────────────────────────────────────────────────────

-- name: note_erasures
-- Enters keys into the erasure ledger.
SELECT everthread.note_erasures($1, $2, $3::smallint[], $4, $5)

-- name: erasures
-- The whole ledger.
SELECT key, erasure, phase, noted_us, note FROM everthread.erased ORDER BY key

-- name: unfinished_erasures
-- Entries of the ledger whose last phase isn't done.
SELECT key, erasure, phase, noted_us, note FROM everthread.erased WHERE phase < 5 ORDER BY key

-- name: erased
-- Which of these keys are in the ledger.
SELECT key FROM everthread.erased WHERE key = ANY ($1)

-- name: sealed_under
-- A page of values that are sealed under any of these keys.
SELECT s.value, s.keys, s.data FROM everthread.sealed s
WHERE s.value IN (SELECT k.value FROM everthread.sealed_key k WHERE k.key = ANY ($1) AND k.value > $2
    ORDER BY k.value LIMIT $3 * cardinality($1))
ORDER BY s.value LIMIT $3

-- name: sealed_page
-- A page of all sealed values.
SELECT s.value, s.keys, s.data FROM everthread.sealed s WHERE s.value > $1 ORDER BY s.value LIMIT $2

-- name: drop_sealed
-- Removes values that are sealed under any of these keys.
SELECT everthread.drop_sealed($1, $2)

-- ── text index, documents, knowledge ─────────────────────────────────────────────────────────────

-- name: texts_covered
-- Which lines the text index covers, and up to where.
SELECT uid, mark FROM everthread.text_covered WHERE space = $1

-- name: text_keys
-- Keys of the texts of a line.
SELECT key FROM everthread.text_entry WHERE space = $1 AND uid = $2 AND kind = ANY ($3)

-- name: cover_texts
-- Brings the text index of one line up to date.
SELECT everthread.cover_texts($1, $2, $3, $4, $5, $6, $7, $8)

-- name: forget_texts
-- Removes lines from the text index.
SELECT everthread.forget_texts($1, $2)

-- name: find_texts
-- Texts with all of these words, best first.
SELECT t.uid, t.key, t.kind, ts_rank(t.words, q.q, 1)::float8
FROM everthread.text_entry t, (SELECT $2::tsquery AS q) q
WHERE t.space = $1 AND t.words @@ q.q AND t.kind = ANY ($3) AND ($4::bytea[] IS NULL OR t.uid = ANY ($4))
ORDER BY 4 DESC, t.id LIMIT $5

-- name: stale_documents
-- Live lines whose newest document isn't in the table of documents.
SELECT l.id, l.name FROM everthread.line l JOIN everthread.head h ON h.root = l.root AND h.line = l.id
    LEFT JOIN everthread.document d ON d.line = l.id
WHERE l.space = $1 AND NOT l.deleted AND l.name > $2 AND d.hash IS DISTINCT FROM h.hash
ORDER BY l.name LIMIT $3

-- name: put_document
-- Puts the newest document of a line there.
SELECT everthread.put_document($1, $2, $3, $4, $5)

-- name: add_knowledge
-- Adds or replaces a text with its embedding.
SELECT everthread.add_knowledge($1, $2, $3, $4::jsonb, $5::real[], $6)

-- name: remove_knowledge
-- Removes one.
WITH gone AS (DELETE FROM everthread.knowledge WHERE space = $1 AND key = $2 RETURNING 1) SELECT count(*) FROM gone

-- name: find_knowledge
-- Texts by the distance of their embeddings, nearest first.
SELECT k.key, k.text, k.metadata::text, (k.embedding::vector <=> $2::vector)::float8
FROM everthread.knowledge k
WHERE k.space = $1 AND cardinality(k.embedding) = $3 AND k.metadata @> $4
ORDER BY 4, k.key LIMIT $5

-- name: has_vector
-- Whether the extension pgvector is there.
SELECT 1::bigint FROM pg_extension WHERE extname = 'vector'
