-- Every statement of the SQLite store, by name. Values come in as parameters, never as text.

-- ── lines, records and tags ──

-- name: find
-- A line's columns, its newest row's, and the hash of the row before that: see to_found() in rows.py.
SELECT line.id, uid, space, line.name, root, parent, parent_seq, parent_segment, parent_hash, start_hash,
       counts, deleted, line.sum,
       record.id, first, kind, record.hash, body, net, keyframe, key, record.sum,
       (SELECT b.hash FROM record b WHERE b.id >= line.id << 32 AND b.id < record.id
            ORDER BY b.id DESC LIMIT 1)
FROM line LEFT JOIN record ON record.id = (SELECT max(n.id) FROM record n
            WHERE n.id BETWEEN line.id << 32 AND (line.id << 32) + 0xfffffffe)
WHERE space = ?1 AND line.name = ?2 AND deleted = 0

-- name: line
SELECT id, uid, space, name, root, parent, parent_seq, parent_segment, parent_hash, start_hash,
       counts, deleted, sum
FROM line WHERE id = ?1 AND id > 0

-- name: line_by_uid
SELECT id, uid, space, name, root, parent, parent_seq, parent_segment, parent_hash, start_hash,
       counts, deleted, sum
FROM line WHERE uid = ?1 AND id > 0

-- name: every_line
SELECT id, uid, space, name, root, parent, parent_seq, parent_segment, parent_hash, start_hash,
       counts, deleted, sum
FROM line WHERE id > ?1 ORDER BY id LIMIT 1000

-- name: lines
-- A page of names: ?2 is the later of prefix and ?3. SQLite seeks by one lower bound only; with both of them
-- open to it, each page began at the prefix.
SELECT line.id, uid, space, line.name, root, parent, parent_seq, parent_segment, parent_hash, start_hash,
       counts, deleted, line.sum,
       record.id, first, kind, record.hash, body, net, keyframe, key, record.sum,
       (SELECT b.hash FROM record b WHERE b.id >= line.id << 32 AND b.id < record.id
            ORDER BY b.id DESC LIMIT 1)
FROM line LEFT JOIN record ON record.id = (SELECT max(n.id) FROM record n
            WHERE n.id BETWEEN line.id << 32 AND (line.id << 32) + 0xfffffffe)
WHERE space = ?1 AND line.name >= ?2 AND +line.name > ?3 AND deleted = 0
ORDER BY line.name LIMIT ?4

-- name: untagged
SELECT id, uid, space, name, root, parent, parent_seq, parent_segment, parent_hash, start_hash,
       counts, deleted, sum, tagged
FROM line INDEXED BY line_untagged
WHERE space = ?1 AND untagged = 1 AND deleted = 0 AND tagged >> 32 < 0xffffffff & (
    SELECT max(n.id) FROM record n WHERE n.id BETWEEN line.id << 32 AND (line.id << 32) + 0xfffffffe)

-- name: lines_by_tag
SELECT line.id, uid, space, line.name, root, parent, parent_seq, parent_segment, parent_hash, start_hash,
       counts, deleted, line.sum,
       record.id, first, kind, record.hash, body, net, keyframe, key, record.sum,
       (SELECT b.hash FROM record b WHERE b.id >= line.id << 32 AND b.id < record.id
            ORDER BY b.id DESC LIMIT 1)
FROM tag JOIN line ON line.id = tag.line
LEFT JOIN record ON record.id = (SELECT max(n.id) FROM record n
            WHERE n.id BETWEEN line.id << 32 AND (line.id << 32) + 0xfffffffe)
WHERE tag.name = ?2 AND tag.value = ?3 AND space = ?1 AND deleted = 0
    -- A damaged page of the index may name another line: the row itself is asked.
    AND EXISTS (SELECT 1 FROM tag AS held WHERE held.line = tag.line AND held.name = tag.name AND +held.value = ?3)
ORDER BY line.name

-- name: tags_of
SELECT name, value, sum FROM tag WHERE line = ?1

