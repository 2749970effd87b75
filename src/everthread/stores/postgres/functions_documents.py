"""Documents as JSON for queries, and knowledge with embeddings: tables and functions in the server."""

from __future__ import annotations

#: Derived from the threads, when somebody asks for it. Deleted threads are gone from the view at once.
_DOCUMENTS = """
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
"""
_PUT_DOCUMENT = """
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
"""

#: The embedding is a plain array: only who searches needs the extension.
_KNOWLEDGE = """
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
"""
_ADD_KNOWLEDGE = """
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
"""

VERSION_1 = (_DOCUMENTS, _PUT_DOCUMENT, _KNOWLEDGE, _ADD_KNOWLEDGE)
