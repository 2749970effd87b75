-- Functions in the server: each verb that writes is one function, one round trip and one transaction.
--
-- Every statement of a function sees what was committed before it began (READ COMMITTED), so that what is read
-- after waiting for a lock is up to date. The compare-and-set is the UPDATE of "head": a writer that waited for
-- another one's commit compares with the row that this one left.
--
-- A family of lines is locked by the row of its root in "line": shared (FOR KEY SHARE) by forks, rewinds and
-- folds, exclusively (FOR UPDATE) by deletion and pruning, which remove what those rely on.
--
-- A function that appends answers: 0 stale, 1 landed, 2 key known, 3 version gone, 4 source gone, 5 in doubt,
-- 6 locked.

-- name: durability
-- Commits wait for the disk if they are to be durable, whatever the server's default says.
CREATE FUNCTION everthread.durability(wanted boolean) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT wanted THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    ELSIF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
END
$$

-- name: append
-- The hot path: one row, and perhaps a key that no folded version of the family ``guarded`` may have.
CREATE FUNCTION everthread.append(r bigint, l bigint, s bigint, k smallint, checksum bigint, digest bytea,
    commit_key bytea, content bytea, previous bytea, guarded bigint, durable boolean)
RETURNS smallint LANGUAGE plpgsql AS $$
DECLARE
    watched_until timestamptz;
BEGIN
    IF guarded <> 0 THEN
        IF EXISTS (SELECT 1 FROM everthread.keyed x WHERE x.root = guarded AND x.key = commit_key) THEN
            RETURN 2;
        END IF;
    END IF;
    UPDATE everthread.head x SET seq = s, hash = digest, tags_due = true
        WHERE x.root = r AND x.line = l AND x.hash = previous RETURNING x.watched INTO watched_until;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    INSERT INTO everthread.record (root, line, seq, kind, first, sum, hash, key, body)
        VALUES (r, l, s, k, s, checksum, digest, commit_key, content);
    IF watched_until > now() THEN
        PERFORM pg_notify('everthread_lines', l::text);
    END IF;
    IF NOT durable OR current_setting('synchronous_commit') = 'off' THEN
        PERFORM everthread.durability(durable);
    END IF;
    RETURN 1;
END
$$

-- name: add_chunks
CREATE FUNCTION everthread.add_chunks(r bigint, l bigint, logs bytea[], positions bigint[], counts bigint[],
    sums bigint[], prints bytea[], contents bytea[])
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO everthread.chunk (root, line, log, position, count, sum, fingerprints, data)
        SELECT r, l, u.* FROM unnest(logs, positions, counts, sums, prints, contents) u;
END
$$

-- name: append_whole
-- The same with all that may come along. ``again``: an earlier try may have been written although its answer
-- was lost. ``from_line`` and ``from_seq``: the version that a rewind goes back to.
CREATE FUNCTION everthread.append_whole(r bigint, l bigint, s bigint, k smallint, checksum bigint,
    digest bytea, commit_key bytea, content bytea, previous bytea, guarded bigint, durable boolean,
    again boolean,
    from_root bigint, from_line bigint, from_seq bigint,
    ids bytea[], sealing bytea[], sealed_data bytea[],
    logs bytea[], positions bigint[], counts bigint[], sums bigint[], prints bytea[], contents bytea[])
RETURNS smallint LANGUAGE plpgsql AS $$
DECLARE
    taken smallint;
    source_kind smallint;
