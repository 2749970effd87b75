"""Keyrings in SQLite files that several processes change at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everthread.errors import StoreBusyError
from everthread.keyring import master
from everthread.keyring.keyring import StoreKeyring


class Killed(BaseException):
    """The process is gone: no handler of ours catches this."""


@pytest.fixture
def keyrings(tmp_path: Path) -> Iterator[list[StoreKeyring]]:
    """Two that are two processes to each other, with the keys of three people."""
    found = [StoreKeyring(f"sqlite:///{tmp_path}/keys.db", lock_timeout_ms=50) for _ in range(2)]
    for name in ("ann", "bob", "cid"):
        found[0].key_for(name)
    found[1].key_ids("bob")
    yield found
    for keyring in found:
        keyring.close()


def test_two_destructions_lose_no_key(
    keyrings: list[StoreKeyring], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one comes after the new lines of the first, before its new master key, and is killed."""
    first, second = keyrings
    known, calls, overwrite = first.key_for("cid"), [], master.overwrite

    def killed(_: Any) -> Any:
        raise Killed

    def meanwhile(fd: int) -> None:
        if not calls:
            calls.append("once")
            monkeypatch.setattr(second._medium, "replace", killed)
            with pytest.raises((StoreBusyError, Killed)):
                second.destroy("bob")
        overwrite(fd)

    monkeypatch.setattr(master, "overwrite", meanwhile)
    first.destroy("ann")
    assert calls
    third = StoreKeyring(f"sqlite:///{tmp_path}/keys.db")
    assert third.key_for("cid") == known, "the key of somebody whom nobody destroyed"
    assert not third.key_ids("ann")
    assert third.key_ids("bob")
    third.close()


def test_who_reads_during_a_destruction_waits(
    keyrings: list[StoreKeyring], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lines are new and the master key isn't in its place yet: neither may be seen without the other."""
    first, _ = keyrings
    known, seen, rename = first.key_for("cid"), [], master.os.rename

    def meanwhile(source: Any, target: Any) -> None:
        if str(source).endswith(".next"):
            third = StoreKeyring(f"sqlite:///{tmp_path}/keys.db", lock_timeout_ms=50)
            candidates = third._masters.candidates

            def one_by_one(header: Any) -> Iterator[tuple[bytes, bool]]:
                for candidate in candidates(header):
                    if not seen:
                        # Between the two files that it looks at.
                        seen.append("moved")
                        rename(source, target)
                    yield candidate

            monkeypatch.setattr(third._masters, "candidates", one_by_one)
            try:
                assert third.key_for("cid") == known
            except StoreBusyError:
                seen.append("waited")
            third.close()
            if "moved" in seen:
                return
        rename(source, target)

    monkeypatch.setattr(master.os, "rename", meanwhile)
    first.destroy("ann")
    assert seen == ["waited"]
    assert first.key_for("cid") == known
