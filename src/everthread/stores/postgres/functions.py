"""What runs in the server: each writing verb is one function, one round trip and one transaction.

Every statement of a function sees what was committed before it began (READ COMMITTED), so that what is read
after waiting for a lock is up to date. The compare-and-set is the UPDATE of ``head``: who waited for another
writer's commit compares with the row that this one left.

A family of lines is locked by the row of its root in ``line``: shared (FOR KEY SHARE) by forks, rewinds and
folds, alone (FOR UPDATE) by deletion and pruning, which take away what those rely on.
"""

from __future__ import annotations

#: What a function answers: the row was taken, or why not.
STALE, LANDED, KEY_KNOWN, VERSION_GONE, SOURCE_GONE, IN_DOUBT, LOCKED = 0, 1, 2, 3, 4, 5, 6

#: Commits wait for the disk if they are to be durable, whatever the server's default says.
_DURABILITY = """
CREATE FUNCTION everthread.durability(wanted boolean) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT wanted THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    ELSIF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
END
$$
"""

#: The hot path: one row, and perhaps a key that no folded version of the family ``guarded`` may have.
_APPEND = """
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
    UPDATE everthread.head x SET seq = s, hash = digest
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
"""

_ADD_CHUNKS = """
CREATE FUNCTION everthread.add_chunks(r bigint, l bigint, logs bytea[], positions bigint[], counts bigint[],
    sums bigint[], prints bytea[], contents bytea[])
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO everthread.chunk (root, line, log, position, count, sum, fingerprints, data)
        SELECT r, l, u.* FROM unnest(logs, positions, counts, sums, prints, contents) u;
END
$$
"""

#: The same with all that may come along. ``again``: an earlier try may have been written although its answer
#: was lost. ``from_line`` and ``from_seq``: the version that a rewind goes back to.
_APPEND_WHOLE = """
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
"""

#: Several rows, each on its own terms; those that come along with sealed values or chunks go one by one. It
#: never waits for a lock, which would hold up whoever waits for one of the others: that row goes by itself.
_APPEND_MANY = """
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
"""

#: The second answer is the id. A fork's id follows those of its family: a parent's is always lower.
_CREATE = """
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
            SELECT greatest(max(x.id), (SELECT f.last FROM everthread.family_floor f WHERE f.root = r)) + 1
                INTO made FROM everthread.line x WHERE x.root = r;
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
    INSERT INTO everthread.head (root, line, seq, hash)
        VALUES (r, made, coalesce(s, 0), coalesce(digest, s_hash));
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
"""

_SET_TAGS = """
CREATE FUNCTION everthread.set_tags(r bigint, l bigint, up_to bigint, names bytea[], contents bytea[])
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE everthread.line x SET tagged = up_to WHERE x.id = l AND x.tagged < up_to;
    IF FOUND AND cardinality(names) > 0 THEN
        INSERT INTO everthread.tag (root, line, name, value)
            SELECT r, l, u.* FROM unnest(names, contents) u
            ON CONFLICT (root, line, name) DO UPDATE SET value = excluded.value;
    END IF;
END
$$
"""

#: Whoever turns the last row into the pack does the rest; another one finds that it is single no more.
_FOLD = """
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
"""

#: What no living line reaches any more goes: this deleted line's, then perhaps its ancestors'.
_DELETE = """
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
    UPDATE everthread.head x SET seq = 4294967295, hash = ''
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
"""

LINES_1 = (
    _DURABILITY,
    _APPEND,
    _ADD_CHUNKS,
    _APPEND_WHOLE,
    _APPEND_MANY,
    _CREATE,
    _SET_TAGS,
    _FOLD,
    _DELETE,
)
