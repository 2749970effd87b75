"""Bringing the documents up to date that can be queried in SQL: ``everthread.documents``."""

from __future__ import annotations

from typing import Any

from everthread.knowledge.passages import as_json, elsewhere
from everthread.threads.aio.store import AsyncThreadStore

_PAGE = 200


async def refresh_documents(store: AsyncThreadStore) -> int:
    """Put the newest document of every thread that has changed where it can be queried; how many.

    Never part of a commit. Raises :class:`UnsupportedError` on other stores than PostgreSQL.
    """
    core = store.core
    backend: Any = core.backend
    if not hasattr(backend, "stale_documents"):
        raise elsewhere(backend.url)
    done, after = 0, ""
    while stale := await backend.stale_documents(core.space, after, _PAGE):
        for line, name in stale:
            thread = await store.thread(name)
            head, memo = thread.head, thread._memo
            if head is not None and memo is not None and thread._line is not None and thread._line.id == line:
                document = as_json(thread.state.plain())
                await backend.put_document(line, head.seq, memo.hash, head.at_us, document)
                done += 1
        after = stale[-1][1]
    return done