-- name: scan
SELECT id, first, kind, hash, body, net, keyframe, key, sum FROM record
WHERE id <= coalesce((SELECT min(id) FROM record WHERE id BETWEEN ?1 AND ?2), ?2) AND id >= ?3
ORDER BY id DESC LIMIT ?4

-- name: tail
SELECT id, first, kind, hash, body, net, keyframe, key, sum FROM record
WHERE id BETWEEN ?1 AND ?2 ORDER BY id DESC

-- name: append
-- The compare-and-set: the newest row of the line must have the hash this one builds on. Otherwise the new
-- hash comes out as NULL, which no row may have, and nothing is inserted. Takes SQLite less than
-- INSERT … SELECT … WHERE does.
INSERT OR IGNORE INTO record (id, kind, first, hash, key, body, sum)
VALUES (?1, ?2, ?1 & 0xffffffff, CASE WHEN ?6 = coalesce(
    (SELECT hash FROM record WHERE id BETWEEN (?1 >> 32) << 32 AND ?1 | 0xffffffff
        ORDER BY id DESC LIMIT 1),
    (SELECT start_hash FROM line WHERE id = ?1 >> 32)
) THEN ?3 END, ?4, ?5, ?7)

-- name: append_guarded
-- The same, unless a folded version of the family ?8 carries the key.
INSERT OR IGNORE INTO record (id, kind, first, hash, key, body, sum)
VALUES (?1, ?2, ?1 & 0xffffffff, CASE WHEN ?6 = coalesce(
    (SELECT hash FROM record WHERE id BETWEEN (?1 >> 32) << 32 AND ?1 | 0xffffffff
        ORDER BY id DESC LIMIT 1),
    (SELECT start_hash FROM line WHERE id = ?1 >> 32)
) AND NOT EXISTS (SELECT 1 FROM keyed WHERE root = ?8 AND key = ?4) THEN ?3 END, ?4, ?5, ?7)

-- name: append_rewind
-- The same for a rewind, unless the version it goes back to, in the first row from ?8 up to ?9, was pruned.
INSERT OR IGNORE INTO record (id, kind, first, hash, key, body, sum)
VALUES (?1, ?2, ?1 & 0xffffffff, CASE WHEN ?6 = coalesce(
    (SELECT hash FROM record WHERE id BETWEEN (?1 >> 32) << 32 AND ?1 | 0xffffffff
        ORDER BY id DESC LIMIT 1),
    (SELECT start_hash FROM line WHERE id = ?1 >> 32)
) AND 5 <> coalesce((SELECT kind FROM record WHERE id BETWEEN ?8 AND ?9 ORDER BY id LIMIT 1), 5)
THEN ?3 END, ?4, ?5, ?7)

-- name: append_many
-- The versions of many lines in one statement. If one of the rows can't be added none is: its hash is missing,
-- or its place taken. The rows come in place of the braces, as (?, ?, ?, ?, ?, ?, ?) each.
WITH new (id, kind, hash, key, body, previous, sum) AS (VALUES {})
INSERT INTO record (id, kind, first, hash, key, body, sum)
SELECT id, kind, id & 0xffffffff, CASE WHEN previous = coalesce(
    (SELECT newest.hash FROM record AS newest
        WHERE newest.id BETWEEN (new.id >> 32) << 32 AND new.id | 0xffffffff
        ORDER BY newest.id DESC LIMIT 1),
    (SELECT start_hash FROM line WHERE line.id = new.id >> 32)
) THEN hash END, key, body, sum FROM new WHERE id NOT NULL

-- name: create_line
INSERT INTO line
    (uid, space, name, root, parent, parent_seq, parent_segment, parent_hash, start_hash, counts,
     sum, deleted, tagged, untagged)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, 0, 0, 0, 0)

-- name: forked_from
-- If line ?1 is alive: the kind of the row with the version to fork from, the first one from ?2 up to ?3.
SELECT (SELECT kind FROM record WHERE record.id BETWEEN ?2 AND ?3 ORDER BY record.id LIMIT 1)
FROM line WHERE id = ?1 AND deleted = 0

-- name: lines_ever
SELECT max(seq) FROM sqlite_sequence WHERE name = 'line'

-- name: keep_lines_ever
UPDATE sqlite_sequence SET seq = max(seq, ?1) WHERE name = 'line'

