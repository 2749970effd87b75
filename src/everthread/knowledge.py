"""What can be asked of a store in PostgreSQL besides threads: texts by their embeddings, documents in SQL."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, NoReturn
from uuid import UUID

import msgspec

from everthread.arguments import check_name
from everthread.codec.lowering import lower
from everthread.errors import InvalidValueError, UnsupportedError
from everthread.limits import Limits
from everthread.threads.sync.core import Core
from everthread.threads.sync.store import ThreadStore
from everthread.values import Erased, Personal, Tagged

DIMENSIONS_MAX = 16_000
LIMIT_MAX = 10_000
_PAGE = 200


class Knowledge:
    """The knowledge of a store in PostgreSQL. Raises :class:`UnsupportedError` on other stores."""

    def __init__(self, core: Core) -> None:
        self.core = core
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
        about = checked_metadata(metadata, self.core.limits)
        key = self.core.runtime.random_bytes(16).hex() if id is None else check_name(id, "knowledge id")
        self._backend.add_knowledge(self.core.space, key, text, about, listed(numbers, "{}"))
        return key

    def search(
        self, embedding: Iterable[float], where: Mapping[str, Any] | None = None, limit: int = 10
    ) -> list[Passage]:
        """The passages nearest to an embedding, nearest first, among those whose metadata hold ``where``."""
        numbers = checked_embedding(embedding)
        held = checked_metadata(where, self.core.limits, "where").encode()
        if not isinstance(limit, int) or not 1 <= limit <= LIMIT_MAX:
            raise InvalidValueError(f"limit is between 1 and {LIMIT_MAX:,}", path="limit")
        rows = self._backend.find_knowledge(self.core.space, listed(numbers, "[]"), len(numbers), held, limit)
        return [
            Passage(id=key, text=text, metadata=json.loads(metadata), distance=distance)
            for key, text, metadata, distance in rows
        ]

    def remove(self, id: str) -> bool:
        """Remove what is kept under an id. False if there is nothing."""
        return bool(self._backend.remove_knowledge(self.core.space, check_name(id, "knowledge id")))


class AsyncKnowledge:
    """What ``store.knowledge`` is in an async store: the verbs of :class:`Knowledge`, awaited."""

    def __init__(self, store: Any) -> None:
        if not hasattr(store.core.backend.blocking, "add_knowledge"):
            raise elsewhere(store.url)
        self._store = store

    async def add(
        self,
        text: str,
        embedding: Iterable[float],
        metadata: Mapping[str, Any] | None = None,
        *,
        id: str | None = None,
    ) -> str:
        """As :meth:`Knowledge.add`."""
        key: str = await self._store._run(lambda store: store.knowledge.add(text, embedding, metadata, id=id))
        return key

    async def search(
        self, embedding: Iterable[float], where: Mapping[str, Any] | None = None, limit: int = 10
    ) -> list[Passage]:
        """As :meth:`Knowledge.search`."""
        found: list[Passage] = await self._store._run(
            lambda store: store.knowledge.search(embedding, where, limit)
        )
        return found

    async def remove(self, id: str) -> bool:
        """As :meth:`Knowledge.remove`."""
        removed: bool = await self._store._run(lambda store: store.knowledge.remove(id))
        return removed


class Passage(msgspec.Struct, frozen=True, kw_only=True):
    """Something that was found. ``distance`` is the cosine distance: 0 for the same direction, 2 for the
    opposite one."""

    id: str
    text: str
    metadata: Mapping[str, Any]
    distance: float


def elsewhere(url: str) -> UnsupportedError:
    """What a store says that isn't in PostgreSQL."""
    kind = url.partition(":")[0]
    return UnsupportedError(
        f"a {kind}: store has neither knowledge nor documents for SQL; open one at postgresql://…, with "
        "the extension pgvector for embeddings, and bring the threads there with store.copy_to()"
    )


# ── documents in SQL ────────────────────────────────────────────────────────────────────────────────────


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
            version, handle = thread.head, thread.handle
            if version is None or handle.head is None or handle.line is None:
                continue
            if handle.line.id == line:
                document = as_json(thread.state.plain())
                backend.put_document(line, version.seq, handle.head.hash, version.at_us, document)
                done += 1
        after = stale[-1][1]
    return done


def as_json(document: Any) -> bytes:
    """A document as JSON that PostgreSQL takes. What is sealed stays so; what JSON lacks is shown as text."""
    return json.dumps(_plain(document), allow_nan=False).replace("\\u0000", "\\ufffd").encode()


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Personal | Erased):
        return {"personal": isinstance(value, Personal)}
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, Mapping):
        return {str(_plain(key)): _plain(entry) for key, entry in value.items()}
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, list | tuple | set | frozenset):
        entries = [_plain(entry) for entry in value]
        return sorted(entries, key=repr) if isinstance(value, set | frozenset) else entries
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    return {"type": type(value).__name__}


# ── what may become knowledge ───────────────────────────────────────────────────────────────────────────


def _personal(_: Personal) -> NoReturn:
    raise InvalidValueError(
        "knowledge is kept in clear, and most of a text can be made out from its embedding: what "
        "belongs to a person can't become part of it. Leave it out, or keep it in a thread as Personal",
        path="knowledge",
    )


def checked_text(text: Any) -> str:
    if isinstance(text, Personal | Erased):
        _personal(text)  # type: ignore[arg-type]
    if not isinstance(text, str) or not text:
        raise InvalidValueError("the text of knowledge is a non-empty str", path="text")
    return _clean(text, "text")


def _clean(text: str, path: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidValueError(f"{path} isn't valid Unicode", path=path) from None
    if "\0" in text:
        raise InvalidValueError(f"{path} holds NUL, which PostgreSQL can't keep in text", path=path)
    return text


def checked_metadata(metadata: Mapping[str, Any] | None, limits: Limits, path: str = "metadata") -> str:
    """Metadata as JSON."""
    if metadata is None:
        return "{}"
    if not isinstance(metadata, Mapping) or not all(isinstance(key, str) for key in metadata):
        raise InvalidValueError(f"{path} must be a dictionary with text keys", path=path)
    lowered = lower(metadata, limits=limits, seal=_seal, root=path)
    try:
        text = json.dumps(lowered, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise InvalidValueError(f"{path} must be plain JSON: {error}", path=path) from error
    # Written by json.dumps(): as an escape, with one backslash.
    if "\\u0000" in text:
        raise InvalidValueError(f"{path} holds NUL, which PostgreSQL can't keep in JSON", path=path)
    return _clean(text, path)


def _seal(personal: Personal) -> Tagged:
    _personal(personal)


def checked_embedding(embedding: Iterable[float]) -> list[float]:
    try:
        numbers = [float(number) for number in embedding]
    except (TypeError, ValueError) as error:
        raise InvalidValueError(
            f"an embedding is a sequence of numbers: {error}", path="embedding"
        ) from error
    if not 1 <= len(numbers) <= DIMENSIONS_MAX:
        raise InvalidValueError(
            f"an embedding has 1 to {DIMENSIONS_MAX:,} numbers, not {len(numbers)}", path="embedding"
        )
    if not all(math.isfinite(number) and abs(number) < 3e38 for number in numbers):
        raise InvalidValueError("the numbers of an embedding are finite 32-bit floats", path="embedding")
    return numbers


def listed(numbers: list[float], brackets: str) -> str:
    """Numbers as an array ({}) or a vector ([])."""
    return brackets[0] + ",".join(map(repr, numbers)) + brackets[1]
