"""From a URL to the settings of a store in PostgreSQL.

The URL is libpq's: whatever it understands, it gets, character for character. Only a few options of our own,
none of which libpq has, are taken out of the query before.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

from everthread.errors import InvalidValueError

DEFAULT_SCHEMA = "everthread"
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")
#: Options of ours, each with its default.
_NUMBERS = {
    "pool_max": 8,
    "pool_wait_ms": 30_000,
    "statement_timeout_ms": 30_000,
    "lock_timeout_ms": 10_000,
    "retry_ms": 10_000,
    "partitions": 0,
}
_TEXTS = {"schema": DEFAULT_SCHEMA, "listen": ""}
POOL_LIMIT = 1_000
PARTITIONS_LIMIT = 1_024


class Settings(NamedTuple):
    """Where a store is and how to get there. ``conninfo`` goes to libpq as it is.

    ``listen`` is the URL of a direct connection for notifications where ``conninfo`` leads to a pooler, or
    ``off``.
    """

    conninfo: str
    shown: str
    schema: str
    durable: bool
    pool_max: int
    pool_wait_s: float
    statement_timeout_ms: int
    lock_timeout_ms: int
    retry_s: float
    partitions: int
    listen: str

    @property
    def quoted_schema(self) -> str:
        # Checked when it was read: it holds nothing that would need more than this.
        return f'"{self.schema}"'


def read_settings(url: str, durability: str) -> Settings:
    """The settings that a URL means. Raises :class:`InvalidValueError` for a value that can't be."""
    before, question, query = url.partition("?")
    own: dict[str, str] = {}
    kept = []
    for part in query.split("&") if question else ():
        key, equals, value = part.partition("=")
        if equals and (key in _NUMBERS or key in _TEXTS):
            own[key] = unquote(value)
        else:
            kept.append(part)
    conninfo = f"{before}?{'&'.join(kept)}" if kept else before
    numbers = {key: _number(key, own.get(key), default) for key, default in _NUMBERS.items()}
    texts = {key: own.get(key, default) for key, default in _TEXTS.items()}
    if not _SCHEMA.fullmatch(texts["schema"]):
        raise InvalidValueError(
            f"schema={texts['schema']!r}: a schema is named with lower-case letters, digits and _, at most 63"
        )
    if not 1 <= numbers["pool_max"] <= POOL_LIMIT:
        raise InvalidValueError(f"pool_max is between 1 and {POOL_LIMIT}, not {numbers['pool_max']}")
    if numbers["partitions"] > PARTITIONS_LIMIT:
        raise InvalidValueError(f"partitions is at most {PARTITIONS_LIMIT}, not {numbers['partitions']}")
    return Settings(
        conninfo=conninfo,
        shown=_shown(before, texts["schema"]),
        schema=texts["schema"],
        durable=durability == "full",
        pool_max=numbers["pool_max"],
        pool_wait_s=numbers["pool_wait_ms"] / 1000,
        statement_timeout_ms=numbers["statement_timeout_ms"],
        lock_timeout_ms=numbers["lock_timeout_ms"],
        retry_s=numbers["retry_ms"] / 1000,
        partitions=numbers["partitions"],
        listen=texts["listen"],
    )


def _number(key: str, given: str | None, default: int) -> int:
    if given is None:
        return default
    if not given.isascii() or not given.isdigit() or len(given) > 9:
        raise InvalidValueError(f"{key}={given!r}: a whole number, not negative")
    return int(given)


def _shown(before: str, schema: str) -> str:
    """The place of a store without secrets: no user, no password, no options."""
    try:
        parts = urlsplit(before)
        hosts = parts.netloc.rpartition("@")[2]
        place = urlunsplit(("postgresql", hosts, parts.path, "", ""))
    except ValueError:
        place = "postgresql://"
    if place.startswith("postgresql:/") and not place.startswith("postgresql://"):
        place = place.replace("postgresql:/", "postgresql:///", 1)
    return place if schema == DEFAULT_SCHEMA else f"{place}?schema={schema}"
