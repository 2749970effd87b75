"""What ``status`` reads: a look-up per thread in pages, and more only about those it shows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import everthread
from everthread.cli.context import Invocation
from everthread.cli.status import overview
from everthread.stores.contract import Backend
from everthread.stores.sqlite.store import SqliteBackend

LIMIT = 20
PAGE = 200
READING = sorted(
    name
    for name in vars(Backend)
    if not name.startswith("_") and callable(getattr(SqliteBackend, name, None)) and name != "close"
)


def counted(url: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Counter[str], int]:
    """How often each verb of the store is called by ``status``, and how many lines it is given in all."""
    calls: Counter[str] = Counter()
    lines = 0

    def spy(name: str) -> None:
        verb = getattr(SqliteBackend, name)

        def called(*arguments: object, **named: object) -> object:
            nonlocal lines
            calls[name] += 1
            found = verb(*arguments, **named)
            lines += len(found) if name == "lines" else 0
            return found

        monkeypatch.setattr(SqliteBackend, name, called)

    for name in READING:
        spy(name)
    call = Invocation()
    call.url = url
    assert overview(call, "", LIMIT, everything=False) == 0
    monkeypatch.undo()
    return calls, lines


@pytest.mark.parametrize("count", [100, 2_000])
def test_a_large_store_is_listed_in_pages(
    tmp_path: Path, count: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path}/agent.db"
    with everthread.open(url, durability="process") as store:
        for number in range(count):
            thread = store.thread(f"bot {number:05}")
            thread.state["n"] = number
            thread.commit()
        for number in range(3):
            # A long past, which nothing of this reads.
            thread = store.thread(f"bot {number:05}")
            for step in range(150):
                thread.state["step"] = step
                thread.commit()
        store.session("agent").close()
    calls, lines = counted(url, monkeypatch)
    assert f"bot {count - 1:05}" in capsys.readouterr().out
    assert lines == count + 1
    assert calls.pop("lines") <= -(-lines // PAGE) + 1
    assert calls.pop("erasures") == 1
    # For each thread that is shown: itself, its journal, and the lease, by which alone a run may be known.
    assert calls.pop("find") == 2 * LIMIT + 1
    assert calls.pop("cell") == LIMIT
    assert sum(calls.values()) <= 4, calls
