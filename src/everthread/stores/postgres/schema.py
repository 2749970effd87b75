"""The SQL of the PostgreSQL store: statements by name, and the migrations that make its tables.

It lies in the ``.sql`` files beside this module, written for the schema ``everthread``; another name is put
in its place when the text is read.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

from everthread.stores.resources import read_sections

#: Entry n brings a schema from version n to n + 1: the files whose sections are run, in their order.
#: Append only; never edit a released one.
MIGRATIONS: tuple[tuple[str, ...], ...] = (("tables.sql", "functions.sql", "tenants.sql"),)
#: Kept in the table ``format``.
SCHEMA_VERSION = len(MIGRATIONS)

#: One instance migrates at a time: the key of an advisory lock, together with the schema's name.
MIGRATION_LOCK = 0x45565448

_COMMENT = re.compile(r"^--.*\n?", re.MULTILINE)


def _read(file: str, schema: str) -> dict[str, str]:
    """The sections of a file for a schema, whose name has been checked and quoted."""
    return {
        name: _COMMENT.sub("", text)
        .strip()
        .replace("everthread.", f"{schema}.")
        .replace(" everthread ", f" {schema} ")
        for name, text in read_sections(__package__, file).items()
    }


@functools.lru_cache(maxsize=16)
def statements(schema: str) -> Mapping[str, bytes]:
    """Every statement that is run on a store, by name."""
    found = {**_read("statements.sql", schema), **_read("upkeep.sql", schema)}
    return {name: text.encode() for name, text in found.items()}


def migration(number: int, schema: str, partitions: int) -> list[str]:
    """The texts that bring a schema from version ``number`` to the next one."""
    left_out = "without partitions" if partitions else "with partitions"
    divided = "PARTITION BY HASH (root)" if partitions else ""
    return [
        text.replace("/*partitioned*/", divided)
        for file in MIGRATIONS[number]
        for name, text in _read(file, schema).items()
        if name != left_out
    ]
