"""What knowledge is made of, and the rules for what may become part of it."""

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

from everthread.codec.lowering import lower
from everthread.errors import InvalidValueError, UnsupportedError
from everthread.limits import Limits
from everthread.values import Erased, Personal, Tagged

DIMENSIONS_MAX = 16_000
LIMIT_MAX = 10_000


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


# ── documents as JSON ────────────────────────────────────────────────────────────────────────────


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