BEGIN
    IF from_line <> 0 THEN
        PERFORM 1 FROM everthread.line x WHERE x.id = from_root FOR KEY SHARE;
        SELECT x.kind INTO source_kind FROM everthread.record x
            WHERE x.root = from_root AND x.line = from_line AND x.seq >= from_seq ORDER BY x.seq LIMIT 1;
        IF source_kind IS NULL OR source_kind = 5 THEN
            RETURN 3;
        END IF;
    END IF;
    taken := everthread.append(r, l, s, k, checksum, digest, commit_key, content, previous, guarded, durable);
    IF taken <> 1 THEN
        IF again AND EXISTS (SELECT 1 FROM everthread.record x
                WHERE x.root = r AND x.line = l AND x.seq = s AND x.hash = digest) THEN
            -- A session that ended while it waited for a standby leaves its row visible all the same. This
            -- transaction writes something, so that it waits for disks and standbys, and for that row's too.
            PERFORM 1 FROM everthread.head x WHERE x.root = r AND x.line = l FOR UPDATE;
            PERFORM everthread.durability(durable);
            RETURN 1;
        END IF;
        IF again AND taken = 0 AND EXISTS (SELECT 1 FROM everthread.record x
                WHERE x.root = r AND x.line = l AND x.seq > s AND x.first <= s) THEN
            -- Others went on, and folded what would tell.
            RETURN 5;
        END IF;
        RETURN taken;
    END IF;
    IF cardinality(ids) > 0 THEN
        PERFORM everthread.add_sealed((SELECT x.space FROM everthread.line x WHERE x.id = l),
            ids, sealing, sealed_data);
    END IF;
    IF cardinality(logs) > 0 THEN
        PERFORM everthread.add_chunks(r, l, logs, positions, counts, sums, prints, contents);
    END IF;
    RETURN 1;
END
$$

-- name: append_many
-- Several rows, each on its own terms; those that come along with sealed values or chunks go one by one. It
-- never waits for a lock, which would hold up whoever waits for one of the others: that row goes by itself.
CREATE FUNCTION everthread.append_many(roots bigint[], lines bigint[], seqs bigint[], kinds smallint[],
    checksums bigint[], digests bytea[], commit_keys bytea[], bodies bytea[], before bytea[], guards bigint[],
    durable boolean)
RETURNS smallint[] LANGUAGE plpgsql AS $$
DECLARE
    taken smallint[] := array_fill(0::smallint, ARRAY[cardinality(lines)]);
    at integer;
BEGIN
    -- In the order of lines, within a line as they came.
    FOR at IN SELECT u.n FROM unnest(lines) WITH ORDINALITY u(l, n) ORDER BY u.l, u.n LOOP
        PERFORM 1 FROM everthread.head x WHERE x.root = roots[at] AND x.line = lines[at]
            FOR NO KEY UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            taken[at] := 6;
            CONTINUE;
        END IF;
        taken[at] := everthread.append(roots[at], lines[at], seqs[at], kinds[at], checksums[at], digests[at],
            commit_keys[at], bodies[at], before[at], guards[at], durable);
    END LOOP;
    RETURN taken;
END
$$

-- name: create_line
-- The second answer is the id. A fork's id follows those of its family: a parent's is always lower.
CREATE FUNCTION everthread.create_line(u bytea, sp bytea, nm bytea, r bigint, p bigint, p_seq bigint,
    p_segment bigint, p_hash bytea, s_hash bytea, used bytea, checksum bigint, source bigint, durable boolean,
    tag_names bytea[], tag_values bytea[],
    s bigint, k smallint, row_sum bigint, digest bytea, commit_key bytea, content bytea,
    ids bytea[], sealing bytea[], sealed_data bytea[],
    logs bytea[], positions bigint[], counts bigint[], sums bigint[], prints bytea[], contents bytea[],
    OUT answer smallint, OUT made bigint)
LANGUAGE plpgsql AS $$
DECLARE
    source_kind smallint;
