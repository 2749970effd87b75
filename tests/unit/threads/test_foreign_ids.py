"""Ids that somebody else committed are known after catching up, without reading the log's tail again."""

from __future__ import annotations

from pathlib import Path

import pytest

import everthread
from everthread.errors import EverthreadError
from everthread.testing.faults import Call, wrap_every_backend, wrapped


def test_a_handle_that_catches_up_learns_the_ids(tmp_path: Path) -> None:
    calls: list[str] = []
    url = f"sqlite:///{tmp_path}/store.db"
    with everthread.open(url, durability="process") as elsewhere:
        other = elsewhere.thread("a")
        other.messages.append({"id": "m0", "n": 0})
        other.commit()

        def told(call: Call) -> None:
            if call.moment == "before":
                calls.append(call.verb)

        with (
            wrap_every_backend(lambda backend: wrapped(backend, told)),
            everthread.open(url, durability="process") as store,
        ):
            mine = store.thread("a")
            mine.messages.append({"id": "m1", "n": 1})
            mine.commit()
            for number in range(2, 40, 2):
                other.refresh()
                other.messages.append({"id": f"m{number}", "n": number})
                other.commit()
                calls.clear()
                mine.refresh()
                mine.messages.append({"id": f"m{number + 1}", "n": number + 1})
                mine.commit()
                assert "fingerprints" not in calls
                assert "tail" not in calls
            # What the other wrote under an id counts: the same again changes nothing, another is refused.
            mine.messages.append({"id": "m30", "n": 30})
            assert not mine.dirty
            with pytest.raises(EverthreadError):
                mine.messages.append({"id": "m30", "n": -1})
            assert [item["n"] for item in mine.messages] == list(range(40))
