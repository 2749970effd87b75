"""Versions that were pruned in one store while another still has them as its newest."""

from __future__ import annotations

from pathlib import Path

import pytest

import everthread
from everthread.errors import ThreadExistsError


def test_what_helps_is_told(tmp_path: Path) -> None:
    def store(name: str) -> everthread.Store:
        return everthread.open(f"sqlite:///{tmp_path}/{name}.db", durability="process", keyring="memory:")

    with store("source") as source, store("target") as target, store("empty") as empty:
        thread = source.thread("bot")
        for number in range(60):
            thread.state["n"] = number
            thread.commit()
            if number == 29:
                source.copy_to(target)
        source.gc(everthread.Retention(keep_last=3))
        with pytest.raises(ThreadExistsError, match="an empty store takes all that is left"):
            source.copy_to(target)
        assert target.thread("bot").state["n"] == 29
        source.copy_to(empty)
        assert empty.thread("bot").state["n"] == 59
        assert empty.verify().ok