-- name: complete_line
-- What is known only once the line has its id.
UPDATE line SET root = ?2, sum = ?3 WHERE id = ?1

-- name: add_keyed
INSERT OR IGNORE INTO keyed (root, key, line, seq) VALUES (?1, ?2, ?3, ?4)

-- name: keyed
SELECT line, seq FROM keyed WHERE root = ?1 AND key = ?2

-- name: add_tag
INSERT INTO tag (line, name, value, sum) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT DO UPDATE SET value = excluded.value, sum = excluded.sum

-- name: tag_line
UPDATE line SET tagged = ?2, untagged = EXISTS (SELECT 1 FROM record
    WHERE record.id > (line.id << 32) + (?2 >> 32) AND record.id <= (line.id << 32) + 0xfffffffe)
WHERE id = ?1 AND tagged >> 32 < ?2 >> 32

-- name: fold_out
-- The single records of a fold go. Were they fewer than the pack holds, everything is taken back …
DELETE FROM record WHERE id >= ?1 AND id < ?2 AND kind = 0

-- name: fold_in
-- … and the newest becomes the pack, if it is still the one that was meant, and no single record stands right
-- before them all (?8), unless one may (?9).
UPDATE record SET kind = 1, first = ?2, key = NULL, net = ?3, keyframe = ?4, body = ?5, sum = ?6
WHERE id = ?1 AND kind = 0 AND hash = ?7
AND (?9 OR NOT EXISTS (SELECT 1 FROM record WHERE id = ?8 AND kind = 0))

-- name: keyframe
UPDATE record SET keyframe = ?2 WHERE id = ?1 AND hash = ?3

-- name: chunks
SELECT position, count, fingerprints, data, sum FROM chunk
WHERE line = ?1 AND log = ?2 AND position < ?4 AND position >= coalesce(
    (SELECT max(position) FROM chunk WHERE line = ?1 AND log = ?2 AND position <= ?3), ?3)
ORDER BY position

-- name: fingerprints
SELECT position, count, fingerprints, sum FROM chunk
WHERE line = ?1 AND log = ?2 AND position >= coalesce(
    (SELECT max(position) FROM chunk WHERE line = ?1 AND log = ?2 AND position <= ?3), ?3)
ORDER BY position

-- name: seal_line
-- Where ?3 isn't NULL, only if that is the hash of the newest row.
UPDATE line SET deleted = 1 WHERE id = ?1 AND uid = ?2 AND deleted = 0
AND (?3 IS NULL OR ?3 = coalesce(
    (SELECT hash FROM record WHERE id BETWEEN ?1 << 32 AND (?1 << 32) + 0xfffffffe
        ORDER BY id DESC LIMIT 1), start_hash))

-- name: add_seal
INSERT INTO record (id, kind, first, sum, hash, body) VALUES (?1, 3, 0xffffffff, ?2, x'', x'')

-- name: needed
-- Alive, or the past of a line that is alive or needed in turn: those still have rows.
SELECT 1 FROM line WHERE id = ?1 AND deleted = 0
UNION ALL
SELECT 1 FROM line c WHERE c.parent = ?1 AND c.id > 0 AND (c.deleted = 0 OR EXISTS (
    SELECT 1 FROM record r WHERE r.id BETWEEN c.id << 32 AND (c.id << 32) + 0xfffffffe))
LIMIT 1

-- name: parent
SELECT parent FROM line WHERE id = ?1

-- name: purge_records
DELETE FROM record WHERE id BETWEEN ?1 << 32 AND (?1 << 32) + 0xfffffffe

-- name: purge_chunks
DELETE FROM chunk WHERE line = ?1

-- name: purge_keys
DELETE FROM keyed WHERE root = (SELECT root FROM line WHERE id = ?1) AND line = ?1

-- name: purge_tags
DELETE FROM tag WHERE line = ?1

-- ── rows that a version is rebuilt from ──

-- name: replay_from
-- Rows downwards from ?1 to above ?2.
SELECT id, first, kind, hash, CASE WHEN kind IN (1, 5) THEN x'' ELSE body END, net, keyframe, key, sum
FROM record WHERE id <= ?1 AND id > ?2 ORDER BY id DESC

