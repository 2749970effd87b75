# Generated from src/everthread/knowledge/aio/knowledge.py by tools/twin.py: change that, then run: make twin
"""``store.knowledge``: texts with embeddings, found by nearness and by metadata in one query."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from everthread.arguments import check_name
from everthread.errors import InvalidValueError
from everthread.knowledge.passages import (
    LIMIT_MAX,
    Passage,
    checked_embedding,
    checked_metadata,
    checked_text,
    elsewhere,
    listed,
)
from everthread.threads.sync.core import Core


class Knowledge:
    """The knowledge of a store in PostgreSQL. Raises :class:`UnsupportedError` on other stores."""

    def __init__(self, core: Core) -> None:
        self._core = core
        backend: Any = core.backend
        if not hasattr(backend, "add_knowledge"):
            raise elsewhere(backend.url)
        self._backend = backend

    def add(
        self,
        text: str,
        embedding: Iterable[float],
        metadata: Mapping[str, Any] | None = None,
        *,
        id: str | None = None,
    ) -> str:
        """Keep a text with its embedding and plain JSON metadata; under an ``id``, in place of what that had.

        Returns the id. Raises :class:`InvalidValueError` for anything personal: most of a text can be made
        out from its embedding.
        """
        text = checked_text(text)
        numbers = checked_embedding(embedding)
        about = checked_metadata(metadata, self._core.limits)
        key = self._core.runtime.random_bytes(16).hex() if id is None else check_name(id, "knowledge id")
        self._backend.add_knowledge(self._core.space, key, text, about, listed(numbers, "{}"))
        return key

    def search(
        self, embedding: Iterable[float], where: Mapping[str, Any] | None = None, limit: int = 10
    ) -> list[Passage]:
        """The passages nearest to an embedding, nearest first, among those whose metadata hold ``where``."""
        numbers = checked_embedding(embedding)
        held = checked_metadata(where, self._core.limits, "where").encode()
        if not isinstance(limit, int) or not 1 <= limit <= LIMIT_MAX:
            raise InvalidValueError(f"limit is between 1 and {LIMIT_MAX:,}", path="limit")
        rows = self._backend.find_knowledge(
            self._core.space, listed(numbers, "[]"), len(numbers), held, limit
        )
        return [
            Passage(id=key, text=text, metadata=json.loads(metadata), distance=distance)
            for key, text, metadata, distance in rows
        ]

    def remove(self, id: str) -> bool:
        """Remove what is kept under an id. False if there is nothing."""
        return bool(self._backend.remove_knowledge(self._core.space, check_name(id, "knowledge id")))
