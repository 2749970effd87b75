-- Tables and statements of the SQLite store, one section for each statement and shape of table.
-- {0} stands for the name of a declared table. Parameters begin with the key: id, or (tab, owner, at) in entry,
-- or (owner, at) in followed tables.

-- An id is owner << bits | number, so that the values of an owner are neighbours and need no index.

-- name: numbered create
CREATE TABLE "{0}" (id INTEGER PRIMARY KEY, value BLOB NOT NULL) STRICT;

-- name: numbered get
SELECT value FROM "{0}" WHERE id = ?1

-- name: numbered put
INSERT INTO "{0}" (id, value) VALUES (?1, ?2) ON CONFLICT (id) DO UPDATE SET value = ?2

-- name: numbered delete
DELETE FROM "{0}" WHERE id BETWEEN ?1 AND ?2

-- name: numbered page
SELECT id, value FROM "{0}" WHERE id BETWEEN ?1 AND ?2 ORDER BY id LIMIT ?3

-- name: numbered page_back
SELECT id, value FROM "{0}" WHERE id BETWEEN ?1 AND ?2 ORDER BY id DESC LIMIT ?3

-- name: numbered walk
SELECT id, value FROM "{0}" WHERE id > ?1 ORDER BY id LIMIT ?2

-- name: numbered size
SELECT count(*), total(length(value)) FROM "{0}" WHERE id BETWEEN ?1 AND ?2

-- name: numbered size_all
SELECT count(*), total(length(value)) FROM "{0}"

-- name: numbered highest
SELECT max(id) FROM "{0}" WHERE id BETWEEN ?1 AND ?2

-- All named tables share one, which keeps the number of prepared statements small.

-- name: named create
CREATE TABLE entry (
    tab INTEGER NOT NULL,
    owner INTEGER NOT NULL,
    at BLOB NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (tab, owner, at)
) STRICT, WITHOUT ROWID;

-- name: named get
SELECT value FROM entry WHERE tab = ?1 AND owner = ?2 AND at = ?3

-- name: named put
INSERT INTO entry (tab, owner, at, value) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (tab, owner, at) DO UPDATE SET value = ?4

-- name: named delete
DELETE FROM entry WHERE tab = ?1 AND owner = ?2 AND at >= ?3 AND at < ?4

-- name: named page
SELECT at, value FROM entry
WHERE tab = ?1 AND owner = ?2 AND at >= ?3 AND at < ?4 ORDER BY at LIMIT ?5

-- name: named page_back
SELECT at, value FROM entry
WHERE tab = ?1 AND owner = ?2 AND at >= ?3 AND at < ?4 ORDER BY at DESC LIMIT ?5

-- name: named walk
SELECT owner, at, value FROM entry
WHERE tab = ?1 AND (owner, at) > (?2, ?3) ORDER BY owner, at LIMIT ?4

-- name: named size
SELECT count(*), total(length(at) + length(value)) FROM entry WHERE tab = ?1 AND owner = ?2

-- name: named size_all
SELECT count(*), total(length(at) + length(value)) FROM entry WHERE tab = ?1

-- A row without a value is a tombstone. The row with an empty name is the floor: it keeps the highest stamp
-- when trim removes the tombstone that had it. The index of tombstones is for trim.