BEGIN
    answer := 1;
    IF r = 0 THEN
        made := nextval('everthread.root') << 24;
        INSERT INTO everthread.line (id, root, uid, space, name, parent, parent_seq, parent_segment,
                parent_hash, start_hash, counts, sum)
            VALUES (made, made, u, sp, nm, p, p_seq, p_segment, p_hash, s_hash, used, checksum);
        r := made;
    ELSE
        PERFORM 1 FROM everthread.line x WHERE x.id = r FOR KEY SHARE;
        IF source <> 0 THEN
            IF NOT EXISTS (SELECT 1 FROM everthread.line x WHERE x.id = source AND NOT x.deleted) THEN
                answer := 4;
                RETURN;
            END IF;
            SELECT x.kind INTO source_kind FROM everthread.record x
                WHERE x.root = r AND x.line = p AND x.seq >= p_seq ORDER BY x.seq LIMIT 1;
            IF source_kind IS NULL OR source_kind = 5 THEN
                answer := CASE WHEN source_kind = 5 THEN 3 ELSE 4 END;
                RETURN;
            END IF;
        END IF;
        LOOP
            SELECT max(x.id) + 1 INTO made FROM everthread.line x WHERE x.root = r;
            IF made >= r + (1 << 24) THEN
                answer := -1;
                RETURN;
            END IF;
            INSERT INTO everthread.line (id, root, uid, space, name, parent, parent_seq, parent_segment,
                    parent_hash, start_hash, counts, sum)
                VALUES (made, r, u, sp, nm, p, p_seq, p_segment, p_hash, s_hash, used, checksum)
                ON CONFLICT (id) DO NOTHING;
            EXIT WHEN FOUND;
        END LOOP;
    END IF;
    INSERT INTO everthread.head (root, line, seq, hash, space, tags_due)
        VALUES (r, made, coalesce(s, 0), coalesce(digest, s_hash), sp, s IS NOT NULL);
    IF cardinality(tag_names) > 0 THEN
        INSERT INTO everthread.tag (root, line, name, value)
            SELECT r, made, t.* FROM unnest(tag_names, tag_values) t;
    END IF;
    IF s IS NOT NULL THEN
        INSERT INTO everthread.record (root, line, seq, kind, first, sum, hash, key, body)
            VALUES (r, made, s, k, s, row_sum, digest, commit_key, content);
    END IF;
    IF cardinality(ids) > 0 THEN
        PERFORM everthread.add_sealed(sp, ids, sealing, sealed_data);
    END IF;
    IF cardinality(logs) > 0 THEN
        PERFORM everthread.add_chunks(r, made, logs, positions, counts, sums, prints, contents);
    END IF;
    IF EXISTS (SELECT 1 FROM everthread.births x WHERE x.watched > now()) THEN
        PERFORM pg_notify('everthread_lines', '0');
    END IF;
    PERFORM everthread.durability(durable);
END
$$

-- name: set_tags
CREATE FUNCTION everthread.set_tags(r bigint, l bigint, up_to bigint, names bytea[], contents bytea[])
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE everthread.line x SET tagged = up_to WHERE x.id = l AND x.tagged < up_to;
    IF FOUND AND cardinality(names) > 0 THEN
        INSERT INTO everthread.tag (root, line, name, value)
            SELECT r, l, u.* FROM unnest(names, contents) u
            ON CONFLICT (root, line, name) DO UPDATE SET value = excluded.value;
    END IF;
    -- A reader doesn't wait for a writer: while somebody commits to this line its tags stay due.
    PERFORM 1 FROM everthread.head x WHERE x.root = r AND x.line = l AND x.seq = up_to AND x.tags_due
        FOR NO KEY UPDATE SKIP LOCKED;
    IF FOUND THEN
        UPDATE everthread.head x SET tags_due = false WHERE x.root = r AND x.line = l AND x.seq = up_to;
    END IF;
END
$$

-- name: fold
-- Whoever turns the last row into the pack does the rest; another one finds that it is single no more.
CREATE FUNCTION everthread.fold(r bigint, l bigint, since bigint, up_to bigint, digest bytea, checksum bigint,
    folded_net bytea, frame bytea, content bytea,
    logs bytea[], positions bigint[], counts bigint[], sums bigint[], prints bytea[], contents bytea[],
    commit_keys bytea[], key_seqs bigint[], tag_names bytea[], tag_values bytea[])
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    removed bigint;
BEGIN
    PERFORM 1 FROM everthread.line x WHERE x.id = r FOR KEY SHARE;
    UPDATE everthread.record x SET kind = 1, first = since, key = NULL, sum = checksum, net = folded_net,
            keyframe = frame, body = content
        WHERE x.root = r AND x.line = l AND x.seq = up_to AND x.kind = 0 AND x.hash = digest;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    DELETE FROM everthread.record x
        WHERE x.root = r AND x.line = l AND x.seq >= since AND x.seq < up_to AND x.kind = 0;
    GET DIAGNOSTICS removed = ROW_COUNT;
    IF removed <> up_to - since THEN
        -- Not all single records any more: take everything back.
        RAISE EXCEPTION 'not foldable' USING ERRCODE = 'EV001';
    END IF;
    PERFORM everthread.add_chunks(r, l, logs, positions, counts, sums, prints, contents);
    IF cardinality(commit_keys) > 0 THEN
        INSERT INTO everthread.keyed (root, key, line, seq)
            SELECT r, u.a, l, u.b FROM unnest(commit_keys, key_seqs) u(a, b) ON CONFLICT DO NOTHING;
    END IF;
    PERFORM everthread.set_tags(r, l, up_to, tag_names, tag_values);
    -- Whoever folded relies on it from now on, also when the server comes back from a crash: on disk first.
    PERFORM everthread.durability(true);
    RETURN true;