-- name: replay_within
-- The same from the row that holds ?1, if none ends there; ?2 is the end of the line, ?3 the floor. A pack
-- that ends above ?1 is read inside, so its body comes along.
SELECT id, first, kind, hash, CASE WHEN kind IN (1, 5) AND id <= ?1 THEN x'' ELSE body END,
       net, keyframe, key, sum
FROM record
WHERE id <= (SELECT min(id) FROM record WHERE id BETWEEN ?1 AND ?2) AND id > ?3
ORDER BY id DESC

-- ── waiting, pruning, sizes ──

-- name: data_version
-- Differs from the last time if any other connection, of whichever process, has committed.
PRAGMA data_version

-- name: newer
-- The newest row of line ?1, its seal included, comes after ?2; or there is no such line.
SELECT coalesce(
    (SELECT max(id) FROM record WHERE id BETWEEN ?1 << 32 AND ?1 << 32 | 0xffffffff) > ?2,
    NOT EXISTS (SELECT 1 FROM line WHERE id = ?1))

-- name: rows_between
SELECT id & 0xffffffff, first, kind, hash, body, net, keyframe
FROM record WHERE id BETWEEN ?1 AND ?2 ORDER BY id

-- name: rewound_since
-- A REWIND, or a PRUNED or COLD row, which may have been one.
SELECT 1 FROM record WHERE id > ?1 AND id <= ?2 AND kind IN (2, 5, 6) LIMIT 1

-- name: children
SELECT id FROM line WHERE parent = ?1 AND id > 0

-- name: remove_rows
DELETE FROM record WHERE id BETWEEN ?1 AND ?2

-- name: add_row
INSERT INTO record (id, kind, first, sum, hash, key, net, keyframe, body)
VALUES (?1, ?2, ?3, ?4, ?5, NULL, ?6, ?7, ?8)

-- name: chunks_within
SELECT id, position, count, length(data) FROM chunk
WHERE line = ?1 AND log = ?2 AND position >= ?3 AND position + count <= ?4 ORDER BY position

-- name: chunk_at
SELECT count, fingerprints, data FROM chunk WHERE line = ?1 AND log = ?2 AND position = ?3

-- name: remove_chunk
DELETE FROM chunk WHERE id = ?1

-- name: add_chunk
INSERT INTO chunk (line, log, position, count, sum, fingerprints, data)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)

-- name: size_of_rows
SELECT kind, sum((id & 0xffffffff) - first + 1), sum(length(body) + coalesce(length(net), 0)),
       sum(coalesce(length(keyframe), 0))
FROM record WHERE id BETWEEN ?1 AND ?2 GROUP BY kind

-- name: size_of_chunks
SELECT coalesce(sum(length(data) + length(fingerprints)), 0) FROM chunk WHERE line = ?1

-- name: size_of_sealed
SELECT count(*), coalesce(sum(length(data)), 0) FROM sealed

-- name: size_of_cells
SELECT count(*), coalesce(sum(length(value)), 0) FROM cell

-- name: size_of_events
SELECT count(*), coalesce(sum(length(body)), 0) FROM event

-- ── cells ──

-- name: cell
SELECT value, revision, written_us FROM cell WHERE space = ?1 AND name = ?2

-- name: cells
SELECT name, value, revision, written_us FROM cell
WHERE space = ?1 AND name >= ?2 AND +name > ?3 ORDER BY name LIMIT ?4

-- name: replace_cell
UPDATE cell SET value = ?4, revision = revision + 1, written_us = ?5
WHERE space = ?1 AND name = ?2 AND revision = ?3

-- name: create_cell
-- A new cell begins above every revision that a removed one had, so that none repeats for a name.
INSERT INTO cell (space, name, revision, written_us, value)
SELECT ?1, ?2, revision + 1, ?4, ?3 FROM cell_floor WHERE true
ON CONFLICT DO NOTHING RETURNING revision

