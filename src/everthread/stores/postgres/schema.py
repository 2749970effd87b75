"""Tables of the PostgreSQL store, as numbered migrations of constant text.

Written for the schema ``everthread``; another name is put in place of it when the text is sent
(:func:`everthread.stores.postgres.wire.in_schema`). Names are kept as UTF-8 bytes: PostgreSQL's text can't
hold every name, and bytes sort by code point whatever the database's collation.

The tables that grow begin every key with the root of the family of lines, so that they can be partitioned by
its hash; forks share what their source holds and stay in its partition.
"""

from __future__ import annotations

from everthread.stores.postgres import (
    functions,
    functions_documents,
    functions_registers,
    functions_tenants,
    functions_texts,
)

#: Kept in the table ``format``. Raised by one with every entry of MIGRATIONS.
SCHEMA_VERSION = 1

#: One instance migrates at a time: the key of an advisory lock, together with the schema's name.
MIGRATION_LOCK = 0x45565448

_TABLES = """
CREATE TABLE everthread.line (
    id bigint PRIMARY KEY,
    root bigint NOT NULL,
    uid bytea NOT NULL UNIQUE,
    space bytea NOT NULL,
    name bytea NOT NULL,
    parent bigint NOT NULL,
    parent_seq bigint NOT NULL,
    parent_segment bigint NOT NULL,
    parent_hash bytea NOT NULL,
    start_hash bytea NOT NULL,
    counts bytea NOT NULL,
    sum bigint NOT NULL,
    deleted boolean NOT NULL DEFAULT false,
    tagged bigint NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX line_name ON everthread.line (space, name) WHERE NOT deleted;
CREATE INDEX line_parent ON everthread.line (parent) WHERE parent > 0;
CREATE INDEX line_root ON everthread.line (root, id);
CREATE SEQUENCE everthread.root AS bigint MAXVALUE 549755813887 CACHE 1;

-- No line of this family may get a number up to this one: after a backup was brought back.
CREATE TABLE everthread.family_floor (
    root bigint PRIMARY KEY,
    last bigint NOT NULL
);

-- The newest row of each line: what a commit is compared with. seq 0: no row yet; 4294967295: deleted.
CREATE TABLE everthread.head (
    root bigint NOT NULL,
    line bigint NOT NULL,
    seq bigint NOT NULL,
    hash bytea NOT NULL,
    watched timestamptz NOT NULL DEFAULT '-infinity',
    PRIMARY KEY (root, line)
) /*partitioned*/;

CREATE TABLE everthread.record (
    root bigint NOT NULL,
    line bigint NOT NULL,
    seq bigint NOT NULL,
    kind smallint NOT NULL,
    first bigint NOT NULL,
    sum bigint NOT NULL,
    hash bytea NOT NULL,
    key bytea,
    net bytea,
    keyframe bytea,
    body bytea NOT NULL,
    PRIMARY KEY (root, line, seq)
) /*partitioned*/;

CREATE TABLE everthread.chunk (
    root bigint NOT NULL,
    line bigint NOT NULL,
    log bytea NOT NULL,
    position bigint NOT NULL,
    count bigint NOT NULL,
    sum bigint NOT NULL,
    fingerprints bytea NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (root, line, log, position)
) /*partitioned*/;

CREATE TABLE everthread.keyed (
    root bigint NOT NULL,
    key bytea NOT NULL,
    line bigint NOT NULL,
    seq bigint NOT NULL,
    PRIMARY KEY (root, key, line, seq)
) /*partitioned*/;
CREATE INDEX keyed_line ON everthread.keyed (root, line);

CREATE TABLE everthread.tag (
    root bigint NOT NULL,
    line bigint NOT NULL,
    name bytea NOT NULL,
    value bytea NOT NULL,
    PRIMARY KEY (root, line, name)
) /*partitioned*/;
CREATE INDEX tag_value ON everthread.tag (name, sha256(value));

CREATE TABLE everthread.sealed (
    value bytea PRIMARY KEY,
    space bytea NOT NULL,
    keys bytea NOT NULL,
    data bytea NOT NULL
);

-- Which sealed values need a key, so that those of one person are found among those of all.
CREATE TABLE everthread.sealed_key (
    key bytea NOT NULL,
    value bytea NOT NULL,
    PRIMARY KEY (key, value)
);
CREATE INDEX sealed_key_value ON everthread.sealed_key (value);

-- The erasure ledger.
CREATE TABLE everthread.erased (
    key bytea PRIMARY KEY,
    erasure bytea NOT NULL,
    phase smallint NOT NULL,
    noted_us bigint NOT NULL,
    note bytea NOT NULL
);
CREATE INDEX erased_unfinished ON everthread.erased (key) WHERE phase < 5;

-- A cell without a value was removed: its row stays, so that no revision ever repeats.
CREATE TABLE everthread.cell (
    space bytea NOT NULL,
    name bytea NOT NULL,
    revision bigint NOT NULL,
    written_us bigint NOT NULL,
    value bytea,
    PRIMARY KEY (space, name)
) WITH (fillfactor = 50);

-- Events of a stream are first to last; peak_us is the latest time of any, late_us how far one lay below.
CREATE TABLE everthread.stream (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    space bytea NOT NULL,
    name bytea NOT NULL,
    first bigint NOT NULL DEFAULT 1,
    last bigint NOT NULL DEFAULT 0,
    peak_us bigint,
    late_us bigint NOT NULL DEFAULT 0,
    UNIQUE (space, name)
) WITH (fillfactor = 50);

CREATE TABLE everthread.event (
    stream bigint NOT NULL,
    seq bigint NOT NULL,
    type bytea NOT NULL,
    agent bytea,
    at_us bigint NOT NULL,
    peak_us bigint NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (stream, seq)
);
CREATE INDEX event_type ON everthread.event (stream, type, seq);
CREATE INDEX event_agent ON everthread.event (stream, agent, seq) WHERE agent IS NOT NULL;
CREATE INDEX event_peak ON everthread.event (stream, peak_us, seq);

-- Until when anybody waits for lines that aren't there yet. One row.
CREATE TABLE everthread.births (
    id smallint PRIMARY KEY CHECK (id = 1),
    watched timestamptz NOT NULL
);
INSERT INTO everthread.births VALUES (1, '-infinity');
"""

