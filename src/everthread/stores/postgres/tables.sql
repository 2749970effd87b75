-- Tables of the PostgreSQL store, as version 1 of the schema makes them.
--
-- Written for the schema "everthread"; the store puts the name of its own schema in that place. Names are kept
-- as UTF-8 bytes: PostgreSQL's text can't hold every name, and bytes sort by code point whatever the collation
-- of the database. Tables that grow begin every key with the root of the family of lines, so that they can be
-- partitioned by its hash; forks share rows with their source and stay in its partition.

-- name: tables
-- /*partitioned*/ becomes PARTITION BY HASH (root) if the store is made with partitions.
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

-- The newest row of each line: what a commit is compared with. seq 0: no row yet; 4294967295: deleted. tags_due:
-- there are versions above the one that the line's tags cover. A commit to a line that has them already leaves
-- the indexes of this table alone.
CREATE TABLE everthread.head (
    root bigint NOT NULL,
    line bigint NOT NULL,
    seq bigint NOT NULL,
    hash bytea NOT NULL,
    watched timestamptz NOT NULL DEFAULT '-infinity',
    space bytea NOT NULL,
    tags_due boolean NOT NULL,
    PRIMARY KEY (root, line)
) /*partitioned*/;
CREATE INDEX head_tags_due ON everthread.head (space, line) WHERE tags_due;

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

-- name: text index
-- Derived from the threads: dropping it loses nothing. It holds words, never a text.
CREATE TABLE everthread.text_covered (
    space bytea NOT NULL,
    uid bytea NOT NULL,
    mark bytea NOT NULL,
    PRIMARY KEY (space, uid)
);
CREATE TABLE everthread.text_entry (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    space bytea NOT NULL,
    uid bytea NOT NULL,
    key bytea NOT NULL,
    kind bytea NOT NULL,
    words tsvector NOT NULL
);
CREATE INDEX text_entry_line ON everthread.text_entry (space, uid);
CREATE INDEX text_entry_words ON everthread.text_entry USING gin (words) WITH (fastupdate = off);
ALTER TABLE everthread.text_entry ALTER words SET STATISTICS 0, ALTER key SET STATISTICS 0;

-- name: documents
-- The newest document of each thread as JSON, for queries; made when somebody asks for it. The view hides
-- deleted threads at once.
CREATE TABLE everthread.document (
    line bigint PRIMARY KEY,
    seq bigint NOT NULL,
    hash bytea NOT NULL,
    at timestamptz NOT NULL,
    document jsonb NOT NULL
);
CREATE INDEX document_content ON everthread.document USING gin (document jsonb_path_ops);
ALTER TABLE everthread.document ALTER document SET STATISTICS 0;
CREATE VIEW everthread.documents WITH (security_invoker = true) AS
    SELECT convert_from(l.space, 'UTF8') AS namespace, convert_from(l.name, 'UTF8') AS thread,
           d.seq AS version, d.at, d.hash = h.hash AS current, d.document
    FROM everthread.document d JOIN everthread.line l ON l.id = d.line
        JOIN everthread.head h ON h.root = l.root AND h.line = l.id
    WHERE NOT l.deleted;

-- name: knowledge
-- Texts with embeddings. The embedding is a plain array: only a search needs the extension pgvector.
CREATE TABLE everthread.knowledge (
    space bytea NOT NULL,
    key bytea NOT NULL,
    text text NOT NULL,
    metadata jsonb NOT NULL,
    embedding real[] NOT NULL,
    PRIMARY KEY (space, key)
);
CREATE INDEX knowledge_metadata ON everthread.knowledge USING gin (metadata jsonb_path_ops);
ALTER TABLE everthread.knowledge ALTER text SET STATISTICS 0, ALTER metadata SET STATISTICS 0,
    ALTER embedding SET STATISTICS 0;

-- name: large columns
-- These bytes are compressed already.
ALTER TABLE everthread.record ALTER body SET STORAGE EXTERNAL, ALTER net SET STORAGE EXTERNAL,
    ALTER keyframe SET STORAGE EXTERNAL;
ALTER TABLE everthread.chunk ALTER data SET STORAGE EXTERNAL, ALTER fingerprints SET STORAGE EXTERNAL;
ALTER TABLE everthread.sealed ALTER data SET STORAGE EXTERNAL;
ALTER TABLE everthread.event ALTER body SET STORAGE EXTERNAL;
ALTER TABLE everthread.cell ALTER value SET STORAGE EXTERNAL;

-- name: columns without samples
-- The planner's samples are copies in a catalog that outlive the rows: none are taken of stored content.
ALTER TABLE everthread.record ALTER body SET STATISTICS 0, ALTER net SET STATISTICS 0,
    ALTER keyframe SET STATISTICS 0, ALTER key SET STATISTICS 0;
ALTER TABLE everthread.chunk ALTER data SET STATISTICS 0, ALTER fingerprints SET STATISTICS 0;
ALTER TABLE everthread.sealed ALTER data SET STATISTICS 0, ALTER keys SET STATISTICS 0,
    ALTER value SET STATISTICS 0;
ALTER TABLE everthread.sealed_key ALTER value SET STATISTICS 0;
ALTER TABLE everthread.tag ALTER value SET STATISTICS 0;
ALTER TABLE everthread.cell ALTER value SET STATISTICS 0;
ALTER TABLE everthread.event ALTER body SET STATISTICS 0;

-- name: autovacuum
-- Keep few dead rows in tables that change with every commit.
ALTER TABLE everthread.cell SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200);
ALTER TABLE everthread.stream SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200);

-- name: without partitions
-- Only if the store is made without partitions: these settings can't be given to a partitioned table.
ALTER TABLE everthread.head SET (fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200);
ALTER TABLE everthread.record SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_insert_scale_factor = 0.1);
ALTER TABLE everthread.chunk SET (autovacuum_vacuum_insert_scale_factor = 0.1);

-- name: with partitions
-- Only if the store is made with partitions: makes them, with the settings of the section above.
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
