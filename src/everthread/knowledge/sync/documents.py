# Generated from src/everthread/knowledge/aio/documents.py by tools/twin.py: change that, then run: make twin
"""Bringing the documents up to date that can be queried in SQL: ``everthread.documents``."""

from __future__ import annotations

from typing import Any

from everthread.knowledge.passages import as_json, elsewhere
from everthread.threads.sync.store import ThreadStore

_PAGE = 200


def refresh_documents(store: ThreadStore) -> int:
    """Put the newest document of every thread that has changed where it can be queried; how many.

    Never part of a commit. Raises :class:`UnsupportedError` on other stores than PostgreSQL.
    """
    core = store.core
    backend: Any = core.backend
    if not hasattr(backend, "stale_documents"):
        raise elsewhere(backend.url)
    done, after = 0, ""
    while stale := backend.stale_documents(core.space, after, _PAGE):
        for line, name in stale:
            thread = store.thread(name)
            head, memo = thread.head, thread._memo
            if head is not None and memo is not None and thread._line is not None and thread._line.id == line:
                document = as_json(thread.state.plain())
                backend.put_document(line, head.seq, memo.hash, head.at_us, document)
                done += 1
        after = stale[-1][1]
    return done
