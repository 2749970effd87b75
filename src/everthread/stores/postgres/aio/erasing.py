"""Getting the bytes of deleted values out of the server's files, and looking for them, as a client can.

Deleting rows leaves their bytes in pages until these are written anew: VACUUM FULL does that. No samples are
kept of columns that hold what somebody wrote; the catalog of samples is written anew all the same, where the
role may. The write-ahead log, replicas and archives are beyond the reach of a client: they are named.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import psycopg

from everthread.errors import UsageError
from everthread.stores.byte_scan import NEEDLE_BYTES_MIN
from everthread.stores.contract import Progress, Purged, Residues
from everthread.stores.postgres.aio.connections import AsyncLink
from everthread.stores.postgres.aio.upkeep import Upkeep
from everthread.stores.postgres.wire import Statement, in_schema

_LOCK_WAIT = Statement("t", "SELECT set_config('lock_timeout', $1, false)")
#: What may hold sealed bytes, or what was derived from them.
_REWRITE = (
    "VACUUM (FULL, ANALYZE) everthread.sealed",
    "VACUUM (FULL, ANALYZE) everthread.sealed_key",
)
#: Whether this role may rewrite the tables, and the samples: VACUUM only warns where it may not.
_MAY = Statement(
    "t",
    """
    SELECT (SELECT pg_has_role(c.relowner, 'USAGE') FROM pg_class c JOIN pg_namespace n
                ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = 'sealed'),
           (SELECT pg_has_role(d.datdba, 'USAGE') FROM pg_database d WHERE d.datname = current_database())
    """,
)
_SAMPLES = "VACUUM FULL pg_catalog.pg_statistic"
_CHECKPOINT = "CHECKPOINT"

#: Files of the store's tables, with what is stored out of line and their indexes, and of the samples.
_FILES = Statement(
    "t",
    """
    WITH tables AS (
        SELECT c.oid, c.reltoastrelid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE (n.nspname = $1 AND c.relkind = 'r') OR c.oid = 'pg_catalog.pg_statistic'::regclass
    ), heaps AS (
        SELECT oid FROM tables UNION SELECT reltoastrelid FROM tables WHERE reltoastrelid <> 0
    ), files AS (
        SELECT oid FROM heaps UNION SELECT i.indexrelid FROM pg_index i JOIN heaps h ON h.oid = i.indrelid
    )
    SELECT f.oid::regclass::text, pg_relation_filepath(f.oid), pg_relation_size(f.oid) FROM files f
    WHERE pg_relation_filepath(f.oid) IS NOT NULL ORDER BY 1
    """,
)
_BLOCK = Statement("tqq", "SELECT pg_read_binary_file($1, $2, $3, true)")
_SEGMENT_BYTES = 1 << 30
_BLOCK_BYTES = 1 << 20

#: The index of texts is derived: it is made anew by the next search. Not DELETE: this leaves no bytes behind.
DROP_TEXTS = "TRUNCATE everthread.text_entry, everthread.text_covered"
DELETE_TEXTS = "DELETE FROM everthread.text_entry; DELETE FROM everthread.text_covered"

ROWS_REPLACED = (
    "free space in the tables record, chunk and event: rows that were replaced stay there until the server "
    "writes over them; VACUUM (FULL) removes them, and locks the tables meanwhile"
)
KNOWLEDGE_LEFT = "store.knowledge: it isn't looked through; search it, and remove what has to go by its id"
_KNOWLEDGE = Statement("", "SELECT EXISTS (SELECT 1 FROM everthread.knowledge)")
WAL_UNREACHED = (
    "the server's write-ahead log: what was written before stays in its segments until these are recycled "
    "(pg_wal; CHECKPOINT and some traffic bring that about) and in every archive of it"
)
COPIES_UNREACHED = "standby servers, base backups and dumps of the database"


class Erasing(Upkeep):
    """What :class:`AsyncPostgresBackend` does about persons, besides the ledger."""

    async def purge(self, timeout_s: float, progress: Progress | None = None) -> Purged:
        done, waiting = [], []
        unreached = [WAL_UNREACHED, COPIES_UNREACHED]
        schema = self.connections.settings.quoted_schema
        async with self.connections.apart(hurried=False) as link:
            if not link.pooled:
                await link.run(_LOCK_WAIT, (str(max(int(timeout_s * 1000), 1)),))
            ((mine, samples),) = await link.run(_MAY, (self.connections.settings.schema,))
            if not mine:
                unreached.append("the tables: this role doesn't own them; purge as the one that does")
            try:
                await link.script(in_schema(DROP_TEXTS if mine else DELETE_TEXTS, schema))
                done.append("index of texts dropped")
            except psycopg.errors.LockNotAvailable:
                waiting.append("somebody uses the index of texts for long; purge again later")
            for number, text in enumerate(_REWRITE if mine else ()):
                if progress is not None:
                    progress("rewriting tables", number / (len(_REWRITE) + 2))
                try:
                    await link.script(in_schema(text, schema))
                    done.append(f"{text.rpartition('.')[2]} rewritten")
                except psycopg.errors.LockNotAvailable:
                    waiting.append(f"somebody uses {text.rpartition('.')[2]} for long; purge again later")
            if samples:
                try:
                    await link.script(_SAMPLES)
                    done.append("samples of the planner rewritten")
                except psycopg.errors.LockNotAvailable:
                    waiting.append("somebody uses the samples of the planner; purge again later")
            else:
                unreached.append(
                    "pg_statistic: this role may not rewrite it (columns of values aren't sampled)"
                )
            with suppress(psycopg.errors.InsufficientPrivilege):
                await link.script(_CHECKPOINT)
                done.append("checkpoint")
            ((known,),) = await link.run(_KNOWLEDGE.within(schema), ())
        if progress is not None:
            progress("rewriting tables", 1.0)
        replaced = (ROWS_REPLACED, KNOWLEDGE_LEFT) if known else (ROWS_REPLACED,)
        return Purged(done=tuple(done), waiting=tuple(waiting), unreached=tuple(unreached), replaced=replaced)

    async def residues(self, needles: Sequence[bytes], progress: Progress | None = None) -> Residues:
        if any(len(needle) < NEEDLE_BYTES_MIN for needle in needles):
            raise UsageError(f"what is looked for must have at least {NEEDLE_BYTES_MIN} bytes")
        looked: list[tuple[str, int]] = []
        hits: list[tuple[str, int]] = []
        unreached = [WAL_UNREACHED, COPIES_UNREACHED]
        async with self.connections.apart(hurried=False) as link:
            try:
                # Pages that were changed in memory only would be looked at in their old form.
                await link.script(_CHECKPOINT)
                files = await link.run(_FILES, (self.connections.settings.schema,))
                total, before = max(sum(size for *_, size in files), 1), 0
                for name, path, size in files:
                    found = await _occurrences(link, path, size, needles)
                    looked.append((name, size))
                    if found:
                        hits.append((name, found))
                    before += size
                    if progress is not None:
                        progress("looking for what is left", min(before / total, 1.0))
            except psycopg.errors.InsufficientPrivilege:
                unreached.append(
                    "the server's files: this role may not read them; grant it pg_read_server_files and "
                    "pg_checkpoint, or look as another one"
                )
                looked, hits = [], []
        return Residues(looked=tuple(looked), hits=tuple(hits), unreached=tuple(unreached))


async def _occurrences(link: AsyncLink, path: str, size: int, needles: Sequence[bytes]) -> int:
    """How often any of these stands in a relation, which lies in files of a gigabyte."""
    overlap = max((len(needle) for needle in needles), default=1) - 1
    found: set[tuple[int, bytes]] = set()
    for start in range(0, size, _BLOCK_BYTES):
        segment, offset = divmod(start, _SEGMENT_BYTES)
        part = path if not segment else f"{path}.{segment}"
        rows: list[Any] = await link.run(_BLOCK, (part, offset, _BLOCK_BYTES + overlap))
        block: bytes = rows[0][0] or b""
        for needle in needles:
            at = block.find(needle)
            while at >= 0:
                found.add((start + at, needle))
                at = block.find(needle, at + 1)
    return len(found)
