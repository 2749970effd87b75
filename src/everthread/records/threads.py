"""Threads of a namespace: by name, by metadata, most recently changed first, and the feed of changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from everthread.records.checked import CheckedStore
from everthread.records.heads import DIGEST_BYTES, Head, decode_head, metadata_at, metadata_range
from everthread.records.keys import decode_name, encode_name, end_of_prefix, start_after
from everthread.records.tables import HEAD, METADATA
from everthread.stores.interface import Feed, Get

_PAGE = 256


class Change(NamedTuple):
    """The newest change of a thread. ``head`` is ``None`` if it was deleted."""

    cursor: bytes
    name: str
    head: Head | None


class Threads:
    """Pages of live threads, each in one or two reads."""

    def __init__(self, store: CheckedStore) -> None:
        self._store = store

    async def find(self, namespace: int, name: str) -> Head | None:
        """Return the head of the live thread of this name."""
        (content,) = await self._store.get((HEAD.number, namespace, encode_name(name)))
        return None if content is None else decode_head(content)

    async def page(self, namespace: int, prefix: str, after: str | None, limit: int) -> list[Head]:
        """Return up to ``limit`` threads by name, from the first after ``after`` that has the prefix."""
        start, stop = start_after(prefix, after), end_of_prefix(encode_name(prefix))
        found = await self._store.page(HEAD.number, namespace, start, stop, limit)
        return [decode_head(content) for _, content in found]

    async def with_metadata(
        self, namespace: int, digests: Sequence[bytes], after: str | None, limit: int
    ) -> list[Head]:
        """Return up to ``limit`` threads whose indexed metadata has all of these digests, by name."""
        first, *others = digests
        found: list[Head] = []
        while len(found) < limit:
            start, stop = metadata_range(first, after)
            page = await self._store.page(METADATA.number, namespace, start, stop, _PAGE)
            names = [at[DIGEST_BYTES:] for at, _ in page]
            found += await self._having(namespace, names, others)
            if len(page) < _PAGE:
                break
            after = decode_name(names[-1])
        return found[:limit]

    async def _having(self, namespace: int, names: Sequence[bytes], digests: Sequence[bytes]) -> list[Head]:
        """Return the heads of those of these threads that have all digests."""
        heads = Get([(HEAD.number, namespace, name) for name in names])
        entries = [
            Get([(METADATA.number, namespace, metadata_at(digest, decode_name(name))) for name in names])
            for digest in digests
        ]
        contents, *columns = await self._store.read([heads, *entries])
        return [
            decode_head(content)
            for content, *present in zip(contents, *columns, strict=True)
            if content is not None and None not in present
        ]

    # ── the feed ──

    async def changes(self, namespace: int, after: bytes, limit: int) -> list[Change]:
        """Return up to ``limit`` threads that changed after this cursor (``b""``: all), oldest change first.

        Each thread appears once, with its newest version. A page is final: nothing appears later before its
        end, so the last cursor of a page is where the next one continues.
        """
        return await self._feed(Feed(HEAD.number, namespace, after, limit))

    async def newest_cursor(self, namespace: int) -> bytes:
        """Return the cursor of the last change, ``b""`` if there was none."""
        page = await self._feed(Feed(HEAD.number, namespace, b"", 1, reverse=True))
        return page[0].cursor if page else b""

    async def recent(self, namespace: int, before: bytes, limit: int) -> list[Change]:
        """Return up to ``limit`` live threads, the most recently changed first, before this cursor."""
        found: list[Change] = []
        while len(found) < limit:
            page = await self._feed(Feed(HEAD.number, namespace, before, limit, reverse=True))
            found += [change for change in page if change.head is not None]
            if len(page) < limit:
                break
            before = page[-1].cursor
        return found[:limit]

    async def _feed(self, query: Feed) -> list[Change]:
        (found,) = await self._store.read([query])
        return [
            Change(stamp, decode_name(at), None if content is None else decode_head(content))
            for stamp, at, content in found
        ]