END
$$

-- name: delete_line
-- What no living line reaches any more goes: this deleted line's, then perhaps its ancestors'.
CREATE FUNCTION everthread.delete_line(r bigint, l bigint, u bytea, newest bytea, durable boolean)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    at bigint := l;
    watched_until timestamptz;
BEGIN
    PERFORM 1 FROM everthread.line x WHERE x.id = r FOR UPDATE;
    IF NOT EXISTS (SELECT 1 FROM everthread.line x WHERE x.id = l AND x.uid = u AND NOT x.deleted) THEN
        RETURN false;
    END IF;
    UPDATE everthread.head x SET seq = 4294967295, hash = '', tags_due = false
        WHERE x.root = r AND x.line = l AND (newest IS NULL OR x.hash = newest)
        RETURNING x.watched INTO watched_until;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE everthread.line x SET deleted = true WHERE x.id = l;
    WHILE at <> 0 LOOP
        EXIT WHEN EXISTS (SELECT 1 FROM everthread.line x WHERE x.id = at AND NOT x.deleted);
        EXIT WHEN EXISTS (SELECT 1 FROM everthread.line x WHERE x.parent = at AND x.parent > 0
            AND (NOT x.deleted OR EXISTS (SELECT 1 FROM everthread.record y
                WHERE y.root = x.root AND y.line = x.id)));
        DELETE FROM everthread.record x WHERE x.root = r AND x.line = at;
        DELETE FROM everthread.chunk x WHERE x.root = r AND x.line = at;
        DELETE FROM everthread.keyed x WHERE x.root = r AND x.line = at;
        DELETE FROM everthread.tag x WHERE x.root = r AND x.line = at;
        SELECT x.parent INTO at FROM everthread.line x WHERE x.id = at;
    END LOOP;
    IF watched_until > now() THEN
        PERFORM pg_notify('everthread_lines', l::text);
    END IF;
    PERFORM everthread.durability(durable);
    RETURN true;
END
$$

-- name: add_sealed
-- Nothing is taken that is sealed under a key of the ledger. Who notes an erasure locks the ledger against
-- this, so that one of the two sees the other.
CREATE FUNCTION everthread.add_sealed(tenant bytea, ids bytea[], sealing bytea[], contents bytea[])
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    LOCK TABLE everthread.erased IN ROW SHARE MODE;
    IF EXISTS (SELECT 1 FROM everthread.erased x WHERE x.key IN (
            SELECT substring(u.keys FROM n FOR 16) FROM unnest(sealing) u(keys),
                generate_series(1, length(u.keys), 16) n)) THEN
        RAISE EXCEPTION 'erased' USING ERRCODE = 'EV002';
    END IF;
    INSERT INTO everthread.sealed (value, space, keys, data)
        SELECT u.a, tenant, u.b, u.c FROM unnest(ids, sealing, contents) u(a, b, c) WHERE length(u.c) > 0
        ON CONFLICT (value) DO NOTHING;
    INSERT INTO everthread.sealed_key (key, value)
        SELECT DISTINCT substring(x.keys FROM n FOR 16), x.value
            FROM everthread.sealed x, generate_series(1, length(x.keys), 16) n WHERE x.value = ANY (ids)
        ON CONFLICT DO NOTHING;
END
$$

-- name: note_erasures
-- Each entry takes the later phase with its note, and keeps what was known first of the rest.
CREATE FUNCTION everthread.note_erasures(ids bytea[], erasures bytea[], phases smallint[], ats bigint[],
    notes bytea[])
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    LOCK TABLE everthread.erased IN EXCLUSIVE MODE;
    INSERT INTO everthread.erased AS x (key, erasure, phase, noted_us, note)
        SELECT u.* FROM unnest(ids, erasures, phases, ats, notes) u ORDER BY 1
        ON CONFLICT (key) DO UPDATE SET phase = excluded.phase, note = excluded.note
            WHERE excluded.phase >= x.phase;
    PERFORM everthread.durability(true);
END
$$

