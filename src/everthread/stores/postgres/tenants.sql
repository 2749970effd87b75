-- Row-level security: what a role sees that doesn't own the tables.
--
-- The owner sees everything. Any other role sees nothing until the owner admits it to a namespace. That is kept
-- in a table that only the owner can read or change, not in a setting of the session, which anybody who has the
-- connection could change.

-- name: tenant
CREATE TABLE everthread.tenant (
    role name NOT NULL,
    namespace bytea,
    short bytea,
    UNIQUE (role, namespace)
);

-- name: mine
-- Runs with the rights of the owner; who asks comes as an argument.
CREATE FUNCTION everthread.mine(sp bytea, who name) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog AS $$
    SELECT EXISTS (SELECT 1 FROM everthread.tenant t WHERE t.role = who AND (
        t.namespace IS NULL OR sp = t.namespace OR sp = t.short
        OR substring(sp FROM 1 FOR length(t.namespace) + 1) = t.namespace || '\x00'::bytea
        OR substring(sp FROM 1 FOR length(t.short) + 1) = t.short || '\x00'::bytea))
$$

-- name: policies
ALTER TABLE everthread.line ENABLE ROW LEVEL SECURITY;
CREATE POLICY tenants ON everthread.line USING (everthread.mine(space, current_user));
ALTER TABLE everthread.sealed ENABLE ROW LEVEL SECURITY;
CREATE POLICY tenants ON everthread.sealed USING (everthread.mine(space, current_user));
ALTER TABLE everthread.cell ENABLE ROW LEVEL SECURITY;
CREATE POLICY tenants ON everthread.cell USING (everthread.mine(space, current_user));
-- A doubt is about every ledger of the store: each role reads it, and only the owner records it.
CREATE POLICY doubts ON everthread.cell FOR SELECT USING (space = '\x00646f756274'::bytea);
ALTER TABLE everthread.stream ENABLE ROW LEVEL SECURITY;
CREATE POLICY tenants ON everthread.stream USING (everthread.mine(space, current_user));
ALTER TABLE everthread.text_covered ENABLE ROW LEVEL SECURITY;
CREATE POLICY tenants ON everthread.text_covered USING (everthread.mine(space, current_user));
ALTER TABLE everthread.text_entry ENABLE ROW LEVEL SECURITY;
CREATE POLICY tenants ON everthread.text_entry USING (everthread.mine(space, current_user));

ALTER TABLE everthread.knowledge ENABLE ROW LEVEL SECURITY;
CREATE POLICY tenants ON everthread.knowledge USING (everthread.mine(space, current_user));

-- What belongs to a line, stream or sealed value is seen with it.
ALTER TABLE everthread.head ENABLE ROW LEVEL SECURITY;
CREATE POLICY tenants ON everthread.head
    USING (EXISTS (SELECT 1 FROM everthread.line l WHERE l.id = head.line));
ALTER TABLE everthread.record ENABLE ROW LEVEL SECURITY;
CREATE POLICY tenants ON everthread.record
    USING (EXISTS (SELECT 1 FROM everthread.line l WHERE l.id = record.line));
ALTER TABLE everthread.chunk ENABLE ROW LEVEL SECURITY;
CREATE POLICY tenants ON everthread.chunk
    USING (EXISTS (SELECT 1 FROM everthread.line l WHERE l.id = chunk.line));
ALTER TABLE everthread.keyed ENABLE ROW LEVEL SECURITY;
CREATE POLICY tenants ON everthread.keyed
    USING (EXISTS (SELECT 1 FROM everthread.line l WHERE l.id = keyed.line));
ALTER TABLE everthread.tag ENABLE ROW LEVEL SECURITY;
CREATE POLICY tenants ON everthread.tag
    USING (EXISTS (SELECT 1 FROM everthread.line l WHERE l.id = tag.line));
ALTER TABLE everthread.document ENABLE ROW LEVEL SECURITY;
CREATE POLICY tenants ON everthread.document
    USING (EXISTS (SELECT 1 FROM everthread.line l WHERE l.id = document.line));
ALTER TABLE everthread.event ENABLE ROW LEVEL SECURITY;
CREATE POLICY tenants ON everthread.event
    USING (EXISTS (SELECT 1 FROM everthread.stream s WHERE s.id = event.stream));
ALTER TABLE everthread.sealed_key ENABLE ROW LEVEL SECURITY;
CREATE POLICY tenants ON everthread.sealed_key
    USING (EXISTS (SELECT 1 FROM everthread.sealed s WHERE s.value = sealed_key.value));

-- name: admit_tenant
-- Called by the owner: SELECT everthread.admit_tenant('role', 'namespace'). NULL: every namespace.
CREATE FUNCTION everthread.admit_tenant(who name, ns text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    raw bytea := convert_to(ns, 'UTF8');
    kind text;
BEGIN
    INSERT INTO everthread.tenant (role, namespace, short)
        VALUES (who, raw, CASE WHEN length(raw) > 256 THEN '\xff'::bytea || sha256(raw) ELSE raw END)
        ON CONFLICT DO NOTHING;
    EXECUTE format('GRANT USAGE ON SCHEMA everthread TO %I', who);
    FOREACH kind IN ARRAY ARRAY['line', 'head', 'record', 'chunk', 'keyed', 'tag', 'sealed',
        'sealed_key', 'erased', 'cell', 'stream', 'event', 'births', 'text_covered', 'text_entry',
        'document', 'knowledge'] LOOP
        EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON everthread.%I TO %I', kind, who);
    END LOOP;
    EXECUTE format('GRANT SELECT ON everthread.format, everthread.documents TO %I', who);
    EXECUTE format('GRANT USAGE ON ALL SEQUENCES IN SCHEMA everthread TO %I', who);
END
$$

-- name: expel_tenant
CREATE FUNCTION everthread.expel_tenant(who name) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM everthread.tenant x WHERE x.role = who;
    EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA everthread FROM %I', who);
    EXECUTE format('REVOKE ALL ON ALL SEQUENCES IN SCHEMA everthread FROM %I', who);
    EXECUTE format('REVOKE ALL ON SCHEMA everthread FROM %I', who);
END
$$

-- name: grants
-- Nobody but the owner admits anybody.
REVOKE ALL ON FUNCTION everthread.admit_tenant(name, text) FROM PUBLIC;
REVOKE ALL ON FUNCTION everthread.expel_tenant(name) FROM PUBLIC;
