# Generated from stores/postgres/aio/erasure.py by tools/twin.py: change that, then run: make twin
"""The erasure ledger, sealed values, and getting their bytes out of the server's files, as a client can.

Deleting rows leaves their bytes in pages until these are written anew: VACUUM FULL does that. No samples are
kept of columns that hold stored content; the catalog of samples is written anew all the same, where the role
may. The write-ahead log, replicas and archives are beyond the reach of a client: they are named.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import psycopg

from everthread.errors import StorageWriteError, UsageError
from everthread.stores.byte_scan import NEEDLE_BYTES_MIN
from everthread.stores.contract import (
    ErasedKey,
    KeyErased,
    Progress,
    Purged,
    Residues,
    SealedRow,
    merged_erasure,
    split_keys,
)
from everthread.stores.postgres.errors import KEY_ERASED, sqlstate
from everthread.stores.postgres.sync.pool import Link, Pool, Rows

_SEGMENT_BYTES = 1 << 30
_BLOCK_BYTES = 1 << 20

ROWS_REPLACED = (
    "free space in the tables record, chunk and event: rows that were replaced stay there until the server "
    "writes over them; VACUUM (FULL) removes them, and locks the tables meanwhile"
)
KNOWLEDGE_LEFT = "store.knowledge: it isn't looked through; search it, and remove what has to go by its id"
WAL_UNREACHED = (
    "the server's write-ahead log: what was written before stays in its segments until these are recycled "
    "(pg_wal; CHECKPOINT and some traffic bring that about) and in every archive of it"
)
COPIES_UNREACHED = "standby servers, base backups and dumps of the database"


def run_sealing(
    pool: Pool,
    statement: str,
    values: Sequence[Any],
    again: tuple[str, Sequence[Any]] | None,
    sealed: Sequence[SealedRow],
) -> Rows:
    """Run what may be refused because a key was erased."""
    try:
        return pool.run(statement, values, again)
    except StorageWriteError as error:
        if sqlstate(error) != KEY_ERASED:
            raise
        used = [key_id for _, keys, _ in sealed for key_id in split_keys(keys)]
        gone: list[Any] = pool.read("erased", (used,))
        raise KeyErased(frozenset(key_id for (key_id,) in gone)) from None


class ErasureVerbs:
    """What :class:`PostgresBackend` does about people."""

    pool: Pool

    def note_erasures(self, keys: Sequence[ErasedKey]) -> None:
        entries: dict[bytes, ErasedKey] = {}
        for entry in keys:
            entries[entry.key_id] = merged_erasure(entries.get(entry.key_id), entry)
        if not entries:
            return
        noted = list(entries.values())
        values = (
            [entry.key_id for entry in noted],
            [entry.erasure for entry in noted],
            [entry.phase for entry in noted],
            [entry.noted_us for entry in noted],
            [entry.note for entry in noted],
        )
        self.pool.read("note_erasures", values)

    def erasures(self, unfinished: bool = False) -> list[ErasedKey]:
        rows = self.pool.read("unfinished_erasures" if unfinished else "erasures", ())
        return [
            ErasedKey(key_id=key_id, erasure=erasure, phase=phase, noted_us=noted_us, note=note)
            for key_id, erasure, phase, noted_us, note in rows
        ]

    def erased(self, key_ids: Iterable[bytes]) -> set[bytes]:
        rows = self.pool.read("erased", (list(key_ids),))
        return {key_id for (key_id,) in rows}

    def sealed_under(self, key_ids: Sequence[bytes] | None, after: bytes, limit: int) -> list[SealedRow]:
        rows: list[Any]
        if key_ids is None:
            rows = self.pool.read("sealed_page", (after, limit))
        else:
            rows = self.pool.read("sealed_under", (list(key_ids), after, limit))
        return rows

    def drop_sealed(self, key_ids: Sequence[bytes]) -> int:
        values = list(key_ids), self.pool.settings.durable
        ((removed,),) = self.pool.run("drop_sealed", values)
        return int(removed)

    # ── bytes of deleted values ──────────────────────────────────────────────────────────────

    def identity(self) -> str:
        ((server, database),) = self.pool.read("identity", ())
        return f"postgresql {server}/{database}"

    def purge(self, timeout_s: float, progress: Progress | None = None) -> Purged:
        done, waiting = [], []
        unreached = [WAL_UNREACHED, COPIES_UNREACHED]
        sql = self.pool.statements
        with self.pool.connection(hurried=False) as link:
            if not link.pooled:
                link.run(sql["set_lock_timeout"], (str(max(int(timeout_s * 1000), 1)),))
            ((mine, samples),) = link.run(sql["may_rewrite"], (self.pool.settings.schema,))
            if not mine:
                unreached.append("the tables: this role doesn't own them; purge as the one that does")
            try:
                link.script(sql["truncate_texts" if mine else "delete_texts"])
                done.append("index of texts dropped")
            except psycopg.errors.LockNotAvailable:
                waiting.append("somebody uses the index of texts for long; purge again later")
            rewrites = sql["rewrite_sealed"].decode().split(";\n") if mine else []
            for number, text in enumerate(rewrites):
                table = text.rpartition(".")[2]
                if progress is not None:
                    progress("rewriting tables", number / (len(rewrites) + 2))
                try:
                    link.script(text)
                    done.append(f"{table} rewritten")
                except psycopg.errors.LockNotAvailable:
                    waiting.append(f"somebody uses {table} for long; purge again later")
            if samples:
                try:
                    link.script(sql["rewrite_samples"])
                    done.append("samples of the planner rewritten")
                except psycopg.errors.LockNotAvailable:
                    waiting.append("somebody uses the samples of the planner; purge again later")
            else:
                unreached.append(
                    "pg_statistic: this role may not rewrite it (columns of values aren't sampled)"
                )
            with suppress(psycopg.errors.InsufficientPrivilege):
                link.script(sql["checkpoint"])
                done.append("checkpoint")
            ((known,),) = link.run(sql["any_knowledge"])
        if progress is not None:
            progress("rewriting tables", 1.0)
        replaced = (ROWS_REPLACED, KNOWLEDGE_LEFT) if known else (ROWS_REPLACED,)
        return Purged(done=tuple(done), waiting=tuple(waiting), unreached=tuple(unreached), replaced=replaced)

    def residues(self, needles: Sequence[bytes], progress: Progress | None = None) -> Residues:
        if any(len(needle) < NEEDLE_BYTES_MIN for needle in needles):
            raise UsageError(f"what is looked for must have at least {NEEDLE_BYTES_MIN} bytes")
        looked: list[tuple[str, int]] = []
        hits: list[tuple[str, int]] = []
        unreached = [WAL_UNREACHED, COPIES_UNREACHED]
        sql = self.pool.statements
        with self.pool.connection(hurried=False) as link:
            try:
                # Pages that were changed in memory only would be looked at in their old form.
                link.script(sql["checkpoint"])
                files = link.run(sql["files"], (self.pool.settings.schema,))
                total, before = max(sum(size for *_, size in files), 1), 0
                for name, path, size in files:
                    found = _occurrences(link, sql["read_file"], path, size, needles)
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


def _occurrences(link: Link, statement: bytes, path: str, size: int, needles: Sequence[bytes]) -> int:
    """How often any of these stands in a relation, which lies in files of a gigabyte."""
    overlap = max((len(needle) for needle in needles), default=1) - 1
    found: set[tuple[int, bytes]] = set()
    for start in range(0, size, _BLOCK_BYTES):
        segment, offset = divmod(start, _SEGMENT_BYTES)
        part = path if not segment else f"{path}.{segment}"
        rows: list[Any] = link.run(statement, (part, offset, _BLOCK_BYTES + overlap))
        block: bytes = rows[0][0] or b""
        for needle in needles:
            at = block.find(needle)
            while at >= 0:
                found.add((start + at, needle))
                at = block.find(needle, at + 1)
    return len(found)