-- name: drop_sealed
CREATE FUNCTION everthread.drop_sealed(ids bytea[], durable boolean) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    gone bytea[];
    removed bigint;
BEGIN
    SELECT array_agg(DISTINCT x.value) INTO gone FROM everthread.sealed_key x WHERE x.key = ANY (ids);
    DELETE FROM everthread.sealed x WHERE x.value = ANY (gone);
    GET DIAGNOSTICS removed = ROW_COUNT;
    DELETE FROM everthread.sealed_key x WHERE x.value = ANY (gone);
    PERFORM everthread.durability(durable);
    RETURN removed;
END
$$

-- name: events_between
-- Above which seq, and up to which, events of a stream can be that are above a seq and within a time. Times needn't
-- follow the order of events; peaks do.
CREATE FUNCTION everthread.events_between(stream_id bigint, newest bigint, late_us bigint,
    above bigint, since_us bigint, until_us bigint, OUT after bigint, OUT last bigint)
LANGUAGE sql STABLE AS $$
    SELECT greatest(above, coalesce((SELECT p.seq FROM everthread.event p
               WHERE p.stream = stream_id AND p.peak_us >= since_us
               ORDER BY p.peak_us, p.seq LIMIT 1), newest + 1) - 1),
           coalesce((SELECT p.seq FROM everthread.event p WHERE p.stream = stream_id
               AND p.peak_us <= least(until_us, 9223372036854775807 - late_us) + late_us
               ORDER BY p.peak_us DESC, p.seq DESC LIMIT 1), 0)
$$

-- name: now_us
-- The time by this server's clock, in microseconds.
CREATE FUNCTION everthread.now_us() RETURNS bigint LANGUAGE sql VOLATILE AS
$$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$

-- name: swap
-- Replace, make or remove a cell if it is at this revision; otherwise what it holds.
CREATE FUNCTION everthread.swap(sp bytea, nm bytea, expected bigint, content bytea, durable boolean,
    OUT swapped boolean, OUT now_at bigint, OUT held bytea, OUT held_us bigint, OUT read_us bigint)
LANGUAGE plpgsql AS $$
BEGIN
    IF expected = 0 AND content IS NULL THEN
        swapped := NOT EXISTS (SELECT 1 FROM everthread.cell x
            WHERE x.space = sp AND x.name = nm AND x.value IS NOT NULL);
    ELSIF expected = 0 THEN
        INSERT INTO everthread.cell AS x (space, name, revision, written_us, value)
            VALUES (sp, nm, 1, everthread.now_us(), content)
            ON CONFLICT (space, name) DO UPDATE
                SET revision = x.revision + 1, written_us = everthread.now_us(), value = content
                WHERE x.value IS NULL
            RETURNING x.revision INTO now_at;
        swapped := FOUND;
    ELSE
        UPDATE everthread.cell x
            SET revision = x.revision + 1, written_us = everthread.now_us(), value = content
            WHERE x.space = sp AND x.name = nm AND x.revision = expected AND x.value IS NOT NULL
            RETURNING x.revision INTO now_at;
        swapped := FOUND;
    END IF;
    IF NOT swapped THEN
        SELECT x.revision, x.value, x.written_us INTO now_at, held, held_us FROM everthread.cell x
            WHERE x.space = sp AND x.name = nm;
    END IF;
    read_us := everthread.now_us();
    PERFORM everthread.durability(durable);
END
$$

-- name: emit
-- Who holds the row of the stream is alone: seqs have no gaps and follow the order of commits.
CREATE FUNCTION everthread.emit(sp bytea, nm bytea, types bytea[], agents bytea[], ats bigint[],
    bodies bytea[], ids bytea[], sealing bytea[], sealed_data bytea[], durable boolean)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    kept everthread.stream;
    peak bigint;
    late numeric;
