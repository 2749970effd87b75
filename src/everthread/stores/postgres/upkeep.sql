-- The statements that no commit waits for.

-- ── opening ──────────────────────────────────────────────────────────────────────────────────────

-- name: server
-- What the server says about itself.
SELECT current_setting('server_version_num')::bigint, current_setting('server_version'),
    current_setting('fsync', true), current_setting('full_page_writes', true),
    current_setting('synchronous_commit', true), current_setting('synchronous_standby_names', true)

-- name: backend_pid
-- Behind a pooler another process answers than the one that let us in.
SELECT pg_backend_pid()

-- name: version
-- The version of the schema; 0 if it is empty.
SELECT coalesce(max(version), 0) FROM everthread.format

-- name: schema_exists
-- Asked first: a role that may not create schemas may still use one that is there.
SELECT 1::bigint FROM pg_namespace WHERE nspname = $1

-- name: make_schema
-- Makes the schema.
CREATE SCHEMA IF NOT EXISTS everthread AUTHORIZATION CURRENT_USER

-- name: lock_schema
-- One instance migrates at a time.
SELECT pg_advisory_xact_lock($1::int, hashtext($2))

-- name: impatient
-- A migration waits for locks only shortly, so that writers never queue behind it for long.
SET LOCAL lock_timeout = '3s'; SET LOCAL client_min_messages = warning

-- name: make_format
-- The table that keeps the version of the schema.
CREATE TABLE IF NOT EXISTS everthread.format (version integer NOT NULL, at timestamptz NOT NULL)

-- name: set_partitions
-- For the section that makes partitions.
SELECT set_config('everthread_setup.partitions', $1, true)

-- name: note_version
-- Enters a version of the schema.
INSERT INTO everthread.format VALUES ($1, now())

-- name: make_vector
-- Makes the extension pgvector.
CREATE EXTENSION IF NOT EXISTS vector

-- name: no_statement_timeout
-- For work that takes as long as it takes.
SET statement_timeout = 0

-- name: durably
-- Whether this transaction waits for the disk.
SELECT everthread.durability($1)

-- ── pruning ──────────────────────────────────────────────────────────────────────────────────────

-- name: lock_family
-- Makes forks, rewinds and folds of a family wait until this transaction ends.
SELECT id FROM everthread.line WHERE id = $1 FOR UPDATE

-- name: changed_since
-- Whether any of these lines got a fork, a REWIND, or a PRUNED or COLD row (which may have been one) since.
SELECT 1::bigint FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) s(root, line, seq)
WHERE EXISTS (SELECT 1 FROM everthread.record r
        WHERE r.root = s.root AND r.line = s.line AND r.seq > s.seq AND r.kind IN (2, 5, 6))
    OR EXISTS (SELECT 1 FROM everthread.line c
        WHERE c.parent = s.line AND c.parent > 0 AND c.id <> ALL ($2::bigint[]))
LIMIT 1

-- name: row_digests
-- What stands in these rows, as digests.
SELECT seq, first, kind, hash, sha256(body), sha256(net), sha256(keyframe)
FROM everthread.record WHERE root = $1 AND line = $2 AND seq BETWEEN $3 AND $4 ORDER BY seq

-- name: remove_documents
-- Removes the documents of a family: other content took the place of what they were made of.
DELETE FROM everthread.document d USING everthread.line l WHERE l.root = $1 AND d.line = l.id

-- name: remove_rows
-- Removes rows of a line.
DELETE FROM everthread.record WHERE root = $1 AND line = $2 AND seq BETWEEN $3 AND $4

-- name: add_rows
-- Puts rows into a line.
INSERT INTO everthread.record (root, line, seq, kind, first, sum, hash, net, keyframe, body)
SELECT $1, $2, u.* FROM unnest($3::bigint[], $4::smallint[], $5::bigint[], $6::bigint[], $7::bytea[],
    $8::bytea[], $9::bytea[], $10::bytea[]) u

-- name: chunks_within
-- Chunks that lie between two positions.
SELECT position, count, length(data)::bigint FROM everthread.chunk
WHERE root = $1 AND line = $2 AND log = $3 AND position >= $4 AND position + count <= $5 ORDER BY position

-- name: chunk_digests
-- What stands in these chunks, as digests.
SELECT position, count, sha256(fingerprints), sha256(data) FROM everthread.chunk
WHERE root = $1 AND line = $2 AND log = $3 AND position = ANY ($4) ORDER BY position

-- name: remove_chunks
-- Removes chunks.
DELETE FROM everthread.chunk WHERE root = $1 AND line = $2 AND log = $3 AND position = ANY ($4)

