"""Exports and copies while others redact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread.transfer import exporter


@pytest.mark.parametrize("before", [True, False], ids=["again", "for the first time"])
def test_no_version_goes_out_without_the_record_of_its_redaction(
    before: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record of earlier redactions has its turn, and then another process redacts what comes after it."""
    url = f"sqlite:///{tmp_path}/store.db"
    with everthread.open(url) as store, everthread.open(url) as other:
        for name in ("a", "b"):
            thread = store.thread(name)
            thread.messages.append({"content": f"a secret of {name}"})
            thread.commit()
            if before:
                store.redact("a secret of a")
        store.events("tasks").append("made", {"by": "a secret of b"})
        line, done = exporter.Exporter._line, list[str]()

        def meanwhile(self: Any, found: Any) -> Any:
            if found.name == "b" and not done:
                done.append("b")
                other.redact("secret")
            yield from line(self, found)

        monkeypatch.setattr(exporter.Exporter, "_line", meanwhile)
        store.export(tmp_path / "all.everthread")
        assert done
    with everthread.open(f"sqlite:///{tmp_path}/new.db") as new:
        new.import_from(tmp_path / "all.everthread")
        report = new.verify()
        assert report, report.damage
        assert new.thread("b").messages[0]["content"] == "a [redacted] of b"
        assert next(iter(new.events("tasks").replay())).data == {"by": "a [redacted] of b"}