#: Few dead rows are left lying in what changes with every commit.
_UPKEEP = """
ALTER TABLE everthread.cell SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200);
ALTER TABLE everthread.stream SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200);
"""
_UPKEEP_WHOLE = """
ALTER TABLE everthread.head SET (fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200);
ALTER TABLE everthread.record SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_insert_scale_factor = 0.1);
ALTER TABLE everthread.chunk SET (autovacuum_vacuum_insert_scale_factor = 0.1);
"""
#: What is large comes compressed already.
_LARGE = """
ALTER TABLE everthread.record ALTER body SET STORAGE EXTERNAL, ALTER net SET STORAGE EXTERNAL,
    ALTER keyframe SET STORAGE EXTERNAL;
ALTER TABLE everthread.chunk ALTER data SET STORAGE EXTERNAL, ALTER fingerprints SET STORAGE EXTERNAL;
ALTER TABLE everthread.sealed ALTER data SET STORAGE EXTERNAL;
ALTER TABLE everthread.event ALTER body SET STORAGE EXTERNAL;
"""
#: The planner's samples are copies in a catalog that outlive the rows: none is taken of what somebody wrote.
_NOT_SAMPLED = """
ALTER TABLE everthread.record ALTER body SET STATISTICS 0, ALTER net SET STATISTICS 0,
    ALTER keyframe SET STATISTICS 0, ALTER key SET STATISTICS 0;
ALTER TABLE everthread.chunk ALTER data SET STATISTICS 0, ALTER fingerprints SET STATISTICS 0;
ALTER TABLE everthread.sealed ALTER data SET STATISTICS 0, ALTER keys SET STATISTICS 0,
    ALTER value SET STATISTICS 0;
ALTER TABLE everthread.sealed_key ALTER value SET STATISTICS 0;
ALTER TABLE everthread.tag ALTER value SET STATISTICS 0;
ALTER TABLE everthread.cell ALTER value SET STATISTICS 0;
ALTER TABLE everthread.event ALTER body SET STATISTICS 0;
"""
#: As many parts as the setting says, each with what can't be said of the whole.
_PARTITION = """
DO $partition$
DECLARE
    parts constant integer := current_setting('everthread_setup.partitions')::integer;
    whole text;
BEGIN
    FOREACH whole IN ARRAY ARRAY['head', 'record', 'chunk', 'keyed', 'tag'] LOOP
        FOR part IN 0 .. parts - 1 LOOP
            EXECUTE format('CREATE TABLE everthread.%I PARTITION OF everthread.%I '
                'FOR VALUES WITH (MODULUS %s, REMAINDER %s)', whole || '_' || part, whole, parts, part);
            IF whole IN ('head', 'record') THEN
                EXECUTE format('ALTER TABLE everthread.%I SET (autovacuum_vacuum_scale_factor = 0.02, '
                    'autovacuum_vacuum_threshold = 1000)', whole || '_' || part);
            END IF;
            IF whole = 'head' THEN
                EXECUTE format('ALTER TABLE everthread.%I SET (fillfactor = 50)', whole || '_' || part);
            END IF;
        END LOOP;
    END LOOP;
END
$partition$;
"""

#: Entry n brings a schema from version n to n + 1. Append only; never edit a released one.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        *(_TABLES, _UPKEEP, _LARGE, _NOT_SAMPLED),
        *(*functions.LINES_1, *functions_registers.VERSION_1, *functions_texts.VERSION_1),
        *(*functions_documents.VERSION_1, *functions_tenants.VERSION_1),
    ),
)

#: Besides those of the first migration, by whether the tables are partitioned.
WHOLE, PARTITIONED = _UPKEEP_WHOLE, _PARTITION


def migration(number: int, partitions: int) -> list[str]:
    """The texts that bring a schema from version ``number`` to the next one."""
    texts = list(MIGRATIONS[number])
    if number == 0:
        how = "PARTITION BY HASH (root)" if partitions else ""
        texts = [text.replace("/*partitioned*/", how) for text in texts]
        # After the tables and what is said of their columns, which parts inherit.
        texts.insert(4, PARTITIONED if partitions else WHOLE)
    return texts


FORMAT = "CREATE TABLE IF NOT EXISTS everthread.format (version integer NOT NULL, at timestamptz NOT NULL)"
MAKE_SCHEMA = "CREATE SCHEMA IF NOT EXISTS everthread "
VERSION = "SELECT coalesce(max(version), 0) FROM everthread.format"