-- name: add_chunks
-- Puts chunks into a log.
SELECT everthread.add_chunks($1, $2, $3, $4, $5, $6, $7, $8)

-- ── sizes ────────────────────────────────────────────────────────────────────────────────────────

-- name: line_sizes
-- What the rows of a line take, by kind.
SELECT kind, sum(seq - first + 1)::bigint, sum(length(body) + coalesce(length(net), 0))::bigint,
       sum(coalesce(length(keyframe), 0))::bigint
FROM everthread.record WHERE root = $1 AND line = $2 GROUP BY kind

-- name: chunk_sizes
-- What the chunks of a line take.
SELECT coalesce(sum(length(data) + length(fingerprints)), 0)::bigint FROM everthread.chunk
WHERE root = $1 AND line = $2

-- name: totals
-- What everything besides lines takes.
SELECT (SELECT count(*) FROM everthread.sealed), (SELECT coalesce(sum(length(data)), 0)::bigint
           FROM everthread.sealed),
       (SELECT count(*) FROM everthread.cell WHERE value IS NOT NULL),
       (SELECT coalesce(sum(length(value)), 0)::bigint FROM everthread.cell),
       (SELECT count(*) FROM everthread.event), (SELECT coalesce(sum(length(body)), 0)::bigint
           FROM everthread.event)

-- name: table_sizes
-- Every table of the schema with its indexes and what is stored out of line.
SELECT c.relname::text, pg_total_relation_size(c.oid) FROM pg_class c JOIN pg_namespace n
    ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relkind = 'r' ORDER BY c.relname

-- name: lock_any
-- Writes to the log, whatever is there.
SELECT id FROM everthread.line ORDER BY id LIMIT 1 FOR UPDATE

-- name: compact
-- Gives free space back. One statement at a time.
VACUUM FULL everthread.record;
VACUUM FULL everthread.chunk;
VACUUM FULL everthread.head;
VACUUM FULL everthread.keyed;
VACUUM FULL everthread.tag;
VACUUM FULL everthread.cell;
VACUUM FULL everthread.event;
VACUUM FULL everthread.stream;
VACUUM FULL everthread.sealed;
VACUUM FULL everthread.sealed_key;
VACUUM ANALYZE everthread.line

-- ── checking ─────────────────────────────────────────────────────────────────────────────────────

-- name: wrong_heads
-- Lines whose head isn't their newest row; that are deleted and not sealed, or the other way round.
SELECT l.id FROM everthread.line l LEFT JOIN everthread.head h ON h.root = l.root AND h.line = l.id
    LEFT JOIN LATERAL (SELECT r.seq, r.hash FROM everthread.record r
        WHERE r.root = l.root AND r.line = l.id ORDER BY r.seq DESC LIMIT 1) n ON true
WHERE h.line IS NULL OR l.deleted <> (h.seq = 4294967295)
    OR (NOT l.deleted AND (h.seq <> coalesce(n.seq, 0) OR h.hash <> coalesce(n.hash, l.start_hash)))
LIMIT 101

-- name: tags_never_due
-- Lines whose tags are behind although nothing says so: no metadata query would notice.
SELECT l.id FROM everthread.line l JOIN everthread.head h ON h.root = l.root AND h.line = l.id
WHERE NOT l.deleted AND h.seq > l.tagged AND NOT h.tags_due LIMIT 101

-- name: records_without_line
-- Rows that belong to no line.
SELECT r.line, r.seq FROM everthread.record r
WHERE NOT EXISTS (SELECT 1 FROM everthread.line l WHERE l.id = r.line AND l.root = r.root) LIMIT 101

-- name: chunk_places
-- The next thousand chunks with their checksums.
SELECT root, line, log, position, count, fingerprints, sum FROM everthread.chunk
WHERE (root, line, log, position) > ($1, $2, $3, $4) ORDER BY root, line, log, position LIMIT 1000

-- name: wrong_streams
-- Streams that aren't what their events say.
SELECT s.name FROM everthread.stream s LEFT JOIN (
    SELECT stream, count(*) AS count, min(seq) AS first, max(seq) AS last, max(peak_us) AS peak_us,
           max(peak_us::numeric - at_us) AS late_us
    FROM everthread.event GROUP BY stream
) e ON e.stream = s.id
WHERE coalesce(e.count, 0) <> s.last - s.first + 1 OR e.peak_us IS DISTINCT FROM s.peak_us
    OR coalesce(e.late_us, 0) > s.late_us OR e.first <> s.first OR e.last <> s.last
LIMIT 101

