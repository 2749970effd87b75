# Generated from stores/postgres/aio/knowledge.py by tools/twin.py: change that, then run: make twin
"""Documents as JSON for queries, and knowledge with embeddings."""

from __future__ import annotations

from typing import Any

import psycopg

from everthread.errors import UnsupportedError
from everthread.stores.postgres.sync.texts import Texts
from everthread.stores.postgres.wire import Statement

_STALE = Statement(
    "nnq",
    """
    SELECT l.id, l.name FROM everthread.line l JOIN everthread.head h ON h.root = l.root AND h.line = l.id
        LEFT JOIN everthread.document d ON d.line = l.id
    WHERE l.space = $1 AND NOT l.deleted AND l.name > $2 AND d.hash IS DISTINCT FROM h.hash
    ORDER BY l.name LIMIT $3
    """,
)
_PUT = Statement("qqbqj", "SELECT everthread.put_document($1, $2, $3, $4, $5)")
_ADD = Statement("snttt?", "SELECT everthread.add_knowledge($1, $2, $3, $4::jsonb, $5::real[], $6)")
_REMOVE = Statement(
    "sn",
    "WITH gone AS (DELETE FROM everthread.knowledge WHERE space = $1 AND key = $2 RETURNING 1) "
    "SELECT count(*) FROM gone",
)
_FIND = Statement(
    "stqjq",
    """
    SELECT k.key, k.text, k.metadata::text, (k.embedding::vector <=> $2::vector)::float8
    FROM everthread.knowledge k
    WHERE k.space = $1 AND cardinality(k.embedding) = $3 AND k.metadata @> $4
    ORDER BY 4, k.key LIMIT $5
    """,
)
_HAS_VECTOR = Statement("", "SELECT 1::bigint FROM pg_extension WHERE extname = 'vector'")
_MAKE_VECTOR = "CREATE EXTENSION IF NOT EXISTS vector"


class Shelves(Texts):
    """What :class:`PostgresBackend` keeps for queries in SQL."""

    _vectors = False

    def stale_documents(self, space: str, after: str, limit: int) -> list[tuple[int, str]]:
        """Lines whose newest document isn't among those that can be queried, by name."""
        rows = self.connections.read(_STALE, (space, after, limit))
        return [(line, name.decode()) for line, name in rows]

    def put_document(self, line: int, seq: int, digest: bytes, at_us: int, document: bytes) -> None:
        self.connections.read(_PUT, (line, seq, digest, at_us, document))

    def add_knowledge(self, space: str, key: str, text: str, metadata: str, embedding: str) -> None:
        values = space, key, text, metadata, embedding, self.connections.settings.durable
        self.connections.read(_ADD, values)

    def remove_knowledge(self, space: str, key: str) -> bool:
        ((removed,),) = self.connections.run(_REMOVE, (space, key))
        return bool(removed)

    def find_knowledge(
        self, space: str, embedding: str, dimensions: int, where: bytes, limit: int
    ) -> list[tuple[str, str, str, float]]:
        """(key, text, metadata as JSON, distance), nearest first."""
        self._need_vectors()
        rows: list[Any] = self.connections.read(_FIND, (space, embedding, dimensions, where, limit))
        return [(key.decode(), text, metadata, distance) for key, text, metadata, distance in rows]

    def _need_vectors(self) -> None:
        """Make sure that the extension is there."""
        if self._vectors:
            return
        if not self.connections.read(_HAS_VECTOR, ()):
            with self.connections.apart() as link:
                try:
                    link.script(_MAKE_VECTOR)
                except psycopg.Error as error:
                    raise UnsupportedError(
                        "searching by embeddings needs the extension pgvector in this database: install it "
                        "on the server, then let a superuser run CREATE EXTENSION vector "
                        f"({' '.join(str(error).split())})"
                    ) from error
        self._vectors = True