-- name: followed create
CREATE TABLE "{0}" (
    owner INTEGER NOT NULL,
    at BLOB NOT NULL,
    stamp INTEGER NOT NULL,
    value BLOB,
    PRIMARY KEY (owner, at)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX "{0}_stamp" ON "{0}" (owner, stamp);
CREATE INDEX "{0}_tombstone" ON "{0}" (owner, stamp) WHERE value IS NULL;

-- name: followed get
SELECT value FROM "{0}" WHERE owner = ?1 AND at = ?2

-- name: followed put
INSERT INTO "{0}" (owner, at, stamp, value)
VALUES (?1, ?2, (SELECT coalesce(max(stamp), 0) + 1 FROM "{0}" WHERE owner = ?1), ?3)
ON CONFLICT (owner, at) DO UPDATE SET
    value = ?3, stamp = (SELECT max(stamp) + 1 FROM "{0}" WHERE owner = ?1)

-- name: followed page
SELECT at, value FROM "{0}"
WHERE owner = ?1 AND at >= ?2 AND at < ?3 AND value NOT NULL ORDER BY at LIMIT ?4

-- name: followed page_back
SELECT at, value FROM "{0}"
WHERE owner = ?1 AND at >= ?2 AND at < ?3 AND value NOT NULL ORDER BY at DESC LIMIT ?4

-- name: followed walk
SELECT owner, at, value FROM "{0}"
WHERE (owner, at) > (?1, ?2) AND value NOT NULL ORDER BY owner, at LIMIT ?3

-- name: followed size
SELECT count(*), total(length(at) + length(value)) FROM "{0}" WHERE owner = ?1 AND value NOT NULL

-- name: followed size_all
SELECT count(*), total(length(at) + length(value)) FROM "{0}" WHERE value NOT NULL

-- name: followed highest
SELECT max(stamp) FROM "{0}"

-- name: followed newest
SELECT max(stamp) FROM "{0}" WHERE owner = ?1

-- name: followed feed
SELECT stamp, at, value FROM "{0}"
WHERE owner = ?1 AND stamp > ?2 AND +at > x'' ORDER BY stamp LIMIT ?3

-- name: followed feed_back
SELECT stamp, at, value FROM "{0}"
WHERE owner = ?1 AND stamp < ?2 AND +at > x'' ORDER BY stamp DESC LIMIT ?3

-- name: followed live
SELECT at FROM "{0}" WHERE owner = ?1 AND at >= ?2 AND at < ?3 AND value NOT NULL ORDER BY at

-- name: followed trim
DELETE FROM "{0}" INDEXED BY "{0}_tombstone"
WHERE owner = ?1 AND stamp <= ?2 AND value IS NULL AND +at > x''

-- name: followed keep_floor
INSERT INTO "{0}" (owner, at, stamp, value)
SELECT ?1, x'', ?2, NULL WHERE ?2 > (SELECT coalesce(max(stamp), 0) FROM "{0}" WHERE owner = ?1)
ON CONFLICT (owner, at) DO UPDATE SET stamp = excluded.stamp

-- name: followed renumber
UPDATE "{0}" SET stamp = ranked.stamp FROM (
    SELECT owner, at, ?1 + row_number() OVER (PARTITION BY owner ORDER BY stamp) AS stamp FROM "{0}"
) AS ranked WHERE "{0}".owner = ranked.owner AND "{0}".at = ranked.at

-- name: followed every_key
SELECT owner, at FROM "{0}" WHERE +at > x''

-- One commit as one statement: it replaces a guarded value of the followed table {0} and adds a value to the
-- numbered table {1}, perhaps with one entry and one more guard on an entry. A guard that fails aborts it.

-- name: commit_one create
CREATE VIEW commit_one AS SELECT
    0 AS owner, 0 AS at, 0 AS prefix, 0 AS value, 0 AS id, 0 AS body,
    0 AS guard_tab, 0 AS guard_owner, 0 AS guard_at, 0 AS guard_prefix,
    0 AS tab, 0 AS entry_owner, 0 AS entry_at, 0 AS entry_value;
CREATE TRIGGER commit_one_insert INSTEAD OF INSERT ON commit_one BEGIN
    UPDATE "{0}" SET
        value = new.value, stamp = (SELECT max(stamp) + 1 FROM "{0}" WHERE owner = new.owner)
    WHERE owner = new.owner AND at = new.at AND substr(value, 1, length(new.prefix)) = new.prefix;
    SELECT RAISE(ABORT, 'refused') WHERE changes() = 0;
    SELECT RAISE(ABORT, 'refused') WHERE new.guard_tab NOT NULL AND (new.guard_prefix IS NULL) = EXISTS (
        SELECT 1 FROM entry WHERE tab = new.guard_tab AND owner = new.guard_owner AND at = new.guard_at
        AND (new.guard_prefix IS NULL OR substr(value, 1, length(new.guard_prefix)) = new.guard_prefix)
    );
    INSERT INTO "{1}" (id, value) VALUES (new.id, new.body)
    ON CONFLICT (id) DO UPDATE SET value = excluded.value;
    INSERT INTO entry (tab, owner, at, value)
    SELECT new.tab, new.entry_owner, new.entry_at, new.entry_value WHERE new.tab NOT NULL
    ON CONFLICT (tab, owner, at) DO UPDATE SET value = excluded.value;
END;

-- name: commit_one insert
INSERT INTO commit_one VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
