# Generated from stores/postgres/aio/texts.py by tools/twin.py: change that, then run: make twin
"""The index of texts, for searching."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from everthread.stores.contract import Covered, TextFound, Wanted
from everthread.stores.postgres.sync.copies import Copies
from everthread.stores.postgres.sync.erasing import DELETE_TEXTS, DROP_TEXTS
from everthread.stores.postgres.wire import Statement, in_schema
from everthread.stores.postgres.words import query, vector

_COVERED = Statement("s", "SELECT uid, mark FROM everthread.text_covered WHERE space = $1")
_KEYS = Statement(
    "sbN", "SELECT key FROM everthread.text_entry WHERE space = $1 AND uid = $2 AND kind = ANY ($3)"
)
_COVER = Statement("sbbbNNNT", "SELECT everthread.cover_texts($1, $2, $3, $4, $5, $6, $7, $8)")
_FORGET = Statement("sB", "SELECT everthread.forget_texts($1, $2)")
_FIND = Statement(
    "stNBq",
    """
    SELECT t.uid, t.key, t.kind, ts_rank(t.words, q.q, 1)::float8
    FROM everthread.text_entry t, (SELECT $2::tsquery AS q) q
    WHERE t.space = $1 AND t.words @@ q.q AND t.kind = ANY ($3) AND ($4::bytea[] IS NULL OR t.uid = ANY ($4))
    ORDER BY 4 DESC, t.id LIMIT $5
    """,
)


class Texts(Copies):
    """What :class:`PostgresBackend` knows of words."""

    def texts_covered(self, space: str) -> dict[bytes, bytes]:
        rows = self.connections.read(_COVERED, (space,))
        return {uid: mark for uid, mark in rows}  # noqa: C416 - typed

    def text_keys(self, space: str, uid: bytes, kinds: Sequence[str]) -> list[str]:
        rows = self.connections.read(_KEYS, (space, uid, list(kinds)))
        return [key.decode() for (key,) in rows]

    def cover_texts(self, space: str, covered: Covered) -> bool:
        values = (
            *(space, covered.uid, covered.before, covered.mark, list(covered.gone)),
            [text.key for text in covered.texts],
            [text.kind for text in covered.texts],
            [vector(text.words) for text in covered.texts],
        )
        ((done,),) = self.connections.run(_COVER, values)
        return bool(done)

    def forget_texts(self, space: str, uids: Sequence[bytes]) -> None:
        self.connections.read(_FORGET, (space, list(uids)))

    def find_texts(self, space: str, wanted: Wanted) -> list[TextFound]:
        uids = None if wanted.uids is None else list(wanted.uids)
        values = space, query(wanted.terms), list(wanted.kinds), uids, wanted.limit
        rows = self.connections.read(_FIND, values)
        return [TextFound(uid, key.decode(), kind.decode(), score) for uid, key, kind, score in rows]

    def drop_texts(self) -> None:
        schema = self.connections.settings.quoted_schema
        with self.connections.apart() as link:
            try:
                link.script(in_schema(DROP_TEXTS, schema))
            except psycopg.errors.InsufficientPrivilege:
                # A tenant can remove what is its own.
                link.script(in_schema(DELETE_TEXTS, schema))
