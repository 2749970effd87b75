"""What runs in the server for cells, streams and sealed values. ``functions`` says how such functions go."""

from __future__ import annotations

#: Nothing is taken that is sealed under a key of the ledger. Who notes an erasure locks the ledger against
#: this, so that one of the two sees the other.
_ADD_SEALED = """
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
"""

#: Each entry takes the later phase with its note, and keeps what was known first of the rest.
_NOTE_ERASURES = """
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
"""
_DROP_SEALED = """
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
"""

#: The time by this server's clock, in microseconds.
_NOW_US = """
CREATE FUNCTION everthread.now_us() RETURNS bigint LANGUAGE sql VOLATILE AS
$$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$
"""

#: Replace, make or remove a cell if it is at this revision; otherwise what it holds.
_SWAP = """
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
"""

#: Who holds the row of the stream is alone: seqs have no gaps and follow the order of commits.
_EMIT = """
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
"""

#: The stream itself stays, so that its seqs never repeat.
_DROP_STREAM = """
CREATE FUNCTION everthread.drop_stream(sp bytea, nm bytea, durable boolean)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    kept everthread.stream;
BEGIN
    SELECT * INTO kept FROM everthread.stream x WHERE x.space = sp AND x.name = nm FOR UPDATE;
    IF NOT FOUND OR kept.last < kept.first THEN
        RETURN false;
    END IF;
    DELETE FROM everthread.event x WHERE x.stream = kept.id;
    UPDATE everthread.stream x SET first = x.last + 1, peak_us = NULL, late_us = 0 WHERE x.id = kept.id;
    PERFORM everthread.durability(durable);
    RETURN true;
END
$$
"""

VERSION_1 = (_ADD_SEALED, _NOTE_ERASURES, _DROP_SEALED, _NOW_US, _SWAP, _EMIT, _DROP_STREAM)
