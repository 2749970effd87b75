"""Threads that are rewound again and again: what opening them reads is counted, and what rewinding reads."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread.testing.faults import VERBS

URLS = {"memory": "memory:", "sqlite": "sqlite:///{}/s.db", "files": "file://{}/store"}


def count_rows(store: everthread.Store, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many rows each verb of the store beneath hands out, from now on."""
    backend: Any = store.core.backend
    found: Counter[str] = Counter()

    def watch(name: str) -> None:
        real = getattr(backend, name)

        def counting(*args: Any, **options: Any) -> Any:
            answer = real(*args, **options)
            found[name] += len(answer) if isinstance(answer, list) else 1
            return answer

        monkeypatch.setattr(backend, name, counting)

    for name in VERBS:
        if name not in ("close", "every_line"):
            watch(name)
    return found


@pytest.mark.parametrize(("kind", "rewinds"), [("memory", 10_000), ("sqlite", 10_000), ("files", 2_000)])
@pytest.mark.parametrize("between", [0, 1], ids=["nothing between", "a commit between"])
def test_opening_reads_as_few_rows_after_any_number_of_rewinds(
    kind: str, rewinds: int, between: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = everthread.open(
        URLS[kind].format(tmp_path), **({} if kind == "memory" else {"durability": "process"})
    )
    thread, targets = store.thread("t"), []
    for number in range(5):
        thread.state["n"] = number
        thread.messages.append({"id": f"m{number}"})
        targets.append(thread.commit())
    rows = count_rows(store, monkeypatch)
    for number in range(rewinds):
        thread.rewind(targets[number % 5])
        for _ in range(between):
            thread.state["n"] = 1_000 + number
            thread.messages.append({"id": f"x{number}"})
            thread.commit()
    assert rows["append"] == rewinds * (1 + between)
    # Whatever was folded was read for it once, or not much more often.
    assert rows["tail"] <= 3 * rows["append"], rows
    assert rows["replay"] + rows["scan"] <= 3 * rows["append"], rows
    monkeypatch.undo()
    if kind == "memory":
        store.core.head_cache.__init__()
    else:
        store.close()
        store = everthread.open(URLS[kind].format(tmp_path))
    rows = count_rows(store, monkeypatch)
    again = store.thread("t")
    last = (rewinds - 1) % 5
    assert again.state["n"] == (999 + rewinds if between else last)
    assert len(again.messages) == last + 1 + between
    assert again.messages[-1]["id"] == (f"x{rewinds - 1}" if between else f"m{last}")
    assert again.head.seq == 5 + rewinds * (1 + between)
    assert sum(rows.values()) <= 12, rows
    store.close()
