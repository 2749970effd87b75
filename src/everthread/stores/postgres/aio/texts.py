"""The text index, documents as JSON for queries in SQL, and knowledge with embeddings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import psycopg

from everthread.errors import UnsupportedError
from everthread.stores.contract import Covered, TextFound, Wanted
from everthread.stores.postgres.aio.pool import AsyncPool
from everthread.stores.postgres.rows import name_bytes, space_bytes, text_query, text_vector


class Texts:
    """What :class:`AsyncPostgresBackend` keeps for searching and for queries in SQL."""

    pool: AsyncPool
    _has_vectors = False

    # ── text index ───────────────────────────────────────────────────────────────────────────

    async def texts_covered(self, space: str) -> dict[bytes, bytes]:
        rows = await self.pool.read("texts_covered", (space_bytes(space),))
        return {uid: mark for uid, mark in rows}  # noqa: C416 - typed

    async def text_keys(self, space: str, uid: bytes, kinds: Sequence[str]) -> list[str]:
        rows = await self.pool.read("text_keys", (space_bytes(space), uid, _names(kinds)))
        return [key.decode() for (key,) in rows]

    async def cover_texts(self, space: str, covered: Covered) -> bool:
        values = (
            *(space_bytes(space), covered.uid, covered.before, covered.mark, _names(covered.gone)),
            [name_bytes(text.key) for text in covered.texts],
            [name_bytes(text.kind) for text in covered.texts],
            [text_vector(text.words) for text in covered.texts],
        )
        ((done,),) = await self.pool.run("cover_texts", values)
        return bool(done)

    async def forget_texts(self, space: str, uids: Sequence[bytes]) -> None:
        await self.pool.read("forget_texts", (space_bytes(space), list(uids)))

    async def find_texts(self, space: str, wanted: Wanted) -> list[TextFound]:
        uids = None if wanted.uids is None else list(wanted.uids)
        values = space_bytes(space), text_query(wanted.terms), _names(wanted.kinds), uids, wanted.limit
        rows = await self.pool.read("find_texts", values)
        return [TextFound(uid, key.decode(), kind.decode(), score) for uid, key, kind, score in rows]

    async def drop_texts(self) -> None:
        sql = self.pool.statements
        async with self.pool.connection() as link:
            try:
                await link.script(sql["truncate_texts"])
            except psycopg.errors.InsufficientPrivilege:
                # A tenant can remove what is its own.
                await link.script(sql["delete_texts"])

    # ── documents and knowledge ──────────────────────────────────────────────────────────────

    async def stale_documents(self, space: str, after: str, limit: int) -> list[tuple[int, str]]:
        """Lines whose newest document isn't among those that can be queried, by name."""
        rows = await self.pool.read("stale_documents", (name_bytes(space), name_bytes(after), limit))
        return [(line, name.decode()) for line, name in rows]

    async def put_document(self, line: int, seq: int, digest: bytes, at_us: int, document: bytes) -> None:
        await self.pool.read("put_document", (line, seq, digest, at_us, document.decode()))

    async def add_knowledge(self, space: str, key: str, text: str, metadata: str, embedding: str) -> None:
        durable = self.pool.settings.durable
        values = space_bytes(space), name_bytes(key), text, metadata, embedding, durable
        await self.pool.read("add_knowledge", values)

    async def remove_knowledge(self, space: str, key: str) -> bool:
        ((removed,),) = await self.pool.run("remove_knowledge", (space_bytes(space), name_bytes(key)))
        return bool(removed)

    async def find_knowledge(
        self, space: str, embedding: str, dimensions: int, where: bytes, limit: int
    ) -> list[tuple[str, str, str, float]]:
        """(key, text, metadata as JSON, distance), nearest first."""
        await self._need_vectors()
        values = space_bytes(space), embedding, dimensions, where.decode(), limit
        rows = await self.pool.read("find_knowledge", values)
        return [(key.decode(), text, metadata, distance) for key, text, metadata, distance in rows]

    async def _need_vectors(self) -> None:
        """Make sure that the extension is there."""
        if self._has_vectors:
            return
        if not await self.pool.read("has_vector"):
            async with self.pool.connection() as link:
                try:
                    await link.script(self.pool.statements["make_vector"])
                except psycopg.Error as error:
                    raise UnsupportedError(
                        "searching by embeddings needs the extension pgvector in this database: install it "
                        "on the server, then let a superuser run CREATE EXTENSION vector "
                        f"({' '.join(str(error).split())})"
                    ) from error
        self._has_vectors = True


def _names(names: Iterable[str]) -> list[bytes]:
    return [name_bytes(name) for name in names]
