"""Tables, statements and migrations of the SQLite store. Every statement is constant text."""

from __future__ import annotations

#: "EVTH": marks a database file as ours.
APPLICATION_ID = 0x45565448
#: Kept in SQLite's user_version. Raised by one with every entry of MIGRATIONS.
SCHEMA_VERSION = 5

#: A row's id is line << 32 | seq, so that a line's rows are neighbours and its newest is one seek.
SEQ_BITS = 32
SEQ_MASK = (1 << SEQ_BITS) - 1

#: Stands in the definition of our first table, and hardly in any other file.
COLUMN_OF_OURS = b"start_hash BLOB NOT NULL"

_VERSION_1 = (
    """
    CREATE TABLE line (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        uid BLOB NOT NULL UNIQUE,
        space TEXT NOT NULL,
        name TEXT NOT NULL,
        root INTEGER NOT NULL,
        parent INTEGER NOT NULL REFERENCES line(id),
        parent_seq INTEGER NOT NULL,
        parent_segment INTEGER NOT NULL,
        parent_hash BLOB NOT NULL,
        start_hash BLOB NOT NULL,
        counts BLOB NOT NULL,
        sum INTEGER NOT NULL,
        deleted INTEGER NOT NULL,
        tagged INTEGER NOT NULL
    ) STRICT
    """,
    "CREATE UNIQUE INDEX line_name ON line (space, name) WHERE deleted = 0",
    "CREATE INDEX line_parent ON line (parent)",
    """
    CREATE TABLE record (
        id INTEGER PRIMARY KEY,
        kind INTEGER NOT NULL,
        first INTEGER NOT NULL,
        sum INTEGER NOT NULL,
        hash BLOB NOT NULL,
        key BLOB,
        net BLOB,
        keyframe BLOB,
        body BLOB NOT NULL
    ) STRICT
    """,
    """
    CREATE TABLE chunk (
        id INTEGER PRIMARY KEY,
        line INTEGER NOT NULL REFERENCES line(id),
        log TEXT NOT NULL,
        position INTEGER NOT NULL,
        count INTEGER NOT NULL,
        sum INTEGER NOT NULL,
        fingerprints BLOB NOT NULL,
        data BLOB NOT NULL
    ) STRICT
    """,
    "CREATE UNIQUE INDEX chunk_position ON chunk (line, log, position)",
    """
    CREATE TABLE keyed (
        root INTEGER NOT NULL,
        key BLOB NOT NULL,
        line INTEGER NOT NULL REFERENCES line(id),
        seq INTEGER NOT NULL,
        PRIMARY KEY (root, key, line, seq)
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE INDEX keyed_line ON keyed (line)",
    """
    CREATE TABLE sealed (
        value BLOB PRIMARY KEY,
        keys BLOB NOT NULL,
        data BLOB NOT NULL
    ) STRICT
    """,
    """
    CREATE TABLE tag (
        line INTEGER NOT NULL REFERENCES line(id),
        name TEXT NOT NULL,
        value BLOB NOT NULL,
        sum INTEGER NOT NULL,
        PRIMARY KEY (line, name)
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE INDEX tag_value ON tag (name, value, line)",
    """
    CREATE TABLE cell (
        id INTEGER PRIMARY KEY,
        space TEXT NOT NULL,
        name TEXT NOT NULL,
        revision INTEGER NOT NULL,
        written_us INTEGER NOT NULL,
        value BLOB NOT NULL
    ) STRICT
    """,
    "CREATE UNIQUE INDEX cell_name ON cell (space, name)",
    # One row: no removed cell had a higher revision.
    "CREATE TABLE cell_floor (id INTEGER PRIMARY KEY CHECK (id = 1), revision INTEGER NOT NULL) STRICT",
    "INSERT INTO cell_floor VALUES (1, 0)",
    # Events of a stream are first … last; peak_us is the latest time of any, late_us how far one lay below.
    """
    CREATE TABLE stream (
        id INTEGER PRIMARY KEY,
        space TEXT NOT NULL,
        name TEXT NOT NULL,
        first INTEGER NOT NULL DEFAULT 1,
        last INTEGER NOT NULL DEFAULT 0,
        peak_us INTEGER,
        late_us INTEGER NOT NULL DEFAULT 0
    ) STRICT
    """,
    "CREATE UNIQUE INDEX stream_name ON stream (space, name)",
    # An event's id is stream << 36 | seq; peak_us is the latest time up to it, which only grows.
    """
    CREATE TABLE event (
        id INTEGER PRIMARY KEY,
        stream INTEGER NOT NULL REFERENCES stream(id),
        type TEXT NOT NULL,
        agent TEXT,
        at_us INTEGER NOT NULL,
        peak_us INTEGER NOT NULL,
        body BLOB NOT NULL
    ) STRICT
    """,
    "CREATE INDEX event_type ON event (type)",
    "CREATE INDEX event_agent ON event (agent) WHERE agent IS NOT NULL",
    "CREATE INDEX event_peak ON event (stream, peak_us)",
    # Line 0 is nobody: the parent of lines that aren't forks, so that the reference always holds.
    "INSERT INTO line VALUES (0, x'', '', '', 0, 0, 0, 0, x'', x'', x'', 0, 1, 0)",
)

_VERSION_2 = (
    # Which sealed values need a key, so that those of one person are found among those of all.
    """
    CREATE TABLE sealed_key (
        key BLOB NOT NULL,
        value BLOB NOT NULL,
        PRIMARY KEY (key, value)
    ) STRICT, WITHOUT ROWID
    """,
    """
    INSERT INTO sealed_key
    WITH RECURSIVE place (at) AS (SELECT 1 UNION ALL SELECT at + 16 FROM place WHERE at < 16 * 254)
    SELECT substr(keys, at, 16), value FROM sealed JOIN place ON at < length(keys)
    """,
    # The erasure ledger.
    """
    CREATE TABLE erased (
        key BLOB PRIMARY KEY,
        erasure BLOB NOT NULL,
        phase INTEGER NOT NULL,
        noted_us INTEGER NOT NULL,
        note BLOB NOT NULL,
        sum INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE INDEX erased_unfinished ON erased (key) WHERE phase < 5",
)

_VERSION_3 = (
    # Keys are hashes: a fold changed a page of this index for each. Only deleting a thread used it.
    "DROP INDEX keyed_line",
)

_VERSION_4 = (
    # It cost every save of a personal value a page of the log. Who erases reads the whole store anyway.
    "DROP TABLE sealed_key",
    # What it was compared with to find damage is a sum now; rows from before have none.
    "ALTER TABLE sealed ADD COLUMN sum INTEGER",
)

_VERSION_5 = (
    # The sealed value that a version brings along, in the version's own row: value id, key id, their sum in
    # ten digits, the sealed bytes. A row of its own costs a save two more pages of the log.
    # ALTER TABLE would add it, too, but first looks through all rows, and gives up if one of them is damaged.
    "PRAGMA writable_schema = ON",
    """
    UPDATE sqlite_schema SET sql = replace(sql, 'body BLOB NOT NULL', 'body BLOB NOT NULL, sealed BLOB')
    WHERE type = 'table' AND name = 'record'
    """,
    "PRAGMA writable_schema = RESET",
    "ALTER TABLE sealed RENAME TO sealed_apart",
    # All of them, wherever they stand. Under the name that the table had: a process of the version before
    # that has the file open goes on reading, and fails where it would write them, or erase only some.
    """
    CREATE VIEW sealed AS
    SELECT value, keys, data, sum FROM sealed_apart
    UNION ALL
    SELECT substr(sealed, 1, 16), substr(sealed, 17, 16), substr(sealed, 43),
           CAST(substr(sealed, 33, 10) AS INTEGER)
    FROM record WHERE typeof(sealed) = 'blob'
    """,
    # A row that goes, or becomes a pack, leaves it behind: others may refer to it. Here, and not with each of
    # the statements by which rows go, because none may forget it, nor those of the version before. From a
    # damaged row anything may come, also numbers: that must not keep the row from going.
    """
    CREATE TRIGGER record_goes BEFORE DELETE ON record WHEN typeof(old.sealed) = 'blob' BEGIN
        INSERT OR IGNORE INTO sealed_apart (value, keys, data, sum)
        VALUES (substr(old.sealed, 1, 16), substr(old.sealed, 17, 16), substr(old.sealed, 43),
                CAST(substr(old.sealed, 33, 10) AS INTEGER));
    END
    """,
    """
    CREATE TRIGGER record_becomes AFTER UPDATE OF kind ON record WHEN typeof(old.sealed) = 'blob' BEGIN
        INSERT OR IGNORE INTO sealed_apart (value, keys, data, sum)
        VALUES (substr(old.sealed, 1, 16), substr(old.sealed, 17, 16), substr(old.sealed, 43),
                CAST(substr(old.sealed, 33, 10) AS INTEGER));
        UPDATE record SET sealed = NULL WHERE id = new.id;
    END
    """,
)

#: Entry n brings a database from version n to n + 1. Append only; never edit a released one.
MIGRATIONS: tuple[tuple[str, ...], ...] = (_VERSION_1, _VERSION_2, _VERSION_3, _VERSION_4, _VERSION_5)

# A line's columns, its newest row's, and the hash of the row before that: see to_found() in rows.py.
FIND = """
    SELECT line.id, uid, space, line.name, root, parent, parent_seq, parent_segment, parent_hash, start_hash,
           counts, deleted, line.sum,
           record.id, first, kind, record.hash, body, net, keyframe, key, record.sum,
           (SELECT b.hash FROM record b WHERE b.id >= line.id << 32 AND b.id < record.id
                ORDER BY b.id DESC LIMIT 1)
    FROM line LEFT JOIN record ON record.id = (SELECT max(n.id) FROM record n
                WHERE n.id BETWEEN line.id << 32 AND (line.id << 32) + 0xfffffffe)
    WHERE space = ?1 AND line.name = ?2 AND deleted = 0
"""
LINE = """
    SELECT id, uid, space, name, root, parent, parent_seq, parent_segment, parent_hash, start_hash,
           counts, deleted, sum
    FROM line WHERE id = ?1 AND id > 0
"""
LINE_BY_UID = """
    SELECT id, uid, space, name, root, parent, parent_seq, parent_segment, parent_hash, start_hash,
           counts, deleted, sum
    FROM line WHERE uid = ?1 AND id > 0
"""
EVERY_LINE = """
    SELECT id, uid, space, name, root, parent, parent_seq, parent_segment, parent_hash, start_hash,
           counts, deleted, sum
    FROM line WHERE id > ?1 ORDER BY id LIMIT 1000
"""
LINES = """
    SELECT line.id, uid, space, line.name, root, parent, parent_seq, parent_segment, parent_hash, start_hash,
           counts, deleted, line.sum,
           record.id, first, kind, record.hash, body, net, keyframe, key, record.sum,
           (SELECT b.hash FROM record b WHERE b.id >= line.id << 32 AND b.id < record.id
                ORDER BY b.id DESC LIMIT 1)
    FROM line LEFT JOIN record ON record.id = (SELECT max(n.id) FROM record n
                WHERE n.id BETWEEN line.id << 32 AND (line.id << 32) + 0xfffffffe)
    WHERE space = ?1 AND line.name >= ?2 AND line.name > ?3 AND deleted = 0
    ORDER BY line.name LIMIT ?4
"""
UNTAGGED = """
    SELECT id, uid, space, name, root, parent, parent_seq, parent_segment, parent_hash, start_hash,
           counts, deleted, sum, tagged
    FROM line
    WHERE space = ?1 AND deleted = 0 AND tagged >> 32 < 0xffffffff & (SELECT max(n.id) FROM record n
                WHERE n.id BETWEEN line.id << 32 AND (line.id << 32) + 0xfffffffe)
"""
LINES_BY_TAG = """
    SELECT line.id, uid, space, line.name, root, parent, parent_seq, parent_segment, parent_hash, start_hash,
           counts, deleted, line.sum,
           record.id, first, kind, record.hash, body, net, keyframe, key, record.sum,
           (SELECT b.hash FROM record b WHERE b.id >= line.id << 32 AND b.id < record.id
                ORDER BY b.id DESC LIMIT 1)
    FROM tag JOIN line ON line.id = tag.line
    LEFT JOIN record ON record.id = (SELECT max(n.id) FROM record n
                WHERE n.id BETWEEN line.id << 32 AND (line.id << 32) + 0xfffffffe)
    WHERE tag.name = ?2 AND tag.value = ?3 AND space = ?1 AND deleted = 0
    ORDER BY line.name
"""
TAGS = "SELECT name, value, sum FROM tag WHERE line = ?1"
#: The entries of lines with a tag that aren't for who asks: of another space, deleted, or damaged. Whether
#: one was deleted is also told by its seal.
OTHERS_BY_TAG = """
    SELECT line.id, uid, space, line.name, root, parent, parent_seq, parent_segment, parent_hash, start_hash,
           counts, deleted, line.sum,
           EXISTS (SELECT 1 FROM record WHERE record.id = line.id << 32 | 0xffffffff)
    FROM tag JOIN line ON line.id = tag.line
    WHERE tag.name = ?2 AND tag.value = ?3 AND (space = ?1 AND deleted = 0) IS NOT TRUE
"""
#: The lines with a tag as the index tells them, and as the table does, with whatever is no tag in there: the
#: index doesn't hold sums.
TAGGED_BY_INDEX = "SELECT line FROM tag INDEXED BY tag_value WHERE name = ?1 AND value = ?2 ORDER BY line"
TAGGED_BY_TABLE = """
    SELECT line FROM tag WHERE (+name = ?1 AND +value = ?2 AND +sum NOT NULL) OR typeof(line) <> 'integer'
    ORDER BY line
"""

SCAN = """
    SELECT id, first, kind, hash, body, net, keyframe, key, sum FROM record
    WHERE id <= coalesce((SELECT min(id) FROM record WHERE id BETWEEN ?1 AND ?2), ?2) AND id >= ?3
    ORDER BY id DESC LIMIT ?4
"""
TAIL = """
    SELECT id, first, kind, hash, body, net, keyframe, key, sum FROM record
    WHERE id BETWEEN ?1 AND ?2 ORDER BY id DESC
"""

#: The compare-and-set: the newest row of the line must have the hash this one builds on. Otherwise the new
#: hash comes out as NULL, which no row may have, and nothing is inserted. Takes SQLite less than
#: INSERT … SELECT … WHERE does.
APPEND = """
    INSERT OR IGNORE INTO record (id, kind, first, hash, key, body, sum)
    VALUES (?1, ?2, ?1 & 0xffffffff, CASE WHEN ?6 = coalesce(
        (SELECT hash FROM record WHERE id BETWEEN (?1 >> 32) << 32 AND ?1 | 0xffffffff
            ORDER BY id DESC LIMIT 1),
        (SELECT start_hash FROM line WHERE id = ?1 >> 32)
    ) THEN ?3 END, ?4, ?5, ?7)
"""
#: The same, unless a folded version of the family ?8 carries the key.
APPEND_GUARDED = """
    INSERT OR IGNORE INTO record (id, kind, first, hash, key, body, sum)
    VALUES (?1, ?2, ?1 & 0xffffffff, CASE WHEN ?6 = coalesce(
        (SELECT hash FROM record WHERE id BETWEEN (?1 >> 32) << 32 AND ?1 | 0xffffffff
            ORDER BY id DESC LIMIT 1),
        (SELECT start_hash FROM line WHERE id = ?1 >> 32)
    ) AND NOT EXISTS (SELECT 1 FROM keyed WHERE root = ?8 AND key = ?4) THEN ?3 END, ?4, ?5, ?7)
"""
#: The same for a rewind, unless the version it goes back to, in the first row from ?8 up to ?9, was pruned.
APPEND_REWIND = """
    INSERT OR IGNORE INTO record (id, kind, first, hash, key, body, sum)
    VALUES (?1, ?2, ?1 & 0xffffffff, CASE WHEN ?6 = coalesce(
        (SELECT hash FROM record WHERE id BETWEEN (?1 >> 32) << 32 AND ?1 | 0xffffffff
            ORDER BY id DESC LIMIT 1),
        (SELECT start_hash FROM line WHERE id = ?1 >> 32)
    ) AND 5 <> coalesce((SELECT kind FROM record WHERE id BETWEEN ?8 AND ?9 ORDER BY id LIMIT 1), 5)
    THEN ?3 END, ?4, ?5, ?7)
"""
CREATE_LINE = """
    INSERT INTO line
        (uid, space, name, root, parent, parent_seq, parent_segment, parent_hash, start_hash, counts,
         sum, deleted, tagged)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, 0, 0, 0)
"""
#: If line ?1 is alive: the kind of the row with the version to fork from, the first one from ?2 up to ?3.
FORKED_FROM = """
    SELECT (SELECT kind FROM record WHERE record.id BETWEEN ?2 AND ?3 ORDER BY record.id LIMIT 1)
    FROM line WHERE id = ?1 AND deleted = 0
"""
LINES_EVER = "SELECT max(seq) FROM sqlite_sequence WHERE name = 'line'"
KEEP_LINES_EVER = "UPDATE sqlite_sequence SET seq = max(seq, ?1) WHERE name = 'line'"
#: What is known only once the line has its id.
COMPLETE_LINE = "UPDATE line SET root = ?2, sum = ?3 WHERE id = ?1"
ADD_KEYED = "INSERT OR IGNORE INTO keyed (root, key, line, seq) VALUES (?1, ?2, ?3, ?4)"
KEYED = "SELECT line, seq FROM keyed WHERE root = ?1 AND key = ?2"
ADD_TAG = """
    INSERT INTO tag (line, name, value, sum) VALUES (?1, ?2, ?3, ?4)
    ON CONFLICT DO UPDATE SET value = excluded.value, sum = excluded.sum
"""
TAGGED_UP_TO = "UPDATE line SET tagged = ?2 WHERE id = ?1 AND tagged >> 32 < ?2 >> 32"

#: The single records of a fold go. Were they fewer than the pack holds, everything is taken back …
FOLD_OUT = "DELETE FROM record WHERE id >= ?1 AND id < ?2 AND kind = 0"
#: … and the newest becomes the pack, if it is still the one that was meant, and no single record stands right
#: before them all (?8), unless one may (?9).
FOLD_IN = """
    UPDATE record SET kind = 1, first = ?2, key = NULL, net = ?3, keyframe = ?4, body = ?5, sum = ?6
    WHERE id = ?1 AND kind = 0 AND hash = ?7
    AND (?9 OR NOT EXISTS (SELECT 1 FROM record WHERE id = ?8 AND kind = 0))
"""
KEYFRAME = "UPDATE record SET keyframe = ?2 WHERE id = ?1 AND hash = ?3"

CHUNKS = """
    SELECT position, count, fingerprints, data, sum FROM chunk
    WHERE line = ?1 AND log = ?2 AND position < ?4 AND position >= coalesce(
        (SELECT max(position) FROM chunk WHERE line = ?1 AND log = ?2 AND position <= ?3), ?3)
    ORDER BY position
"""
FINGERPRINTS = """
    SELECT position, count, fingerprints, sum FROM chunk
    WHERE line = ?1 AND log = ?2 AND position >= coalesce(
        (SELECT max(position) FROM chunk WHERE line = ?1 AND log = ?2 AND position <= ?3), ?3)
    ORDER BY position
"""

#: Where ?3 isn't NULL, only if that is the hash of the newest row.
SEAL_LINE = """
    UPDATE line SET deleted = 1 WHERE id = ?1 AND uid = ?2 AND deleted = 0
    AND (?3 IS NULL OR ?3 = coalesce(
        (SELECT hash FROM record WHERE id BETWEEN ?1 << 32 AND (?1 << 32) + 0xfffffffe
            ORDER BY id DESC LIMIT 1), start_hash))
"""
ADD_SEAL = "INSERT INTO record (id, kind, first, sum, hash, body) VALUES (?1, 3, 0xffffffff, ?2, x'', x'')"
#: Alive, or the past of a line that is alive or needed in turn: those still have rows.
NEEDED = """
    SELECT 1 FROM line WHERE id = ?1 AND deleted = 0
    UNION ALL
    SELECT 1 FROM line c WHERE c.parent = ?1 AND c.id > 0 AND (c.deleted = 0 OR EXISTS (
        SELECT 1 FROM record r WHERE r.id BETWEEN c.id << 32 AND (c.id << 32) + 0xfffffffe))
    LIMIT 1
"""
PARENT = "SELECT parent FROM line WHERE id = ?1"
PURGE_LINE = (
    "DELETE FROM record WHERE id BETWEEN ?1 << 32 AND (?1 << 32) + 0xfffffffe",
    "DELETE FROM chunk WHERE line = ?1",
    "DELETE FROM keyed WHERE root = (SELECT root FROM line WHERE id = ?1) AND line = ?1",
    "DELETE FROM tag WHERE line = ?1",
)