-- name: put_cell
-- Where other content takes the place of this one: no revision that any cell had before.
INSERT INTO cell (space, name, revision, written_us, value)
SELECT ?1, ?2, revision + 1, ?4, ?3 FROM cell_floor WHERE true
ON CONFLICT (space, name) DO UPDATE SET value = excluded.value, written_us = excluded.written_us

-- name: remove_cell
DELETE FROM cell WHERE space = ?1 AND name = ?2 AND revision = ?3

-- name: raise_cell_floor
UPDATE cell_floor SET revision = max(revision, ?1)

-- name: highest_revision
-- The highest revision that any cell of the store has or had.
SELECT max(f.revision, coalesce((SELECT max(revision) FROM cell), 0)) FROM cell_floor f

-- name: raise_revisions
UPDATE cell SET revision = ?1 + 1

-- ── streams of events ──

-- name: create_stream
INSERT INTO stream (space, name) VALUES (?1, ?2)

-- name: stream
SELECT id, first, last, peak_us, late_us FROM stream WHERE space = ?1 AND name = ?2

-- name: streams
SELECT name, last FROM stream
WHERE space = ?1 AND name >= ?2 AND +name > ?3 AND last >= first ORDER BY name LIMIT ?4

-- name: grow_stream
UPDATE stream SET last = ?2, peak_us = ?3, late_us = ?4 WHERE id = ?1

-- name: trim_stream
UPDATE stream SET first = ?2 + 1, peak_us = CASE WHEN last > ?2 THEN peak_us END,
    late_us = CASE WHEN last > ?2 THEN late_us ELSE 0 END WHERE id = ?1

-- name: add_event
INSERT INTO event (id, stream, type, agent, at_us, peak_us, body) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)

-- name: delete_events
DELETE FROM event WHERE id BETWEEN ?1 AND ?2

-- name: rewrite_event
UPDATE event SET body = ?2 WHERE id = ?1

-- name: first_event_since
-- The first event that can have a time of ?2 or later; the last one that can have ?2 or earlier.
SELECT id FROM event INDEXED BY event_peak WHERE stream = ?1 AND peak_us >= ?2
ORDER BY peak_us, id LIMIT 1

-- name: last_event_until
SELECT id FROM event INDEXED BY event_peak WHERE stream = ?1 AND peak_us <= ?2
ORDER BY peak_us DESC, id DESC LIMIT 1

-- name: events
SELECT id & 0xfffffffff, at_us, type, agent, body FROM event
WHERE id BETWEEN ?1 AND ?2 AND at_us BETWEEN ?3 AND ?4 ORDER BY id LIMIT ?5

-- name: events_of_type
SELECT id & 0xfffffffff, at_us, type, agent, body FROM event INDEXED BY event_type
WHERE type = ?6 AND id BETWEEN ?1 AND ?2 AND at_us BETWEEN ?3 AND ?4 ORDER BY id LIMIT ?5

-- name: events_of_agent
SELECT id & 0xfffffffff, at_us, type, agent, body FROM event INDEXED BY event_agent
WHERE agent = ?6 AND id BETWEEN ?1 AND ?2 AND at_us BETWEEN ?3 AND ?4 ORDER BY id LIMIT ?5

-- name: events_of_type_and_agent
SELECT id & 0xfffffffff, at_us, type, agent, body FROM event INDEXED BY event_type
WHERE type = ?6 AND id BETWEEN ?1 AND ?2 AND at_us BETWEEN ?3 AND ?4 AND agent = ?7 ORDER BY id LIMIT ?5

-- name: wrong_streams
-- What streams say about their events and isn't so; events that aren't where their stream is.
SELECT s.name FROM stream s LEFT JOIN (
    SELECT stream, count(*) AS count, min(id) AS first, max(id) AS last, max(peak_us) AS peak_us,
           max(peak_us - at_us) AS late_us
    FROM event GROUP BY stream
) e ON e.stream = s.id
WHERE coalesce(e.count, 0) <> s.last - s.first + 1
   OR e.peak_us IS NOT s.peak_us OR coalesce(e.late_us, 0) > s.late_us
   OR e.first <> s.id << 36 | s.first OR e.last <> s.id << 36 | s.last

