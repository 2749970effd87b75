"""Which statements a SQLite store runs."""

from __future__ import annotations

import everthread


def traced(store: everthread.Store) -> list[str]:
    """How the statements begin that the writer runs from now on."""
    seen: list[str] = []
    writer = store.core.backend._connections._writer  # type: ignore[attr-defined]

    def note(_: object, sql: str, __: object) -> bool:
        seen.append(sql.split(maxsplit=1)[0])
        return True

    writer.exec_trace = note
    return seen
