"""The index of texts: its tables and what runs in the server for it.

It is derived: dropping it loses nothing. It holds words as the caller gives them, never a text.
"""

from __future__ import annotations

_TABLES = """
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
"""

#: Two who bring the index of a line up to date at once can't mix: the second finds another mark.
_COVER = """
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
"""
_FORGET = """
CREATE FUNCTION everthread.forget_texts(sp bytea, uids bytea[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM everthread.text_entry x WHERE x.space = sp AND x.uid = ANY (uids);
    DELETE FROM everthread.text_covered x WHERE x.space = sp AND x.uid = ANY (uids);
END
$$
"""

VERSION_1 = (_TABLES, _COVER, _FORGET)