BEGIN
    SELECT * INTO kept FROM everthread.stream x WHERE x.space = sp AND x.name = nm FOR UPDATE;
    IF NOT FOUND THEN
        INSERT INTO everthread.stream (space, name) VALUES (sp, nm) ON CONFLICT DO NOTHING;
        SELECT * INTO kept FROM everthread.stream x WHERE x.space = sp AND x.name = nm FOR UPDATE;
    END IF;
    IF kept.last + cardinality(types) > 68719476735 THEN
        RETURN 0;
    END IF;
    WITH added AS (
        INSERT INTO everthread.event (stream, seq, type, agent, at_us, peak_us, body)
            SELECT kept.id, kept.last + u.n, u.t, u.a, u.at,
                    greatest(kept.peak_us, max(u.at) OVER (ORDER BY u.n)), u.b
                FROM unnest(types, agents, ats, bodies) WITH ORDINALITY u(t, a, at, b, n)
            RETURNING at_us, peak_us
    )
    SELECT max(added.peak_us), max(added.peak_us::numeric - added.at_us) INTO peak, late FROM added;
    UPDATE everthread.stream x SET last = x.last + cardinality(types), peak_us = peak,
            late_us = greatest(x.late_us, least(late, 9223372036854775807)::bigint)
        WHERE x.id = kept.id;
    IF cardinality(ids) > 0 THEN
        PERFORM everthread.add_sealed(sp, ids, sealing, sealed_data);
    END IF;
    PERFORM everthread.durability(durable);
    RETURN kept.last + 1;
END
$$

-- name: trim_stream
-- The stream itself stays, so that its seqs never repeat.
CREATE FUNCTION everthread.trim_stream(sp bytea, nm bytea, up_to bigint, durable boolean)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    kept everthread.stream;
    top bigint;
BEGIN
    SELECT * INTO kept FROM everthread.stream x WHERE x.space = sp AND x.name = nm FOR UPDATE;
    top := least(up_to, kept.last);
    IF NOT FOUND OR top < kept.first THEN
        RETURN 0;
    END IF;
    DELETE FROM everthread.event x WHERE x.stream = kept.id AND x.seq <= top;
    UPDATE everthread.stream x SET first = top + 1, peak_us = CASE WHEN x.last > top THEN x.peak_us END,
        late_us = CASE WHEN x.last > top THEN x.late_us ELSE 0 END WHERE x.id = kept.id;
    PERFORM everthread.durability(durable);
    RETURN top - kept.first + 1;
END
$$

-- name: cover_texts
-- Two who bring the index of a line up to date at once can't mix: the second finds another mark.
CREATE FUNCTION everthread.cover_texts(sp bytea, u bytea, before bytea, after bytea, gone bytea[],
    keys bytea[], kinds bytea[], vectors text[])
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF before IS NULL THEN
        INSERT INTO everthread.text_covered (space, uid, mark) VALUES (sp, u, after) ON CONFLICT DO NOTHING;
    ELSE
        UPDATE everthread.text_covered x SET mark = after
            WHERE x.space = sp AND x.uid = u AND x.mark = before;
    END IF;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    DELETE FROM everthread.text_entry x
        WHERE x.space = sp AND x.uid = u AND (x.key = ANY (gone) OR x.key = ANY (keys));
    INSERT INTO everthread.text_entry (space, uid, key, kind, words)
        SELECT sp, u, t.a, t.b, t.c::tsvector FROM unnest(keys, kinds, vectors) t(a, b, c);
    PERFORM everthread.durability(false);
    RETURN true;
END
$$

-- name: forget_texts
CREATE FUNCTION everthread.forget_texts(sp bytea, uids bytea[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM everthread.text_entry x WHERE x.space = sp AND x.uid = ANY (uids);
    DELETE FROM everthread.text_covered x WHERE x.space = sp AND x.uid = ANY (uids);
END
$$

-- name: put_document
CREATE FUNCTION everthread.put_document(l bigint, s bigint, digest bytea, at_us bigint, content jsonb)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO everthread.document AS x (line, seq, hash, at, document)
        VALUES (l, s, digest, to_timestamp(at_us / 1000000.0), content)
        ON CONFLICT (line) DO UPDATE SET seq = excluded.seq, hash = excluded.hash, at = excluded.at,
            document = excluded.document WHERE x.seq <= excluded.seq;
    PERFORM everthread.durability(false);
END
$$

-- name: add_knowledge
CREATE FUNCTION everthread.add_knowledge(sp bytea, k bytea, content text, about jsonb, place real[],
    durable boolean)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO everthread.knowledge (space, key, text, metadata, embedding)
        VALUES (sp, k, content, about, place)
        ON CONFLICT (space, key) DO UPDATE
            SET text = excluded.text, metadata = excluded.metadata, embedding = excluded.embedding;
    PERFORM everthread.durability(durable);
END
$$