-- name: wrong_peaks
-- Events whose latest time so far isn't the latest so far: a search by time would miss some. The first event may
-- have the time of one before it that was trimmed, if any was.
SELECT s.name, e.id & 0xfffffffff FROM (
    SELECT id, stream, peak_us, max(at_us) OVER so_far AS true_us, first_value(peak_us) OVER so_far AS first_us,
           first_value(id) OVER so_far AS first_id
    FROM event WINDOW so_far AS (PARTITION BY stream ORDER BY id)
) e JOIN stream s ON s.id = e.stream
WHERE e.peak_us <> CASE WHEN e.first_id & 0xfffffffff > 1 THEN max(e.true_us, e.first_us) ELSE e.true_us END LIMIT 100

-- ── sealed values and the erasure ledger ──

-- name: add_sealed
INSERT OR IGNORE INTO sealed (value, keys, sum, data) VALUES (?1, ?2, ?3, ?4)

-- name: add_unless_erased
-- The same for a value of one person, unless that person's key stands in the ledger.
INSERT OR IGNORE INTO sealed (value, keys, sum, data)
SELECT ?1, ?2, ?3, ?4 WHERE NOT EXISTS (SELECT 1 FROM erased WHERE key = ?2)

-- name: sealed
SELECT keys, data FROM sealed WHERE value = ?1

-- name: sealed_keys
SELECT value, keys FROM sealed WHERE value > ?1 ORDER BY value

-- name: sealed_sums
SELECT value, keys, sum FROM sealed

-- name: remove_sealed
DELETE FROM sealed WHERE value = ?1

-- name: is_erased
SELECT 1 FROM erased WHERE key = ?1

-- name: erasure
SELECT key, erasure, phase, noted_us, note, sum FROM erased WHERE key = ?1

-- name: erasures
SELECT key, erasure, phase, noted_us, note, sum FROM erased ORDER BY key

-- name: unfinished_erasures
SELECT key, erasure, phase, noted_us, note, sum FROM erased INDEXED BY erased_unfinished
WHERE phase < 5 ORDER BY key

-- name: put_erasure
INSERT INTO erased (key, erasure, phase, noted_us, note, sum) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT DO UPDATE SET erasure = ?2, phase = ?3, noted_us = ?4, note = ?5, sum = ?6

-- ── checks ──

-- name: integrity
PRAGMA integrity_check

-- name: definitions
SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL

-- name: all_lines
SELECT id, uid, space, name, root, parent, parent_seq, parent_segment, parent_hash, start_hash,
       counts, deleted, sum
FROM line WHERE id > 0 ORDER BY id

-- name: wrong_seals
SELECT id FROM line
WHERE id > 0 AND deleted <> EXISTS (SELECT 1 FROM record WHERE record.id = line.id << 32 | 0xffffffff)

-- name: records_without_line
SELECT id >> 32, id & 0xffffffff FROM record WHERE id >> 32 NOT IN (SELECT id FROM line WHERE id > 0)

-- name: tagged_lines
SELECT id, tagged, untagged, 0xffffffff & (SELECT max(n.id) FROM record n
            WHERE n.id BETWEEN line.id << 32 AND (line.id << 32) + 0xfffffffe)
FROM line WHERE id > 0 AND deleted = 0

-- name: all_tags
SELECT line, name, value, sum FROM tag

-- name: names_around
-- The entries of the index of names around a name, each with what the table says.
SELECT * FROM (
    SELECT i.space, i.name, t.space, t.name
    FROM line i INDEXED BY line_name LEFT JOIN line t ON t.id = i.id
    WHERE (i.space, i.name) < (?1, ?2) AND i.deleted = 0 ORDER BY i.space DESC, i.name DESC LIMIT 1)
UNION ALL SELECT * FROM (
    SELECT i.space, i.name, t.space, t.name
    FROM line i INDEXED BY line_name LEFT JOIN line t ON t.id = i.id
    WHERE (i.space, i.name) > (?1, ?2) AND i.deleted = 0 ORDER BY i.space, i.name LIMIT 1)

-- name: all_chunks
SELECT id, line, log, position, count, fingerprints, sum FROM chunk
