-- The tables of the SQLite store. Section n brings a database from schema version n - 1 to n.
-- Until the first release the one section is edited in place; from then on sections are only added.

-- name: 1
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
    tagged INTEGER NOT NULL,
    untagged INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX line_name ON line (space, name) WHERE deleted = 0;
CREATE INDEX line_parent ON line (parent);
-- Lines with versions that are newer than their tags: metadata queries look at these alone.
CREATE INDEX line_untagged ON line (space) WHERE untagged = 1 AND deleted = 0;

-- A record's id is line << 32 | seq, so that a line's records are neighbours and its newest is one seek.
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
) STRICT;
-- Writes to the line only with the first version after its tags were brought up to date.
CREATE TRIGGER record_untagged AFTER INSERT ON record
WHEN new.kind IN (0, 2) AND (SELECT untagged FROM line WHERE id = new.id >> 32) = 0 BEGIN
    UPDATE line SET untagged = 1 WHERE id = new.id >> 32;
END;

CREATE TABLE chunk (
    id INTEGER PRIMARY KEY,
    line INTEGER NOT NULL REFERENCES line(id),
    log TEXT NOT NULL,
    position INTEGER NOT NULL,
    count INTEGER NOT NULL,
    sum INTEGER NOT NULL,
    fingerprints BLOB NOT NULL,
    data BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX chunk_position ON chunk (line, log, position);

-- Hashes of the keys that folded versions carry. Without an index by line: a fold would change a page of it
-- for each key, and only deleting a thread would use it.
CREATE TABLE keyed (
    root INTEGER NOT NULL,
    key BLOB NOT NULL,
    line INTEGER NOT NULL REFERENCES line(id),
    seq INTEGER NOT NULL,
    PRIMARY KEY (root, key, line, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE tag (
    line INTEGER NOT NULL REFERENCES line(id),
    name TEXT NOT NULL,
    value BLOB NOT NULL,
    sum INTEGER NOT NULL,
    PRIMARY KEY (line, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX tag_value ON tag (name, value, line);

-- Personal values. The ids of the keys that one needs stand in its row and nowhere else: an index of them
-- would cost each save another page, and only erasing uses it, which reads the whole store anyway.
CREATE TABLE sealed (
    value BLOB PRIMARY KEY,
    keys BLOB NOT NULL,
    sum INTEGER NOT NULL,
    data BLOB NOT NULL
) STRICT, WITHOUT ROWID;

-- The erasure ledger.
CREATE TABLE erased (
    key BLOB PRIMARY KEY,
    erasure BLOB NOT NULL,
    phase INTEGER NOT NULL,
    noted_us INTEGER NOT NULL,
    note BLOB NOT NULL,
    sum INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX erased_unfinished ON erased (key) WHERE phase < 5;

CREATE TABLE cell (
    id INTEGER PRIMARY KEY,
    space TEXT NOT NULL,
    name TEXT NOT NULL,
    revision INTEGER NOT NULL,
    written_us INTEGER NOT NULL,
    value BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX cell_name ON cell (space, name);
-- One row: no removed cell had a higher revision.
CREATE TABLE cell_floor (id INTEGER PRIMARY KEY CHECK (id = 1), revision INTEGER NOT NULL) STRICT;
INSERT INTO cell_floor VALUES (1, 0);

-- A stream holds the events first … last; peak_us is the latest time of any of them, late_us how far the time
-- of one lay below the latest before it.
CREATE TABLE stream (
    id INTEGER PRIMARY KEY,
    space TEXT NOT NULL,
    name TEXT NOT NULL,
    first INTEGER NOT NULL DEFAULT 1,
    last INTEGER NOT NULL DEFAULT 0,
    peak_us INTEGER,
    late_us INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE UNIQUE INDEX stream_name ON stream (space, name);

-- An event's id is stream << 36 | seq; peak_us is the latest time up to it, which only grows.
CREATE TABLE event (
    id INTEGER PRIMARY KEY,
    stream INTEGER NOT NULL REFERENCES stream(id),
    type TEXT NOT NULL,
    agent TEXT,
    at_us INTEGER NOT NULL,
    peak_us INTEGER NOT NULL,
    body BLOB NOT NULL
) STRICT;
CREATE INDEX event_type ON event (type);
CREATE INDEX event_agent ON event (agent) WHERE agent IS NOT NULL;
CREATE INDEX event_peak ON event (stream, peak_us);

-- Line 0 is the parent of lines that aren't forks, so that the reference always holds.
INSERT INTO line VALUES (0, x'', '', '', 0, 0, 0, 0, x'', x'', x'', 0, 1, 0, 0);