-- name: wrong_peaks
-- Events that can't be found by their time. The first one may have the time of one before it that was trimmed, if
-- any was.
SELECT s.name, e.seq FROM (
    SELECT stream, seq, peak_us, max(at_us) OVER so_far AS true_us, first_value(peak_us) OVER so_far AS first_us,
           first_value(seq) OVER so_far AS first
    FROM everthread.event WINDOW so_far AS (PARTITION BY stream ORDER BY seq)
) e JOIN everthread.stream s ON s.id = e.stream
WHERE e.peak_us <> CASE WHEN e.first > 1 THEN greatest(e.true_us, e.first_us) ELSE e.true_us END LIMIT 101

-- name: sealed_without_key
-- Sealed values that can't be found by their keys.
SELECT s.value FROM everthread.sealed s, generate_series(1, length(s.keys), 16) n
WHERE NOT EXISTS (SELECT 1 FROM everthread.sealed_key k
    WHERE k.key = substring(s.keys FROM n FOR 16) AND k.value = s.value)
LIMIT 101

-- ── noticing what others commit ──────────────────────────────────────────────────────────────────

-- name: listen
-- Notifies this session of commits.
LISTEN everthread_lines

-- name: heads
-- The newest versions of these lines.
SELECT line, seq, hash FROM everthread.head WHERE root = ANY ($1) AND line = ANY ($2)

-- name: newest_line
-- Changes whenever a line is made.
SELECT max(id), count(*) FROM everthread.line

-- name: watch_lines
-- Lets commits to these lines notify for a while.
UPDATE everthread.head SET watched = now() + $3 * interval '1 second'
WHERE root = ANY ($1) AND line = ANY ($2)

-- name: watch_new_lines
-- Lets new lines notify for a while.
UPDATE everthread.births SET watched = now() + $1 * interval '1 second' WHERE id = 1

-- ── erasing ──────────────────────────────────────────────────────────────────────────────────────

-- name: set_lock_timeout
-- How long this session waits for a lock.
SELECT set_config('lock_timeout', $1, false)

-- name: identity
-- What tells this database from all others, however it is reached.
SELECT s.system_identifier::text, d.oid::bigint FROM pg_control_system() s, pg_database d
WHERE d.datname = current_database()

-- name: may_rewrite
-- Whether this role may rewrite the tables, and the planner's samples: VACUUM only warns where it may not.
SELECT (SELECT pg_has_role(c.relowner, 'USAGE') FROM pg_class c JOIN pg_namespace n
            ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = 'sealed'),
       (SELECT pg_has_role(d.datdba, 'USAGE') FROM pg_database d WHERE d.datname = current_database())

-- name: truncate_texts
-- Drops the text index, which is derived. Not DELETE: this leaves no bytes behind.
TRUNCATE everthread.text_entry, everthread.text_covered

-- name: delete_texts
-- The same for a role that doesn't own the tables.
DELETE FROM everthread.text_entry; DELETE FROM everthread.text_covered

-- name: rewrite_sealed
-- Rewrites the tables that hold sealed bytes, or what is derived from them. One statement at a time.
VACUUM (FULL, ANALYZE) everthread.sealed;
VACUUM (FULL, ANALYZE) everthread.sealed_key;
VACUUM (FULL, ANALYZE) everthread.cell

-- name: rewrite_samples
-- Rewrites the planner's samples.
VACUUM FULL pg_catalog.pg_statistic

-- name: checkpoint
-- Writes pages that were changed in memory.
CHECKPOINT

-- name: any_knowledge
-- Whether there is any knowledge.
SELECT EXISTS (SELECT 1 FROM everthread.knowledge)

-- name: files
-- Files of the store's tables, with what is stored out of line and their indexes, and of the planner's samples.
WITH tables AS (
    SELECT c.oid, c.reltoastrelid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE (n.nspname = $1 AND c.relkind = 'r') OR c.oid = 'pg_catalog.pg_statistic'::regclass
), heaps AS (
    SELECT oid FROM tables UNION SELECT reltoastrelid FROM tables WHERE reltoastrelid <> 0
), files AS (
    SELECT oid FROM heaps UNION SELECT i.indexrelid FROM pg_index i JOIN heaps h ON h.oid = i.indrelid
)
SELECT f.oid::regclass::text, pg_relation_filepath(f.oid), pg_relation_size(f.oid) FROM files f
WHERE pg_relation_filepath(f.oid) IS NOT NULL ORDER BY 1

-- name: read_file
-- Bytes of a file of the server.
SELECT pg_read_binary_file($1::text, $2, $3, true)
